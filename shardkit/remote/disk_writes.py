"""Blocks are written to the cache in threads: others come while the disk works."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from shardkit.arrays import Integers
from shardkit.errors import StorageError
from shardkit.formats.writev import write_all
from shardkit.remote.cached_split import CachedSplit
from shardkit.remote.eviction import COPY_S, Evictor

WRITES = 4
"""At once, of one request's blocks each."""

SLOW_S = 60.0
"""A write that takes longer is stuck. As long as the disk works, blocks wait so long for space."""


class DiskWrites:
    """Writes to one cache.

    The files, the space and the stamps are the event loop's alone; a thread has nothing but bytes,
    and an open file to put them in. What is being written has its space, and does not go.
    """

    def __init__(self, evictor: Evictor) -> None:
        self._evictor = evictor
        self._threads = ThreadPoolExecutor(WRITES, "shardkit-write")
        self._slots = asyncio.Semaphore(WRITES)
        self._num_running = 0
        self._ended = 0.0  # when the last did
        self._changed = asyncio.Event()

    async def put(self, split: CachedSplit, first: int, count: int, data: memoryview) -> None:
        """Write neighbouring blocks of one file, which have their checksums.

        Raises:
            StorageError: readers hold too much, for longer than they copy it. OSError: the disk
                says no, or is stuck.
        """
        numbers, is_there = np.arange(first, first + count), False
        while not is_there:  # all may be forgotten while it is written
            await self._reserve(split, numbers)
            self._num_running += 1
            try:
                async with self._slots:
                    number, start, _ = split.blocks.place(first)
                    fd = split.open(number)
                    loop = asyncio.get_running_loop()
                    writing = loop.run_in_executor(self._threads, _write, fd, start, data)
                    if not (await asyncio.wait([writing], timeout=SLOW_S))[0]:
                        raise OSError(f"a write has taken over {SLOW_S:.0f} s; its disk is stuck")
                    writing.result()
                is_there = self._evictor.has_all(split, numbers)
                if is_there:
                    split.stamp(first, count)
            finally:
                self._num_running -= 1
                self._ended = time.monotonic()
                self._evictor.written(split, numbers, is_there=is_there)
                self._changed.set()

    async def _reserve(self, split: CachedSplit, numbers: Integers) -> None:
        """Wait for space. Readers do not say when they have copied what they hold, so it is looked
        for again and again; others that need less are not kept waiting meanwhile.

        Raises:
            StorageError: the disk has nothing to do, and readers have had the time to copy; or it
                has taken too long.
        """
        since = time.monotonic()
        while True:
            try:
                return self._evictor.reserve(split, numbers)
            except StorageError:
                now = time.monotonic()
                is_idle = not self._num_running and now - max(since, self._ended) > 2 * COPY_S
                if is_idle or now - since > SLOW_S:
                    raise
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(COPY_S / 20):
                    await self._changed.wait()


def _write(fd: int, start: int, data: memoryview) -> None:
    """Write all from there on, and close the file."""
    try:
        write_all(fd, [data], start)
    finally:
        os.close(fd)
