"""One dataset in a cache: its index, taken whole, and the blocks of its splits."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import xxhash

from shardkit.errors import ChecksumError, IndexFileError, ShardMissingError
from shardkit.index.manifest import INDEX_NAME, parse_info
from shardkit.remote.blocks import BlockMap
from shardkit.remote.cached import CachedSplit
from shardkit.remote.keeper_files import ORIGIN
from shardkit.remote.own_folder import open_own, read_whole, write_whole
from shardkit.remote.room import Room
from shardkit.remote.same import TRIES, check_same
from shardkit.remote.store import ForbiddenError, RemoteFolder
from shardkit.system.blocks import BLOCK_BYTES

REQUEST_BLOCKS = 16
"""Blocks that lie beside each other are asked for together, up to 4 MB."""

TOGETHER_BYTES = 128 << 20
"""Of a file of the index that are asked for at once. A larger one is asked for its size first:
as many requests as a wrong number would take never end."""


class Kept:
    """One dataset in the cache.

    Args:
        index: bytes of its shardkit.json.

    Attributes:
        folder: its own. info: what its shardkit.json says. remote: where it lies.

    Raises:
        StorageError: others may write to the folder, or it is no folder.
    """

    def __init__(self, folder: Path, index: bytes, remote: RemoteFolder, room: Room) -> None:
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
        self._room = room
        self._splits: dict[str, CachedSplit] = {}
        self._whole: dict[str, asyncio.Task[None]] = {}

    async def fetch_whole(self, name: str) -> None:
        """Have a file of the index. All who ask while it comes are told how that ended."""
        task = self._whole.get(name)
        if task is None or (task.done() and task.exception() is not None):
            task = self._whole[name] = asyncio.create_task(self._fetch_whole(name))
        await asyncio.shield(task)

    async def _fetch_whole(self, name: str) -> None:
        size, digest = self._file(name)
        if self._is_whole(name, size, digest):
            return
        if size <= TOGETHER_BYTES or await self.remote.size(name) == size:
            for _ in range(TRIES):
                data = await self._read_whole(name, size)
                if digest is None or xxhash.xxh3_64_intdigest(data) == digest:
                    return write_whole(name, self._at, data)
        await check_same(self.remote, self.folder.name, self.remote.patience())
        raise ChecksumError(
            f"{self.remote.url / name}: its bytes differ from those that its"
            f" {INDEX_NAME} tells of; restore it"
        )

    def _is_whole(self, name: str, size: int, digest: int | None) -> bool:
        try:
            data = b"" if digest is None else read_whole(name, self._at)
        except FileNotFoundError:
            return False
        return len(data) == size and xxhash.xxh3_64_intdigest(data) == digest

    async def _read_whole(self, name: str, size: int) -> bytes:
        patience, step = self.remote.patience(), REQUEST_BLOCKS * BLOCK_BYTES
        found: list[memoryview] = []
        for first in range(0, size, TOGETHER_BYTES):
            last = min(first + TOGETHER_BYTES, size)
            found += await asyncio.gather(
                *(
                    self.remote.read(name, at, min(step, last - at), patience)
                    for at in range(first, last, step)
                )
            )
        return b"".join(found)

    async def fetch_beside(self, name: str) -> None:
        """Have a file that shardkit.json does not tell of, as it is now; without one, have none.
        S3 says that a file is forbidden, too, where it says not which there are."""
        patience = self.remote.patience()
        try:
            size = await self.remote.size(name, patience)
            data = await self.remote.read(name, 0, size, patience)
        except (ShardMissingError, ForbiddenError):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._at)
        else:
            write_whole(name, self._at, bytes(data))

    async def split(self, name: str) -> CachedSplit:
        """The blocks of a split, and what is known of them."""
        if name not in self.info.splits:
            raise IndexFileError(f"the dataset at {self.remote.url} has no split {name}")
        found = self._splits.get(name)
        if found is None:
            sums = self.info.splits[name].index_file("sums")
            await self.fetch_whole(sums)
            found = self._splits.get(name)
        if found is None:
            blocks = BlockMap.of(self.info.splits[name])
            values = np.frombuffer(read_whole(sums, self._at), "<u8")
            if len(values) != len(blocks):
                raise IndexFileError(
                    f"{self.remote.url / sums} has {len(values)} checksums for {len(blocks)} blocks"
                )
            self._room.left.take(self.folder, name)
            found = self._splits[name] = CachedSplit(self.folder, name, blocks, values)
            self._room.add(found, np.array(sorted(found.seems_there), np.int64))
        return found

    def forget(self) -> None:
        """Have nothing, of earlier keepers either, so that all is fetched anew: what lies there may
        have changed since."""
        for split in self._splits.values():
            self._room.drop(split)
        index = read_whole(INDEX_NAME, self._at)
        self._room.left.clear(self.folder)
        write_whole(INDEX_NAME, self._at, index)
        self._whole.clear()

    def _file(self, name: str) -> tuple[int, int | None]:
        """(bytes, checksum) of a file that is taken whole."""
        for split in self.info.splits.values():
            if name in split.files:
                return split.files[name]
        if name in self.info.signposts:
            return self.info.signposts[name]
        provenance = self.info.provenance
        if name == provenance.tokenizer_file:
            return provenance.tokenizer_bytes, None
        raise IndexFileError(f"{name} is no file of the dataset at {self.remote.url}")
