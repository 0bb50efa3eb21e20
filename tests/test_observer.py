"""Observers of a loader: what they are told of each batch, wherever that is made."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from dataclasses import astuple
from typing import Any

import pytest

from shardkit import Loader
from shardkit.batches.request import Made
from shardkit.loading import feed
from shardkit.loading.observer import Observer, Times
from shardkit.order.batches import BatchPlan

NUM_BATCHES = 6
READ_S, TRANSFORM_S, STEP_S = 0.02, 0.01, 0.04

WORKERS: list[tuple[int, Any]] = [(0, None), (2, "thread"), (1, "process")]


class Numbers:
    """A source that takes its time."""

    def __len__(self) -> int:
        return 2 * NUM_BATCHES

    def read(self, rows: Any) -> dict[str, Any]:
        time.sleep(READ_S)
        return {"row": rows}


class Slow:
    """A transform that takes its time."""

    def batch(self, columns: dict[str, Any], keys: Any) -> dict[str, Any]:
        time.sleep(TRANSFORM_S)
        return columns


class Notes(Observer):
    """Keeps all that it is told."""

    def __init__(self) -> None:
        self.times: list[Times] = []
        self.ends = 0
        self.threads: set[threading.Thread] = set()

    def note(self, times: Times) -> None:
        self.times.append(times)
        self.threads.add(threading.current_thread())

    def end(self) -> None:
        self.ends += 1


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    """What the loaders of a test are observed by."""
    notes = Notes()
    monkeypatch.setattr(feed, "of_environment", lambda *about: notes)
    return notes


@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
@pytest.mark.parametrize("device", [None, "cpu"])
def test_events_come_in_order(notes: Notes, workers: int, worker_type: Any, device: Any) -> None:
    loader = Loader(
        Numbers(), 2, transform=Slow(), workers=workers, worker_type=worker_type, device=device
    )
    seen = []
    for batch in loader:
        seen.append(batch["row"].tolist())
        time.sleep(STEP_S)
    assert seen == [[2 * n, 2 * n + 1] for n in range(NUM_BATCHES)]
    assert len(notes.times) == NUM_BATCHES and notes.ends == 1
    assert notes.threads == {threading.current_thread()}
    for each in notes.times:
        events = [value for value in astuple(each)[1:] if value is not None]
        assert events == sorted(events)
        assert (each.copied is None) == (device is None)
        assert each.asked <= each.handed_over
        assert each.read - each.begun >= READ_S
        assert TRANSFORM_S <= each.transformed - each.read < each.done - each.begun
        assert each.done - each.handed_over >= STEP_S


def test_a_loop_that_is_left(notes: Notes) -> None:
    batches: Any = iter(Loader(Numbers(), 2, workers=0))
    for _ in range(3):
        next(batches)
    assert (len(notes.times), notes.ends) == (2, 0)
    batches.close()
    assert (len(notes.times), notes.ends) == (2, 1)


def test_an_observer_may_give_others_instead(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    def instead(made: Generator[Made, None, None], plan: BatchPlan) -> Generator[Made, None, None]:
        made.close()
        for number in range(len(plan)):
            yield Made({"number": number}, plan.end(number))

    monkeypatch.setattr(notes, "instead", instead)
    loader = Loader(Numbers(), 2)
    given = [(batch["number"], loader.state_dict()["position"]) for batch in loader]
    assert given == [(n, 2 * n + 2) for n in range(NUM_BATCHES)]
