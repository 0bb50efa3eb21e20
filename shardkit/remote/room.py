"""Room for blocks in a cache: who holds which, and which go when others come."""

from __future__ import annotations

import shutil
from collections import Counter, OrderedDict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from shardkit.errors import StorageError
from shardkit.remote.cached import CachedSplit

RESERVE_BYTES = 1 << 30
"""Room that a cache without a stated size leaves to others."""

Block = tuple[CachedSplit, int]


class Room:
    """The blocks that take room in one cache.

    Attributes:
        most_bytes: of blocks, at most; None for all that is free but :data:`RESERVE_BYTES`.
    """

    def __init__(self, folder: Path) -> None:
        self.most_bytes: int | None = None
        self._folder = folder
        self._there: OrderedDict[Block, int] = OrderedDict()  # -> bytes; the oldest first
        self._used = 0
        self._of_reader: dict[int, list[Block]] = {}
        self._soon: dict[int, list[Block]] = {}
        self._held: Counter[Block] = Counter()

    def bytes(self) -> int:
        """That blocks may take together."""
        if self.most_bytes is not None:
            return self.most_bytes
        return self._used + max(shutil.disk_usage(self._folder).free - RESERVE_BYTES, 0)

    def hold(self, reader: int, blocks: list[Block]) -> None:
        """Keep these until the reader holds others, or none.

        Raises:
            StorageError: they alone are more than the cache holds.
        """
        self.let_go(reader)
        needed, most = _total(blocks), self.bytes()
        if needed > most:
            raise StorageError(
                f"the cache {self._folder} holds {most} bytes, and one batch needs {needed}: make"
                " cache_bytes larger, or batches smaller"
            )
        self._of_reader[reader] = blocks
        self._held.update(blocks)

    def let_go(self, reader: int) -> None:
        """What a reader held may go."""
        for block in self._of_reader.pop(reader, ()):
            self._held[block] -= 1
            if not self._held[block]:
                del self._held[block]

    def forget(self, reader: int) -> None:
        """A reader has ended."""
        self.let_go(reader)
        self._soon.pop(reader, None)

    def expect(self, reader: int, blocks: list[Block], coming: Iterable[Block]) -> list[Block]:
        """As many of the blocks that a reader will need as there is room for, beside those that
        readers hold, or will need, and those that come."""
        others = {
            block for number, soon in self._soon.items() if number != reader for block in soon
        }
        taken = others.union(self._held, coming)
        left = self.bytes() - _total(taken)
        fitting = []
        for block in blocks:
            if block not in taken:
                left -= block[0].blocks.place(block[1])[2]
                if left < 0:
                    break
            fitting.append(block)
        self._soon[reader] = fitting
        return fitting

    def touch(self, block: Block) -> None:
        """It was asked for, and is there."""
        self._there.move_to_end(block)

    def add(self, block: Block) -> None:
        """It takes room from now on."""
        if block not in self._there:
            self._there[block] = block[0].blocks.place(block[1])[2]
            self._used += self._there[block]

    def make(self, num_bytes: int) -> None:
        """Drop the oldest blocks that nobody holds, until there is room.

        Raises:
            StorageError: readers hold too many.
        """
        excess = self._used + num_bytes - self.bytes()
        if excess <= 0:
            return
        dropped: dict[CachedSplit, list[int]] = {}
        for block, size in self._there.items():
            if excess <= 0:
                break
            if block not in self._held:
                excess -= size
                dropped.setdefault(block[0], []).append(block[1])
        for split, numbers in dropped.items():
            split.drop(np.array(numbers, np.int64))
            for number in numbers:
                self._used -= self._there.pop((split, number))
        if excess > 0:
            raise StorageError(
                f"the cache {self._folder} holds {self.bytes()} bytes, and the batches that"
                f" {len(self._of_reader)} readers are making need {_total(self._held)}: make"
                " cache_bytes larger, or use fewer workers or smaller batches"
            )


def _total(blocks: Iterable[Block]) -> int:
    return sum(split.blocks.place(number)[2] for split, number in blocks)
