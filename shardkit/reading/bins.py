"""Which documents share a bin, and in which order bins come: arithmetic, the same everywhere.

What sizes a bin holds follows from the lengths of its block's documents, and so does the number of
bins; see :mod:`shardkit.reading.binpack`. Which of several documents of one size it holds is drawn
anew for each *variant*, a number that each shuffled epoch draws.

A document of n tokens has n - 1 pairs of an input and a label. One with more pairs than a bin holds
is cut into pieces that fill a bin each, and one rest; after how many of them the rest comes is of
the variant, too, so that cuts are elsewhere in each epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardkit.mapping import Places
from shardkit.reading.binpack import best_fit_decreasing
from shardkit.reading.order import WINDOW_BLOCKS
from shardkit.reading.permute import Positions, derive, derive_each, permute
from shardkit.reading.sequences import counted

NUM_VARIANTS = 1 << 20
"""So that rows stay below 2**60 for 2**40 bins."""

_VARIANT, _WHICH, _CUT, _BLOCKS, _BINS = 7, 8, 9, 10, 11


class Block:
    """One block of documents, and its bins.

    Args:
        pairs: (D,) int64, of each document. capacity: pairs a bin holds.

    Attributes:
        ends: (num_bins + 1,) int64: bin b has pieces [ends[b], ends[b + 1]). Those of a single full
            piece come first.
    """

    def __init__(self, pairs: Places, capacity: int) -> None:
        self._capacity = capacity
        self._num_full, self._rests = np.divmod(pairs, capacity)
        sizes = np.sort(self._rests[self._rests > 0])[::-1]
        bins = best_fit_decreasing(sizes, capacity)
        self._slots = np.argsort(bins, kind="stable")
        full = np.ones(int(self._num_full.sum()), np.int64)
        self.ends = np.concatenate([[0], full, np.bincount(bins)]).cumsum()
        self.num_bins = len(self.ends) - 1
        self.num_pairs = int(pairs.sum())

    def filled(self, variant: int, number: int) -> tuple[Places, Places, Places]:
        """For each piece, bin by bin: (P,) int64 its document, counted from the first of the block;
        pairs of the document before it; and its own.

        Args:
            number: of the block: each draws for itself.
        """
        documents = np.arange(len(self._rests))
        which, cuts = (
            derive_each(derive(variant, number, purpose), documents) for purpose in (_WHICH, _CUT)
        )
        before = (cuts % (self._num_full + 1).astype(np.uint64)).astype(np.int64)
        whole = documents.repeat(self._num_full)
        nth = counted(self._num_full)
        skips = nth * self._capacity + np.where(nth >= before[whole], self._rests[whole], 0)
        by_size = np.lexsort([which, -self._rests])[: len(self._slots)][self._slots]
        return (
            np.concatenate([whole, by_size]),
            np.concatenate([skips, before[by_size] * self._capacity]),
            np.concatenate([np.full(len(whole), self._capacity), self._rests[by_size]]),
        )


@dataclass(frozen=True)
class FitOrder:
    """The order of one epoch. Shuffled, blocks change places, and all bins of each
    :data:`WINDOW_BLOCKS` that follow one another then are mixed: with fewer blocks, all bins are.

    Attributes:
        starts: (blocks + 1,) int64: the first bin of each block, and the number of all.
    """

    starts: Places
    is_shuffled: bool
    seed: int
    epoch: int

    def __len__(self) -> int:
        return int(self.starts[-1])

    def rows(self, positions: Positions) -> Positions:
        """Of the variant of this epoch; 0 if it is not shuffled. Raises IndexError."""
        if len(positions) and not (positions.min() >= 0 and positions.max() < len(self)):
            raise IndexError(f"a position is outside 0..{len(self) - 1}")
        if not self.is_shuffled:
            return positions
        mixed = self._mixed(positions)
        slots = self._ends.searchsorted(mixed, side="right")
        blocks = self._blocks[slots]
        bins = mixed - self._ends[slots] + self.starts[blocks + 1]
        return bins + len(self) * (derive(self._key, _VARIANT) % NUM_VARIANTS)

    @cached_property
    def _key(self) -> int:
        return derive(self.seed, self.epoch)

    @cached_property
    def _blocks(self) -> Positions:
        """The block in each slot."""
        slots = np.arange(len(self.starts) - 1)
        return permute(slots, len(slots), derive(self._key, _BLOCKS))

    @cached_property
    def _ends(self) -> Positions:
        """The position after the last of each slot's bins."""
        return np.diff(self.starts)[self._blocks].cumsum()

    def _mixed(self, positions: Positions) -> Positions:
        """Positions, each window's shuffled."""
        lasts = [*range(WINDOW_BLOCKS - 1, len(self._ends) - 1, WINDOW_BLOCKS), len(self._ends) - 1]
        ends = self._ends[lasts]
        windows = ends.searchsorted(positions, side="right")
        mixed = np.empty_like(positions)
        for window in np.unique(windows).tolist():
            first = int(ends[window - 1]) if window else 0
            here = windows == window
            key = derive(self._key, _BINS, window)
            mixed[here] = first + permute(positions[here] - first, int(ends[window]) - first, key)
        return mixed
