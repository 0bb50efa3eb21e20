"""Which documents share a bin, and in which order bins come: arithmetic, the same everywhere.

What sizes a bin holds follows from the lengths of its block's documents, and so does the number of
bins; see :mod:`shardkit.sequences.binpack`. Which of several documents of one size it holds is
drawn anew for each *variant*, a number that each shuffled epoch draws.

A document of n tokens has n - 1 pairs of an input and a label. One with more pairs than a bin holds
is cut into pieces that fill a bin each, and one rest; where is of the variant, too. A *long* one is
cut as a circle, from any of its pairs on: the piece that goes round its end is two then, its head
and its tail, in one bin. That is one cut more than there must be, and none of its windows comes
again sooner than by chance, while bins stay as they are. With no cut more, bins as full have the
rest of each document and else full pieces, so that any piece has two places at most; half of those
of one epoch were those of another. Documents that are not long are cut so: of few pieces, one cut
more is dear.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardkit.arrays import Hashes, Integers
from shardkit.order.epochs import WINDOW_BLOCKS
from shardkit.order.permutation import counted, derive, derive_each, permute, turn
from shardkit.sequences.binpack import best_fit_decreasing

NUM_VARIANTS = 1 << 20
"""So that rows stay below 2**60 for 2**40 bins. Any so many epochs on end each have their own."""

LONG = 4
"""Full pieces from which on a document is long: it has a fifth more pieces at most."""

_VARIANT, _WHICH, _CUT, _BLOCKS, _BINS = -7, -8, -9, -10, -11


class Block:
    """One block of documents, and its bins.

    Args:
        pairs: (D,) int64, of each document. capacity: pairs a bin holds.

    Attributes:
        num_bins, num_pairs: of the block.
    """

    def __init__(self, pairs: Integers, capacity: int) -> None:
        self._pairs = pairs
        self._capacity = capacity
        self._num_full, self._rests = np.divmod(pairs, capacity)
        sizes = np.sort(self._rests[self._rests > 0])[::-1]
        bins = best_fit_decreasing(sizes, capacity)
        self._slots = np.argsort(bins, kind="stable")
        full = np.ones(int(self._num_full.sum()), np.int64)
        self._ends = np.concatenate([[0], full, np.bincount(bins)]).cumsum()
        self.num_bins = len(self._ends) - 1
        self.num_pairs = int(pairs.sum())

    def filled(self, variant: int, number: int) -> tuple[Integers, Integers]:
        """Where the pieces of each bin begin and end, (num_bins + 1,) int64: bin b has pieces
        [ends[b], ends[b + 1]). And the pieces, bin by bin, (3, P) int64: the document of each,
        counted from the first of the block; pairs of the document before it; and its own.

        Args:
            number: of the block: each draws for itself.
        """
        documents = np.arange(len(self._pairs))
        which, cuts = (
            derive_each(derive(variant, number, purpose), documents) for purpose in (_WHICH, _CUT)
        )
        before, starts = self._cuts(cuts)
        whole = documents.repeat(self._num_full)
        nth = counted(self._num_full)
        skips = nth * self._capacity + np.where(nth >= before[whole], self._rests[whole], 0)
        by_size = np.lexsort([which, -self._rests])[: len(self._slots)][self._slots]
        pieces = np.empty((3, len(whole) + len(by_size)), np.int64)
        np.concatenate([whole, by_size], out=pieces[0])
        np.concatenate([skips, before[by_size] * self._capacity], out=pieces[1])
        pieces[1] += starts[pieces[0]]
        pieces[2, : len(whole)] = self._capacity
        pieces[2, len(whole) :] = self._rests[by_size]
        return self._unrolled(pieces)

    def _cuts(self, drawn: Hashes) -> tuple[Integers, Integers]:
        """After how many full pieces each document's rest comes, and where its first piece begins.
        In a long document, which is a circle, the rest comes first."""
        is_long = self._num_full >= LONG
        choices = np.where(is_long, self._pairs, self._num_full + 1)
        chosen = (drawn % choices.astype(np.uint64)).astype(np.int64)
        return np.where(is_long, 0, chosen), np.where(is_long, chosen, 0)

    def _unrolled(self, pieces: Integers) -> tuple[Integers, Integers]:
        """Pieces that go round the end of their document as two, the head first: so what comes
        later in a bin is later in the document."""
        documents, skips, sizes = pieces
        pairs = self._pairs[documents]
        np.subtract(skips, pairs, out=skips, where=skips >= pairs)
        over = skips + sizes - pairs
        rounds = np.flatnonzero(over > 0)
        split = np.ones(len(over), np.int64)
        split[rounds] = 2
        heads = rounds + np.arange(len(rounds))
        unrolled = pieces.repeat(split, axis=1)
        unrolled[1, heads] = 0
        unrolled[2, heads] = over[rounds]
        unrolled[2, heads + 1] -= over[rounds]
        return self._ends + rounds.searchsorted(self._ends), unrolled


@dataclass(frozen=True)
class FitOrder:
    """The order of one epoch. Shuffled, blocks change places, and all bins of each
    :data:`WINDOW_BLOCKS` that follow one another then are mixed: with fewer blocks, all bins are.

    Attributes:
        starts: (blocks + 1,) int64: the first bin of each block, and the number of all.
    """

    starts: Integers
    is_shuffled: bool
    seed: int
    epoch: int

    def __len__(self) -> int:
        return int(self.starts[-1])

    def rows(self, positions: Integers) -> Integers:
        """Rows of this epoch's variant; of variant 0 if it is not shuffled. Raises IndexError."""
        if len(positions) and not (positions.min() >= 0 and positions.max() < len(self)):
            raise IndexError(f"a position is outside 0..{len(self) - 1}")
        if not self.is_shuffled:
            return positions
        mixed = self._mixed(positions)
        slots = self._ends.searchsorted(mixed, side="right")
        blocks = self._blocks[slots]
        bins = mixed - self._ends[slots] + self.starts[blocks + 1]
        return bins + len(self) * self._variant

    @cached_property
    def _key(self) -> int:
        return derive(self.seed, self.epoch)

    @cached_property
    def _variant(self) -> int:
        return turn(self.epoch, NUM_VARIANTS, derive(self.seed, _VARIANT))

    @cached_property
    def _blocks(self) -> Integers:
        """The block in each slot."""
        slots = np.arange(len(self.starts) - 1)
        return permute(slots, len(slots), derive(self._key, _BLOCKS))

    @cached_property
    def _ends(self) -> Integers:
        """The position after the last of each slot's bins."""
        return np.diff(self.starts)[self._blocks].cumsum()

    def _mixed(self, positions: Integers) -> Integers:
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
