"""Numbers of blocks: the shard files of a split, cut into the blocks that have checksums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardkit.arrays import Integers
from shardkit.index.manifest import SplitInfo
from shardkit.order.permutation import counted
from shardkit.system.blocks import BLOCK_BYTES

NEVER = np.iinfo(np.int64).max
"""The step at which a block is needed that no loop has told of."""


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
        """In the order of ``{split}.sums``."""
        files = [file for shard in split.shards for file in sorted(shard.file_bytes.items())]
        return cls([name for name, _ in files], [num_bytes for _, num_bytes in files])

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def bytes_of(self, blocks: Integers) -> Integers:
        """(B,) int64 bytes of each: less than a whole block at the end of a file."""
        files = self.firsts.searchsorted(blocks, "right") - 1
        found: Integers = np.minimum(
            BLOCK_BYTES, self.sizes[files] - (blocks - self.firsts[files]) * BLOCK_BYTES
        )
        return found

    def place(self, block: int) -> tuple[int, int, int]:
        """(number of the file, first byte, number of bytes) of a block."""
        file = int(self.firsts.searchsorted(block, "right")) - 1
        start = (block - int(self.firsts[file])) * BLOCK_BYTES
        return file, start, min(BLOCK_BYTES, int(self.sizes[file]) - start)


def blocks_of(firsts: Integers, starts: Integers, sizes: Integers) -> Integers:
    """The blocks that ranges of bytes touch, ascending, each once.

    Args:
        firsts: (B,) int64, first block of each range's file. starts, sizes: (B,) int64 bytes in it.
    """
    begin = starts // BLOCK_BYTES
    counts = (starts + sizes - 1) // BLOCK_BYTES - begin + 1
    counts[sizes == 0] = 0
    return np.unique(np.repeat(firsts + begin, counts) + counted(counts))


def runs(blocks: Integers, files: Integers, most: int) -> list[tuple[int, int]]:
    """(first, count) of neighbours in one file, at most so many together.

    Args:
        blocks: (B,) int64, ascending. files: (B,) int64, the file of each.
    """
    found: list[tuple[int, int]] = []
    last = -1
    for block, file in zip(blocks.tolist(), files.tolist(), strict=True):
        if found and found[-1][0] + found[-1][1] == block and file == last and found[-1][1] < most:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((block, 1))
        last = file
    return found
