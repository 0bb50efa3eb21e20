"""Blocks that came are written to the cache in threads: others come while the disk works."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf

import numpy as np

from shardkit.arrays import Integers
from shardkit.errors import StorageError
from shardkit.formats.writev import write_all
from shardkit.remote.cached import CachedSplit
from shardkit.remote.room import COPY_S, Room

WRITES = 4
"""At once, of one request's blocks each."""

STUCK_S = 5.0
"""Where no write has ended for so long, the disk may be stuck."""

SLOW_S = 60.0
"""As long as the disk works, blocks wait so long for room. One write that takes longer is stuck."""


@dataclass(eq=False)
class _Waiting:
    """``turn`` is done when there is room, and a thread. ``refused``: since when there was none."""

    split: CachedSplit
    numbers: Integers
    num_bytes: int
    turn: asyncio.Future[None]
    refused: float = inf


class DiskWrites:
    """Of one cache.

    The files, the room and the stamps are the event loop's alone; a thread has nothing but bytes,
    and an open file to put them in. What is being written has its room, and does not go.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._threads = ThreadPoolExecutor(WRITES, "shardkit-write")
        self._waiting: list[_Waiting] = []  # who came first is the first
        self._running: dict[_Waiting, float] = {}  # since when
        self._ended = 0.0  # when the last did
        self._full: StorageError | None = None  # by whom one was refused since anything changed
        self._timer: asyncio.TimerHandle | None = None

    def are_idle(self) -> bool:
        """Whether there are none."""
        return not self._running

    def are_stuck(self) -> bool:
        """Whether there are some, and they do not end."""
        now, oldest = time.monotonic(), min(self._running.values(), default=inf)
        return now - oldest > SLOW_S or now - max(oldest, self._ended) > STUCK_S

    async def put(self, split: CachedSplit, first: int, count: int, data: memoryview) -> None:
        """Have blocks that lie beside each other in one file; they are right.

        Raises:
            StorageError: readers hold too much, for longer than they copy it. OSError: the disk
                says no.
        """
        loop, numbers = asyncio.get_running_loop(), np.arange(first, first + count)
        is_there = False
        while not is_there:
            this = _Waiting(split, numbers, len(data), loop.create_future())
            self._add(this)
            await this.turn
            try:
                fd, start = split.open(first)
                await loop.run_in_executor(self._threads, _write, fd, start, data)
            except Exception:
                self._end(this, is_there=False)
                raise
            is_there = self._room.has_all(split, numbers)  # else all were forgotten meanwhile
            if is_there:
                split.stamp(first, count)
            self._end(this, is_there=is_there)

    def _end(self, one: _Waiting, *, is_there: bool) -> None:
        del self._running[one]
        self._ended = time.monotonic()
        try:
            self._room.written(one.split, one.numbers, is_there=is_there)
        finally:
            self._let_in()

    # --- who is next ----------------------------------------------------------------------

    def _add(self, one: _Waiting) -> None:
        """One more: others have been tried since anything changed."""
        if not self._waiting:
            self._full = None
        self._waiting.append(one)
        if len(self._running) < WRITES:
            self._try(one)
        self._set_timer()

    def _let_in(self) -> None:
        """Who came first goes first. Whoever finds no room waits for it, but keeps nobody else
        waiting: another may have to be written before readers let go of what they hold."""
        self._full = None
        for one in [*self._waiting]:
            if len(self._running) == WRITES:
                break
            self._try(one)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(COPY_S / 20, self._look_again)

    def _look_again(self) -> None:
        """Readers may have copied what they held."""
        self._timer = None
        self._let_in()

    def _try(self, one: _Waiting) -> None:
        """Give it room, and a thread, or tell it that it waits in vain."""
        now = time.monotonic()
        failed: Exception | None = None
        try:
            self._reserve(one)
        except StorageError as error:
            self._full = error
            one.refused = min(one.refused, now)
            if not self._is_too_long(one.refused, now):
                return
            failed = error
        except Exception as error:  # noqa: BLE001  who waits for this room raises it
            failed = error
        self._waiting.remove(one)
        if failed is not None:
            one.turn.set_exception(failed)
        else:
            self._running[one] = now
            one.turn.set_result(None)

    def _reserve(self, one: _Waiting) -> None:
        """Raises StorageError where there is no room. Once one was refused, all that may go has
        gone, and others find what is free, or nothing."""
        if self._full is not None and one.num_bytes > self._room.free():
            raise self._full.with_traceback(None)
        self._room.reserve(one.split, one.numbers)

    def _is_too_long(self, refused: float, now: float) -> bool:
        """Where the disk has nothing to do, readers hold all, and have had the time to copy it."""
        is_idle = not self._running and now - max(refused, self._ended) > 2 * COPY_S
        return is_idle or now - refused > SLOW_S


def _write(fd: int, start: int, data: memoryview) -> None:
    """All of it, from there on; and close the file."""
    try:
        write_all(fd, [data], start)
    finally:
        os.close(fd)
