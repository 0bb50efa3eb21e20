"""An iteration that runs ahead in a thread of its own."""

from __future__ import annotations

import atexit
import math
import queue
import threading
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

POLL_S = 0.1
"""How often a thread that waits for room looks whether it should end."""

PATIENCE_S = 0.5
"""How long an iteration that should end may take over its next item before it is stopped."""

EXIT_S = 10.0
"""An interpreter that exits in mid-epoch waits so long for the item that is being made."""

_END: Any = object()


@dataclass(eq=False)
class _Failed:
    error: BaseException


def in_background(
    items: Iterable[T], room: int, give_up: Callable[[], object] | None = None
) -> Generator[T, None, None]:
    """The same items; at most ``room`` wait to be taken.

    What the iteration raises is raised in its turn. Closing the generator ends the thread, and
    closes the iteration there. ``give_up`` is called if that takes too long.
    """
    ready: queue.Queue[Any] = queue.Queue(room)
    stop = threading.Event()
    thread = threading.Thread(target=_fill, args=(items, ready, stop), name="shardkit-prefetch")
    thread.daemon = True  # an interpreter that exits in mid-epoch should not wait for all of it
    end = partial(_end, thread, ready, stop, give_up)
    # An interpreter that exits ends threads where they ask for its lock, and in torch's code that
    # aborts the process: https://github.com/pytorch/pytorch/issues/190489. This one ends before.
    atexit.register(end, EXIT_S)
    thread.start()
    try:
        while (item := ready.get()) is not _END:
            if isinstance(item, _Failed):
                raise item.error
            yield item
            del item
    finally:
        atexit.unregister(end)
        end()


def _fill(items: Iterable[Any], ready: queue.Queue[Any], stop: threading.Event) -> None:
    """The thread: from the iterable to the queue, until either ends."""
    iterator = None
    try:
        iterator = iter(items)
        for item in iterator:
            if not _put(ready, item, stop):
                return
            del item
        _put(ready, _END, stop)
    except BaseException as error:  # noqa: BLE001  it is raised again where the item is awaited
        _put(ready, _Failed(error), stop)
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()


def _put(ready: queue.Queue[Any], item: object, stop: threading.Event) -> bool:
    while not stop.is_set():
        try:
            ready.put(item, timeout=POLL_S)
        except queue.Full:
            continue
        return True
    return False


def _end(
    thread: threading.Thread,
    ready: queue.Queue[Any],
    stop: threading.Event,
    give_up: Callable[[], object] | None,
    at_most: float = math.inf,
) -> None:
    """Stop the thread, and wait for it, ``at_most`` so many seconds."""
    stop.set()
    waited = 0.0
    while thread.is_alive() and waited < at_most:
        _drain(ready)  # it may wait for room
        thread.join(POLL_S)
        waited += POLL_S
        if waited > PATIENCE_S and give_up is not None:
            give_up()
            give_up = None


def _drain(ready: queue.Queue[Any]) -> None:
    try:
        while True:
            ready.get_nowait()
    except queue.Empty:
        pass
