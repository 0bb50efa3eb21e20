"""Our own loaders in a script that is watched: batches replayed, and what is written down."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import make_images

import shardkit
from shardkit import Loader
from shardkit.measure.doctor import collect
from shardkit.watching import attach
from shardkit.watching import loop as loop_module
from shardkit.watching.event_log import read_records
from shardkit.watching.loop import Watch
from shardkit.watching.session import MOST_BATCHES as NUM_KEPT
from shardkit.watching.session import OWN, REPLAY, WARM_UP, Plan, Schedule

NUM_BATCHES = 60


class Numbers:
    """A source that counts what is read of it."""

    def __init__(self) -> None:
        self.num_read = 0

    def __len__(self) -> int:
        return 4 * NUM_BATCHES

    def read(self, rows: Any) -> dict[str, Any]:
        self.num_read += 1
        return {"row": rows}


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Watch]]:
    """Watches this process, patching nothing; sessions begin after a few steps."""
    made: list[Watch] = []

    def begin(**plan: Any) -> Watch:
        watch = Watch(str(tmp_path), Plan(**{"steps": 3, "rounds": 1, "counts": False, **plan}))
        monkeypatch.setenv(attach.ENVIRONMENT, str(tmp_path))
        monkeypatch.setattr(attach, "_watch", watch)
        monkeypatch.setattr(loop_module, "TRAINS_AFTER", NUM_KEPT)
        made.append(watch)
        return watch

    yield begin
    for watch in made:
        watch.records.flush()
        watch.records.forget()


def rows(batches: Any) -> list[list[int]]:
    return [batch["row"].tolist() for batch in batches]


def found(folder: Path) -> collect.Process:
    """What this process wrote down."""
    ((pid, events),) = read_records(folder).items()
    return collect.Process(pid, events)


WORKERS = [(0, "thread"), (2, "thread"), (1, "process")]


@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
@pytest.mark.parametrize("device", [None, "cpu"])
def test_the_first_batches_again(
    tmp_path: Path, watched: Callable[..., Watch], workers: int, worker_type: Any, device: Any
) -> None:
    """In blocks of replaying, and none else; the epoch is no longer for it."""
    options: dict[str, Any] = {"workers": workers, "worker_type": worker_type, "device": device}
    usual = rows(Loader(Numbers(), 4, shuffle="full", **options))
    watched()
    loader = Loader(Numbers(), 4, shuffle="full", **options)
    got = rows(loader)
    assert len(got) == NUM_BATCHES
    steps = found(tmp_path).of("step")
    assert len(steps) == NUM_BATCHES
    made = iter(usual)
    for number, (step, batch) in enumerate(zip(steps, got, strict=True)):
        kept = usual[number % NUM_KEPT]
        assert batch == (kept if step["phase"] == REPLAY else next(made))
    assert {step["phase"] for step in steps} == {OWN, REPLAY}
    assert loader.epoch == 1


def test_a_session_has_the_blocks_it_should(tmp_path: Path, watched: Callable[..., Watch]) -> None:
    watch = watched()
    loader = Loader(Numbers(), 4, workers=2)
    for _ in range(3):
        list(loader)
    process = found(tmp_path)
    assert process.of("session over")
    schedule = Schedule(watch.plan, loader.settings.prefetch * 2, can_reread=False)
    begin = NUM_KEPT
    for number, step in enumerate(process.of("step")):
        now = schedule.at(number - begin)
        expected = (now.kind, now.counts) if number >= begin else (OWN, False)
        assert (step["phase"], step["counts"]) == expected
    counted = [step["phase"] for step in process.of("step") if step["counts"]]
    assert counted == [OWN] * 3 + [REPLAY] * 3
    assert (tmp_path / f"{process.pid}.over").exists()
    assert schedule.num_steps == WARM_UP + 2 * (4 + 1 + 3)


def test_loaders_of_the_same_work_count_as_one(
    tmp_path: Path, watched: Callable[..., Watch]
) -> None:
    """A script may make one each epoch, and have few batches an epoch."""
    watched(replays=False)
    source = Numbers()
    for _ in range(30):
        assert len(rows(Loader(source, 120, workers=0))) == 2
    list(Loader(source, 4, workers=0))
    process = found(tmp_path)
    assert [one["batch_size"] for one in process.of("loop")] == [120, 4]
    assert len(collect.main_steps(process)) == 60


def test_another_loader_is_left_alone(tmp_path: Path, watched: Callable[..., Watch]) -> None:
    watched()
    source = Numbers()
    list(Loader(source, 4, workers=0))
    assert "valid" in next(iter(Loader(source, 4, workers=0, last="pad")))
    (first,) = rows(Loader(source, 4, workers=0, rank=1, world_size=NUM_BATCHES))
    assert first != [0, 1, 2, 3]


def test_a_loop_left_early_is_written_down(tmp_path: Path, watched: Callable[..., Watch]) -> None:
    watched()
    batches = iter(Loader(Numbers(), 4, workers=2))
    for _ in range(5):
        next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert len(found(tmp_path).of("step")) == 5
    assert not any("shardkit" in thread.name for thread in threading.enumerate())


def test_a_state_is_where_the_loop_is(watched: Callable[..., Watch]) -> None:
    watched()
    loader = Loader(Numbers(), 4)
    positions = [loader.state_dict()["position"] for _ in loader]
    assert positions == [4 * n for n in range(1, NUM_BATCHES + 1)]


def test_watching_alone_changes_nothing(watched: Callable[..., Watch]) -> None:
    usual = rows(Loader(Numbers(), 4, shuffle="full"))
    watched(replays=False)
    assert rows(Loader(Numbers(), 4, shuffle="full")) == usual


def test_times_are_written_down(tmp_path: Path, watched: Callable[..., Watch]) -> None:
    watched(replays=False)

    class Slow(Numbers):
        def read(self, rows: Any) -> dict[str, Any]:
            time.sleep(0.02)
            return super().read(rows)

    for _ in Loader(Slow(), 4, workers=0):
        time.sleep(0.01)
    (rank,) = collect.ranks([found(tmp_path)], "here")
    assert rank.loader.kind == "shardkit.Loader"
    assert rank.step.wait >= 0.02 and rank.step.other >= 0.01
    assert rank.worker.total >= 0.02 and rank.step.blocked > 0
    assert rank.samples_per_step == 4


@pytest.mark.thorough
@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
def test_sleeping_is_no_time_on_a_core(
    tmp_path: Path, watched: Callable[..., Watch], workers: int, worker_type: Any
) -> None:
    """What a batch takes is of the clock on the wall, and what of it is on a core, of the thread's:
    on a machine that does other work, too, this is much less."""
    watch = watched(replays=False)

    def slow(sample: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.01)
        return sample

    for _ in Loader(Numbers(), 4, transform=slow, workers=workers, worker_type=worker_type):
        pass
    watch.records.flush()
    (rank,) = collect.ranks([found(tmp_path)], "here")
    assert rank.worker.transform > 0.01 and rank.worker.total >= 0.04
    assert 0 < rank.worker.cpu < rank.worker.total / 4


def test_a_step_that_begins_a_new_iteration(tmp_path: Path, watched: Callable[..., Watch]) -> None:
    """It is timed to its end, though the iteration is over before."""
    watched(replays=False)
    loader = Loader(Numbers(), 4, workers=1)
    for _ in range(12):
        next(iter(loader))
        time.sleep(0.01)
    (rank,) = collect.ranks([found(tmp_path)], "here")
    assert rank.epochs.steps == 1 and rank.step.other >= 0.01


def test_a_folder_that_is_gone_ends_nothing(tmp_path: Path, watched: Callable[..., Watch]) -> None:
    """A training run is worth more than what is written down of it."""
    watched()
    loader = Loader(Numbers(), 4)
    shutil.rmtree(tmp_path)
    assert len(list(loader)) == NUM_BATCHES


def test_what_is_known_of_our_own_datasets(tmp_path: Path, watched: Callable[..., Watch]) -> None:
    """The files that they are in; and our crops are decoding, not somebody's transform."""
    dataset = tmp_path / "data"
    shardkit.pack(make_images(tmp_path / "pictures"), dataset, to="lmdb", workers=0, progress=False)
    watch = watched()
    transform = shardkit.images.train(16)
    for _ in range(3):
        loader = Loader(shardkit.open(dataset), 4, transform=transform, workers=1)
        for _batch in loader:
            time.sleep(0.001)
    watch.records.flush()
    (rank,) = collect.ranks([found(tmp_path)], "here")
    assert rank.files is not None and rank.files.folder == str(dataset)
    assert rank.files.held_bytes == sum(p.stat().st_size for p in dataset.rglob("*") if p.is_file())
    assert rank.worker.decoding > 0 and rank.worker.transform == 0
