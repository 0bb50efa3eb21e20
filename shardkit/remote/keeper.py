"""All datasets of one cache: which blocks are wanted, which come, and how those end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Integers
from shardkit.errors import ChecksumError, IndexFileError, ShardMissingError, StorageError
from shardkit.index.manifest import INDEX_NAME
from shardkit.remote.ahead import AHEAD_BLOCKS, Ahead, Follower
from shardkit.remote.blocks import runs
from shardkit.remote.cached import CachedSplit
from shardkit.remote.disk_writes import DiskWrites
from shardkit.remote.gate import Patience
from shardkit.remote.kept import REQUEST_BLOCKS, Kept
from shardkit.remote.left import datasets_in
from shardkit.remote.room import Room
from shardkit.remote.same import TRIES, check_same, name_of, read_index, replaced
from shardkit.remote.store import RemoteFolder
from shardkit.remote.urls import Url
from shardkit.system.blocks import BLOCK_BYTES

WINDOW_BYTES = 256 << 20
WINDOW_PART = 8
"""What is needed within so many bytes, or this part of the cache, comes at the cost of what is
needed later. A larger window means more fetches, as blocks go sooner than they must."""

MOST_REMOTES = 16
"""Places, and credentials for them, that connections are kept to."""

Block = tuple[CachedSplit, int]

Place = dict[str, Any]
"""What each message says of a dataset: ``url``, ``settings``, ``retry_s``, ``most_bytes``."""


class Keeper:
    """Of the cache in a folder. Who asks for blocks holds them until it asks again or ends.

    Attributes:
        num_requests, num_bytes: of blocks, since it began.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ahead = Ahead()
        self.room = Room(folder, self.ahead.needed)
        self.writes = DiskWrites(self.room)
        self.num_requests = 0
        self.num_bytes = 0
        self._datasets: dict[str, Kept] = {}
        self._remotes: dict[str, RemoteFolder] = {}  # the last used is the last
        self._coming: dict[Block, tuple[asyncio.Future[None], Patience]] = {}
        self._running: set[asyncio.Task[None]] = set()  # asyncio would let them be collected
        self._ahead_blocks = 0  # that come before anybody asked for them

    # --- datasets -------------------------------------------------------------------------

    async def open(self, place: Place, *, is_first: bool = True) -> Kept:
        """The dataset that lies there now. ``is_first``: of a reader that has read nothing yet."""
        if place["most_bytes"] is not None:
            self.room.most_bytes = place["most_bytes"]
            with suppress(StorageError):  # readers hold more: that is said when they want more
                self.room.make(0)
        remote = self._reach(place, anew=True)
        return self._kept(await read_index(remote, remote.patience(is_first=is_first)), remote)

    def is_whole(self) -> bool:
        """Whether nobody has deleted what lies of a dataset here. What is put in its place are
        other files, of which nothing that this keeper knows is true."""
        return all((kept.folder / INDEX_NAME).exists() for kept in self._datasets.values())

    def _reach(self, place: Place, *, anew: bool) -> RemoteFolder:
        """What lies there, with the credentials that the reader has now: they may have been renewed
        since it was opened. ``anew``: and those of a profile, too."""
        key = json.dumps([place["url"], place["settings"], place["retry_s"]])
        found = None if anew else self._remotes.get(key)
        if found is None:
            found = RemoteFolder(Url(place["url"]), place["settings"], place["retry_s"])
        self._remotes.pop(key, None)
        self._remotes[key] = found
        for old in [*self._remotes][:-MOST_REMOTES]:
            del self._remotes[old]
        return found

    def _kept(self, data: bytes, remote: RemoteFolder) -> Kept:
        name = name_of(data, remote.url)
        found = self._datasets.get(name)
        if found is None:
            found = self._datasets[name] = Kept(self.folder / name, data, remote, self.room)
        found.remote = remote
        return found

    async def use(self, name: str, place: Place) -> Kept:
        """The dataset that a reader has opened before, maybe of another keeper.

        Raises:
            StorageError: another lies there by now.
        """
        found = self._datasets.get(name)
        if found is None:
            found = await self.open(place, is_first=False)
        else:
            found.remote = self._reach(place, anew=False)
        if found.folder.name != name:
            raise replaced(found.remote.url)
        return found

    def clear(self, names: Sequence[str]) -> None:
        """Have nothing of these datasets. Who reads one goes on: it is fetched again."""
        for name in names:
            folder = self.folder / name
            if name in self._datasets:
                self._datasets[name].forget()
            elif folder in datasets_in(self.folder):
                self.room.left.clear(folder)

    # --- what readers ask for -------------------------------------------------------------

    async def need(self, reader: int, split: CachedSplit, kept: Kept, numbers: Integers) -> None:
        """Have these blocks, and keep them until this reader needs others.

        Raises:
            StorageError: the cache cannot hold them.
        """
        _refuse_others(split, numbers)
        self.room.hold(reader, split, numbers)
        self.room.touch(split, numbers)
        try:
            if before := self.ahead.before(split, numbers):
                await asyncio.wait(before)
            self._bring(split, kept, numbers)
            coming = self._coming_of(split, numbers)
            for _, patience in coming:
                patience.is_ahead = False
            waited = [asyncio.shield(future) for future, _ in coming]
            ends = await asyncio.gather(*waited, return_exceptions=True)
            for failed in [end for end in ends if isinstance(end, BaseException)][:1]:
                raise failed
            self.room.has(reader)
        except BaseException:
            self.room.let_go(reader)
            raise

    def expect(self, reader: int, split: CachedSplit, kept: Kept, numbers: Integers) -> None:
        """Begin to fetch what a reader will need, as far as there is room for it."""
        _refuse_others(split, numbers)
        numbers = self.room.announce(reader, split, numbers)
        self.room.touch(split, numbers)
        self._ahead_blocks += self._bring(split, kept, numbers, is_ahead=True)

    def follow(self, owner: int, name: str, split: CachedSplit, kept: Kept, told: Integers) -> None:
        """A loop will read these blocks, too: (2 K,) int64, the steps, and the blocks."""
        steps, blocks = told.reshape(2, -1)
        _refuse_others(split, blocks)
        loop = self.ahead.loops.get((name, split))
        if loop is None:
            loop = self.ahead.loops[name, split] = Follower(owner, kept, split)
        loop.plan.tell(steps, blocks)
        self._fetch_ahead()

    def move(self, name: str, step: int, is_resting: bool) -> None:
        """A loop has reached this step."""
        self.ahead.move(name, step, is_resting)
        self._fetch_ahead()

    def forget(self, reader: int) -> None:
        """A reader has ended."""
        self.room.forget(reader)
        self.ahead.forget(reader)

    # --- fetching -------------------------------------------------------------------------

    def _fetch_ahead(self) -> None:
        """Keep requests for what loops need next going. What is further away than the window comes
        only where nothing need go for it."""
        window = min(self.room.bytes() // WINDOW_PART, WINDOW_BYTES) // BLOCK_BYTES
        while self._ahead_blocks < AHEAD_BLOCKS:
            loop = self.ahead.nearest()
            if loop is None:
                self._complete()
                return
            if loop.is_waiting:
                return
            at_once = min(max(window // 4, 1), AHEAD_BLOCKS)
            free = self.room.free() // BLOCK_BYTES - len(self._coming)
            if loop.num_ahead > window and free < at_once:
                return
            numbers = loop.next_uses(at_once)
            if loop.reach == AHEAD_BLOCKS and self.room.holds_all(loop.split):
                numbers = loop.with_neighbours(numbers)
            self._ahead_blocks += self._bring(loop.split, loop.kept, numbers, is_ahead=True)
            loop.coming = [future for future, _ in self._coming_of(loop.split, numbers)]

    def _complete(self) -> None:
        """What loops leave out of a split that fits as a whole."""
        for loop in self.ahead.loops.values():
            is_idle = not self._coming and loop.may_have_rest
            if is_idle and self.room.holds_all(loop.split):
                numbers = loop.rest()
                self._ahead_blocks += self._bring(loop.split, loop.kept, numbers, is_ahead=True)

    def _bring(
        self, split: CachedSplit, kept: Kept, numbers: Integers, *, is_ahead: bool = False
    ) -> int:
        """Begin to fetch those that are neither there nor coming; how many."""
        absent = numbers[split.stamps[numbers] == 0].tolist()
        missing = [
            n for n in absent if not self._is_left(split, n) if (split, n) not in self._coming
        ]
        loop = asyncio.get_running_loop()
        blocks = np.array(missing, np.int64)
        files = split.blocks.firsts.searchsorted(blocks, "right") - 1
        requests = runs(blocks, files, REQUEST_BLOCKS)
        if is_ahead:  # what is needed next is asked for first
            steps = iter(self.ahead.needed(split, blocks).tolist())
            soonest = [min(next(steps) for _ in range(count)) for _, count in requests]
            requests = [requests[i] for i in np.argsort(soonest, kind="stable")]
        for first, count in requests:
            patience = kept.remote.patience()
            patience.is_ahead = is_ahead
            for number in range(first, first + count):
                self._coming[split, number] = loop.create_future(), patience
            task = asyncio.create_task(self._fetch(kept, split, first, count, patience, is_ahead))
            task.add_done_callback(self._running.discard)
            self._running.add(task)
        return len(missing)

    def _coming_of(
        self, split: CachedSplit, numbers: Integers
    ) -> list[tuple[asyncio.Future[None], Patience]]:
        coming = (self._coming.get((split, number)) for number in numbers.tolist())
        return [one for one in coming if one is not None]

    @staticmethod
    def _is_left(split: CachedSplit, number: int) -> bool:
        return number in split.seems_there and split.take_left(number)

    async def _fetch(
        self,
        kept: Kept,
        split: CachedSplit,
        first: int,
        count: int,
        patience: Patience,
        is_ahead: bool,
    ) -> None:
        """Neighbours, by one request; whoever waits for one of them is told how it ended."""
        failed: Exception | None = None
        try:
            data = await _right(kept, split, first, count, patience)
            self.num_requests += 1
            self.num_bytes += len(data)
            with kept.remote.holding(len(data)):
                await self.writes.put(split, first, count, data)
            self.room.touch(split, np.arange(first, first + count))
        except Exception as error:  # noqa: BLE001  it is raised where it is waited for
            failed = error.with_traceback(None)  # its frames have the bytes
        for number in range(first, first + count):
            future, _ = self._coming.pop((split, number))
            if failed is None:
                future.set_result(None)
            else:
                future.set_exception(failed)
                future.exception()  # nobody may be waiting any more
        if is_ahead:
            self._ahead_blocks -= count
        self._fetch_ahead()


def _refuse_others(split: CachedSplit, numbers: Integers) -> None:
    """Raises IndexFileError for blocks that there are not."""
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(split.blocks)):
        raise IndexFileError(f"a split has {len(split.blocks)} blocks, not {int(numbers.max())}")


async def _right(
    kept: Kept, split: CachedSplit, first: int, count: int, patience: Patience
) -> memoryview:
    """Bytes of blocks, all of which have their checksums.

    Raises:
        ChecksumError: one had a wrong one each time. StorageError: the dataset was replaced.
    """
    file, start, _ = split.blocks.place(first)
    sizes = [split.blocks.place(number)[2] for number in range(first, first + count)]
    name, wrong = split.blocks.names[file], 0
    try:
        for _ in range(TRIES):
            data = await kept.remote.read(name, start, sum(sizes), patience)
            at = _first_wrong(split, first, sizes, data)
            if at is None:
                return data
            wrong = at
    except (ShardMissingError, StorageError):
        await check_same(kept.remote, kept.folder.name, patience)
        raise
    await check_same(kept.remote, kept.folder.name, patience)
    raise ChecksumError(
        f"{kept.remote.url / name}: bytes {start + wrong} and following differ"
        f" from those packed, {TRIES} times; `shardkit verify` tells more"
    )


def _first_wrong(split: CachedSplit, first: int, sizes: list[int], data: memoryview) -> int | None:
    at = 0
    for number, size in enumerate(sizes, first):
        if not split.is_right(number, data[at : at + size]):
            return at
        at += size
    return None
