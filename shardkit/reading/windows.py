"""Windows over all documents end to end, whatever boundaries they cross."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardkit.reading.order import Order, Shuffle
from shardkit.reading.permute import Positions, derive
from shardkit.reading.sequences import NO_LABEL, Arrays, counted
from shardkit.reading.token_store import Tokens, TokenStore, as_dtype, copied

_PHASE = 6


@dataclass(frozen=True)
class Windows:
    """Windows of ``seq_len`` inputs, each with one token more for the last label, on a circle of
    all T tokens.

    Window w of a phase begins at token ``phase + w * seq_len``, for w in [0, T // seq_len) and
    phase in [0, seq_len). It is row ``phase * (T // seq_len) + w``: rows of phase 0 come first. The
    windows of one phase have each token as an input once, but for the ``T % seq_len`` that lie
    before the phase, on the circle.

    Attributes:
        is_masked: whether samples say where documents begin, and have no labels across that.
    """

    store: TokenStore
    seq_len: int
    dtype: np.dtype[Any]
    is_masked: bool

    @property
    def num_samples(self) -> int:
        return self.store.num_tokens // self.seq_len

    @property
    def num_rows(self) -> int:
        return self.num_samples * self.seq_len

    @property
    def padding(self) -> float:
        return 0.0

    def order(self, shuffle: Shuffle, seed: int, epoch: int, **options: int) -> WindowOrder:
        """Shuffled epochs each have a phase of their own, others phase 0."""
        phase = 0 if shuffle is None else derive(seed, epoch, _PHASE) % self.seq_len
        order = Order(self.num_samples, shuffle, seed, epoch, **options)
        return WindowOrder(order, phase * self.num_samples)

    def read(self, rows: Positions) -> Arrays:
        starts = self._starts(rows)
        tokens = self._tokens(starts)
        if self.is_masked:
            return self._masked(starts, tokens)
        windows = as_dtype(tokens, self.dtype)
        return {"inputs": windows[:, :-1], "labels": windows[:, 1:]}

    def _starts(self, rows: Positions) -> Positions:
        """The first token of each row's window, which is below T."""
        phases, windows = divmod(rows, self.num_samples)
        return windows * self.seq_len + phases

    def _tokens(self, starts: Positions) -> Tokens:
        """(B, seq_len + 1) new; after the last token comes the first."""
        size = self.seq_len + 1
        if len(starts) and int(starts.max()) + size <= self.store.num_tokens:
            return self.store.windows(starts, size)
        return copied(self._copy, starts, np.empty((len(starts), size), self.store.dtype))

    def _copy(self, start: int, out: Tokens) -> None:
        left = min(self.store.num_tokens - start, len(out))
        self.store.copy(start, out[:left])
        if left < len(out):
            self.store.copy(0, out[left:])

    def _masked(self, starts: Positions, tokens: Tokens) -> Arrays:
        shape = len(starts), self.seq_len + 1
        pieces = [piece for start in starts.tolist() for piece in self._pieces(start)]
        numbers, sizes = np.concatenate(pieces, axis=1) if pieces else np.empty((2, 0), np.int64)
        positions = counted(sizes).reshape(shape)
        documents = np.repeat(numbers, sizes).reshape(shape)
        labels = as_dtype(tokens[:, 1:], self.dtype)
        labels[positions[:, 1:] == 0] = NO_LABEL
        return {
            "inputs": as_dtype(tokens[:, :-1], self.dtype),
            "labels": labels,
            "position_ids": positions[:, :-1].copy(),
            "document_ids": documents[:, :-1].copy(),
        }

    def _pieces(self, start: int) -> Iterator[Positions]:
        """(2, n) int64: the documents of a window, one after another, and how many of its
        ``seq_len + 1`` tokens each has; on both sides of the end of the circle."""
        over = start + self.seq_len + 1 - self.store.num_tokens
        for first, last in ((start, start + self.seq_len + 1 - max(over, 0)), (0, over)):
            if first < last:
                number, ends = self.store.documents.within(first, last)
                numbers = np.arange(number, number + len(ends))
                yield np.stack([numbers, np.diff(ends, prepend=first)])

    def ranges(self, rows: Positions) -> tuple[Positions, Positions]:
        """Without what is beyond the end of the circle."""
        starts = self._starts(rows)
        return starts, np.minimum(self.seq_len + 1, self.store.num_tokens - starts)

    def where(self, row: int) -> str:
        start = int(self._starts(np.array([row]))[0])
        return f"tokens {start}..{start + self.seq_len}, from {self.store.where(start)}"


@dataclass(frozen=True)
class WindowOrder:
    """An order of rows that begin at ``first``."""

    order: Order
    first: int

    def __len__(self) -> int:
        return len(self.order)

    def rows(self, positions: Positions) -> Positions:
        return self.order.rows(positions) + self.first
