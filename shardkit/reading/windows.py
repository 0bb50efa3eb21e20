"""Which windows an epoch of tokens has, and in which order."""

from __future__ import annotations

from dataclasses import dataclass

from shardkit.reading.order import Order, Shuffle
from shardkit.reading.permute import Positions, derive

_PHASE = 6


@dataclass(frozen=True)
class Windows:
    """Windows of ``seq_len`` inputs, each with one token more for the last label, on a circle of
    ``num_tokens``.

    Window w of a phase begins at token ``phase + w * seq_len``, for w in [0, num_windows) and
    phase in [0, seq_len). It is row ``phase * num_windows + w``: rows of phase 0 come first. The
    windows of one phase have each token as an input once, but for the ``num_tokens % seq_len``
    before the phase, beyond the end of the circle.
    """

    num_tokens: int
    seq_len: int

    @property
    def num_windows(self) -> int:
        return self.num_tokens // self.seq_len

    @property
    def num_rows(self) -> int:
        return self.num_windows * self.seq_len

    def starts(self, rows: Positions) -> Positions:
        """(B,) int64: the first token of each of (B,) rows, which is below num_tokens."""
        phases, windows = divmod(rows, self.num_windows)
        return windows * self.seq_len + phases

    def order(self, shuffle: Shuffle, seed: int, epoch: int, **options: int) -> WindowOrder:
        """Shuffled epochs each have a phase of their own, others phase 0."""
        phase = 0 if shuffle is None else derive(seed, epoch, _PHASE) % self.seq_len
        order = Order(self.num_windows, shuffle, seed, epoch, **options)
        return WindowOrder(order, phase * self.num_windows)


@dataclass(frozen=True)
class WindowOrder:
    """An order of rows that begin at ``first``."""

    order: Order
    first: int

    def __len__(self) -> int:
        return len(self.order)

    def rows(self, positions: Positions) -> Positions:
        return self.order.rows(positions) + self.first
