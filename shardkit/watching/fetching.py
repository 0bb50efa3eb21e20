"""Making one batch, watched where it is made: in a worker, or in the loop's own process."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from shardkit.watching.clock import Spent
from shardkit.watching.loop import Watch

MOST_PATHS = 4096
"""That a process writes down; after that opened files are only counted."""

CONTAINERS = (
    *(".h5", ".hdf5", ".mdb", ".lmdb", ".npy", ".npz", ".arrow", ".parquet", ".tar", ".zip"),
    *(".beton", ".mds", ".tfrecord", ".tfrecords", ".db", ".sqlite", ".memmap", ".dat"),
)
"""Endings of files that hold many samples; models' weights have others."""


@dataclass(slots=True)
class Account:
    """The regions of one fetch: seconds of each region, without those inside it."""

    regions: dict[str, Spent] = field(default_factory=dict)
    stack: list[tuple[str, Spent]] = field(default_factory=list)
    num_opened: int = 0
    paths: list[str] = field(default_factory=list)

    def enter(self, kind: str, now: Spent) -> None:
        """A region begins; inside one of its own kind nothing changes."""
        self._charge(now)
        self.stack.append((kind, now))

    def leave(self, now: Spent) -> None:
        """End the innermost region."""
        self._charge(now)
        self.stack.pop()
        if self.stack:
            self.stack[-1] = (self.stack[-1][0], now)

    def _charge(self, now: Spent) -> None:
        if self.stack:
            kind, since = self.stack[-1]
            before = self.regions.get(kind, Spent())
            self.regions[kind] = Spent(*map(sum, zip(before, now - since, strict=True)))
            self.stack[-1] = (kind, now)


class Fetches(threading.local):
    """The account of the fetch that a thread is in."""

    account: Account | None = None


class Fetching:
    """Watches fetches, of all threads of a process."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._here = Fetches()
        self._pid = 0
        self._paths: set[str] = set()
        self._is_looked_at = False
        self._idle: tuple[float, float] | None = None
        """Seconds of the process's threads, and of this one, when the last fetch ended."""

    def fetch(self, make: Callable[[], Any], parent: int | None, size: int | None) -> Any:
        """Make a batch. ``parent`` is the process of the loop, in a worker."""
        if self._pid != os.getpid():
            if not self._pid:  # a process that is forked has its parent's hooks
                sys.addaudithook(self._hook)
            self._pid, self._paths, self._idle = os.getpid(), set(), None
            self._is_looked_at = False
        before = self._watch.clock.now_with_kernel()
        sending = self._sending() if parent is not None else 0.0
        account = self._here.account = Account()
        account.enter("dataset", before)
        try:
            return make()
        finally:
            self._here.account = None
            now = self._watch.clock.now_with_kernel()
            while account.stack:
                account.leave(now)
            held = [] if self._is_looked_at else held_files()
            self._is_looked_at = True
            self._idle = time.process_time(), self._watch.clock.now().cpu
            # A worker may be ended at any time.
            write = self._watch.records.write if parent else self._watch.records.gather
            write(
                "fetch",
                t=before.wall,
                parent=parent,
                size=size,
                sending=sending,
                opened=account.num_opened,
                paths=account.paths,
                held=held,
                **{kind: list(spent) for kind, spent in account.regions.items()},
            )

    def _sending(self) -> float:
        """Return seconds on a core, since the last fetch ended, of the thread that sends batches
        away."""
        if self._idle is None:
            return 0.0
        all_threads, this = self._idle
        return max(0.0, time.process_time() - all_threads - (time.thread_time() - this))

    def region(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, whose time inside of a fetch is that kind's."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            account = self._here.account
            if account is None or account.stack[-1][0] == kind:
                return function(*args, **kwargs)
            account.enter(kind, self._watch.clock.now_with_kernel())
            try:
                return function(*args, **kwargs)
            finally:
                account.leave(self._watch.clock.now_with_kernel())

        return timed

    def noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, whose first argument is noted as a file that is opened: one that is
        opened by a library in C tells nobody."""

        def noted(path: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, str | bytes | os.PathLike):
                self._note(path)
            return function(path, *args, **kwargs)

        return noted

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        """Note files that Python opens to be read, for ``sys.addaudithook``."""
        if event != "open":
            return
        path, mode, flags = args
        is_written = mode is not None and any(letter in mode for letter in "wax+")
        if is_written or isinstance(path, int) or (flags or 0) & (os.O_WRONLY | os.O_RDWR):
            return
        self._note(path)

    def _note(self, path: Any) -> None:
        account = self._here.account
        if account is None:
            return
        account.num_opened += 1
        if len(self._paths) < MOST_PATHS:
            whole = os.path.abspath(os.fsdecode(path))
            if whole not in self._paths:
                self._paths.add(whole)
                account.paths.append(whole)


def held_files() -> list[str]:
    """Return containers of samples that this process has open to read, or mapped: a library in C
    opens them, once, and tells nobody."""
    found = set()
    with suppress(OSError):  # not Linux
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError, ValueError, IndexError):  # closed meanwhile
                with open(f"/proc/self/fdinfo/{name}") as info:
                    flags = int(info.read().partition("flags:")[2].split()[0], 8)
                if flags & os.O_ACCMODE == os.O_RDONLY:
                    found.add(os.readlink(f"/proc/self/fd/{name}"))
        with open("/proc/self/maps", "rb") as maps:
            lines = [line.split(None, 5) for line in maps.read().splitlines()]
        found |= {os.fsdecode(line[5]) for line in lines if len(line) == 6}
    return sorted(path for path in found if path.endswith(CONTAINERS) and os.path.isfile(path))
