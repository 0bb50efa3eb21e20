"""One dataset in a cache: its index, kept whole, and the blocks of its splits.

The bytes of shardkit.json say which dataset lies behind a URL.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import xxhash

from shardkit.arrays import Hashes
from shardkit.errors import (
    ChecksumError,
    IndexFileError,
    ShardkitError,
    ShardMissingError,
    StorageError,
)
from shardkit.index.file_names import INDEX_NAME
from shardkit.index.manifest import MAX_INDEX_BYTES, is_sealed, parse_info
from shardkit.remote.cached_split import BlockMap, CachedSplit
from shardkit.remote.connection import ORIGIN
from shardkit.remote.eviction import Evictor
from shardkit.remote.object_store import ForbiddenError, RemoteFolder
from shardkit.remote.private_folder import open_own, read_whole, write_whole
from shardkit.remote.urls import Url
from shardkit.system.file_io import BLOCK_BYTES

TRIES = 5
"""How often bytes with a wrong checksum are fetched, before that is an error."""

REQUEST_BLOCKS = 16
REQUEST_BYTES = REQUEST_BLOCKS * BLOCK_BYTES
"""Neighbouring blocks are asked for together, up to 4 MB."""

TOGETHER_BYTES = 128 << 20
"""Of a file of the index that are asked for at once. A larger one is asked for its size first:
as many requests as a wrong number would take never end."""


class DatasetCache:
    """One dataset in the cache.

    Args:
        index: bytes of its shardkit.json.

    Attributes:
        folder: its own. info: what its shardkit.json says. remote: where it lies.

    Raises:
        StorageError: others may write to the folder, or it is no folder.
    """

    def __init__(self, folder: Path, index: bytes, remote: RemoteFolder, evictor: Evictor) -> None:
        self.folder = folder
        self.info = parse_info(index, str(remote.url / INDEX_NAME))
        self.remote = remote
        cache = open_own(folder.parent)
        try:
            with suppress(FileExistsError):
                os.mkdir(folder.name, 0o700, dir_fd=cache)
            self._at = open_own(folder.name, cache)
        finally:
            os.close(cache)
        write_whole(ORIGIN, self._at, remote.url.text.encode())  # by which it is known as ours
        write_whole(INDEX_NAME, self._at, index)
        self._evictor = evictor
        self._splits: dict[str, DatasetSplit] = {}
        self._index_files: dict[str, asyncio.Task[None]] = {}

    async def refuse_replaced(self) -> None:
        """Raise StorageError if another dataset lies there by now."""
        try:
            index = await read_index(self.remote)
        except ShardkitError:
            return  # what went wrong first says more
        if name_of(index, self.remote.url) != self.folder.name:
            raise replaced(self.remote.url)

    # --- files of the index ---------------------------------------------------------------

    async def fetch_index_file(self, name: str) -> None:
        """Have a file of the index. All who ask while it comes are told how that ended."""
        task = self._index_files.get(name)
        if task is None or (task.done() and task.exception() is not None):
            task = self._index_files[name] = asyncio.create_task(self._fetch_index_file(name))
        await asyncio.shield(task)

    async def _fetch_index_file(self, name: str) -> None:
        size, digest = self._size_and_digest(name)
        with suppress(FileNotFoundError):
            data = b"" if digest is None else read_whole(name, self._at)
            if len(data) == size and xxhash.xxh3_64_intdigest(data) == digest:
                return
        if size <= TOGETHER_BYTES or await self.remote.size(name) == size:
            for _ in range(TRIES):
                found = list[memoryview]()
                for first in range(0, size, TOGETHER_BYTES):
                    starts = range(first, min(first + TOGETHER_BYTES, size), REQUEST_BYTES)
                    counts = (min(REQUEST_BYTES, size - at) for at in starts)
                    reads = (
                        self.remote.read(name, *one) for one in zip(starts, counts, strict=True)
                    )
                    found += await asyncio.gather(*reads)
                data = b"".join(found)
                if digest is None or xxhash.xxh3_64_intdigest(data) == digest:
                    return write_whole(name, self._at, data)
        await self.refuse_replaced()
        raise ChecksumError(
            f"{self.remote.url / name}: its bytes differ from those that its"
            f" {INDEX_NAME} tells of; restore it"
        )

    def _size_and_digest(self, name: str) -> tuple[int, int | None]:
        for files in (*(split.files for split in self.info.splits.values()), self.info.signposts):
            if name in files:
                return files[name]
        provenance = self.info.provenance
        if name == provenance.tokenizer_file:
            return provenance.tokenizer_bytes, None
        raise IndexFileError(f"{name} is no file of the dataset at {self.remote.url}")

    async def fetch_unlisted(self, name: str) -> None:
        """Have a file that shardkit.json does not list, as it is now; without one, have none.
        S3 says that a file is forbidden, too, if it does not say which there are."""
        try:
            data = await self.remote.read(name, 0, await self.remote.size(name))
        except (ShardMissingError, ForbiddenError):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._at)
        else:
            write_whole(name, self._at, bytes(data))

    # --- blocks -----------------------------------------------------------------------------

    async def split(self, name: str) -> DatasetSplit:
        """Return the blocks of a split."""
        if name not in self.info.splits:
            raise IndexFileError(f"the dataset at {self.remote.url} has no split {name}")
        if name not in self._splits:
            sums = self.info.splits[name].index_file("sums")
            await self.fetch_index_file(sums)
            if name not in self._splits:  # another caller may have opened it meanwhile
                blocks = BlockMap.of(self.info.splits[name])
                values = np.frombuffer(read_whole(sums, self._at), "<u8")
                if len(values) != len(blocks):
                    raise IndexFileError(
                        f"{self.remote.url / sums} has {len(values)} checksums for {len(blocks)}"
                        " blocks"
                    )
                self._evictor.adopt(self.folder, name)
                split = self._splits[name] = DatasetSplit(self, name, blocks, values)
                self._evictor.add(split, np.array(sorted(split.unchecked), np.int64))
        return self._splits[name]

    def forget(self) -> None:
        """Drop all, of earlier servers, too: what lies behind the URL may have changed since."""
        for split in self._splits.values():
            self._evictor.drop(split)
        index = read_whole(INDEX_NAME, self._at)
        self._evictor.clear_orphans(self.folder)
        write_whole(INDEX_NAME, self._at, index)
        self._index_files.clear()


class DatasetSplit(CachedSplit):
    """The blocks of one split, and the dataset that they are fetched from."""

    def __init__(self, dataset: DatasetCache, name: str, blocks: BlockMap, sums: Hashes) -> None:
        super().__init__(dataset.folder, name, blocks, sums)
        self.dataset = dataset

    async def read_checked(self, first: int, count: int) -> memoryview:
        """Return the bytes of neighbouring blocks, all of which have their checksums.

        Raises:
            ChecksumError: one had a wrong one each time. StorageError: the dataset was replaced.
        """
        file, start, num_bytes = self.blocks.place(first, count)
        name, wrong = self.blocks.names[file], None
        try:
            for _ in range(TRIES):
                data = await self.dataset.remote.read(name, start, num_bytes)
                wrong = self.first_wrong(first, data)
                if wrong is None:
                    return data
        except (ShardMissingError, StorageError):
            await self.dataset.refuse_replaced()
            raise
        await self.dataset.refuse_replaced()
        raise ChecksumError(
            f"{self.dataset.remote.url / name}: bytes {start + (wrong or 0)} and following differ"
            f" from those packed, {TRIES} times; `shardkit verify` tells more"
        )


def name_of(index: bytes, url: Url) -> str:
    """Return the name in a cache of the dataset with this shardkit.json. Copies at two URLs have a
    name each: who reads one should not depend on the other, nor use its credentials there."""
    return xxhash.xxh3_128_hexdigest(index + b"\0" + url.text.encode())


async def read_index(remote: RemoteFolder, *, is_first: bool = False) -> bytes:
    """Return shardkit.json as it is now.

    It holds its own checksum, by which wrong bytes are recognised, and fetched again. One that
    somebody edited has a wrong one, too, and is the same each time.

    Args:
        is_first: as of :meth:`RemoteFolder.size`.

    Raises:
        IndexFileError: it is too large, or never the same. ShardMissingError: there is none.
        StorageError: the network, the server or the credentials say no.
    """
    before = None
    for number in range(TRIES):
        size = await remote.size(INDEX_NAME, is_first=is_first and not number)
        if size > MAX_INDEX_BYTES:
            raise IndexFileError(
                f"{remote.url / INDEX_NAME} is over {MAX_INDEX_BYTES} bytes; refusing to read"
            )
        data = bytes(await remote.read(INDEX_NAME, 0, size))
        if is_sealed(data) or data == before:
            return data
        before = data
    raise IndexFileError(f"{remote.url / INDEX_NAME}: its bytes were others each of {TRIES} times")


def replaced(url: Url) -> StorageError:
    """Return the error for a dataset in whose place another lies."""
    return StorageError(
        f"{url} has been replaced by another dataset since it was opened; open it again"
    )
