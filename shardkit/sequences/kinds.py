"""What a row of tokens is: the seam behind :class:`shardkit.TokenDataset`."""

from __future__ import annotations

from typing import Protocol

from shardkit.arrays import Integers
from shardkit.order.epochs import EpochOrder, Shuffle
from shardkit.reading.dataset import Batch

NO_LABEL = -100
"""What torch's ``cross_entropy`` leaves out."""


class Sequences(Protocol):
    """How documents become sequences of one length.

    Attributes:
        num_samples: of an epoch. num_rows: of all epochs: rows are below it. padding: the share of
            inputs that are no tokens.
    """

    num_samples: int
    num_rows: int
    padding: float

    def order(self, shuffle: Shuffle, seed: int, epoch: int, **options: int) -> EpochOrder: ...

    def read(self, rows: Integers) -> Batch:
        """Columns of (B, seq_len) each, of (B,) rows below num_rows."""
        ...

    def ranges(self, rows: Integers) -> tuple[Integers, Integers]:
        """(starts, sizes) of the tokens that are read for these rows."""
        ...

    def where(self, row: int) -> str:
        """A row in words."""
        ...
