"""Which row stands at which position of an epoch: arithmetic, not a table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from shardkit.arrays import Integers
from shardkit.errors import UsageError
from shardkit.order.permutation import MAX_ROWS, derive, permute, unpermute

Shuffle = Literal["full", "block"] | None

BLOCK_ROWS = 256
"""Rows of a block: 28 MB of 110 KB pictures, which any disk reads at its full speed."""

WINDOW_BLOCKS = 16
"""Blocks whose rows are mixed: rows that follow one another are from this many blocks."""

_BLOCKS, _ROWS = -1, -2


class EpochOrder(Protocol):
    """The order of one epoch. Immutable and cheap to pickle; the same everywhere."""

    def __len__(self) -> int:
        """Positions in the epoch."""
        ...

    def rows(self, positions: Integers) -> Integers:
        """(B,) int64 rows at (B,) int64 positions, each in [0, len(self))."""
        ...


def check_shuffle(shuffle: object) -> Shuffle:
    """``True`` means full and ``False`` none. Raises UsageError for anything unknown."""
    known: dict[object, Shuffle] = {
        True: "full", False: None, None: None, "full": "full", "block": "block"
    }  # fmt: skip
    try:
        return known[shuffle]
    except (KeyError, TypeError) as error:
        raise UsageError(f"shuffle must be 'full', 'block' or None, got {shuffle!r}") from error


@dataclass(frozen=True)
class Order:
    """The order of one epoch of a dataset.

    ``full`` shuffles all rows. ``block`` shuffles blocks of ``block_rows`` consecutive rows, then
    the rows within each window of ``window_blocks`` blocks: for disks and networks that like
    neighbours. None keeps the order of packing. See :mod:`shardkit.order.permutation` for how.

    Raises:
        UsageError: a number or a kind of shuffle that makes no sense.
    """

    num_rows: int
    shuffle: Shuffle = "full"
    seed: int = 0
    epoch: int = 0
    block_rows: int = BLOCK_ROWS
    window_blocks: int = WINDOW_BLOCKS

    def __post_init__(self) -> None:
        check_shuffle(self.shuffle)
        if not 0 <= self.num_rows <= MAX_ROWS:
            raise UsageError(f"num_rows must be in 0..2**60, got {self.num_rows}")
        if self.block_rows < 1 or self.window_blocks < 1:
            raise UsageError(
                "block_rows and window_blocks must be at least 1, got"
                f" {self.block_rows} and {self.window_blocks}"
            )

    def __len__(self) -> int:
        return self.num_rows

    def rows(self, positions: Integers) -> Integers:
        """(B,) int64 rows at (B,) int64 positions, each in [0, num_rows). Raises IndexError."""
        positions = np.asarray(positions, np.int64)
        if len(positions) and not (positions.min() >= 0 and positions.max() < self.num_rows):
            raise IndexError(f"a position is outside 0..{self.num_rows - 1}")
        if not len(positions) or self.shuffle is None:
            return positions
        if self.shuffle == "full":
            return permute(positions, self.num_rows, self._key)
        return self._rows_of_blocks(positions)

    # --- blocks: slot s of the shuffled blocks holds block permute(s) ---------------------

    @cached_property
    def _key(self) -> int:
        return derive(self.seed, self.epoch)

    @cached_property
    def _num_blocks(self) -> int:
        return -(-self.num_rows // self.block_rows)

    @cached_property
    def _short(self) -> tuple[int, int]:
        """Slot of the last block, and how many rows it lacks."""
        lacking = self._num_blocks * self.block_rows - self.num_rows
        return unpermute(self._num_blocks - 1, self._num_blocks, self._blocks_key), lacking

    @cached_property
    def _blocks_key(self) -> int:
        return derive(self._key, _BLOCKS)

    def _start(self, slot: int) -> int:
        """First position of a slot."""
        short, lacking = self._short
        return min(slot, self._num_blocks) * self.block_rows - (lacking if slot > short else 0)

    def _slots(self, positions: Integers) -> tuple[Integers, Integers]:
        """(slot, row within the block) of each position."""
        short, lacking = self._short
        shifted = positions + np.where(positions >= self._start(short + 1), lacking, 0)
        return np.divmod(shifted, self.block_rows)

    def _rows_of_blocks(self, positions: Integers) -> Integers:
        windows = self._slots(positions)[0] // self.window_blocks
        mixed = np.empty_like(positions)
        for window in np.unique(windows).tolist():  # a batch touches one or two
            first = self._start(window * self.window_blocks)
            size = self._start((window + 1) * self.window_blocks) - first
            here = windows == window
            key = derive(self._key, _ROWS, window)
            mixed[here] = first + permute(positions[here] - first, size, key)
        slots, within = self._slots(mixed)
        blocks = permute(slots, self._num_blocks, self._blocks_key)
        return blocks * self.block_rows + within
