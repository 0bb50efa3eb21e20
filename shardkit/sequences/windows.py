"""Windows over all documents end to end, whatever boundaries they cross."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from shardkit.arrays import Integers, Tokens
from shardkit.batches.collate import Shifted
from shardkit.memory import buffers
from shardkit.order.epochs import Order, Shuffle
from shardkit.order.permutation import counted, derive, turn
from shardkit.reading.dataset import Batch
from shardkit.sequences.kinds import NO_LABEL
from shardkit.sequences.store import TokenStore

_PHASE = -6


class Windows:
    """Windows of ``seq_len`` inputs, each with one token more for the last label, on a circle of
    all T tokens.

    Window w of a phase begins at token ``phase + w * seq_len``, for w in [0, T // seq_len) and
    phase in [0, seq_len). It is row ``phase * (T // seq_len) + w``: rows of phase 0 come first. The
    windows of one phase have each token as an input once, but for the ``T % seq_len`` that lie
    before the phase, on the circle.

    Args:
        is_masked: whether samples say where documents begin, and have no labels across that.
    """

    padding = 0.0

    def __init__(
        self, store: TokenStore, seq_len: int, dtype: np.dtype[Any], is_masked: bool
    ) -> None:
        self.num_samples = store.num_tokens // seq_len
        self.num_rows = self.num_samples * seq_len
        self._store = store
        self._seq_len = seq_len
        self._dtype = dtype
        self._is_masked = is_masked
        self._sizes: Integers = np.empty(0, np.int64)

    def order(self, shuffle: Shuffle, seed: int, epoch: int, **options: int) -> WindowOrder:
        """Any ``seq_len`` shuffled epochs on end have each phase once, so that no window comes
        again before all have come; others have phase 0."""
        key = derive(seed, _PHASE)
        phase = 0 if shuffle is None else turn(epoch, self._seq_len, key)
        order = Order(self.num_samples, shuffle, seed, epoch, **options)
        return WindowOrder(order, phase * self.num_samples)

    def read(self, rows: Integers) -> Batch:
        starts = self._starts(rows)
        tokens: Tokens = buffers.empty((len(rows), self._seq_len + 1), self._dtype)
        self._store.read(*self._unrolled(starts), tokens.reshape(-1))
        return self._masked(starts, tokens) if self._is_masked else Shifted(tokens)

    def _starts(self, rows: Integers) -> Integers:
        """The first token of each row's window, which is below T."""
        phases, windows = np.divmod(rows, self.num_samples)
        windows *= self._seq_len
        windows += phases
        return windows

    def _unrolled(self, starts: Integers) -> tuple[Integers, Integers]:
        """(starts, sizes) of ranges; a window beyond the end of the circle is two."""
        size = self._seq_len + 1
        last = self._store.num_tokens - size
        if not len(starts) or starts.max() <= last:
            return starts, self._whole(len(starts))
        over = np.maximum(starts - last, 0)
        ranges = np.stack([starts, size - over, over * 0, over], axis=1).reshape(-1, 2)
        ranges = ranges[ranges[:, 1] > 0]
        return ranges[:, 0], ranges[:, 1]

    def _whole(self, count: int) -> Integers:
        """The sizes of so many windows; kept, as most batches have as many."""
        sizes = self._sizes
        if len(sizes) != count:
            sizes = self._sizes = np.full(count, self._seq_len + 1)
        return sizes

    def _masked(self, starts: Integers, tokens: Tokens) -> Batch:
        shape = tokens.shape
        numbers, sizes = self._documents(*self._unrolled(starts))
        positions = counted(sizes).reshape(shape)
        documents = np.repeat(numbers, sizes).reshape(shape)
        labels = tokens[:, 1:].copy()
        labels[positions[:, 1:] == 0] = NO_LABEL
        return {
            "inputs": tokens[:, :-1].copy(),
            "labels": labels,
            "position_ids": positions[:, :-1].copy(),
            "document_ids": documents[:, :-1].copy(),
        }

    def _documents(self, starts: Integers, sizes: Integers) -> tuple[Integers, Integers]:
        """The documents of ranges of tokens, one after another, (n,) int64, and how many of the
        tokens each has, (n,) int64."""
        within = self._store.documents.within
        ranges = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
        found = [within(start, stop) for start, stop in ranges]
        counts = np.array([len(ends) for _, ends in found], np.int64)
        numbers = np.array([first for first, _ in found], np.int64).repeat(counts)
        ends = np.concatenate([np.empty(0, np.int64), *(ends for _, ends in found)])
        begins = np.roll(ends, 1)
        begins[counts.cumsum() - counts] = starts
        return numbers + counted(counts), ends - begins

    def ranges(self, rows: Integers) -> tuple[Integers, Integers]:
        return self._unrolled(self._starts(rows))

    def where(self, row: int) -> str:
        start = int(self._starts(np.array([row]))[0])
        return f"tokens {start}..{start + self._seq_len}, from {self._store.where(start)}"


@dataclass(frozen=True)
class WindowOrder:
    """An order of rows that begin at ``first``."""

    order: Order
    first: int

    def __len__(self) -> int:
        return len(self.order)

    def rows(self, positions: Integers) -> Integers:
        return self.order.rows(positions) + self.first
