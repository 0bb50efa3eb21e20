"""Tuning on this machine: sources of a known speed, and the command."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clocks import SimulatedClock
from conftest import Run, make_images, write
from hypothesis import given
from hypothesis import strategies as st

import shardkit
from shardkit import Loader, images
from shardkit.cli.tune import _echo_headroom
from shardkit.errors import DataError, StorageError, UsageError
from shardkit.loading import auto
from shardkit.loading.settings import Settings
from shardkit.measure.doctor.run.examine import RunLimits
from shardkit.measure.report.words import amount
from shardkit.measure.timing import Work
from shardkit.measure.tune import headroom, tuner, workload
from shardkit.measure.tune import step as step_module
from shardkit.measure.tune import tuning as module
from shardkit.measure.tune.headroom import Headroom
from shardkit.measure.tune.space import Candidate
from shardkit.measure.tune.step import SPARE, advice, try_step, verdict
from shardkit.measure.tune.tuning import Tuning, tune, unsure
from shardkit.measure.tune.workload import (
    Epoch,
    LoopTimes,
    batches_per_s,
    footprint,
    least_batches,
    num_ahead,
    run_loop,
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
    monkeypatch.setattr(tuner, "SHORTEST_TRIAL_S", 0.01)
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


LoadS = Callable[[Candidate], float]
Simulate = Callable[[LoadS], None]
Loops = Callable[[LoopTimes], list[float]]


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch) -> Simulate:
    """Says how long a batch takes, instead of loading any."""

    def simulate(load_s: LoadS) -> None:
        def timed(self: Any, one: Candidate, seconds: float) -> Work:
            return Work(self.batch_size, seconds=load_s(one), cache="warm")

        monkeypatch.setattr(workload.Workload, "timed", timed)

    return simulate


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> Loops:
    """Says what a loop waited for, as was recorded of one, instead of running it; gives the seconds
    that each was asked to take."""

    def loops(recorded: LoopTimes) -> list[float]:
        asked: list[float] = []

        def run(loader: Loader, step_s: float, seconds: float) -> LoopTimes:
            asked.append(seconds)
            return recorded

        monkeypatch.setattr(step_module, "run_loop", run)
        return asked

    return loops


READS = {"read": 1.5, "transform": 0.0, "collate": 0.01}


@pytest.fixture
def loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial drops files if it is to, and then says at once that it loaded so much."""
    monkeypatch.setattr(workload, "loads_per_s", lambda *given, **more: 100.0)


def side_by_side(one: Candidate) -> float:
    """Workers that do not get in each other's way."""
    return 0.02 / max(1, one.settings.workers)


# --- the choice ---------------------------------------------------------------------------


def test_workers_where_they_help(simulate: Simulate) -> None:
    simulate(side_by_side)
    found = tuned(Numbers())
    assert found.settings == Settings(3, "thread", 2)
    assert found.samples_per_s == pytest.approx(600)
    assert tried(found) == {
        "no worker",
        *(f"{num} thread{'s' * (num > 1)}, prefetch 2" for num in (1, 2, 3)),
        *(f"{num} process{'es' * (num > 1)}, prefetch 2" for num in (1, 2, 3)),
        *(f"3 threads, prefetch {num}" for num in (4, 8)),
    }
    assert found.trials[0].samples_per_s == pytest.approx(600)
    assert found.trials[-1].samples_per_s == pytest.approx(200)
    assert found.left_out == [] and found.cache == "warm" and found.backend is None
    assert found.line == (
        'loader = shardkit.Loader(ds, 4, workers=3, worker_type="thread", prefetch=2)'
    )


def test_no_worker_where_workers_cost_more_than_they_do(
    simulate: Simulate,
) -> None:
    simulate(lambda one: 0.001 if one.settings.workers else 0.0009)
    found = tuned(Numbers(), 64)
    assert found.settings.workers == 0
    assert found.line == "loader = shardkit.Loader(ds, 64, workers=0)"
    (note,) = found.notes
    assert note.startswith("the loop itself loads, 0.9 ms a batch")


def test_what_is_kept_hides_loading_behind_a_step(simulate: Simulate, folder: Path) -> None:
    """Even where a loop that does nothing is faster without workers."""
    simulate(lambda one: 0.001 * (1 + 0.2 * one.settings.workers))
    found = tuned(folder)
    assert found.settings == Settings(0)
    assert found.for_auto == Settings(1, "thread", 2)
    assert Loader(shardkit.open(folder), 4, workers="auto").settings == Settings(1, "thread", 2)
    assert tuned(folder, step_ms=1e-3).for_auto.workers == 0  # which was judged by a step


def test_processes_and_depth_where_they_help(simulate: Simulate) -> None:
    simulate(
        lambda one: (
            side_by_side(one)
            * (1.0 if one.settings.worker_type == "process" else 1.2)
            * (1 + 0.4 / one.settings.prefetch)
        )
    )
    found = tuned(Numbers())
    assert found.settings == Settings(3, "process", 8)


def test_on_many_cores_the_gaps_are_looked_into(
    simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six of 16 is the best: between those that are tried at first."""
    set_machine(monkeypatch, replace(FOUND, cores=16))
    simulate(lambda one: 0.01 + 0.001 * abs(one.settings.workers - 6))
    assert tuned(Numbers()).settings == Settings(6, "thread", 2)


def test_a_step_that_one_thread_feeds(simulate: Simulate, loops: Loops) -> None:
    simulate(side_by_side)
    loops(LoopTimes(75, wait=0.0041, starting=0.0069, work_s=READS))
    found = tuned(Numbers(0.02), step_ms=40.0, seconds=3.0)
    assert found.settings == Settings(1, "thread", 2)
    step = found.step
    assert step is not None and step.verdict == "fed" and step.predicted_wait == 0
    assert step.margin == pytest.approx(2)
    assert step.wait == 0.0041
    assert step.advice == ""
    assert found.notes == []


def test_a_step_that_nothing_feeds(simulate: Simulate, loops: Loops) -> None:
    simulate(side_by_side)
    loops(LoopTimes(402, wait=0.268, starting=0.008, work_s=READS))
    found = tuned(Numbers(0.02), step_ms=5.0, seconds=3.0)
    assert found.settings.workers == 3
    step = found.step
    assert step is not None and step.verdict == "not fed"
    assert step.advice.startswith("reading takes the longest: a faster medium may help")
    assert step.margin == pytest.approx(0.75)
    assert step.predicted_wait == pytest.approx(0.25)
    assert step.wait == 0.268


def test_a_long_step_does_not_take_a_minute(simulate: Simulate, loops: Loops) -> None:
    simulate(side_by_side)
    asked = loops(LoopTimes(5, wait=0.0, starting=0.0, work_s=READS))
    step = tuned(Numbers(), step_ms=300.0, seconds=0.5).step
    assert step is not None and step.margin > 10
    assert len(asked) == 1 and asked[0] <= 0.5 + 15 * 0.3


def test_a_real_loop_behind_real_workers() -> None:
    """What it waits for depends on what the machine does meanwhile."""
    got = run_loop(Loader(Numbers(0.002), 4, workers=2), 0.001, 0.3)
    assert got.steps >= 1 and got.work_s["read"] >= 0.002 * got.steps
    assert 0 <= got.wait <= 1 and 0 <= got.starting <= 1


@pytest.mark.parametrize(
    ("predicted", "wait", "starting", "found"),
    [(0.0, 0.0, 0.3, "fed"), (0.009, 0.049, 0.0, "fed"), (0.0, 0.3, 0.0, "unclear"),
     (0.3, 0.0, 0.009, "unclear"), (0.3, 0.0, 0.2, "not fed"), (0.02, 0.02, 0.0, "not fed")],
)  # fmt: skip
def test_a_verdict_of_both_waits(
    predicted: float, wait: float, starting: float, found: str
) -> None:
    assert verdict(predicted, wait, starting) == found


@pytest.mark.parametrize(("step_ms", "found"), [(1.0, "fed"), (100.0, "unclear")])
def test_what_handing_over_takes_is_no_busy_machine(
    monkeypatch: pytest.MonkeyPatch, step_ms: float, found: str
) -> None:
    """A tenth of a millisecond, which is much of a short step only."""
    fed = LoopTimes(50, wait=0.09, starting=0.0, work_s={})
    monkeypatch.setattr(step_module, "run_loop", lambda *given: fed)
    work = workload.Workload(Numbers(), 4)
    one = Candidate(Settings(1))
    assert try_step(work, one, 1e6, step_ms / 1e3, 1.0).verdict == found


def test_a_machine_that_is_busier_in_the_loop(simulate: Simulate) -> None:
    """Trials were four times as fast as the loop is."""
    simulate(lambda one: 0.02)
    step = tuned(Numbers(0.08), batch_size=4, step_ms=20.0 * SPARE, seconds=3.0).step
    assert step is not None and step.predicted_wait == 0 and step.wait > 0.1
    assert step.verdict == "unclear"


def test_what_to_do_is_about_what_takes_the_longest() -> None:
    took = {"read": 1.0, "transform": 5.0, "collate": 2.0}
    assert "shardkit pack --estimate" in advice(took, is_of_pictures=True)
    assert "more cores" in advice(took, is_of_pictures=False)
    assert "shardkit stage" in advice({**took, "read": 9.0}, is_of_pictures=True)


def test_real_workers_on_real_waits() -> None:
    found = tuned(Numbers(0.02), seconds=3.0)
    rates = {trial.settings: trial.samples_per_s for trial in found.trials}
    assert {"no worker", "2 threads, prefetch 2"} <= rates.keys() and min(rates.values()) > 0
    assert rates["no worker"] <= 200  # four samples in 20 ms, whatever else the machine does
    assert str(found.settings) in rates  # which is best, the simulated trials above say
    assert all(trial.low <= trial.samples_per_s <= trial.high for trial in found.trials)


def test_pictures_are_tried_with_each_decoder(folder: Path) -> None:
    found = tuned(folder, transform=images.train(16), shuffle="full")
    names = {title.split()[0].partition("-")[0] for title in images.backends()}
    decoded = {text.rpartition("decoded by ")[2] for text in tried(found) if "decoded by" in text}
    assert decoded <= names and len(decoded) >= len(names) - 1
    assert re.match(
        r'loader = shardkit\.Loader\(ds, 4, transform=shardkit\.images\.train\(16(, backend="\w+")?'
        r'\), shuffle="full", workers=',
        found.line,
    )


def test_a_decoder_that_won_is_not_what_auto_takes(
    simulate: Simulate, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept is for the loader as it was given, and for the line that is to be pasted."""
    simulate(lambda one: side_by_side(one) * (0.5 if one.backend == "pillow" else 1.0))
    found = tuned(folder, transform=images.train(16))
    assert found.backend == "pillow" and found.saved is not None
    assert found.notes[-1] == (
        "workers=\"auto\" takes workers alone from it: give backend='pillow', as above, too"
    )
    assert found.work["transform"] == images.train(16).words
    for crops in (images.train(16), images.train(16, backend="pillow")):
        loader = Loader(shardkit.open(folder), 4, workers="auto", transform=crops)
        assert loader.settings.why == "tuned on this machine"
        assert loader.settings == found.for_auto


def test_a_decoder_that_was_chosen_is_kept(simulate: Simulate, folder: Path) -> None:
    simulate(side_by_side)
    found = tuned(folder, transform=images.eval(16, backend="pillow", resize=20))
    assert not any("decoded by" in text for text in tried(found))
    assert 'shardkit.images.eval(16, backend="pillow", resize=20)' in found.line


def test_windows_of_block_order(simulate: Simulate, folder: Path) -> None:
    found = tuned(folder, shuffle="block", block_rows=2)
    assert found.window_blocks in (4, 16, 64, 256)
    assert f"window_blocks={found.window_blocks}" in found.line
    simulate(side_by_side)
    given = tuned(folder, shuffle="block", window_blocks=7)
    assert given.window_blocks is None and "window_blocks=7" in given.line


def test_the_result_is_for_auto(simulate: Simulate, folder: Path, tmp_path: Path) -> None:
    simulate(side_by_side)
    found = tuned(folder, batch_size=5, shuffle="full")
    assert found.saved == str(tmp_path / "cache" / "shardkit" / "tune.json")
    loader = Loader(shardkit.open(folder), 5, workers="auto", shuffle="full")
    assert loader.settings == found.for_auto
    assert loader.settings.why == found.settings.why == "tuned on this machine"


def test_nothing_is_kept_if_not_wished(simulate: Simulate, folder: Path, tmp_path: Path) -> None:
    simulate(side_by_side)
    assert tuned(folder, save=False).saved is None
    assert not (tmp_path / "cache").exists()


def test_an_unsure_choice_replaces_nothing(
    simulate: Simulate, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(side_by_side)
    good = tuned(folder).settings
    monkeypatch.setattr(module, "WILD", 1.5)
    turns: dict[Candidate, itertools.count[int]] = {}

    def every_other_round(one: Candidate) -> float:
        turn = next(turns.setdefault(one, itertools.count()))
        return 0.02 * (one.settings.workers + 1) * (1 + 3 * (turn % 2))

    simulate(every_other_round)
    found = tuned(folder)
    assert found.settings != good and found.saved is None
    assert re.fullmatch(
        r"the choice is unsure, its rounds spread from 25 to 100 samples/s, and not kept for"
        r' workers="auto": more seconds, or a quieter machine, would make it surer',
        found.notes[-1],
    )
    assert Loader(shardkit.open(folder), 4, workers="auto").settings == good


def test_what_is_unsure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENOUGH_ROUNDS", 4)
    monkeypatch.setattr(module, "WILD", 1.5)
    assert unsure([1.0] * 3, is_short=True) == "it had 3 rounds only"
    assert unsure([1.0] * 3, is_short=False) == ""  # it won at once
    assert unsure([1.0] * 4, is_short=True) == ""
    assert unsure([*[1.0] * 9, 0.1], is_short=False) == ""  # one stumble
    assert unsure([1.0, 4.0] * 5, is_short=False) == "its rounds spread from 1 to 4 samples/s"


def test_a_cache_that_cannot_be_written(simulate: Simulate, folder: Path, tmp_path: Path) -> None:
    simulate(side_by_side)
    write(tmp_path / "cache", "a file")
    found = tuned(folder)
    assert found.saved is None
    assert found.notes[-1].startswith("the result was not kept: ")


# --- what cannot be ----------------------------------------------------------------------


def test_threads_are_left_out_where_they_are_refused(
    simulate: Simulate,
) -> None:
    simulate(side_by_side)
    found = tuned(Numbers(), transform=drawing)
    assert found.settings == Settings(3, "process", 2)
    assert not any("thread" in text for text in tried(found))
    (reason,) = found.left_out
    assert reason.startswith("worker_type='thread': the transform draws from the global random")


def test_processes_are_left_out_where_nothing_travels(
    simulate: Simulate,
) -> None:
    simulate(side_by_side)
    found = tuned(Numbers(), transform=with_function)
    assert found.settings == Settings(3, "thread", 2)
    (reason,) = found.left_out
    assert reason.startswith("worker_type='process': field 'function' cannot be sent from a worker")


def test_there_is_no_room(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 32 bytes."""
    simulate(lambda one: side_by_side(one) * (one.settings.worker_type == "thread" or 0.25))
    set_machine(monkeypatch, replace(FOUND, shm_bytes=125))
    found = tuned(Numbers())
    assert found.settings == Settings(1, "process", 2)
    room = "more than 80 % of the 125 B free in /dev/shm"
    sizes = [("2 processes, prefetch 2", 128), ("3 processes, prefetch 2", 192),
             ("1 process, prefetch 4", 160), ("1 process, prefetch 8", 288)]  # fmt: skip
    assert [text for text in found.left_out if "free in /dev/shm" in text] == [
        f"{words}: its batches would take {size} B, {room}" for words, size in sizes
    ]


def test_a_worker_that_dies_is_left_out(simulate: Simulate) -> None:
    def dying(one: Candidate) -> float:
        if one.settings.workers == 3:
            raise StorageError("a worker process ended by itself")
        return side_by_side(one)

    simulate(dying)
    found = tuned(Numbers())
    assert found.settings == Settings(2, "thread", 2)
    assert "3 threads, prefetch 2: a worker process ended by itself" in found.left_out


def test_nothing_runs(simulate: Simulate) -> None:
    def dying(one: Candidate) -> float:
        raise StorageError("no such disk")

    simulate(dying)
    with pytest.raises(StorageError, match="no such disk"):
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


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_trials_of_one_rank_run_on_its_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = os.sched_getaffinity(0)
    met: set[int] = set()

    class Seen(Numbers):
        def read(self, rows: Any) -> dict[str, Any]:
            met.add(len(os.sched_getaffinity(0)))
            return super().read(rows)

    tuned(Seen(), save=False)
    assert met == {len(before)}
    met.clear()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    tuned(Seen(), seconds=0.5, save=False)
    assert met == {1}
    assert os.sched_getaffinity(0) == before


def test_a_sample_that_cannot_be_read(tmp_path: Path) -> None:
    class Bad(Numbers):
        def read(self, rows: Any) -> dict[str, Any]:
            raise DataError("sample 3 is damaged")

    with pytest.raises(DataError, match="sample 3 is damaged"):
        tuned(Bad())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seconds": 0}, "seconds must be more than 0, and finite, got 0"),
        ({"step_ms": -1.0}, "step_ms must be more than 0, and finite, got -1.0"),
        ({"seconds": float("nan")}, "seconds must be more than 0"),
        ({"seconds": float("inf")}, "seconds must be more than 0, and finite, got inf"),
        ({"step_ms": float("inf")}, "step_ms must be more than 0, and finite, got inf"),
        ({"step_ms": float("nan")}, "step_ms must be more than 0, and finite, got nan"),
        ({"workers": 2}, "tune takes no option 'workers'"),
        ({"device": "cuda"}, "tune takes no option 'device'"),
        ({"colour": "red"}, "takes no option 'colour'"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"cold": True}, "cold: a Numbers does not say which files it reads"),
        ({"batch_size": 5000}, "4000 samples do not fill one batch of 5000"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tuned(Numbers(), **options)


def test_no_source() -> None:
    with pytest.raises(UsageError, match="list cannot be fed from"):
        tuned([1, 2, 3])


# --- cold ---------------------------------------------------------------------------------


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[list[Path]]:
    """Files that were dropped from memory, each time."""
    dropped: list[list[Path]] = []
    monkeypatch.setattr(workload, "evict", lambda paths: dropped.append(paths) or 0.0)
    return dropped


def test_files_are_dropped_before_each_trial(folder: Path, dropped: list[list[Path]]) -> None:
    found = tuned(folder, cold=True)
    assert found.cache == "cold"
    assert len(dropped) > sum(trial.rounds for trial in found.trials)
    assert {path.name for path in dropped[0]} >= {"shardkit.json", "train-00000.jpg.npy"}


@pytest.mark.usefixtures("loads_nothing")
def test_files_that_cannot_be_dropped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "evict", lambda paths: 0.5)
    found = tuned(folder, cold=True)
    assert found.cache == "unknown"
    assert any(note.startswith("not all files could be dropped") for note in found.notes)


@pytest.mark.usefixtures("loads_nothing")
def test_what_does_not_fit_in_memory_is_cold(
    folder: Path, dropped: list[list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(path.stat().st_size for path in folder.iterdir())
    set_machine(monkeypatch, replace(FOUND, memory_bytes=size))
    assert tuned(folder).cache == "warm" and not dropped
    set_machine(monkeypatch, replace(FOUND, memory_bytes=size - 1))
    assert tuned(folder).cache == "cold" and dropped


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


def test_a_loop_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    SimulatedClock(monkeypatch)
    got = run_loop(Loader(Numbers(0.03), 4, workers=0), 0.01, 0.5)
    assert got.steps == 13
    assert got.wait == pytest.approx(0.75 * 12 / 13, abs=0.001)
    assert got.starting == pytest.approx(0.75 / 13, abs=0.001)
    got = run_loop(Loader(Numbers(0.03, num=4), 4, workers=0), 0.01, 0.5)
    assert got.wait == pytest.approx(0, abs=0.001)
    assert got.starting == pytest.approx(0.75, abs=0.001)


# --- the command --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tune")
    shardkit.pack(
        make_images(root / "source"), root / "packed", to="npy", workers=0, progress=False
    )
    return root / "packed"


def test_the_command(
    run: Run, simulate: Simulate, loops: Loops, folder: Path, tmp_path: Path
) -> None:
    simulate(side_by_side)
    loops(LoopTimes(98, wait=0.011, starting=0.0069, work_s=READS))
    options = ["--seconds", 2, "--batch-size", 4, "--size", 16, "--step-ms", 20]
    got = run("tune", folder, *options)
    assert got.code == 0 and got.err == ""
    head, *rest = got.out.splitlines()
    assert re.fullmatch(
        re.escape(str(folder)) + r": batches of 4, read from memory, on 2 of \d+ cores?, .+", head
    )
    at = next(number for number, line in enumerate(rest) if line.startswith("tried, each in"))
    assert rest[at + 1].split() == ["samples/s", "low", "high", "rounds"]
    assert all(re.fullmatch(r"  .+?( +[\d,]+){4}", line) for line in rest[at + 2 :])
    assert re.fullmatch(r"best: .+, [\d,]+ samples/s \([\d.]+ ms a batch\)", rest[0])
    assert rest[1] == f'  ds = shardkit.open("{folder}")'
    assert re.fullmatch(
        r'  loader = shardkit\.Loader\(ds, 4, shuffle="full",'
        r" transform=shardkit\.images\.train\(16.*\), workers=\d.*\)",
        rest[2],
    )
    kept = r'  kept for workers="auto": \d (thread|process)\S*, prefetch \d, in '
    assert re.fullmatch(kept + re.escape(f"{tmp_path}/cache/shardkit/tune.json"), rest[3])
    assert re.fullmatch(
        r"  a step of 20.0 ms is fed: batches come [\d.]+ times as fast as needed",
        rest[4],
    )
    assert re.fullmatch(
        r"  such a loop should wait 0.0% of its time for batches; it waited 1.1%, and"
        r" 0.7% for the first of each epoch",
        rest[5],
    )
    code = "\n".join(line.strip() for line in rest[1:3])
    names: dict[str, Any] = {"shardkit": shardkit}
    exec(code, names)
    assert len(next(iter(names["loader"]))["image"]) == 4


def test_the_command_for_a_long_step(
    run: Run, folder: Path, simulate: Simulate, loops: Loops
) -> None:
    simulate(side_by_side)
    loops(LoopTimes(5, wait=0.0, starting=0.0, work_s=READS))
    got = run("tune", folder, "--seconds", 0.5, "--batch-size", 36, "--size", 8, "--step-ms", 400)
    assert "\n  a step of 400 ms is fed" in got.out


def test_the_help_says_what_cannot_be_guessed(run: Run) -> None:
    text = " ".join(run("tune", "--help").out.split())
    assert "LOCAL_WORLD_SIZE" in text and "comes on top" in text and "shardkit.Loader?" in text


def test_the_command_in_json(run: Run, simulate: Simulate, folder: Path) -> None:
    simulate(side_by_side)
    got = run("tune", folder, "--read", "raw", "--seconds", 1, "--batch-size", 4, "--json",
              "--no-save", "--shuffle", "none")  # fmt: skip
    found = json.loads(got.out)
    assert set(found["settings"]) == {"workers", "worker_type", "prefetch", "why"}
    assert found["saved"] is None and found["step"] is None and found["headroom"] is None
    assert found["trials"][0]["samples_per_s"] > 0
    assert found["line"].startswith("loader = shardkit.Loader(ds, 4, shuffle=None, ")


SCRIPT = """
import sys, time
sys.path[:0] = {path!r}
import shardkit

def slow(sample):
    time.sleep(0.01)
    return sample

loader = shardkit.Loader(shardkit.open({folder!r}), 3, transform=slow)
while True:
    for batch in loader:
        time.sleep(0.01)
"""


def test_the_command_for_a_script(
    run: Run,
    simulate: Simulate,
    loops: Loops,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It runs for so many steps, however long the machine takes for them."""
    monkeypatch.setattr(headroom, "PLAN", replace(headroom.PLAN, steps=40, rounds=4))
    monkeypatch.setattr(headroom, "RunLimits", lambda seconds: RunLimits(seconds=200.0))
    simulate(side_by_side)
    loops(LoopTimes(5, wait=0.0, starting=0.0, work_s=READS))
    script = write(tmp_path / "train.py", SCRIPT.format(path=sys.path, folder=str(folder)))
    got = run("tune", folder, "--read", "raw", "--seconds", 1.5, "--headroom", script)
    assert got.code == 0, got.err
    assert "batches of 3," in got.out
    found = re.search(
        r"the script's step takes ([\d.]+) ms \(2 threads, prefetch 2\), and ([\d.]+) ms"
        r" when loading costs nothing: (loading costs \d+% of its time|the two contradict)",
        got.out,
    )
    assert found and float(found[1]) >= 10 and float(found[2]) >= 10
    assert f"  a step of {amount(float(found[2]))} ms " in got.out
    assert re.search(
        r"\n  the script's Loader does other work than was tuned: transform slow there, None"
        r" here; shuffle None there, full here\n",
        got.out,
    )


@pytest.mark.parametrize(("free_ms", "word"), [(111.0, "costs 50% of"), (303.0, "the two contra")])
def test_free_loading_is_never_slower(
    capsys: pytest.CaptureFixture[str], free_ms: float, word: str
) -> None:
    _echo_headroom(Headroom(222.0, free_ms, 4, "no worker", {}))
    assert word in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--step-ms", 5, "--headroom", "x.py"], "give either --step-ms or --headroom"),
        (["--read", "tokens"], "holds cls, jpg, no tokens"),
        (["--seconds", -1], "seconds must be more than 0, and finite, got -1.0"),
        (["--seconds", "inf", "--headroom", "x.py"], "seconds must be more than 0, and finite"),
        (["--step-ms", "inf"], "--step-ms must be more than 0, and finite"),
        (["--headroom", "'unclosed"], "is no command line: No closing quotation"),
        (["--headroom", "x.py"], "headroom: x.py: no such file"),
        (["--read", "decode"], "'decode' is not one of 'raw', 'train', 'tokens'"),
        (["--batch-size", 0], "--batch-size must be at least 1, got 0"),
        (["--split", "nope"], "has no split 'nope'"),
        (["--batch-size", 400], "36 samples do not fill one batch of 400"),
    ],
)
def test_errors_are_one_line(run: Run, folder: Path, options: list[Any], message: str) -> None:
    got = run("tune", folder, *options)
    assert got.code == 2 and got.out == ""
    assert got.err.startswith("shardkit: error: ") and got.err.count("\n") == 1
    assert message in got.err


def test_no_pictures_to_crop(run: Run, simulate: Simulate, tmp_path: Path) -> None:
    simulate(side_by_side)
    for i in range(9):
        write(tmp_path / "texts" / f"{i}.txt", f"text {i}")
    run("pack", "texts", "--to", "npy", "--workers", 0)
    got = run("tune", "texts-npy", "--read", "train")
    assert got.code == 2 and "no pictures to train; use --read raw" in got.err
    got = run("tune", "texts-npy", "--seconds", 1, "--batch-size", 3)
    assert got.code == 0 and "shuffle=" in got.out and "transform" not in got.out


def test_a_transform_without_a_name(simulate: Simulate, folder: Path) -> None:
    simulate(side_by_side)

    class Plain:
        def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
            return sample

    assert "transform=transform," in tuned(folder, transform=Plain()).line
    assert "transform=drawing," in tuned(folder, transform=drawing).line
