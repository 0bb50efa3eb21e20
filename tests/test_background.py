"""An iteration in a thread: order, errors, room, and that nothing is left of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from shardkit.loading import background
from shardkit.loading.background import in_background


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "shardkit-prefetch"]


def test_the_same_items_in_the_same_order_then_what_was_raised():
    def items() -> Iterator[int]:
        yield from range(100)
        raise KeyError("at last")

    seen: list[int] = []
    with pytest.raises(KeyError, match="at last"):
        seen.extend(in_background(items(), 3))
    assert seen == list(range(100))
    assert not threads()


@pytest.mark.parametrize("room", [1, 4])
def test_it_runs_ahead_as_far_as_there_is_room(room):
    begun = []

    def items() -> Iterator[int]:
        for number in range(20):
            begun.append(number)
            yield number

    running = in_background(items(), room)
    assert next(running) == 0
    deadline = time.monotonic() + 10
    while len(begun) < room + 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    assert len(begun) == room + 2  # one taken, `room` wait, one has no room yet
    running.close()
    assert not threads()


def test_closing_it_closes_the_iteration_in_its_own_thread():
    closed_in = []

    def items() -> Iterator[int]:
        try:
            while True:
                yield 0
        finally:
            closed_in.append(threading.current_thread().name)

    running = in_background(items(), 1)
    next(running)
    running.close()
    assert closed_in == ["shardkit-prefetch"]


def test_an_iteration_that_does_not_end_is_told_to(monkeypatch):
    monkeypatch.setattr(background, "PATIENCE_S", 0.2)
    told = threading.Event()

    def items() -> Iterator[int]:
        yield 0
        told.wait(60)

    running = in_background(items(), 1, give_up=told.set)
    next(running)
    running.close()
    assert told.is_set()
    assert not threads()
