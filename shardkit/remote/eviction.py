"""Eviction from a cache: who holds which blocks, and which go when others come."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from shardkit.arrays import Integers, Mask
from shardkit.errors import StorageError
from shardkit.remote.blocks import NEVER
from shardkit.remote.cached_split import CachedSplit
from shardkit.remote.orphans import OrphanedSplits
from shardkit.system.blocks import BLOCK_BYTES

RESERVE_BYTES = 1 << 30
"""Space that a cache without a stated size leaves to others."""

AT_ONCE = 64
"""Blocks go in lots of this part of the cache: finding those that are needed last takes 10 ms for
each million of blocks."""

COPY_S = 2.0
"""How long blocks stay for a reader that was told that they are there. Copying takes
milliseconds, and who comes late asks again."""

NextSteps = Callable[[CachedSplit, Integers], Integers]
"""Tells in how many steps each block of a split is needed; NEVER if no loop has announced it."""


class _Blocks:
    """Arrays of one split, (N,) each. ``touched``: when it was asked for. ``held``: by how many."""

    def __init__(self, num_blocks: int) -> None:
        self.is_there: Mask = np.zeros(num_blocks, bool)
        self.touched: Integers = np.zeros(num_blocks, np.int64)
        self.held = np.zeros(num_blocks, np.int32)
        self.num_there = 0


class Evictor:
    """The blocks that take space in one cache. What is needed last goes first; of what no loop has
    announced, which goes before, what was asked for longest ago.

    Attributes:
        most_bytes: of blocks, at most; None for all that is free but :data:`RESERVE_BYTES`.
        orphans: splits that nobody has opened since this began; their blocks go before all others.
    """

    def __init__(self, folder: Path, next_steps: NextSteps) -> None:
        self.most_bytes: int | None = None
        self.orphans = OrphanedSplits(folder)
        self._folder = folder
        self._next_steps = next_steps
        self._splits: dict[CachedSplit, _Blocks] = {}
        self._used = 0
        self._clock = 0
        self._held: dict[int, tuple[CachedSplit, Integers]] = {}
        self._copying: dict[int, float] = {}  # since when those who hold have what they asked for

    def capacity(self) -> int:
        """Return how many bytes blocks may take together."""
        if self.most_bytes is not None:
            return self.most_bytes
        free = shutil.disk_usage(self._folder).free
        return self._used + self.orphans.num_bytes + max(free - RESERVE_BYTES, 0)

    def _shown(self) -> str:
        """Return what it holds, and why so little, for errors."""
        shown = f"the cache {self._folder} holds {self.capacity()} bytes"
        if self.most_bytes is None:
            free = shutil.disk_usage(self._folder).free
            shown += f" (its disk has {free} free, of which {RESERVE_BYTES} are left to others)"
        return shown

    def free(self) -> int:
        """Return the bytes that can come while none goes."""
        return self.capacity() - self._used

    def holds_all(self, split: CachedSplit) -> bool:
        """Return True if what is missing of a split fits, while none goes."""
        return (len(split.blocks) - self._of(split).num_there) * BLOCK_BYTES <= self.free()

    def _of(self, split: CachedSplit) -> _Blocks:
        found = self._splits.get(split)
        if found is None:
            found = self._splits[split] = _Blocks(len(split.blocks))
        return found

    # --- who holds what -------------------------------------------------------------------

    def hold(self, reader: int, split: CachedSplit, numbers: Integers) -> None:
        """Keep these until the reader holds others, or none.

        Raises:
            StorageError: they alone are more than the cache holds.
        """
        self.release(reader)
        needed, most = int(split.blocks.bytes_of(numbers).sum()), self.capacity()
        if needed > most:
            raise StorageError(
                f"{self._shown()}, and one batch needs {needed}: make cache_bytes larger, or"
                " use a cache_dir on another disk, or smaller batches"
            )
        self._held[reader] = split, numbers
        np.add.at(self._of(split).held, numbers, 1)

    def release(self, reader: int) -> None:
        """Let go what a reader held."""
        self._copying.pop(reader, None)
        if reader in self._held:
            split, numbers = self._held.pop(reader)
            np.subtract.at(self._of(split).held, numbers, 1)

    def note_copying(self, reader: int) -> None:
        """Note that a reader has all that it holds, and copies that now. It does not say when it
        has; one that has not asks again."""
        self._copying[reader] = time.monotonic()

    def touch(self, split: CachedSplit, numbers: Integers) -> None:
        """Note that blocks were asked for."""
        self._clock += 1
        self._of(split).touched[numbers] = self._clock

    # --- what is there --------------------------------------------------------------------

    def add(self, split: CachedSplit, numbers: Integers) -> None:
        """Count blocks that take space from now on."""
        blocks = self._of(split)
        new = numbers[~blocks.is_there[numbers]]
        blocks.is_there[new] = True
        blocks.num_there += len(new)
        self._used += int(split.blocks.bytes_of(new).sum())

    def reserve(self, split: CachedSplit, numbers: Integers) -> None:
        """Count blocks, and keep them, while they are written. Raises as :meth:`make_space`."""
        blocks = self._of(split)
        new = numbers[~blocks.is_there[numbers]]
        blocks.held[numbers] += 1
        try:
            self.make_space(int(split.blocks.bytes_of(new).sum()))
        except BaseException:
            blocks.held[numbers] -= 1
            raise
        self.add(split, numbers)

    def written(self, split: CachedSplit, numbers: Integers, *, is_there: bool) -> None:
        """Let go blocks that were written, or drop them if that failed."""
        self._of(split).held[numbers] -= 1
        if not is_there:
            self._drop(split, numbers)

    def has_all(self, split: CachedSplit, numbers: Integers) -> bool:
        """Return True if all of these take space."""
        return bool(self._of(split).is_there[numbers].all())

    def make_space(self, num_bytes: int) -> None:
        """Drop what is needed last, until so many bytes are free.

        Raises:
            StorageError: readers hold too many.
        """
        most = self.capacity()
        while self.orphans.num_bytes and self._used + self.orphans.num_bytes + num_bytes > most:
            self.orphans.drop_oldest()
        if self._used + num_bytes <= most:
            return
        now = time.monotonic()
        for reader in [one for one, since in self._copying.items() if now - since > COPY_S]:
            self.release(reader)
        slack, dropped = min(most // AT_ONCE, most // 2), 1
        while (excess := self._used + num_bytes - most) > 0 and dropped:
            dropped = 0  # some blocks have less bytes than a full one
            for split, numbers in self._last_needed(-(-(excess + slack) // BLOCK_BYTES)):
                self._drop(split, numbers)
                dropped += len(numbers)
        if self._used + num_bytes > most:
            held = sum(int(s.blocks.bytes_of(n).sum()) for s, n in self._held.values())
            raise StorageError(
                f"{self._shown()}, and the batches that {len(self._held)} readers are making need"
                f" {held}: make cache_bytes larger, or use a cache_dir on another disk, fewer"
                " workers or smaller batches"
            )

    def drop(self, split: CachedSplit) -> None:
        """Drop all blocks of a split."""
        self._drop(split, np.flatnonzero(self._of(split).is_there))

    def _drop(self, split: CachedSplit, numbers: Integers) -> None:
        split.drop(numbers)
        numbers = numbers[self._of(split).is_there[numbers]]
        self._of(split).is_there[numbers] = False
        self._of(split).num_there -= len(numbers)
        self._used -= int(split.blocks.bytes_of(numbers).sum())

    def _last_needed(self, count: int) -> list[tuple[CachedSplit, Integers]]:
        """Return so many blocks that nobody holds, as far as there are, by their splits."""
        numbers, keys = [], []
        for split, blocks in self._splits.items():
            droppable = np.flatnonzero(blocks.is_there & (blocks.held == 0))
            key = self._next_steps(split, droppable)
            is_unknown = key == NEVER
            key[is_unknown] = NEVER - blocks.touched[droppable[is_unknown]]
            numbers.append(droppable)
            keys.append(key)
        joined = np.concatenate([*keys, np.empty(0, np.int64)])
        chosen = np.arange(len(joined))
        if len(joined) > count:
            chosen = np.argpartition(joined, len(joined) - count)[len(joined) - count :]
        found, begin = [], 0
        for split, droppable in zip(self._splits, numbers, strict=True):
            end = begin + len(droppable)
            mine = chosen[(chosen >= begin) & (chosen < end)] - begin
            if len(mine):
                found.append((split, np.sort(droppable[mine])))
            begin = end
        return found
