"""What a row of tokens is: the seam behind :class:`shardkit.TokenDataset`."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from shardkit.reading.order import Epoch, Shuffle
from shardkit.reading.permute import Positions
from shardkit.reading.values import Column

Arrays = dict[str, Column]

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

    def order(self, shuffle: Shuffle, seed: int, epoch: int, **options: int) -> Epoch: ...

    def read(self, rows: Positions) -> Arrays:
        """Columns of (B, seq_len) each, of (B,) rows below num_rows."""
        ...

    def ranges(self, rows: Positions) -> tuple[Positions, Positions]:
        """(starts, sizes) of the tokens that are read for these rows."""
        ...

    def where(self, row: int) -> str:
        """A row in words."""
        ...


def counted(sizes: Positions) -> Positions:
    """(sum,) int64: 0, 1, ... within each of (N,) pieces laid end to end."""
    ends = np.cumsum(sizes)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - sizes, sizes)
