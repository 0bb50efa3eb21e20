"""The keeper of a cache: the one process of a machine that fetches, and that writes to the cache.

Readers ask it over a socket in the cache's folder: ranks and workers, threads, forked or spawned.
It is started by the first, and ends some seconds after the last has gone. Who asks for blocks has
them until it asks again or ends; what else is there may go when room is needed.

``python -m shardkit.remote.keeper FOLDER`` answers when it is ready, and goes on in the background.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import signal
import socket
import sys
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardkit.arrays import Integers
from shardkit.errors import (
    ChecksumError,
    DataError,
    IndexFileError,
    ShardkitError,
    StorageError,
)
from shardkit.index.manifest import INDEX_NAME, MAX_INDEX_BYTES, DatasetInfo, parse_info
from shardkit.remote import wire
from shardkit.remote.blocks import BlockMap, runs
from shardkit.remote.cached import CachedSplit
from shardkit.remote.keeper_files import LOCK, LOG, SOCKET
from shardkit.remote.store import RemoteFolder
from shardkit.remote.urls import Url
from shardkit.system.blocks import BLOCK_BYTES

LINGER_S = 10
"""How long it waits for the next reader."""

IN_FLIGHT = 64
"""Requests at once."""

REQUEST_BLOCKS = 16
"""Blocks that lie beside each other are asked for together, up to 4 MB."""

TRIES = 3
"""How often a block with a wrong checksum is fetched, before that is an error."""

RESERVE_BYTES = 1 << 30
"""Room that a cache without a stated size leaves to others."""

Block = tuple["Kept", str, int]


class Kept:
    """One dataset in the cache.

    Attributes:
        folder: its own. info: what its shardkit.json says.
    """

    def __init__(self, folder: Path, info: DatasetInfo, remote: RemoteFolder) -> None:
        self.folder = folder
        self.info = info
        self.remote = remote
        self.splits: dict[str, CachedSplit] = {}
        self.whole: set[str] = set()
        self.gate = asyncio.Lock()

    def file(self, name: str) -> tuple[int, int | None]:
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


class Keeper:
    """All datasets of one cache.

    Args:
        most_bytes: of blocks, at most; None for all that is free but :data:`RESERVE_BYTES`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.datasets: dict[str, Kept] = {}
        self.most_bytes: int | None = None
        self.there: OrderedDict[Block, int] = OrderedDict()  # -> bytes; the oldest first
        self.used = 0
        self.pinned: dict[int, list[Block]] = {}
        self.coming: dict[Block, asyncio.Future[None]] = {}
        self.requests = asyncio.Semaphore(IN_FLIGHT)

    # --- datasets -------------------------------------------------------------------------

    async def open(self, url: Url, settings: dict[str, str]) -> Kept:
        """The dataset that lies there now."""
        remote = RemoteFolder(url, settings)
        size = await remote.size(INDEX_NAME)
        if size > MAX_INDEX_BYTES:
            raise IndexFileError(
                f"{url / INDEX_NAME} is over {MAX_INDEX_BYTES} bytes; refusing to read"
            )
        data = bytes(await remote.read(INDEX_NAME, 0, size))
        return self._kept(data, remote)

    def _kept(self, data: bytes, remote: RemoteFolder) -> Kept:
        name = xxhash.xxh3_128_hexdigest(data)
        found = self.datasets.get(name)
        if found is None:
            folder = self.folder / name
            folder.mkdir(mode=0o700, exist_ok=True)
            info = parse_info(data, str(remote.url / INDEX_NAME))
            _write_whole(folder / INDEX_NAME, data)
            found = self.datasets[name] = Kept(folder, info, remote)
        found.remote = remote
        return found

    async def use(self, name: str, url: Url, settings: dict[str, str]) -> Kept:
        """The dataset that a reader has opened before, maybe of another keeper.

        Raises:
            StorageError: another lies there by now.
        """
        found = self.datasets.get(name) or await self.open(url, settings)
        if found.folder.name != name:
            raise StorageError(
                f"{url} has been replaced by another dataset since it was opened; open it again"
            )
        return found

    async def fetch_whole(self, kept: Kept, name: str) -> None:
        """Have a file of the index."""
        async with kept.gate:
            if name in kept.whole:
                return
            size, digest = kept.file(name)
            path = kept.folder / name
            if not _is_whole(path, size, digest):
                parts = await asyncio.gather(
                    *(
                        self._read(kept, name, at, min(REQUEST_BLOCKS * BLOCK_BYTES, size - at))
                        for at in range(0, size, REQUEST_BLOCKS * BLOCK_BYTES)
                    )
                )
                data = b"".join(parts)
                if digest is not None and xxhash.xxh3_64_intdigest(data) != digest:
                    raise ChecksumError(
                        f"{kept.remote.url / name}: its bytes differ from those that its"
                        f" {INDEX_NAME} tells of; restore it"
                    )
                _write_whole(path, data)
            kept.whole.add(name)

    async def split(self, kept: Kept, name: str) -> CachedSplit:
        """The blocks of a split, and what is known of them."""
        found = kept.splits.get(name)
        if found is None:
            sums = f"{name}.sums"
            await self.fetch_whole(kept, sums)
            found = kept.splits.get(name)
        if found is None:
            blocks = BlockMap.of(kept.info.splits[name])
            values = np.fromfile(kept.folder / sums, "<u8")
            if len(values) != len(blocks):
                raise IndexFileError(
                    f"{kept.remote.url / sums} has {len(values)} checksums for {len(blocks)} blocks"
                )
            found = kept.splits[name] = CachedSplit(kept.folder, name, blocks, values)
            for block in found.seems_there:
                self._count((kept, name, block))
        return found

    async def _read(self, kept: Kept, name: str, start: int, count: int) -> memoryview:
        async with self.requests:
            return await kept.remote.read(name, start, count)

    # --- blocks ---------------------------------------------------------------------------

    async def need(self, reader: int, kept: Kept, name: str, blocks: Integers) -> None:
        """Have these blocks, and keep them until this reader needs others.

        Raises:
            StorageError: the cache cannot hold them.
        """
        split = await self.split(kept, name)
        if len(blocks) and not (blocks.min() >= 0 and blocks.max() < len(split.blocks)):
            raise IndexFileError(f"split {name} has {len(split.blocks)} blocks, not so many")
        wanted: list[Block] = [(kept, name, block) for block in blocks.tolist()]
        self.pinned[reader] = wanted
        try:
            await self._have(split, wanted)
        except BaseException:
            self.pinned.pop(reader, None)
            raise

    async def _have(self, split: CachedSplit, wanted: list[Block]) -> None:
        missing = []
        for one in wanted:
            block = one[2]
            if split.stamps[block]:
                self.there.move_to_end(one)
            elif block in split.seems_there and split.take_left(block):
                self.there.move_to_end(one)
            elif one not in self.coming:
                missing.append(one)
        if missing:
            kept, name, _ = missing[0]
            loop = asyncio.get_running_loop()
            for one in missing:
                self.coming[one] = loop.create_future()
            numbers = np.array([block for _, _, block in missing], np.int64)
            files = split.blocks.firsts.searchsorted(numbers, "right") - 1
            for first, count in runs(numbers, files, REQUEST_BLOCKS):
                task = asyncio.create_task(self._fetch(kept, name, split, first, count))
                task.add_done_callback(_running.discard)
                _running.add(task)
        waited = [self.coming[one] for one in wanted if one in self.coming]
        if waited:
            await asyncio.gather(*(asyncio.shield(one) for one in waited))

    async def _fetch(
        self, kept: Kept, name: str, split: CachedSplit, first: int, count: int
    ) -> None:
        """Neighbours, by one request; whoever waits for one of them is told how it ended."""
        ones: list[Block] = [(kept, name, block) for block in range(first, first + count)]
        failed: Exception | None = None
        try:
            data = await self._right(kept, split, first, count)
            self._make_room(sum(split.blocks.place(block)[2] for _, _, block in ones))
            split.put(first, count, data)
            for one in ones:
                self._count(one)
        except Exception as error:  # noqa: BLE001  it is raised where it is waited for
            failed = error
        for one in ones:
            future = self.coming.pop(one)
            if future.cancelled():
                continue
            if failed is None:
                future.set_result(None)
            else:
                future.set_exception(failed)
                future.exception()  # nobody may be waiting any more

    async def _right(self, kept: Kept, split: CachedSplit, first: int, count: int) -> memoryview:
        """Bytes of blocks, all of which have their checksums.

        Raises:
            ChecksumError: one had a wrong one each time.
        """
        file, start, _ = split.blocks.place(first)
        sizes = [split.blocks.place(block)[2] for block in range(first, first + count)]
        name, wrong = split.blocks.names[file], first
        for _ in range(TRIES):
            data = await self._read(kept, name, start, sum(sizes))
            at = 0
            for block, size in zip(range(first, first + count), sizes, strict=True):
                if not split.is_right(block, data[at : at + size]):
                    wrong = block
                    break
                at += size
            else:
                return data
        raise ChecksumError(
            f"{kept.remote.url / name}: bytes {split.blocks.place(wrong)[1]} and following differ"
            f" from those packed, {TRIES} times; `shardkit verify` tells more"
        )

    # --- room -----------------------------------------------------------------------------

    def _count(self, one: Block) -> None:
        if one not in self.there:
            kept, name, block = one
            split = kept.splits.get(name)
            size = BLOCK_BYTES if split is None else split.blocks.place(block)[2]
            self.there[one] = size
            self.used += size

    def room(self) -> int:
        """Bytes of blocks that the cache may hold."""
        if self.most_bytes is not None:
            return self.most_bytes
        return self.used + max(shutil.disk_usage(self.folder).free - RESERVE_BYTES, 0)

    def _make_room(self, num_bytes: int) -> None:
        """Drop the oldest blocks that nobody holds.

        Raises:
            StorageError: readers hold too many.
        """
        most = self.room()
        if self.used + num_bytes <= most:
            return
        held = {one for blocks in self.pinned.values() for one in blocks}
        dropped: dict[tuple[Kept, str], list[int]] = {}
        for one in [*self.there]:
            if self.used + num_bytes <= most:
                break
            if one not in held:
                self.used -= self.there.pop(one)
                dropped.setdefault(one[:2], []).append(one[2])
        for (kept, name), blocks in dropped.items():
            kept.splits[name].drop(np.array(blocks, np.int64))
        if self.used + num_bytes > most:
            needed = sum(self.there.get(one, BLOCK_BYTES) for one in held)
            raise StorageError(
                f"the cache {self.folder} holds {most} bytes, and the batches that"
                f" {len(self.pinned)} readers are making need {needed}: make cache_bytes larger, or"
                " use fewer workers or smaller batches"
            )


_running: set[asyncio.Task[None]] = set()
"""Tasks that nobody waits for; asyncio itself would let them be collected."""


class Server:
    """Answers readers, until none is left."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._readers = 0
        self._asked = 0
        self._end: asyncio.TimerHandle | None = None
        self.ended = asyncio.Event()

    def count(self, more: int) -> None:
        self._readers += more
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if not self._readers:
            self._end = asyncio.get_running_loop().call_later(LINGER_S, self.ended.set)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.count(1)
        self._asked += 1
        number = self._asked
        try:
            while True:
                head = await reader.readexactly(wire.HEAD.size)
                sizes = wire.HEAD.unpack(head)
                if sum(sizes) > wire.MOST_BYTES:
                    return
                asked, numbers = wire.unpack(*[await reader.readexactly(size) for size in sizes])
                writer.write(wire.pack(await self._answered(number, asked, numbers)))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._keeper.pinned.pop(number, None)
            self.count(-1)
            writer.close()

    async def _answered(
        self, number: int, asked: dict[str, Any], numbers: Integers
    ) -> dict[str, Any]:
        try:
            return await self._do(number, asked, numbers)
        except ShardkitError as error:
            return {"error": type(error).__name__, "message": str(error)}
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            what = "the disk is full; make cache_bytes smaller, or" if full else f"{error};"
            return {
                "error": "StorageError",
                "message": f"the cache {self._keeper.folder}: {what} use another cache_dir",
            }
        except Exception as error:  # noqa: BLE001  the reader raises it
            return {
                "error": "DataError",
                "message": f"the cache {self._keeper.folder}: {type(error).__name__}: {error}",
            }

    async def _do(self, number: int, asked: dict[str, Any], numbers: Integers) -> dict[str, Any]:
        keeper, what = self._keeper, asked["do"]
        if what == "open":
            if asked["most_bytes"] is not None:
                keeper.most_bytes = asked["most_bytes"]
            kept = await keeper.open(Url(asked["url"]), asked["settings"])
            return {"name": kept.folder.name}
        kept = await keeper.use(asked["name"], Url(asked["url"]), asked["settings"])
        if what == "whole":
            await keeper.fetch_whole(kept, asked["file"])
        elif what == "need":
            await keeper.need(number, kept, asked["split"], numbers)
        else:
            raise DataError(f"no such request: {what!r}; two versions of shardkit share a cache")
        return {}


# --- files --------------------------------------------------------------------------------


def _is_whole(path: Path, size: int, digest: int | None) -> bool:
    if digest is None or not path.exists() or path.stat().st_size != size:
        return False
    return xxhash.xxh3_64_intdigest(path.read_bytes()) == digest


def _write_whole(path: Path, data: bytes) -> None:
    """At once under its name: readers may look."""
    beside = path.with_name(f"{path.name}.part")
    beside.write_bytes(data)
    beside.replace(path)


# --- the process --------------------------------------------------------------------------


def main(arguments: Iterable[str]) -> int:
    """Become the keeper of a folder, unless there is one; then, too, all is well."""
    folder = Path(*arguments)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # another is there, or is about to be
    os.chdir(folder)  # the name of a socket has at most 107 bytes
    Path(SOCKET).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(SOCKET)
    os.chmod(SOCKET, 0o600)
    listening.listen(1024)
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream, fd in ((0, nothing), (1, log), (2, log)):
        os.dup2(fd, stream)
    asyncio.run(_serve(folder, listening))
    return 0


async def _serve(folder: Path, listening: socket.socket) -> None:
    server = Server(Keeper(folder))
    server.count(0)
    listener = await asyncio.start_unix_server(server.answer, sock=listening)
    await server.ended.wait()
    # Its name goes first: who comes now finds none, and starts another, which waits for the lock.
    Path(SOCKET).unlink(missing_ok=True)
    listener.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
