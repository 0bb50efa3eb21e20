"""All datasets of one cache: which blocks are wanted, which are on their way, and how that ends."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shardkit.arrays import Integers
from shardkit.errors import StorageError
from shardkit.formats.writev import write_all
from shardkit.index.file_names import INDEX_NAME
from shardkit.memory.buffers import remember
from shardkit.remote.cached_split import CachedSplit
from shardkit.remote.dataset_cache import (
    REQUEST_BLOCKS,
    DatasetCache,
    DatasetSplit,
    name_of,
    read_index,
    replaced,
)
from shardkit.remote.eviction import COPY_S, Evictor, datasets_in
from shardkit.remote.lookahead import AHEAD_BLOCKS, AnnouncedLoop, Lookahead
from shardkit.remote.object_store import RemoteFolder
from shardkit.remote.urls import Url
from shardkit.system.file_io import BLOCK_BYTES

# --- requests to a server -----------------------------------------------------------------

MOST_REQUESTS = 128
MOST_BYTES = 256 << 20
"""The most that bodies of answers may take of the memory of the process."""


class HasPriority(Protocol):
    """A request, and whether it is made ahead: nobody waits for its answer yet."""

    is_ahead: bool


class RequestLimiter:
    """Lets so many requests be made at once, and so many bytes of answers be in memory.

    What somebody waits for goes first; of that, what came first. A request may cease to be ahead
    while it waits.
    """

    def __init__(self) -> None:
        self._num_requests = 0
        self._num_bytes = 0
        self._waiting: list[tuple[HasPriority, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def slot(self, request: HasPriority, num_bytes: int) -> AsyncIterator[None]:
        """Wait for a slot, and hold it until the answer has left the memory."""
        admitted = asyncio.get_running_loop().create_future()
        self._waiting.append((request, num_bytes, admitted))
        self._admit()
        await admitted
        try:
            yield
        finally:
            self._num_requests -= 1
            self._num_bytes -= num_bytes
            self._admit()

    def fail_waiting(self, error: Exception) -> None:
        """Let all that wait fail, too: a server that does not answer would else be tried once more
        for each, as long again."""
        for _, _, admitted in self._waiting:
            admitted.set_exception(error)
        self._waiting.clear()

    def _admit(self) -> None:
        while self._waiting:
            chosen = next((one for one in self._waiting if not one[0].is_ahead), self._waiting[0])
            _, num_bytes, admitted = chosen
            is_full = self._num_requests and self._num_bytes + num_bytes > MOST_BYTES
            if is_full or self._num_requests >= MOST_REQUESTS:
                return
            self._waiting.remove(chosen)
            self._num_requests += 1
            self._num_bytes += num_bytes
            admitted.set_result(None)


# --- writes to the disk -------------------------------------------------------------------

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
                is_there = bool(split.takes_space[numbers].all())
                if is_there:
                    split.stamp(first, count)
            finally:
                self._num_running -= 1
                self._ended = time.monotonic()
                self._evictor.written(split, numbers, is_there=is_there)

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
            await asyncio.sleep(COPY_S / 20)


def _write(fd: int, start: int, data: memoryview) -> None:
    """Write all from there on, and close the file."""
    try:
        write_all(fd, [data], start)
    finally:
        os.close(fd)


# --- the cache ----------------------------------------------------------------------------

WINDOW_BYTES = 256 << 20
WINDOW_PART = 8
"""What is needed within so many bytes, or this part of the cache, may evict what is needed later. A
larger window means more fetches, as blocks go sooner than they must."""

WAIT_S = 0.01
"""Between two looks whether a batch has space, while others hold too much."""

MOST_REMOTES = 16
"""Places, and credentials for them, that connections are kept to."""

Place = dict[str, Any]
"""What each message says of a dataset: ``url``, ``settings``, ``retry_s``, ``most_bytes``."""


@dataclass(eq=False)
class Fetch:
    """Neighbouring blocks of one file, on their way by one request."""

    split: DatasetSplit
    first: int
    count: int
    is_ahead: bool
    task: asyncio.Task[None] = field(init=False)


class BlockCache:
    """The cache in a folder. Who asks for blocks holds them until it asks again or ends.

    Attributes:
        num_bytes: of blocks that were fetched since it began.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lookahead = Lookahead()
        self.evictor = Evictor(folder, self.lookahead.next_steps)
        self.writes = DiskWrites(self.evictor)
        self.num_bytes = 0
        self._datasets: dict[str, DatasetCache] = {}
        self._remotes: dict[str, RemoteFolder] = {}  # the last used is the last
        self._limiters: defaultdict[str, RequestLimiter] = defaultdict(RequestLimiter)
        self._coming: dict[tuple[DatasetSplit, int], Fetch] = {}
        self._num_ahead = 0  # blocks that come before anybody asked for them

    # --- datasets -------------------------------------------------------------------------

    async def open(self, place: Place, *, is_first: bool = True) -> DatasetCache:
        """Return the dataset that lies there now. ``is_first``: for a reader that has read nothing
        yet."""
        if place["most_bytes"] is not None:
            self.evictor.most_bytes = place["most_bytes"]
            with suppress(StorageError):  # readers hold more: that is said when they want more
                self.evictor.make_space(0)
        remote = self._connect(place, anew=True)
        index = await read_index(remote, is_first=is_first)
        name = name_of(index, remote.url)
        found = self._datasets.get(name)
        if found is None:
            found = DatasetCache(self.folder / name, index, remote, self.evictor)
            self._datasets[name] = found
        found.remote = remote
        return found

    def are_intact(self) -> bool:
        """Return True if nobody has deleted what lies of a dataset here. What is put in its place
        are other files, of which nothing that this server knows is true."""
        return all((one.folder / INDEX_NAME).exists() for one in self._datasets.values())

    def _connect(self, place: Place, *, anew: bool) -> RemoteFolder:
        """Return what lies there, with the credentials that the reader has now: they may have been
        renewed since it was opened; ``anew``: those of a profile, too."""
        key = json.dumps([place["url"], place["settings"], place["retry_s"]])
        found = None if anew else self._remotes.get(key)
        if found is None:
            found = RemoteFolder(Url(place["url"]), place["settings"], place["retry_s"])
        self._remotes.pop(key, None)
        remember(self._remotes, key, found, MOST_REMOTES)
        return found

    async def use(self, name: str, place: Place) -> DatasetCache:
        """Return the dataset that a reader has opened before, maybe by another server.

        Raises:
            StorageError: another lies there by now.
        """
        found = self._datasets.get(name)
        if found is None:
            found = await self.open(place, is_first=False)
        else:
            found.remote = self._connect(place, anew=False)
        if found.folder.name != name:
            raise replaced(found.remote.url)
        return found

    def clear(self, names: Sequence[str]) -> None:
        """Drop all of these datasets. Who reads one goes on: it is fetched again."""
        for name in names:
            folder = self.folder / name
            if name in self._datasets:
                self._datasets[name].forget()
            elif folder in datasets_in(self.folder):
                self.evictor.clear_orphans(folder)

    # --- what readers ask for -------------------------------------------------------------

    async def need(self, reader: int, split: DatasetSplit, numbers: Integers) -> None:
        """Have these blocks, and keep them until this reader needs others.

        Raises:
            StorageError: the cache cannot hold them.
        """
        while not self.evictor.hold(reader, split, numbers):  # all of a batch, or none of it:
            await asyncio.sleep(WAIT_S)  # nobody waits with a part that others need
        self.evictor.touch(split, numbers)
        try:
            self._fetch_missing(split, numbers)
            coming = self._coming_of(split, numbers)
            for fetch in coming:
                fetch.is_ahead = False
            if coming:
                await asyncio.wait([fetch.task for fetch in coming])
            for fetch in coming:
                fetch.task.result()
            self.evictor.note_copying(reader)
        except BaseException:
            self.evictor.release(reader)
            raise

    def expect(self, split: DatasetSplit, numbers: Integers) -> None:
        """Begin to fetch what a reader will need next, as far as half of the cache holds it."""
        ends = split.blocks.bytes_of(numbers).cumsum()
        numbers = numbers[: int(ends.searchsorted(self.evictor.capacity() // 2, "right"))]
        self.evictor.touch(split, numbers)
        self._fetch_missing(split, numbers, is_ahead=True)

    def follow(self, owner: int, name: str, split: DatasetSplit, told: Integers) -> None:
        """Note that a loop will read these blocks, too: (2 K,) int64, the steps, and the blocks."""
        steps, blocks = told.reshape(2, -1)
        loop = self.lookahead.loops.get((name, split))
        if loop is None:
            loop = self.lookahead.loops[name, split] = AnnouncedLoop(owner, split)
        loop.plan.tell(steps, blocks)
        self._fetch_ahead()

    def move(self, name: str, step: int, is_resting: bool) -> None:
        """Note that a loop has reached this step."""
        self.lookahead.move(name, step, is_resting)
        self._fetch_ahead()

    def forget(self, reader: int) -> None:
        """Note that a reader has ended."""
        self.evictor.release(reader)
        self.lookahead.forget(reader)

    # --- fetching -------------------------------------------------------------------------

    def _fetch_ahead(self) -> None:
        """Keep requests for what loops need next going. What is further away than the window comes
        only if nothing need go for it."""
        window = min(self.evictor.capacity() // WINDOW_PART, WINDOW_BYTES) // BLOCK_BYTES
        while self._num_ahead < AHEAD_BLOCKS:
            loop = self.lookahead.nearest()
            if loop is None:
                self._complete()
                return
            at_once = min(max(window // 4, 1), AHEAD_BLOCKS)
            free = self.evictor.free() // BLOCK_BYTES - len(self._coming)
            if loop.is_waiting or (loop.num_ahead > window and free < at_once):
                return
            numbers = loop.next_uses(at_once)
            if loop.reach == AHEAD_BLOCKS and self.evictor.holds_all(loop.split):
                numbers = loop.with_neighbours(numbers)
            self._fetch_missing(loop.split, numbers, is_ahead=True)
            loop.coming = [fetch.task for fetch in self._coming_of(loop.split, numbers)]

    def _complete(self) -> None:
        """Fetch what loops leave out of a split that fits as a whole."""
        for loop in self.lookahead.loops.values():
            if not self._coming and self.evictor.holds_all(loop.split):
                self._fetch_missing(loop.split, loop.rest(), is_ahead=True)

    def _fetch_missing(
        self, split: DatasetSplit, numbers: Integers, *, is_ahead: bool = False
    ) -> None:
        """Begin to fetch those blocks that are neither there nor on their way."""
        missing = [
            number
            for number in numbers[split.stamps[numbers] == 0].tolist()
            if not split.check_left(number) and (split, number) not in self._coming
        ]
        blocks = np.array(missing, np.int64)
        files = split.blocks.firsts.searchsorted(blocks, "right").tolist()
        requests: list[tuple[int, int]] = []  # first block, and how many of one file
        last = -1
        for block, file in zip(missing, files, strict=True):
            first, count = requests[-1] if requests else (-1, 0)
            if first + count == block and file == last and count < REQUEST_BLOCKS:
                requests[-1] = first, count + 1
            else:
                requests.append((block, 1))
            last = file
        if is_ahead:  # what is needed next is asked for first
            self._num_ahead += len(missing)
            steps = iter(self.lookahead.next_steps(split, blocks).tolist())
            soonest = [min(next(steps) for _ in range(count)) for _, count in requests]
            requests = [requests[i] for i in np.argsort(soonest, kind="stable")]
        for first, count in requests:
            fetch = Fetch(split, first, count, is_ahead)
            blocks_of_it = ((split, number) for number in range(first, first + count))
            self._coming |= dict.fromkeys(blocks_of_it, fetch)
            fetch.task = asyncio.create_task(self._fetch(fetch))
            fetch.task.add_done_callback(partial(self._finish, fetch, is_ahead))

    def _coming_of(self, split: DatasetSplit, numbers: Integers) -> list[Fetch]:
        coming = (self._coming.get((split, number)) for number in numbers.tolist())
        return [*dict.fromkeys(fetch for fetch in coming if fetch is not None)]

    async def _fetch(self, fetch: Fetch) -> None:
        split, first, count = fetch.split, fetch.first, fetch.count
        _, _, num_bytes = split.blocks.place(first, count)
        limiter = self._limiters[split.dataset.remote.url.host]
        async with limiter.slot(fetch, num_bytes):
            try:
                data = await split.read_checked(first, count)
            except StorageError as error:
                limiter.fail_waiting(error)
                raise
            self.num_bytes += len(data)
            await self.writes.put(split, first, count, data)
        self.evictor.touch(split, np.arange(first, first + count))

    def _finish(self, fetch: Fetch, was_ahead: bool, task: asyncio.Task[None]) -> None:
        for number in range(fetch.first, fetch.first + fetch.count):
            del self._coming[fetch.split, number]
        if was_ahead:
            self._num_ahead -= fetch.count
        task.exception()  # nobody may be waiting any more
        self._fetch_ahead()
