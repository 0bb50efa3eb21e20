"""Which positions are whose: global batches, and each rank's slice of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardkit.arrays import Integers, Mask
from shardkit.errors import UsageError

Last = Literal["drop", "pad"]


@dataclass(frozen=True)
class BatchPlan:
    """The batches of the rest of an epoch, for one rank.

    Batch g of all ranks together holds positions ``[start + g * B * world_size, ... + B *
    world_size)``, and rank r has the r-th ``B`` of them: the sequence of global batches does not
    depend on the world size. All ranks have equally many batches. A last batch that is not full is
    dropped, or padded with positions from the front.

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
        if self.last not in ("drop", "pad"):
            raise UsageError(f"last must be 'drop' or 'pad', got {self.last!r}")
        if not 0 <= self.start <= self.num_positions:
            raise UsageError(f"position {self.start} is outside 0..{self.num_positions}")

    @property
    def global_batch_size(self) -> int:
        return self.batch_size * self.world_size

    def __len__(self) -> int:
        left = self.num_positions - self.start
        whole, rest = divmod(left, self.global_batch_size)
        return whole + (rest > 0 and self.last == "pad")

    def end(self, batch: int) -> int:
        """The position after a global batch, where an epoch goes on after it."""
        return min(self.start + (batch + 1) * self.global_batch_size, self.num_positions)

    def positions(self, batch: int) -> tuple[Integers, Mask]:
        """This rank's positions in a batch: (B,) int64, and (B,) bool, False where padding."""
        positions = self._beyond(np.array([batch]))[0]
        return positions % self.num_positions, positions < self.num_positions

    def positions_of(self, batches: range) -> Integers:
        """(n, B) int64: of several batches at once."""
        return self._beyond(np.array(batches)) % self.num_positions

    def _beyond(self, batches: Integers) -> Integers:
        """(n, B) int64: not yet those from the front, where they are padding."""
        firsts = self.start + batches * self.global_batch_size + self.rank * self.batch_size
        return firsts[:, None] + np.arange(self.batch_size, dtype=np.int64)
