"""Where a thread's time went: on a core, ready but without one, or waiting for something.

The kernel keeps the second in ``schedstat``; what is left of the wall clock's time is waiting: for
a disk, a network, a lock, another process, or asleep. That holds for whatever code it is, Python or
not, and beside other busy processes, too.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from contextlib import suppress
from typing import NamedTuple

_OF_THREAD = getattr(resource, "RUSAGE_THREAD", None)
"""Linux alone has it."""


class Spent(NamedTuple):
    """Seconds of a thread. ``kernel``, of ``cpu``: opening and reading files, page faults."""

    wall: float = 0.0
    cpu: float = 0.0
    starved: float = 0.0
    kernel: float = 0.0

    @property
    def blocked(self) -> float:
        return max(0.0, self.wall - self.cpu - self.starved)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(*(a - b for a, b in zip(self, other, strict=True)))


def quick_look() -> Spent:
    """Return seconds of this thread, without those that it had no core for: they count as waiting.
    Asking the kernel for these takes 70 us after some idle milliseconds, and the rest 20."""
    return Spent(time.perf_counter(), time.thread_time())


class Descriptor:
    """An open file that is closed with its thread."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        return os.pread(self._fd, 64, 0)

    def __del__(self) -> None:
        with suppress(AttributeError):  # it could not be opened
            os.close(self._fd)


class Clock(threading.local):
    """The clock of whichever thread asks."""

    def __init__(self) -> None:
        self._pid = 0
        self._file: Descriptor | None = None

    def __reduce__(self) -> tuple[type[Clock], tuple[()]]:
        return Clock, ()  # another process has threads of its own

    def now(self) -> Spent:
        """Return seconds since some moment: only differences mean something."""
        return Spent(time.perf_counter(), time.thread_time(), self._starved())

    def now_with_kernel(self) -> Spent:
        """Return the same, and how much of it was in the kernel."""
        kernel = 0.0 if _OF_THREAD is None else resource.getrusage(_OF_THREAD).ru_stime
        return self.now()._replace(kernel=kernel)

    def after_waiting(self, before: Spent) -> Spent:
        """Return the same, quickly, after a look just before the thread waited: seconds without a
        core in between count from here on."""
        return quick_look()._replace(starved=before.starved)

    def _starved(self) -> float:
        if self._pid != os.getpid():  # a child has its parent's
            self._pid, self._file = os.getpid(), None
            with suppress(OSError):  # not Linux, or a kernel that does not keep it
                path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
                self._file = Descriptor(path)
        if self._file is None:
            return 0.0
        try:
            return int(self._file.read().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0
