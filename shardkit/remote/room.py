"""Room for blocks in a cache: who holds which, and which go when others come."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from shardkit.arrays import Integers, Mask
from shardkit.errors import StorageError
from shardkit.remote.cached import CachedSplit
from shardkit.remote.left import LeftSplits
from shardkit.remote.next_uses import NEVER
from shardkit.system.blocks import BLOCK_BYTES

RESERVE_BYTES = 1 << 30
"""Room that a cache without a stated size leaves to others."""

LOOK_S = 0.1
"""The disk is asked so often for what is free. What comes meanwhile changes nothing: it takes what
was free."""

AT_ONCE = 64
"""Blocks go in lots of this part of the cache: finding those that are needed last takes 10 ms for
each million of blocks."""

COPY_S = 2.0
"""How long blocks stay for a reader that was told that they are there. Copying takes
milliseconds, and who comes late asks again."""

Needed = Callable[[CachedSplit, Integers], Integers]
"""In how many steps each block of a split is needed; NEVER where nobody has told."""


class _Blocks:
    """Of one split: (N,) each. ``touched``: when it was asked for. ``held``: by how many."""

    def __init__(self, num_blocks: int) -> None:
        self.is_there: Mask = np.zeros(num_blocks, bool)
        self.touched: Integers = np.zeros(num_blocks, np.int64)
        self.held = np.zeros(num_blocks, np.int32)
        self.announced = np.zeros(num_blocks, np.int32)
        self.num_there = 0


class Room:
    """The blocks that take room in one cache. What is needed last goes first; of what nobody told
    of, and that goes before, what was asked for longest ago.

    Args:
        needed: see :data:`Needed`.

    Attributes:
        most_bytes: of blocks, at most; None for all that is free but :data:`RESERVE_BYTES`.
        left: splits that nobody has opened since this began; their blocks go before all others.
    """

    def __init__(self, folder: Path, needed: Needed) -> None:
        self.most_bytes: int | None = None
        self.left = LeftSplits(folder)
        self._folder = folder
        self._needed = needed
        self._splits: dict[CachedSplit, _Blocks] = {}
        self._used = 0
        self._looked, self._all = -LOOK_S, 0
        self._clock = 0
        self._held: dict[int, tuple[CachedSplit, Integers]] = {}
        self._copying: dict[int, float] = {}  # since when those who hold have what they asked for
        self._announced: dict[int, tuple[CachedSplit, Integers]] = {}

    def bytes(self) -> int:
        """That blocks may take together."""
        if self.most_bytes is not None:
            return self.most_bytes
        now = time.monotonic()
        if now - self._looked > LOOK_S:
            taken, free = self._used + self.left.num_bytes, shutil.disk_usage(self._folder).free
            self._looked, self._all = now, taken + max(free - RESERVE_BYTES, 0)
        return self._all

    def _shown(self) -> str:
        """Say what it holds, and why so little, for errors."""
        shown = f"the cache {self._folder} holds {self.bytes()} bytes"
        if self.most_bytes is None:
            free = shutil.disk_usage(self._folder).free
            shown += f" (its disk has {free} free, of which {RESERVE_BYTES} are left to others)"
        return shown

    def free(self) -> int:
        """Bytes that can come while none goes."""
        return self.bytes() - self._used

    def holds_all(self, split: CachedSplit) -> bool:
        """Whether what is missing of a split fits, while none goes."""
        return (len(split.blocks) - self._of(split).num_there) * BLOCK_BYTES <= self.free()

    def _of(self, split: CachedSplit) -> _Blocks:
        found = self._splits.get(split)
        if found is None:
            found = self._splits[split] = _Blocks(len(split.blocks))
        return found

    # --- who wants what -------------------------------------------------------------------

    def hold(self, reader: int, split: CachedSplit, numbers: Integers) -> None:
        """Keep these until the reader holds others, or none.

        Raises:
            StorageError: they alone are more than the cache holds.
        """
        self.let_go(reader)
        needed, most = int(split.blocks.bytes_of(numbers).sum()), self.bytes()
        if needed > most:
            raise StorageError(
                f"{self._shown()}, and one batch needs {needed}: make cache_bytes larger, or"
                " use a cache_dir on another disk, or smaller batches"
            )
        self._held[reader] = split, numbers
        np.add.at(self._of(split).held, numbers, 1)

    def let_go(self, reader: int) -> None:
        """What a reader held may go."""
        self._copying.pop(reader, None)
        if reader in self._held:
            split, numbers = self._held.pop(reader)
            np.subtract.at(self._of(split).held, numbers, 1)

    def has(self, reader: int) -> None:
        """It has all that it holds, and copies that now."""
        self._copying[reader] = time.monotonic()

    def _let_go_of_copied(self) -> None:
        """A reader does not say when it has copied; one that has not asks again."""
        now = time.monotonic()
        for reader in [one for one, since in self._copying.items() if now - since > COPY_S]:
            self.let_go(reader)

    def announce(self, reader: int, split: CachedSplit, numbers: Integers) -> Integers:
        """Keep these rather than others, until the reader announces more: as many of them as half
        of the cache can hold, which are returned."""
        self._forget_announced(reader)
        ends = split.blocks.bytes_of(numbers).cumsum()
        numbers = numbers[: int(ends.searchsorted(self.bytes() // 2, "right"))]
        self._announced[reader] = split, numbers
        np.add.at(self._of(split).announced, numbers, 1)
        return numbers

    def _forget_announced(self, reader: int) -> None:
        if reader in self._announced:
            split, numbers = self._announced.pop(reader)
            np.subtract.at(self._of(split).announced, numbers, 1)

    def forget(self, reader: int) -> None:
        """A reader has ended."""
        self.let_go(reader)
        self._forget_announced(reader)

    # --- what is there --------------------------------------------------------------------

    def touch(self, split: CachedSplit, numbers: Integers) -> None:
        """They were asked for."""
        self._clock += 1
        self._of(split).touched[numbers] = self._clock

    def add(self, split: CachedSplit, numbers: Integers) -> None:
        """They take room from now on."""
        blocks = self._of(split)
        new = numbers[~blocks.is_there[numbers]]
        blocks.is_there[new] = True
        blocks.num_there += len(new)
        self._used += int(split.blocks.bytes_of(new).sum())

    def reserve(self, split: CachedSplit, numbers: Integers) -> None:
        """They take room, and stay, while they are written. Raises as :meth:`make`."""
        blocks = self._of(split)
        new = numbers[~blocks.is_there[numbers]]
        blocks.held[numbers] += 1
        try:
            self.make(int(split.blocks.bytes_of(new).sum()))
        except BaseException:
            blocks.held[numbers] -= 1
            raise
        self.add(split, numbers)

    def written(self, split: CachedSplit, numbers: Integers, *, is_there: bool) -> None:
        """They may go from now on; those that are not there after all have gone."""
        self._of(split).held[numbers] -= 1
        if not is_there:
            self._drop(split, numbers)

    def has_all(self, split: CachedSplit, numbers: Integers) -> bool:
        """Whether all of these take room."""
        return bool(self._of(split).is_there[numbers].all())

    def make(self, num_bytes: int) -> None:
        """Drop what is needed last, until there is room.

        Raises:
            StorageError: readers hold too many.
        """
        most = self.bytes()
        while self.left.num_bytes and self._used + self.left.num_bytes + num_bytes > most:
            self.left.drop_oldest()
        if self._used + num_bytes <= most:
            return
        self._let_go_of_copied()
        slack, dropped = min(most // AT_ONCE, most // 2), 1
        while (excess := self._used + num_bytes - most) > 0 and dropped:
            dropped = self._drop_last_needed(-(-(excess + slack) // BLOCK_BYTES))
        if self._used + num_bytes > most:
            held = sum(int(s.blocks.bytes_of(n).sum()) for s, n in self._held.values())
            raise StorageError(
                f"{self._shown()}, and the batches that {len(self._held)} readers are making need"
                f" {held}: make cache_bytes larger, or use a cache_dir on another disk, fewer"
                " workers or smaller batches"
            )

    def drop(self, split: CachedSplit) -> None:
        """All blocks of a split."""
        self._drop(split, np.flatnonzero(self._of(split).is_there))

    def _drop(self, split: CachedSplit, numbers: Integers) -> None:
        split.drop(numbers)
        numbers = numbers[self._of(split).is_there[numbers]]
        self._of(split).is_there[numbers] = False
        self._of(split).num_there -= len(numbers)
        self._used -= int(split.blocks.bytes_of(numbers).sum())

    def _drop_last_needed(self, count: int) -> int:
        """So many blocks, as far as there are, some of which have less than a whole one's bytes."""
        dropped = 0
        for split, numbers in self._last_needed(count):
            self._drop(split, numbers)
            dropped += len(numbers)
        return dropped

    def _last_needed(self, count: int) -> list[tuple[CachedSplit, Integers]]:
        """So many blocks that nobody holds, as far as there are."""
        splits = list(self._splits)
        numbers = [self._droppable(split) for split in splits]
        keys = [self._keys(split, n) for split, n in zip(splits, numbers, strict=True)]
        joined = np.concatenate([*keys, np.empty(0, np.int64)])
        if len(joined) > count:
            chosen = np.argpartition(joined, len(joined) - count)[len(joined) - count :]
        else:
            chosen = np.arange(len(joined))
        ends = np.cumsum([0, *map(len, keys)])
        found = []
        for i, split in enumerate(splits):
            mine = chosen[(chosen >= ends[i]) & (chosen < ends[i + 1])] - ends[i]
            if len(mine):
                found.append((split, np.sort(numbers[i][mine])))
        return found

    def _droppable(self, split: CachedSplit) -> Integers:
        blocks = self._splits[split]
        return np.flatnonzero(blocks.is_there & (blocks.held == 0))

    def _keys(self, split: CachedSplit, numbers: Integers) -> Integers:
        """The greater, the sooner it goes."""
        blocks = self._splits[split]
        keys = self._needed(split, numbers)
        is_untold = keys == NEVER
        keys[is_untold] = NEVER - blocks.touched[numbers[is_untold]]
        keys[is_untold & (blocks.announced[numbers] > 0)] = -1
        return keys
