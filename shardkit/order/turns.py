"""Which dataset of a mix serves which position: drawn anew all the time, and counted exactly.

Positions are taken in periods of :data:`PERIOD`. Each has an order of turns of its own, keyed by
both seeds, the epoch and its number, and in each a dataset has as many turns as in any other. So
how many samples came before any position needs the table of its own period alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from shardkit.arrays import Integers
from shardkit.errors import UsageError
from shardkit.order.permutation import counted, derive, permute

PERIOD = 4096
"""Weights are rounded to 1/PERIOD. A table of a period takes 0.3 ms, and is of 64 kB."""

_KEPT_TABLES = 16

_TABLE = -4

Length = int | Literal["first", "all"]


def quantise(shares: list[float], period: int = PERIOD) -> tuple[int, ...]:
    """Whole numbers that sum to ``period``, near the shares, none 0 (largest remainder)."""
    if len(shares) > period:
        raise UsageError(f"mix: {len(shares)} datasets, at most {period} can be mixed")
    exact = np.array(shares) / sum(shares) * period
    counts = np.maximum(np.floor(exact).astype(np.int64), 1)
    while (missing := period - int(counts.sum())) != 0:
        step = 1 if missing > 0 else -1
        gaps = np.where((counts > 1) | (step > 0), (exact - counts) * step, -np.inf)
        counts[int(np.argmax(gaps))] += step
    return tuple(counts.tolist())


@dataclass(frozen=True)
class Pattern:
    """How often datasets take turns.

    Attributes:
        counts: turns of each dataset in a period.
        seed: of the mix. length: positions of an epoch.
        tail: turns of each in the last period of an epoch, before its last turn. Empty: periods do
            not end with epochs, but go on in the next.
        last: the dataset that has the last turn of each epoch, if there is a tail.
    """

    counts: tuple[int, ...]
    seed: int
    length: int
    tail: tuple[int, ...] = ()
    last: int = 0

    @classmethod
    def of(
        cls, counts: tuple[int, ...], seed: int, sizes: Sequence[int], length: Length
    ) -> Pattern:
        """Of datasets of so many samples.

        An epoch that lasts until the first dataset was seen, or all were, has the same number of
        turns of each as any other, and ends in that dataset's last. The others come as near to
        their shares as they can: less than one sample off, and one sample at least if they have
        more.
        """
        if isinstance(length, int):
            return cls(counts, seed, length)
        rounds = [Fraction(size, count) for size, count in zip(sizes, counts, strict=True)]
        is_first = length == "first"
        last = rounds.index(min(rounds) if is_first else max(rounds))
        periods, left = divmod(sizes[last] - 1, counts[last])
        tail = []
        for size, count in zip(sizes, counts, strict=True):
            share = count * (left + 1)
            turns = (share - 1) // counts[last] if is_first else -(-share // counts[last])
            tail.append(max(turns, int(not periods and size > 1)))
        tail[last] = left
        return cls(counts, seed, periods * sum(counts) + sum(tail) + 1, tuple(tail), last)

    @property
    def period(self) -> int:
        return sum(self.counts)

    @property
    def periods(self) -> int:
        """Whole ones, of an epoch with a tail."""
        return (self.length - 1 - sum(self.tail)) // self.period

    def samples(self, number: int) -> int:
        """Turns of a dataset in an epoch with a tail."""
        return self.periods * self.counts[number] + self.tail[number] + (number == self.last)


@dataclass(frozen=True)
class Turns:
    """The turns of one epoch: closed forms, and a table of each period that is asked for.

    Args:
        seed: of the loader.
    """

    pattern: Pattern
    seed: int
    epoch: int

    def at(self, positions: Integers) -> tuple[Integers, Integers]:
        """(dataset, number among its samples since :meth:`before`) at each position."""
        rounds, slots = np.divmod(positions + self._begin[1], self.pattern.period)
        which, numbers = np.empty_like(positions), np.empty_like(positions)
        for number in np.unique(rounds).tolist():  # a batch touches one or two
            here = rounds == number
            turns, before = self._table(number)
            which[here], numbers[here] = turns[slots[here]], before[slots[here]]
        return which, rounds * np.array(self.pattern.counts)[which] + numbers

    def before(self, number: int) -> int:
        """Samples of a dataset before those that :meth:`at` counts: of all epochs before this, but
        for those of a period that goes on in it."""
        if self.pattern.tail:
            return self.epoch * self.pattern.samples(number)
        return self._begin[0] * self.pattern.counts[number]

    @cached_property
    def _begin(self) -> tuple[int, int]:
        """The period in which the epoch begins, and where in it. An epoch is any number, and its
        positions together need not fit into 64 bits."""
        if self.pattern.tail:
            return 0, 0
        return divmod(self.epoch * self.pattern.length, self.pattern.period)

    @cached_property
    def _key(self) -> int:
        epoch = (self.epoch,) if self.pattern.tail else ()
        return derive(self.pattern.seed, _TABLE, self.seed, *epoch)

    def _table(self, number: int) -> tuple[Integers, Integers]:
        """Of a period, counted from that in which the epoch begins."""
        pattern = self.pattern
        key = derive(self._key, self._begin[0] + number)
        if pattern.tail and number == pattern.periods:
            return _drawn((*pattern.tail, pattern.last), key, True)
        return _drawn(pattern.counts, key, False)


@lru_cache(_KEPT_TABLES)
def _drawn(counts: tuple[int, ...], key: int, ends: bool) -> tuple[Integers, Integers]:
    """(P,) int64: which dataset has each turn, and how many it had before. The last of ``counts``
    is no count but who has one turn more, if it ``ends``."""
    sizes = np.array(counts[: len(counts) - ends], np.int64)
    in_turn = np.arange(len(sizes)).repeat(sizes)
    turns = in_turn[permute(np.arange(len(in_turn)), len(in_turn), key)]
    before = np.empty_like(turns)
    before[turns.astype(np.uint16).argsort(kind="stable")] = counted(sizes)  # 16 bits: a radix sort
    if ends:
        turns, before = np.append(turns, counts[-1]), np.append(before, sizes[counts[-1]])
    return turns, before
