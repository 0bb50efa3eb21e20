"""The watcher's own parts: which step is taken how, what a thread's time went on, whose line."""

from __future__ import annotations

import builtins
import importlib.util
import io
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write
from hypothesis import given
from hypothesis import strategies as st

import shardkit
from shardkit.watching import by_hand
from shardkit.watching.attach import Finder
from shardkit.watching.clock import Clock, Spent
from shardkit.watching.event_log import MOST_BYTES, Records, read_records
from shardkit.watching.fetching import Account, held_files
from shardkit.watching.loop import is_users, users_line
from shardkit.watching.session import OWN, REPLAY, TRACE, WARM, WARM_UP, Plan, Rereading, Schedule

# --- the schedule -------------------------------------------------------------------------


@given(
    steps=st.integers(1, 50),
    rounds=st.integers(1, 5),
    depth=st.integers(0, 20),
    replays=st.booleans(),
    rereads=st.booleans(),
    traces=st.sampled_from(["no", "gpu", "yes"]),
)
def test_each_kind_has_as_many_steps(
    steps: int, rounds: int, depth: int, replays: bool, rereads: bool, traces: Any
) -> None:
    plan = Plan(steps=steps, rounds=rounds, replays=replays, rereads=rereads, traces=traces)
    schedule = Schedule(plan, depth, can_reread=True)
    every = [schedule.at(step) for step in range(schedule.num_steps + 10)]
    kinds = {OWN} | ({REPLAY} if replays else set()) | ({WARM} if rereads else set())
    counts = {kind: sum(now.counts for now in every if now.kind == kind) for kind in kinds}
    assert len(set(counts.values())) == 1 and steps <= counts[OWN] < steps + rounds
    assert sum(now.is_first for now in every) == schedule.num_blocks == rounds * len(kinds)
    assert not any(now.counts for now in every[:WARM_UP] + every[schedule.num_steps :])
    assert any(now.kind == TRACE for now in every) == (traces != "no")
    assert {now.kind for now in every} - {TRACE} == kinds


@given(depth=st.integers(0, 20), steps=st.integers(1, 30))
def test_what_was_asked_for_in_another_block_does_not_count(depth: int, steps: int) -> None:
    """A worker is asked for a batch ``depth`` steps before the loop gets it."""
    schedule = Schedule(Plan(steps=steps), depth, can_reread=True)
    for step in range(schedule.num_steps):
        if schedule.at(step).counts:
            assert schedule.at(step - depth).block == schedule.at(step).block


def test_the_same_batches_are_asked_for_again() -> None:
    rereading = Rereading(3)
    assert [rereading.index(one) for one in "abcd"] == list("abcd")
    rereading.begin(True)
    assert [rereading.index(one) for one in "efghi"] == list("abcab")
    rereading.begin(False)
    assert rereading.index("j") == "j"
    rereading.begin(True)
    assert rereading.index("k") == "a"


# --- records ------------------------------------------------------------------------------


def test_a_torn_last_line_is_skipped(tmp_path: Path) -> None:
    records = Records(str(tmp_path))
    records.write("a", value=1)
    records.write("b", value="\udcff")
    records.flush()
    records.forget()
    with open(tmp_path / f"{os.getpid()}.jsonl", "a") as file:
        file.write('{"is": "torn"')
    (events,) = read_records(tmp_path).values()
    assert events == [{"is": "a", "value": 1}, {"is": "b", "value": "\udcff"}]


def test_records_never_fill_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardkit.watching.event_log.MOST_BYTES", 100)
    records = Records(str(tmp_path))
    for number in range(50):
        records.write("a", value=number)
    records.flush()
    records.forget()
    (events,) = read_records(tmp_path).values()
    assert 3 <= len(events) < 8
    assert MOST_BYTES > 1 << 20


def test_a_full_disk_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    records = Records("/proc")
    records.write("a", value=1)
    records.mark("over")
    records.flush()
    records.forget()


# --- clocks and regions -------------------------------------------------------------------


def test_where_a_threads_time_went() -> None:
    clock = Clock()
    before = clock.now()
    time.sleep(0.05)
    slept = clock.now() - before
    assert slept.blocked > 0.03 and slept.cpu < 0.02
    before = clock.now()
    while time.thread_time() - before.cpu < 0.05:
        sum(range(1000))
    worked = clock.now() - before
    assert worked.cpu >= 0.05 and worked.blocked < 0.03


def test_regions_do_not_overlap() -> None:
    account = Account()
    account.enter("dataset", Spent(0.0, 0.0))
    account.enter("decode", Spent(1.0, 0.5))
    account.leave(Spent(4.0, 1.5))
    account.enter("collate", Spent(5.0, 2.0))
    account.leave(Spent(7.0, 4.0))
    account.leave(Spent(8.0, 4.5))
    assert account.regions == {
        "dataset": Spent(3.0, 1.5),
        "decode": Spent(3.0, 1.0),
        "collate": Spent(2.0, 2.0),
    }


def test_whose_line() -> None:
    found: list[tuple[str, int]] = []

    def called_by_a_library(pair: Any) -> int:
        found.append(users_line(sys._getframe()))
        return 0

    json.dumps({"a": 1}, default=called_by_a_library)
    sorted([1], key=called_by_a_library)
    assert found == [(__file__, called_by_a_library.__code__.co_firstlineno + 1)]
    assert is_users(__file__)
    assert not is_users(json.__file__) and not is_users(pytest.__file__)
    assert not is_users("<frozen os>")


# --- attaching ----------------------------------------------------------------------------


def test_a_module_is_patched_when_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "some_module.py", "value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    patched: list[Any] = []
    patches = {"some_module": patched.append, "json": patched.append, "never": print}
    finder = Finder(patches, Records(str(tmp_path)))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    finder.patch_imported()
    assert patched == [json]
    import some_module  # type: ignore[import-not-found]

    assert patched == [json, some_module] and some_module.value == 1
    assert some_module.__spec__.loader.get_source("some_module") == "value = 1\n"
    del sys.modules["some_module"]


def test_a_module_that_was_asked_for_before_is_patched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As transformers does with ``find_spec("torch")``, and imports it later."""
    write(tmp_path / "probed_module.py", "value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    patched: list[Any] = []
    finder = Finder({"probed_module": patched.append}, Records(str(tmp_path)))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert importlib.util.find_spec("probed_module") is not None and patched == []
    import probed_module  # type: ignore[import-not-found]

    assert patched == [probed_module]
    del sys.modules["probed_module"]


def test_a_module_that_cannot_be_patched_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "newer_module.py", "value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    records = Records(str(tmp_path))
    finder = Finder({"newer_module": lambda module: module.gone}, records)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    import newer_module  # type: ignore[import-not-found]

    records.flush()
    records.forget()
    assert newer_module.value == 1
    (events,) = read_records(tmp_path).values()
    assert events[0]["is"] == "unpatched" and "gone" in events[0]["why"]
    del sys.modules["newer_module"]


def test_containers_of_samples_that_stay_open_are_seen(tmp_path: Path) -> None:
    np.save(tmp_path / "samples.npy", np.arange(8))
    write(tmp_path / "own.h5", "written")
    mapped = np.load(tmp_path / "samples.npy", mmap_mode="r")
    with open(tmp_path / "own.h5", "a"), open(tmp_path / "read.mdb", "w+"):
        assert str(tmp_path / "samples.npy") in held_files()
        assert not {str(tmp_path / "own.h5"), str(tmp_path / "read.mdb")} & {*held_files()}
    del mapped


def test_startup_without_a_plan_changes_nothing(tmp_path: Path) -> None:
    """Who asked for it may be gone, or a child may outlive the run."""
    startup = Path(by_hand.__file__).parent / "startup"
    program = "import builtins, sys; print(type(builtins.print).__name__, len(sys.meta_path))"
    usual, watched = (
        subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
        for env in (
            {"PATH": os.environ["PATH"]},
            {
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(startup),
                "SHARDKIT_WATCH": str(tmp_path / "gone"),
            },
        )
    )
    assert watched.stderr == "" and watched.stdout == usual.stdout


# --- by hand ------------------------------------------------------------------------------


def test_a_loop_that_is_watched_by_hand() -> None:
    def slow() -> Any:
        for number in range(5):
            time.sleep(0.01)
            yield number

    out = io.StringIO()
    loader = shardkit.watch(slow(), out=out)
    got = []
    for one in loader:
        got.append(one)
        time.sleep(0.005)
    assert got == [0, 1, 2, 3, 4]
    waits = loader.waits
    assert waits.steps == 5 and waits.first_s >= 0.01
    assert waits.wait_s >= 0.04 and 0.025 <= waits.busy_s < 0.2 and 0.3 < waits.share < 0.9
    assert out.getvalue().startswith("shardkit: 5 steps of ")
    assert "`shardkit doctor -- python ...` says why" in out.getvalue()


def test_a_watched_loader_is_still_that_loader() -> None:
    loader = shardkit.watch([1, 2, 3], out=io.StringIO())
    assert len(loader) == 3 and list(loader) == [1, 2, 3] == list(loader)
    assert loader.count(2) == 1
    assert loader.waits.steps == 6
    with pytest.raises(AttributeError):
        _ = loader.no_such_thing


def test_only_rank_0_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    silent = io.StringIO()
    list(shardkit.watch(range(3), out=silent))
    assert silent.getvalue() == ""


def test_a_closed_stream_ends_nothing() -> None:
    out = io.StringIO()
    loader = shardkit.watch(range(3), out=out)
    out.close()
    assert sum(1 for _ in loader) == 3


def test_nothing_of_this_process_was_patched() -> None:
    assert type(builtins.print).__name__ == "builtin_function_or_method"
    assert threading.active_count() >= 1
