"""Where documents begin and end in the tokens of a split laid end to end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shardkit.arrays import Integers
from shardkit.memory.buffers import remember

BLOCK_DOCUMENTS = 4096
"""Documents whose ends are found at once, in 20 us: what is kept for a split is one number for
each of these, and a few blocks."""

_KEPT_BLOCKS = 1024


class Documents:
    """Ends of documents, found from their lengths block by block. Threads may share it.

    Args:
        lengths: (first, last) -> (last - first,) int64 tokens of each of these documents.
        num_documents: how many there are.
    """

    def __init__(self, lengths: Callable[[int, int], Integers], num_documents: int) -> None:
        self.lengths = lengths
        self.num_documents = num_documents
        firsts = range(0, num_documents, BLOCK_DOCUMENTS)
        counts = [int(self._of_block(first).sum()) for first in firsts]
        self._starts = np.cumsum([0, *counts], dtype=np.int64)
        self._ends: dict[int, Integers] = {}

    @property
    def num_tokens(self) -> int:
        return int(self._starts[-1])

    def _of_block(self, first: int) -> Integers:
        return self.lengths(first, min(first + BLOCK_DOCUMENTS, self.num_documents))

    def ends(self, block: int) -> Integers:
        """(n,) int64: the token after each document of a block."""
        found = self._ends.get(block)
        if found is None:
            found = self._starts[block] + np.cumsum(self._of_block(block * BLOCK_DOCUMENTS))
            remember(self._ends, block, found, _KEPT_BLOCKS)
        return found

    def start(self, document: int) -> int:
        """The number of a document's first token."""
        block, within = divmod(document, BLOCK_DOCUMENTS)
        return int(self.ends(block)[within - 1] if within else self._starts[block])

    def within(self, start: int, stop: int) -> tuple[int, Integers]:
        """The documents of tokens [start, stop), of which there are some: the number of the first,
        and for each from that one on the token after its last, at most ``stop``. Those without
        tokens in between are among them."""
        block = first = int(self._starts.searchsorted(start, side="right")) - 1
        low = int(self.ends(block).searchsorted(start, side="right"))
        found = [self._ends_before(block, stop)[low:]]
        while self._starts[block + 1] < stop:
            block += 1
            found.append(self._ends_before(block, stop))
        ends = np.concatenate(found) if len(found) > 1 else found[0]
        return first * BLOCK_DOCUMENTS + low, np.minimum(ends, stop)

    def _ends_before(self, block: int, stop: int) -> Integers:
        """The ends of a block's documents, up to the one that reaches ``stop``."""
        ends = self.ends(block)
        return ends[: int(ends.searchsorted(stop)) + 1]
