"""Which positions are whose: global batches, and each rank's slice of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardkit.arrays import Integers, Mask
from shardkit.errors import UsageError

Last = Literal["drop", "pad", "keep"]


def chosen_last(last: Last | None, drop_last: bool | None) -> Last:
    """Return what becomes of a last batch that is not full. Raises UsageError if both say it."""
    if drop_last is None:
        return "drop" if last is None else last
    if last is not None:
        raise UsageError(f"give last={last!r} or drop_last={drop_last!r}, not both")
    if drop_last not in (True, False):
        raise UsageError(f"drop_last must be True or False, got {drop_last!r}")
    return "drop" if drop_last else "keep"


@dataclass(frozen=True)
class BatchPlan:
    """The batches of the rest of an epoch, for one rank.

    Batch g of all ranks together holds positions ``[start + g * B * world_size, ... + B *
    world_size)``, and rank r has the r-th ``B`` of them: the sequence of global batches does not
    depend on the world size. A last batch that is not full is dropped, or padded with positions
    from the front, or kept: then the ranks have equal parts of it, the first ones one position
    more, and a rank for which nothing is left has one batch less than the others.

    Raises:
        UsageError: a number that makes no sense.
    """

    num_positions: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    last: Last = "drop"
    start: int = 0

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, got {self.batch_size}")
        if not 0 <= self.rank < self.world_size:
            raise UsageError(
                f"rank must be in 0..world_size-1, got rank {self.rank} of {self.world_size}"
            )
        if self.last not in ("drop", "pad", "keep"):
            raise UsageError(f"last must be 'drop', 'pad' or 'keep', got {self.last!r}")
        if not 0 <= self.start <= self.num_positions:
            raise UsageError(f"position {self.start} is outside 0..{self.num_positions}")

    @property
    def global_batch_size(self) -> int:
        return self.batch_size * self.world_size

    @property
    def remainder(self) -> int:
        """Positions of a last global batch that is not full; 0 where there is none."""
        rest = (self.num_positions - self.start) % self.global_batch_size
        return 0 if self.last == "drop" else rest

    @property
    def num_global_batches(self) -> int:
        return (self.num_positions - self.start) // self.global_batch_size + (self.remainder > 0)

    def __len__(self) -> int:
        """Batches of this rank."""
        number = self.num_global_batches
        return number - (number > 0 and self._part(number - 1)[1] == 0)

    def end(self, batch: int) -> int:
        """The position after a global batch, where an epoch goes on after it."""
        return min(self.start + (batch + 1) * self.global_batch_size, self.num_positions)

    def positions(self, batch: int) -> tuple[Integers, Mask]:
        """This rank's positions in a batch: (B,) int64, and (B,) bool, False where padding."""
        first, size = self._part(batch)
        positions = np.arange(first, first + size, dtype=np.int64)
        return positions % self.num_positions, positions < self.num_positions

    def positions_of(self, batches: range) -> list[Integers]:
        """(B,) int64 of each of several batches."""
        firsts = self.start + np.array(batches) * self.global_batch_size
        firsts += self.rank * self.batch_size
        positions = firsts[:, None] + np.arange(self.batch_size, dtype=np.int64)
        found = list(positions % self.num_positions)
        if self.last == "keep" and batches:  # none but the last can be another
            found[-1] = self.positions(batches[-1])[0]
        return found

    def _part(self, batch: int) -> tuple[int, int]:
        """The first of this rank's positions in a batch, and their number."""
        begin = self.start + batch * self.global_batch_size
        left = self.num_positions - begin
        if self.last != "keep" or left >= self.global_batch_size:
            return begin + self.rank * self.batch_size, self.batch_size
        each, more = divmod(left, self.world_size)
        return begin + self.rank * each + min(self.rank, more), each + (self.rank < more)
