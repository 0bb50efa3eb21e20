"""All datasets of one cache: which blocks are wanted, which come, and how those end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardkit.arrays import Integers
from shardkit.errors import (
    ChecksumError,
    IndexFileError,
    ShardkitError,
    ShardMissingError,
    StorageError,
)
from shardkit.index.manifest import INDEX_NAME, MAX_INDEX_BYTES, parse_info
from shardkit.remote.blocks import runs
from shardkit.remote.cached import CachedSplit
from shardkit.remote.kept import REQUEST_BLOCKS, Kept, write_whole
from shardkit.remote.room import Block, Room
from shardkit.remote.store import RemoteFolder
from shardkit.remote.urls import Url

TRIES = 3
"""How often a block with a wrong checksum is fetched, before that is an error."""

Place = dict[str, Any]
"""What each message says of a dataset: ``url``, ``settings``, ``retry_s``, ``most_bytes``."""


class Keeper:
    """Of the cache in a folder. Who asks for blocks holds them until it asks again or ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.room = Room(folder)
        self._datasets: dict[str, Kept] = {}
        self._coming: dict[Block, asyncio.Future[None]] = {}
        self._running: set[asyncio.Task[None]] = set()  # asyncio would let them be collected

    # --- datasets -------------------------------------------------------------------------

    async def open(self, place: Place) -> Kept:
        """The dataset that lies there now."""
        if place["most_bytes"] is not None:
            self.room.most_bytes = place["most_bytes"]
        remote = RemoteFolder(Url(place["url"]), place["settings"], place["retry_s"])
        return self._kept(await _index(remote), remote)

    def _kept(self, data: bytes, remote: RemoteFolder) -> Kept:
        name = xxhash.xxh3_128_hexdigest(data)
        found = self._datasets.get(name)
        if found is None:
            info = parse_info(data, str(remote.url / INDEX_NAME))
            folder = self.folder / name
            folder.mkdir(mode=0o700, exist_ok=True)
            write_whole(folder / INDEX_NAME, data)
            found = self._datasets[name] = Kept(folder, info, remote, self.room)
        found.remote = remote
        return found

    async def use(self, name: str, place: Place) -> Kept:
        """The dataset that a reader has opened before, maybe of another keeper.

        Raises:
            StorageError: another lies there by now.
        """
        found = self._datasets.get(name) or await self.open(place)
        if found.folder.name != name:
            raise _replaced(found.remote.url)
        return found

    # --- blocks ---------------------------------------------------------------------------

    async def need(self, reader: int, split: CachedSplit, kept: Kept, numbers: Integers) -> None:
        """Have these blocks, and keep them until this reader needs others.

        Raises:
            StorageError: the cache cannot hold them.
        """
        wanted = _blocks(split, numbers)
        self.room.hold(reader, wanted)
        try:
            self._bring(split, kept, wanted)
            waited = [self._coming[one] for one in wanted if one in self._coming]
            await asyncio.gather(*(asyncio.shield(one) for one in waited))
        except BaseException:
            self.room.let_go(reader)
            raise

    def expect(self, reader: int, split: CachedSplit, kept: Kept, numbers: Integers) -> None:
        """Begin to fetch what a reader will need, as far as there is room for it."""
        wanted = _blocks(split, numbers)
        self._bring(split, kept, self.room.expect(reader, wanted, self._coming))

    def _bring(self, split: CachedSplit, kept: Kept, wanted: list[Block]) -> None:
        """Begin to fetch those that are neither there nor coming."""
        missing = [one for one in wanted if not self._is_there(one) and one not in self._coming]
        loop = asyncio.get_running_loop()
        self._coming.update((one, loop.create_future()) for one in missing)
        numbers = np.array([number for _, number in missing], np.int64)
        files = split.blocks.firsts.searchsorted(numbers, "right") - 1
        for first, count in runs(numbers, files, REQUEST_BLOCKS):
            task = asyncio.create_task(self._fetch(kept, split, first, count))
            task.add_done_callback(self._running.discard)
            self._running.add(task)

    def _is_there(self, block: Block) -> bool:
        split, number = block
        found = bool(split.stamps[number])
        if not found and number in split.seems_there:
            found = split.take_left(number)
        if found:
            self.room.touch(block)
        return found

    async def _fetch(self, kept: Kept, split: CachedSplit, first: int, count: int) -> None:
        """Neighbours, by one request; whoever waits for one of them is told how it ended."""
        failed: Exception | None = None
        try:
            data = await _right(kept, split, first, count)
            self.room.make(len(data))
            split.put(first, count, data)
            for number in range(first, first + count):
                self.room.add((split, number))
        except Exception as error:  # noqa: BLE001  it is raised where it is waited for
            failed = error
        for number in range(first, first + count):
            future = self._coming.pop((split, number))
            if failed is None:
                future.set_result(None)
            else:
                future.set_exception(failed)
                future.exception()  # nobody may be waiting any more


async def _index(remote: RemoteFolder) -> bytes:
    size = await remote.size(INDEX_NAME)
    if size > MAX_INDEX_BYTES:
        raise IndexFileError(
            f"{remote.url / INDEX_NAME} is over {MAX_INDEX_BYTES} bytes; refusing to read"
        )
    return bytes(await remote.read(INDEX_NAME, 0, size))


def _blocks(split: CachedSplit, numbers: Integers) -> list[Block]:
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(split.blocks)):
        raise IndexFileError(f"a split has {len(split.blocks)} blocks, not {int(numbers.max())}")
    return [(split, number) for number in numbers.tolist()]


async def _right(kept: Kept, split: CachedSplit, first: int, count: int) -> memoryview:
    """Bytes of blocks, all of which have their checksums.

    Raises:
        ChecksumError: one had a wrong one each time. StorageError: the dataset was replaced.
    """
    file, start, _ = split.blocks.place(first)
    sizes = [split.blocks.place(number)[2] for number in range(first, first + count)]
    name, wrong = split.blocks.names[file], 0
    try:
        for _ in range(TRIES):
            data = await kept.remote.read(name, start, sum(sizes))
            at = _first_wrong(split, first, sizes, data)
            if at is None:
                return data
            wrong = at
    except ShardMissingError:
        await _check_same(kept)
        raise
    await _check_same(kept)
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


async def _check_same(kept: Kept) -> None:
    """Raises StorageError if another dataset lies there by now."""
    try:
        data = await _index(kept.remote)
    except ShardkitError:
        return  # what went wrong first says more
    if xxhash.xxh3_128_hexdigest(data) != kept.folder.name:
        raise _replaced(kept.remote.url)


def _replaced(url: Url) -> StorageError:
    return StorageError(
        f"{url} has been replaced by another dataset since it was opened; open it again"
    )
