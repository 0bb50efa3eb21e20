"""Blocks are written in threads: what a slow, a full, or a stuck disk does to the cache, and who
drops blocks while they are written."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.errors import StorageError
from shardkit.remote import block_cache, cached_split
from shardkit.remote.block_cache import BlockCache, DiskWrites
from shardkit.remote.cached_split import NEVER, BlockMap, CachedSplit
from shardkit.remote.eviction import Evictor
from shardkit.remote.urls import Url
from shardkit.system.file_io import BLOCK_BYTES

NUM_BLOCKS = 12

write = block_cache._write


class Disk:
    """A cache of one split: two files, of twelve blocks together."""

    def __init__(self, folder: Path, most_blocks: int = NUM_BLOCKS) -> None:
        sizes = [7 * BLOCK_BYTES - 1000, 5 * BLOCK_BYTES]
        self.folder = folder
        self.blocks = BlockMap(["a", "b"], sizes)
        draws = np.random.default_rng(5)
        self.bytes = [draws.bytes(self.blocks.place(n)[2]) for n in range(NUM_BLOCKS)]
        sums = np.array([xxhash.xxh3_64_intdigest(one) for one in self.bytes], np.uint64)
        self.split = CachedSplit(folder, "train", self.blocks, sums)
        self.evictor = Evictor(folder, lambda split, numbers: np.full(len(numbers), NEVER))
        self.evictor.most_bytes = most_blocks * BLOCK_BYTES
        self.writes = DiskWrites(self.evictor)

    def put(self, first: int, count: int = 1) -> Coroutine[Any, Any, None]:
        data = b"".join(self.bytes[first : first + count])
        return self.writes.put(self.split, first, count, memoryview(data))

    def there(self) -> list[int]:
        """The blocks that readers may copy, all of which are what they should be."""
        numbers = np.flatnonzero(self.split.stamps[:-1]).tolist()
        for number in numbers:
            file, start, size = self.blocks.place(number)
            with (self.folder / self.blocks.names[file]).open("rb") as opened:
                assert os.pread(opened.fileno(), size, start) == self.bytes[number]
        return numbers

    def on_disk(self) -> int:
        """Bytes, as the disk counts them."""
        files = [self.folder / name for name in self.blocks.names]
        return sum(path.stat().st_blocks * 512 for path in files if path.exists())

    def used(self) -> int:
        """Bytes, as the room counts them."""
        return self.evictor.capacity() - self.evictor.free()


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


class Held:
    """Writes wait until they may end. ``begun``: how many have. ``fails``: they do, in the end."""

    def __init__(self) -> None:
        self.begun = 0
        self.fails = False
        self.may_end = threading.Event()

    def __call__(self, fd: int, start: int, data: memoryview) -> None:
        self.begun += 1
        assert self.may_end.wait(20)
        write(fd, start, data)
        if self.fails:
            raise BrokenPipeError


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held()
    monkeypatch.setattr(block_cache, "_write", held)
    yield held
    held.may_end.set()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.005)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(all_of_it())


def test_others_go_on_while_the_disk_works(disk: Disk, held: Held) -> None:
    """Nobody may read a block before all of it is written."""

    async def test() -> None:
        putting = asyncio.ensure_future(disk.put(1, 3))
        await until(lambda: held.begun == 1)
        assert disk.there() == [] and disk.used() == 3 * BLOCK_BYTES
        held.may_end.set()
        await putting
        assert disk.there() == [1, 2, 3] and disk.used() == 3 * BLOCK_BYTES

    run(test)


def test_what_is_being_written_does_not_go(tmp_path: Path, held: Held) -> None:
    disk = Disk(tmp_path, 4)

    async def test() -> None:
        putting = asyncio.ensure_future(disk.put(0, 3))
        await until(lambda: held.begun == 1)
        with pytest.raises(StorageError, match="holds"):
            disk.evictor.make_space(2 * BLOCK_BYTES)
        held.may_end.set()
        await putting
        assert disk.there() == [0, 1, 2]
        disk.evictor.make_space(2 * BLOCK_BYTES)
        assert len(disk.there()) < 3

    run(test)


def test_all_is_forgotten_while_it_is_written(disk: Disk, held: Held) -> None:
    """What was forgotten has lost bytes: it is written again."""

    async def test() -> None:
        putting = asyncio.ensure_future(disk.put(8, 3))
        await until(lambda: held.begun == 1)
        disk.evictor.drop(disk.split)
        assert disk.used() == 0
        held.may_end.set()
        await putting
        assert held.begun == 2
        assert disk.there() == [8, 9, 10] and disk.used() == 3 * BLOCK_BYTES

    run(test)


@pytest.mark.parametrize("fails", [True, False])
def test_what_is_forgotten_while_it_is_written_takes_no_room(
    tmp_path: Path, held: Held, fails: bool
) -> None:
    """Whether the write fails, or there is no room for it when it has to be done again."""
    disk = Disk(tmp_path, 3)
    held.fails = fails

    async def test() -> None:
        putting = asyncio.ensure_future(disk.put(8, 2))
        await until(lambda: held.begun == 1)
        disk.evictor.drop(disk.split)
        if not fails:
            disk.evictor.hold(1, disk.split, np.arange(3))
            disk.evictor.add(disk.split, np.arange(3))
        held.may_end.set()
        await asyncio.wait([putting], timeout=0.3)
        assert disk.on_disk() == 0 and disk.there() == []
        assert disk.used() == (0 if fails else 3 * BLOCK_BYTES)
        putting.cancel()
        await asyncio.wait([putting])

    run(test)


def test_blocks_that_take_room_already_need_no_more(tmp_path: Path) -> None:
    """A reader waits for what an earlier keeper left wrong, in a cache that just holds it."""
    (tmp_path / "a").write_bytes(bytes([1]) * (7 * BLOCK_BYTES - 1000))
    disk = Disk(tmp_path, 7)
    disk.evictor.add(disk.split, np.array(sorted(disk.split.unchecked), np.int64))
    disk.evictor.hold(1, disk.split, np.arange(7))

    async def test() -> None:
        assert not any(disk.split.check_left(number) for number in range(7))
        await disk.put(0, 7)
        assert disk.there() == [*range(7)]

    run(test)


def test_a_write_that_fails_leaves_nothing(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, start: int, data: memoryview) -> None:
        write(fd, start, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    async def test() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(block_cache, "_write", full)
            with pytest.raises(OSError, match="No space"):
                await disk.put(7, 4)
        assert disk.there() == [] and disk.used() == 0
        assert (disk.folder / "b").stat().st_blocks == 0
        await disk.put(7, 4)
        assert disk.there() == [7, 8, 9, 10]

    run(test)


def test_a_file_that_cannot_be_made(disk: Disk) -> None:
    """It is made when there is room; what cannot be as long as it should is not there."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def test() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCK_BYTES, hard))
        try:
            with pytest.raises(OSError, match="File too large"):
                await disk.put(0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert disk.used() == 0
        await disk.put(0)
        assert disk.there() == [0]

    run(test)


def test_readers_that_hold_all_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the disk has nothing more to do, and they should have copied it."""
    monkeypatch.setattr(block_cache, "COPY_S", 0.2)
    disk = Disk(tmp_path, 3)

    async def test() -> None:
        disk.evictor.hold(1, disk.split, np.arange(3))
        await disk.put(0, 3)
        began = time.monotonic()
        with pytest.raises(StorageError, match="1 readers are making need"):
            await disk.put(5)
        assert 0.4 < time.monotonic() - began < 2
        assert disk.there() == [0, 1, 2]

    run(test)


def test_nobody_waits_for_ever_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the disk always has something to do."""
    monkeypatch.setattr(block_cache, "COPY_S", 0.1)
    monkeypatch.setattr(block_cache, "SLOW_S", 0.5)
    disk = Disk(tmp_path, 3)
    disk.evictor.hold(1, disk.split, np.arange(3))
    disk.evictor.add(disk.split, np.arange(3))
    disk.writes._num_running = 1

    async def test() -> None:
        with pytest.raises(StorageError, match="make cache_bytes larger"):
            await disk.put(5)

    run(test)


def test_who_waits_for_room_is_first_and_keeps_nobody_waiting(tmp_path: Path, held: Held) -> None:
    """A reader holds 2 of 4 blocks: those of 3 wait, and those of 1 are written."""
    disk = Disk(tmp_path, 4)
    disk.evictor.hold(1, disk.split, np.arange(2))
    disk.evictor.add(disk.split, np.arange(2))

    async def test() -> None:
        large, other, *small = (
            asyncio.ensure_future(disk.put(at, n)) for at, n in ((8, 3), (4, 3), (2, 1), (3, 1))
        )
        held.may_end.set()
        await asyncio.gather(*small)
        assert not large.done() and not other.done()
        disk.evictor.release(1)
        await asyncio.wait([large, other], return_when=asyncio.FIRST_COMPLETED)
        assert large.done() and not other.done()
        await other

    run(test)


def test_a_disk_that_gives_nothing_back(
    tmp_path: Path, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the error of who needs the room, and of nobody else."""
    disk = Disk(tmp_path, 5)
    held.may_end.set()

    def broken(fd: int, start: int, size: int) -> None:
        raise BrokenPipeError

    async def test() -> None:
        await asyncio.gather(*(disk.put(number) for number in range(4)))
        with monkeypatch.context() as patched:
            patched.setattr(cached_split, "punch", broken)
            held.may_end.clear()
            small = asyncio.ensure_future(disk.put(4))
            await until(lambda: held.begun == 5)
            large = asyncio.ensure_future(disk.put(8, 3))
            held.may_end.set()
            await small
            with pytest.raises(BrokenPipeError):
                await large
        await disk.put(8, 3)
        assert {8, 9, 10} <= set(disk.there())

    run(test)


def test_one_write_that_never_ends_is_a_stuck_disk(
    disk: Disk, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_cache, "SLOW_S", 0.2)

    async def test() -> None:
        with pytest.raises(OSError, match="its disk is stuck"):
            await disk.put(0)
        assert disk.used() == 0 and disk.there() == []

    run(test)


def test_what_is_being_written_keeps_its_slot(disk: Disk, held: Held) -> None:
    """Else a fast network would fill the memory that a slow disk does not empty."""

    async def read_checked(first: int, count: int) -> memoryview:
        return memoryview(b"".join(disk.bytes[first : first + count]))

    async def test() -> None:
        cache = BlockCache(disk.folder)
        cache.evictor, cache.writes = disk.evictor, disk.writes
        split: Any = disk.split
        split.dataset = SimpleNamespace(remote=SimpleNamespace(url=Url("http://host/ds")))
        split.read_checked = read_checked
        needing = asyncio.ensure_future(cache.need(1, split, np.array([8, 9])))
        await until(lambda: held.begun == 1)
        limiter = cache._limiters["host"]
        assert limiter._num_bytes == 2 * BLOCK_BYTES and not needing.done()
        held.may_end.set()
        await needing
        assert limiter._num_bytes == 0 and disk.there() == [8, 9]

    run(test)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(3, NUM_BLOCKS))
def test_whatever_happens_what_is_there_is_right(
    tmp_path_factory: pytest.TempPathFactory, seed: int, most_blocks: int
) -> None:
    """Writes that fail, blocks that go, and all that is forgotten at any time."""
    draws, disk = random.Random(seed), Disk(tmp_path_factory.mktemp("disk"), most_blocks)

    def unsteady(fd: int, start: int, data: memoryview) -> None:
        time.sleep(draws.choice([0, 0, 0.001, 0.003]))
        if draws.random() < 0.1:
            write(fd, start, data[: draws.randrange(len(data))])
            raise BrokenPipeError
        write(fd, start, data)

    async def one() -> None:
        count = draws.randint(1, 3)
        first = draws.choice([draws.randrange(0, 7 - count + 1), draws.randrange(7, 13 - count)])
        numbers = set(range(first, first + count))
        if numbers & coming or numbers & set(disk.there()):
            return
        coming.update(numbers)
        with suppress(BrokenPipeError):
            await disk.put(first, count)
        coming.difference_update(numbers)

    coming: set[int] = set()

    async def test() -> None:
        tasks = []
        for _ in range(40):
            tasks.append(asyncio.ensure_future(one()))
            await asyncio.sleep(draws.choice([0, 0, 0.001]))
            if draws.random() < 0.1:
                disk.evictor.drop(disk.split)
            assert disk.used() <= disk.evictor.capacity()
            disk.there()
        await asyncio.gather(*tasks)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(block_cache, "_write", unsteady)
        run(test)
    there = np.array(disk.there(), np.int64)
    assert disk.used() == int(disk.blocks.bytes_of(there).sum())
    assert disk.on_disk() <= disk.used() + 4096  # of a last page
    assert disk.split.num_there == len(there)
    assert bool(disk.split.stamps[-1]) is (len(there) == NUM_BLOCKS)
