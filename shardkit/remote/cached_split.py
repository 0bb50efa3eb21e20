"""The blocks of one split in a cache: sparse files, of which some blocks are there.

``stamps`` says which. It is a file that readers map: a number for each block, 0 where it is not
there. Its bytes are right, and stay, as long as its number stays the same; a block that has gone
and come again has another. So a reader looks at the numbers, copies, and looks again: nothing has
to be locked, and whoever is killed holds nothing.

Nothing on the disk is trusted: after a crash, or a power cut, a block that seems to be there is
compared with its checksum before it gets a number.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardkit.arrays import Hashes, Integers, Mask
from shardkit.index.manifest import SplitInfo
from shardkit.order.permutation import counted
from shardkit.remote.private_folder import open_own, open_plain
from shardkit.system.file_io import BLOCK_BYTES, pread, write_full
from shardkit.system.file_systems import libc

Stamps = np.ndarray[Any, np.dtype[np.uint32]]

STAMPS = "stamps"

_PUNCH_HOLE_KEEP_SIZE = 3

NEVER = np.iinfo(np.int64).max
"""The step at which a block is needed that no loop has announced."""


class BlockMap:
    """The blocks of files laid end to end; each file begins with a block of its own.

    Attributes:
        names: of the files. sizes: (F,) int64 bytes. firsts: (F + 1,) int64, first block of each.
    """

    def __init__(self, names: Sequence[str], sizes: Sequence[int]) -> None:
        self.names = list(names)
        self.sizes = np.array(sizes, np.int64)
        counts = -(-self.sizes // BLOCK_BYTES)
        self.firsts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    @classmethod
    def of(cls, split: SplitInfo) -> BlockMap:
        """Return the blocks of a split, in the order of ``{split}.sums``."""
        files = [file for shard in split.shards for file in sorted(shard.file_bytes.items())]
        return cls([name for name, _ in files], [num_bytes for _, num_bytes in files])

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def bytes_of(self, blocks: Integers) -> Integers:
        """Return the (B,) int64 bytes of each: less than a whole block at the end of a file."""
        files = self.firsts.searchsorted(blocks, "right") - 1
        found: Integers = np.minimum(
            BLOCK_BYTES, self.sizes[files] - (blocks - self.firsts[files]) * BLOCK_BYTES
        )
        return found

    def place(self, block: int, count: int = 1) -> tuple[int, int, int]:
        """Return (number of the file, first byte, number of bytes) of neighbouring blocks."""
        file = int(self.firsts.searchsorted(block, "right")) - 1
        start = (block - int(self.firsts[file])) * BLOCK_BYTES
        return file, start, min(count * BLOCK_BYTES, int(self.sizes[file]) - start)


def blocks_of(firsts: Integers, starts: Integers, sizes: Integers) -> Integers:
    """Return the blocks that ranges of bytes touch, ascending, each once.

    Args:
        firsts: (B,) int64, first block of each range's file. starts, sizes: (B,) int64 bytes in it.
    """
    begin = starts // BLOCK_BYTES
    counts = (starts + sizes - 1) // BLOCK_BYTES - begin + 1
    counts[sizes == 0] = 0
    return np.unique(np.repeat(firsts + begin, counts) + counted(counts))


class CachedSplit:
    """The blocks of one split, as the cache server writes them.

    Args:
        folder: where the files lie. sums: (N,) uint64, the checksum of each block.

    Attributes:
        blocks: which block is where. stamps: (N + 1,) uint32, mapped; see above. The last is 0
            unless all blocks are there, and a new one whenever they are.
        num_there: blocks, as the stamps have it.
        takes_space, touched, held: (N,) each, the evictor's: whether a block takes space or will,
            when it was last asked for, and by how many it is held.
        unchecked: blocks that an earlier server left, not yet compared with their checksums.
    """

    def __init__(self, folder: Path, split: str, blocks: BlockMap, sums: Hashes) -> None:
        self.blocks = blocks
        # By this, not by its name: another server may have made a folder of this name meanwhile.
        self._at = open_own(folder)
        self._sums = sums
        self._made: set[int] = set()
        self.num_there = 0
        self.takes_space: Mask = np.zeros(len(blocks), bool)
        self.touched: Integers = np.zeros(len(blocks), np.int64)
        self.held = np.zeros(len(blocks), np.int32)
        self._next = secrets.randbelow(1 << 30) + 1  # so that no number comes again
        self.stamps = self._fresh_stamps(f"{split}.{STAMPS}")
        self.unchecked = set(self._left_there())

    def _fresh_stamps(self, name: str) -> Stamps:
        """Return stamps of 0, in the file of an earlier server if any: readers may map it."""
        num_bytes = len(self.blocks) * 4 + 4
        fd = open_plain(name, os.O_RDWR | os.O_CREAT, self._at)
        with open(fd, "r+b") as file:
            os.ftruncate(file.fileno(), num_bytes)
            write_full(fd, [bytes(num_bytes)], 0)  # a hole that is mapped is SIGBUS on a full disk
            stamps: Stamps = np.frombuffer(mmap.mmap(file.fileno(), num_bytes), np.uint32)
        return stamps

    def _left_there(self) -> Iterable[int]:
        """Yield the blocks in parts of files that are no holes."""
        files = zip(self.blocks.names, self.blocks.sizes.tolist(), strict=True)
        for number, (name, size) in enumerate(files):
            try:
                fd = open_plain(name, os.O_RDWR, self._at)
            except FileNotFoundError:
                continue
            self._made.add(number)
            first, at = int(self.blocks.firsts[number]), 0
            with open(fd, "r+b"):
                if os.fstat(fd).st_size != size:
                    os.ftruncate(fd, size)
                with suppress(OSError):  # nothing but a hole is left
                    while at < size:
                        start = os.lseek(fd, at, os.SEEK_DATA)
                        at = os.lseek(fd, start, os.SEEK_HOLE)
                        stop = -(-at // BLOCK_BYTES)
                        yield from range(first + start // BLOCK_BYTES, first + stop)

    def first_wrong(self, first: int, data: memoryview | bytes) -> int | None:
        """Return where in the bytes of neighbouring blocks one with a wrong checksum begins."""
        for at in range(0, len(data), BLOCK_BYTES):
            block = data[at : at + BLOCK_BYTES]
            if xxhash.xxh3_64_intdigest(block) != int(self._sums[first + at // BLOCK_BYTES]):
                return at
        return None

    def check_left(self, block: int) -> bool:
        """Return True if an earlier server left this block, and it is right: then it is there."""
        if block not in self.unchecked:
            return False
        self.unchecked.discard(block)
        file, start, size = self.blocks.place(block)
        fd = open_plain(self.blocks.names[file], os.O_RDONLY, self._at)
        with open(fd, "rb", buffering=0):
            data = pread(fd, size, start)
        is_right = len(data) == size and self.first_wrong(block, data) is None
        if is_right:
            self.stamp(block, 1)
        return is_right

    def open(self, number: int) -> int:
        """Open a file to write to; the caller closes it. It is made once: one that has vanished
        must not come again, empty, as there are stamps for it.

        Raises:
            OSError: it has vanished.
        """
        name, flags = self.blocks.names[number], os.O_WRONLY
        if number in self._made:
            return open_plain(name, flags, self._at)
        fd = open_plain(name, flags | os.O_CREAT | os.O_EXCL, self._at)
        try:
            os.ftruncate(fd, int(self.blocks.sizes[number]))
        except OSError:
            os.close(fd)
            os.unlink(name, dir_fd=self._at)
            raise
        self._made.add(number)
        return fd

    def stamp(self, first: int, count: int) -> None:
        """Mark blocks as there."""
        self._next = self._next % 0xFFFFFFFF + 1
        self.num_there += count - int(np.count_nonzero(self.stamps[first : first + count]))
        self.stamps[first : first + count] = self._next
        self.stamps[-1] = self._next if self.num_there == len(self.blocks) else 0

    def drop(self, blocks: Integers) -> None:
        """Give their space back. First nobody may begin to read them, then they go."""
        self.stamps[-1] = 0
        self.num_there -= int(np.count_nonzero(self.stamps[blocks]))
        self.stamps[blocks] = 0
        self.unchecked.difference_update(blocks.tolist())
        for block in blocks.tolist():
            number, start, size = self.blocks.place(block)
            if number in self._made:
                with (
                    suppress(FileNotFoundError),  # somebody deleted it: its space came back with it
                    open(self.open(number), "wb") as file,
                ):
                    punch(file.fileno(), start, size)


def punch(fd: int, start: int, size: int) -> None:
    """Give the space of a part of a file back, with all of its last page, in which nothing else may
    lie; it reads as zeros, and the file is as long as before.

    Raises:
        OSError: the file system cannot.
    """
    wide, size = ctypes.c_longlong, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    if libc().fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, wide(start), wide(size)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
