"""Waiting until nobody makes batches any more, so that a step is timed with the cores to itself."""

from __future__ import annotations

import multiprocessing
import time

LOOK_S = 0.03

MOST_S = 10.0
"""Workers that never come to rest have something else to do."""

BUSY = 0.2
"""Share of a core that a worker uses which waits for room in its queue, at most: it wakes up now
and then."""

LOOKS = 2
"""One after another that must find no work: between two batches a worker may wait for a disk."""


def wait_until_quiet() -> None:
    """Sleep until this process and its workers hardly use a core, or ten seconds have passed."""
    deadline = time.monotonic() + MOST_S
    before, num_quiet = _used(), 0
    while num_quiet < LOOKS and time.monotonic() < deadline:
        time.sleep(LOOK_S)
        now = _used()
        num_quiet = num_quiet + 1 if now - before < BUSY * LOOK_S else 0
        before = now


def _used() -> float:
    """Return seconds of processor time of this process and the workers that it started."""
    workers = (process.pid for process in multiprocessing.active_children())
    return time.process_time() + sum(_of(pid) for pid in workers if pid is not None)


def _of(pid: int) -> float:
    """From schedstat, whose unit is a nanosecond; 0 for one that has ended."""
    try:
        with open(f"/proc/{pid}/schedstat") as file:
            return int(file.read().split()[0]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
