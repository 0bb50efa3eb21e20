"""Tuning on this machine: sources of a known speed, and the command."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Run, make_images, write
from hypothesis import given
from hypothesis import strategies as st

import shardkit
from shardkit import Loader
from shardkit.errors import StorageError, UsageError
from shardkit.loading import auto
from shardkit.loading.settings import Settings
from shardkit.measure import tuning as module
from shardkit.measure.race import footprint
from shardkit.measure.timing import Work, spread
from shardkit.measure.tuning import (
    Epoch,
    Tuning,
    batches_per_s,
    least_batches,
    num_ahead,
    tune,
    unsure,
)
from shardkit.system.resources import Allowance

FOUND = Allowance("Some CPU", 2, None, 10**12, 10**12, None)


class Numbers:
    """A source whose every batch takes so long, with nothing to do meanwhile."""

    def __init__(self, load_s: float = 0.0, num: int = 4000) -> None:
        self.load_s = load_s
        self.num = num

    def __len__(self) -> int:
        return self.num

    def read(self, rows: Any) -> dict[str, Any]:
        time.sleep(self.load_s)
        return {"row": rows}


def drawing(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "noise": random.random()}


def with_function(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "function": lambda: None}


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short trials on two cores, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(module, "SHORTEST_TRIAL_S", 0.01)
    monkeypatch.setattr(module, "WILD", 1e9)  # tests run on busy machines
    monkeypatch.setattr(module, "ENOUGH_ROUNDS", 0)
    set_machine(monkeypatch, FOUND)


def set_machine(monkeypatch: pytest.MonkeyPatch, found: Allowance) -> None:
    monkeypatch.setattr(module, "allowance", lambda: found)
    monkeypatch.setattr(auto, "allowance", lambda: found)


def tuned(source: Any, batch_size: int = 4, **options: Any) -> Tuning:
    return tune(source, batch_size, **{"seconds": 1.0, **options})


def tried(found: Tuning) -> set[str]:
    return {trial.settings for trial in found.trials}


Simulate = Callable[[Callable[[Settings], float]], None]


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch) -> Simulate:
    """Says how long a batch takes, instead of loading any."""

    def simulate(load_s: Callable[[Settings], float]) -> None:
        def timed(self: Any, one: Settings, seconds: float) -> Work:
            return Work(self.batch_size, seconds=load_s(one), cache="warm")

        monkeypatch.setattr(module.Workload, "timed", timed)

    return simulate


def side_by_side(one: Settings) -> float:
    """Workers that do not get in each other's way."""
    return 0.02 / max(1, one.workers)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tune")
    shardkit.pack(
        make_images(root / "source"), root / "packed", to="npy", workers=0, progress=False
    )
    return root / "packed"


# --- the choice ---------------------------------------------------------------------------


def test_workers_where_they_help(simulate: Simulate) -> None:
    simulate(side_by_side)
    found = tuned(Numbers())
    assert found.settings == Settings(3, "thread", 2)
    assert found.samples_per_s == pytest.approx(600)
    assert tried(found) == {
        *(f"{num} thread{'s' * (num > 1)}, prefetch 2" for num in (1, 2, 3)),
        *(f"{num} process{'es' * (num > 1)}, prefetch 2" for num in (1, 2, 3)),
        *(f"3 threads, prefetch {num}" for num in (4, 8)),
    }
    assert found.trials[0].samples_per_s == pytest.approx(600)
    assert found.trials[-1].samples_per_s == pytest.approx(200)
    assert found.left_out == [] and found.cache == "warm"
    assert found.line == 'workers=3, worker_type="thread", prefetch=2'


def test_the_gain_is_over_what_auto_took_before(simulate: Simulate, folder: Path) -> None:
    simulate(lambda one: side_by_side(one) * (1 + 0.4 / one.prefetch))
    found = tuned(folder)
    assert found.current == Settings(1, "thread", 2), "by rule"
    assert found.gain is not None
    assert found.gain.median == pytest.approx(3 * 1.2 / 1.05)
    again = tuned(folder)
    assert again.settings == again.current == found.settings and again.gain is None


def test_a_choice_that_is_slower_next_to_the_current_settings_is_none(
    simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the machine was busy with others in the race."""
    simulate(side_by_side)
    monkeypatch.setattr(module.Tuner, "gain", lambda self, best, current: spread([0.8] * 6))
    found = tuned(Numbers())
    assert found.settings == found.current == Settings(1) and found.gain is None
    assert found.notes[0].startswith("the current settings stay: 3 threads, prefetch 2 won, but")


def test_processes_and_depth_where_they_help(simulate: Simulate) -> None:
    simulate(
        lambda one: (
            side_by_side(one)
            * (1.0 if one.worker_type == "process" else 1.2)
            * (1 + 0.4 / one.prefetch)
        )
    )
    assert tuned(Numbers()).settings == Settings(3, "process", 8)


def test_on_many_cores_the_gaps_are_looked_into(
    simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six of 16 is the best: between those that are tried at first."""
    set_machine(monkeypatch, replace(FOUND, cores=16))
    simulate(lambda one: 0.01 + 0.001 * abs(one.workers - 6))
    assert tuned(Numbers()).settings == Settings(6, "thread", 2)


def test_real_workers_on_real_waits() -> None:
    found = tuned(Numbers(0.02), seconds=2.0)
    rates = {trial.settings: trial.samples_per_s for trial in found.trials}
    assert {"1 thread, prefetch 2", "2 threads, prefetch 2"} <= rates.keys()
    assert min(rates.values()) > 0
    assert str(found.settings) in rates  # which is best, the simulated trials above say
    assert all(trial.low <= trial.samples_per_s <= trial.high for trial in found.trials)


def test_the_result_is_for_auto(simulate: Simulate, folder: Path, tmp_path: Path) -> None:
    simulate(side_by_side)
    found = tuned(folder, batch_size=5, shuffle="full")
    assert found.saved == str(tmp_path / "cache" / "shardkit" / "tune.json")
    loader = Loader(shardkit.open(folder), 5, workers="auto", shuffle="full")
    assert loader.settings == found.settings
    assert loader.settings.why == found.settings.why == "tuned on this machine"


def test_an_unsure_choice_replaces_nothing(
    simulate: Simulate, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(side_by_side)
    good = tuned(folder).settings
    monkeypatch.setattr(module, "WILD", 1.5)
    turns: dict[Settings, itertools.count[int]] = {}

    def every_other_round(one: Settings) -> float:
        turn = next(turns.setdefault(one, itertools.count()))
        return 0.02 * one.workers * (1 + 3 * (turn % 2))

    simulate(every_other_round)
    found = tuned(folder)
    assert found.settings != good and found.saved is None
    assert re.fullmatch(
        r"the choice is unsure, its rounds spread from 50 to 200 samples/s, and not kept for"
        r' workers="auto": more seconds, or a quieter machine, would make it surer',
        found.notes[-1],
    )
    assert Loader(shardkit.open(folder), 4, workers="auto").settings == good


def test_what_is_unsure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENOUGH_ROUNDS", 4)
    monkeypatch.setattr(module, "WILD", 1.5)
    assert unsure([1.0] * 3, is_short=True) == "it had 3 rounds only"
    assert unsure([1.0] * 3, is_short=False) == ""  # it won at once
    assert unsure([*[1.0] * 9, 0.1], is_short=False) == ""  # one stumble
    assert unsure([1.0, 4.0] * 5, is_short=False) == "its rounds spread from 1 to 4 samples/s"


def test_a_cache_that_cannot_be_written(simulate: Simulate, folder: Path, tmp_path: Path) -> None:
    simulate(side_by_side)
    write(tmp_path / "cache", "a file")
    with pytest.warns(UserWarning, match="Not a directory"):
        found = tuned(folder)
    assert found.saved is None
    assert found.notes[-1].startswith("the result was not kept: ")


# --- what cannot be ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transform", "chosen", "why"),
    [
        (drawing, Settings(3, "process"), "'thread': the transform draws from the global random"),
        (with_function, Settings(3), "'process': field 'function' cannot be sent from a worker"),
    ],
)
def test_kinds_that_are_refused_are_left_out(
    simulate: Simulate, transform: Any, chosen: Settings, why: str
) -> None:
    simulate(side_by_side)
    found = tuned(Numbers(), transform=transform)
    assert found.settings == chosen
    (reason,) = found.left_out
    assert reason.startswith(f"worker_type={why}")


def test_there_is_no_room(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 32 bytes."""
    simulate(lambda one: side_by_side(one) * (one.worker_type == "thread" or 0.25))
    set_machine(monkeypatch, replace(FOUND, shm_bytes=125))
    found = tuned(Numbers())
    assert found.settings == Settings(1, "process", 2)
    room = "more than 80 % of the 125 B free in /dev/shm"
    sizes = [("2 processes, prefetch 2", 192), ("3 processes, prefetch 2", 288),
             ("1 process, prefetch 4", 160), ("1 process, prefetch 8", 288)]  # fmt: skip
    assert found.left_out == [
        f"{words}: its batches would take {size} B, {room}" for words, size in sizes
    ]


def test_where_no_worker_has_room_the_loop_loads(
    simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(side_by_side)
    set_machine(monkeypatch, replace(FOUND, memory_bytes=200))
    found = tuned(Numbers())
    assert found.settings == Settings(0) and found.gain is None
    assert found.line == "workers=0"
    assert tried(found) == {"no worker"}


def test_a_worker_that_dies_is_left_out(simulate: Simulate) -> None:
    def dying(one: Settings) -> float:
        if one.workers == 3 and one.worker_type == "thread":
            raise StorageError("a worker ended by itself")
        return side_by_side(one) * (1 if one.worker_type == "thread" else 2)

    simulate(dying)
    found = tuned(Numbers())
    assert found.settings == Settings(2, "thread", 2)
    assert "3 threads, prefetch 2: a worker ended by itself" in found.left_out


def test_nothing_runs(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    def dying(self: Any, candidates: Any, rounds: int) -> Any:
        self.left_out["all"] = "no such disk"
        return {}

    simulate(side_by_side)
    monkeypatch.setattr(module.Tuner, "_time", dying)
    with pytest.raises(StorageError, match="nothing could be timed: no such disk"):
        tuned(Numbers())


def test_quotas_and_ranks_bound_the_workers(
    simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(side_by_side)
    set_machine(monkeypatch, replace(FOUND, cores=64, cpu_quota=1.5))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    found = tuned(Numbers())
    assert found.settings == Settings(1, "thread", 2)
    assert not any(text.startswith("2 ") for text in tried(found))
    assert "2 threads, prefetch 2: each of 2 processes has 1 of the 2 cores" in found.left_out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seconds": 0}, "seconds must be more than 0, and finite, got 0"),
        ({"workers": 2}, "tune takes no option 'workers'"),
        ({"colour": "red"}, "takes no option 'colour'"),
        ({"cold": True}, "cold: a Numbers does not say which files it reads"),
        ({"batch_size": 5000}, "4000 samples do not fill one batch of 5000"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tuned(Numbers(), **options)


# --- cold ---------------------------------------------------------------------------------


def test_what_does_not_fit_in_memory_is_cold(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[list[Path]] = []
    monkeypatch.setattr(module, "evict", lambda paths: dropped.append(paths) or 0.0)
    monkeypatch.setattr(module, "watch", lambda *given, **more: [])
    monkeypatch.setattr(module, "batches_per_s", lambda *given: 100.0)
    size = sum(path.stat().st_size for path in folder.iterdir())
    set_machine(monkeypatch, replace(FOUND, memory_bytes=size))
    assert tuned(folder).cache == "warm" and not dropped
    set_machine(monkeypatch, replace(FOUND, memory_bytes=size - 1))
    found = tuned(folder)
    assert found.cache == "cold"
    assert len(dropped) == 1 + sum(trial.rounds for trial in found.trials), "one to warm up"
    assert {path.name for path in dropped[0]} >= {"shardkit.json", "train-00000.jpg.npy"}
    monkeypatch.setattr(module, "evict", lambda paths: 0.5)
    found = tuned(folder, cold=True)
    assert found.cache == "unknown"
    assert any(note.startswith("not all files could be dropped") for note in found.notes)


# --- trials -------------------------------------------------------------------------------


def test_the_rate_of_whole_epochs_where_they_were_seen() -> None:
    epochs = [Epoch([0.1, 0.2], 0.4), Epoch([0.1, 0.2], 0.6), Epoch([0.1])]
    assert batches_per_s(epochs, 2, Settings(1)) == pytest.approx(4.0)


def test_the_rate_of_a_long_epoch_is_its_start_and_its_pace() -> None:
    """Two workers: batches come in pairs, every second, the first after three."""
    arrivals = [3.0, 3.0, 4.0, 4.0, 5.0, 5.0, 6.0, 6.0, 7.0]
    for seen in (4, 5, 8, 9):
        rate = batches_per_s([Epoch(arrivals[:seen])], 10_000, Settings(2))
        assert rate == pytest.approx(2.0, rel=0.01)
    assert batches_per_s([Epoch(arrivals)], 10, Settings(2)) == pytest.approx(10 / 7)
    assert batches_per_s([Epoch([1.0, 2.0, 3.0])], 5, Settings(0)) == pytest.approx(1.0)


@given(
    how=st.builds(
        Settings, st.integers(0, 9), st.sampled_from(["thread", "process"]), st.integers(1, 8)
    ),
    more=st.integers(0, 20),
    load_s=st.floats(0.001, 10),
    data=st.data(),
)
def test_the_pace_of_workers_in_step(
    how: Settings, more: int, load_s: float, data: st.DataObject
) -> None:
    """Whatever lay ready when the first was taken."""
    num = least_batches(how) + more
    ready = data.draw(st.integers(0, num_ahead(how)))
    side_by_side = max(1, how.workers)
    arrivals = [load_s * (1 + max(0, n - ready) // side_by_side) for n in range(num)]
    rate = batches_per_s([Epoch(arrivals)], 10**9, how)
    assert rate == pytest.approx(side_by_side / load_s, rel=1e-6)


def test_what_a_batch_takes() -> None:
    loader = Loader(Numbers(num=8), 8, transform=lambda sample: {**sample, "text": "four"})
    (batch,) = loader
    found = footprint({**batch, "raw": [b"123", None], "nested": {"a": (batch["row"],)}})
    assert found.batch_tensors == 2
    assert found.batch_bytes == 2 * 64 + 8 * 4 + 3 + 64


# --- the command --------------------------------------------------------------------------


def test_the_command(run: Run, simulate: Simulate, folder: Path, tmp_path: Path) -> None:
    simulate(side_by_side)
    got = run("tune", folder, "--seconds", 2, "--batch-size", 4, "--size", 16)
    assert got.code == 0 and got.err == ""
    head, *rest = got.out.splitlines()
    assert re.fullmatch(
        re.escape(str(folder)) + r": batches of 4, read from memory, on 2 of \d+ cores?, .+", head
    )
    assert rest[:5] == [
        "best: 3 threads, prefetch 2, 600 samples/s (6.67 ms a batch)",
        "  1.50 times as fast (1.50-1.50) as before, with 2 threads, prefetch 2",
        f'  ds = shardkit.open("{folder}")',
        '  loader = shardkit.Loader(ds, 4, shuffle="full", transform=shardkit.images.train(16),'
        ' workers=3, worker_type="thread", prefetch=2)',
        f'  kept for workers="auto", in {tmp_path}/cache/shardkit/tune.json',
    ]
    assert rest[5].startswith("tried, each in")
    assert rest[6].split() == ["samples/s", "low", "high", "rounds"]
    assert all(re.fullmatch(r"  .+?( +[\d,]+){4}", line) for line in rest[7:])
    names: dict[str, Any] = {"shardkit": shardkit}
    exec("\n".join(line.strip() for line in rest[2:4]), names)
    assert len(next(iter(names["loader"]))["image"]) == 4


def test_the_command_in_json(run: Run, simulate: Simulate, folder: Path, tmp_path: Path) -> None:
    simulate(side_by_side)
    got = run("tune", folder, "--read", "raw", "--seconds", 1, "--batch-size", 4, "--json",
              "--no-save", "--shuffle", "none")  # fmt: skip
    found = json.loads(got.out)
    assert set(found["settings"]) == {"workers", "worker_type", "prefetch", "why"}
    assert found["saved"] is None and not (tmp_path / "cache").exists()
    assert found["gain"] == {"median": 3.0, "low": 3.0, "high": 3.0, "is_sure": True}
    assert found["trials"][0]["samples_per_s"] > 0


def test_interrupted_it_leaves_nothing_running(folder: Path, tmp_path: Path) -> None:
    """A worker process has written its number when the command gets its Ctrl-C."""
    script = write(
        tmp_path / "tune.py",
        "import os, sys, time\n"
        "from shardkit.cli import main\n"
        "from shardkit.measure.tuning import Workload\n"
        "from shardkit.loading.settings import Settings\n"
        "timed = Workload.timed\n"
        "Workload.timed = lambda self, one, seconds: timed(\n"
        "    self, Settings(2, 'process'), 30.0)\n"
        "main()\n",
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, script, "tune", folder, "--read", "raw", "--batch-size", "4"]
    process = subprocess.Popen(
        command, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_until(lambda: process.poll() is not None or len(group_of(process.pid)) >= 3)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert said.splitlines()[-1].endswith("interrupted; nothing was kept")
    wait_until(lambda: not group_of(process.pid))
    assert not (tmp_path / "cache").exists()


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def group_of(number: int) -> list[int]:
    """Processes of a group that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(group) == number and state != "Z":
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--read", "tokens"], "holds cls, jpg, no tokens"),
        (["--seconds", -1], "seconds must be more than 0, and finite, got -1.0"),
        (["--split", "nope"], "has no split 'nope'"),
        (["--batch-size", 400], "36 samples do not fill one batch of 400"),
    ],
)
def test_errors_are_one_line(run: Run, folder: Path, options: list[Any], message: str) -> None:
    got = run("tune", folder, *options)
    assert got.code == 2 and got.out == ""
    assert got.err.startswith("shardkit: error: ") and got.err.count("\n") == 1
    assert message in got.err
