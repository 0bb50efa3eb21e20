"""Whole documents in sequences of one length, with little padding and no needless cuts."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardkit.arrays import Integers, Tokens
from shardkit.errors import UsageError
from shardkit.memory.buffers import remember
from shardkit.order.epochs import WINDOW_BLOCKS, Shuffle
from shardkit.order.permutation import counted
from shardkit.reading.dataset import Batch
from shardkit.sequences.bins import NUM_VARIANTS, Block, FitOrder
from shardkit.sequences.kinds import NO_LABEL
from shardkit.sequences.store import TokenStore

BLOCK_DOCUMENTS = 1 << 16
"""Documents packed together: 10 ms at 2,048 tokens, and 0.004 % of padding where it is 0.012 %
with a quarter of them."""

MAX_SEQ_LEN = 1 << 22
"""Packing goes through all numbers up to it for each length of a document."""

NO_DOCUMENT = -1

_KEPT = 2 * WINDOW_BLOCKS + 8
"""Blocks kept, of 2 MB each: those of the window that is read and of the one that follows."""


class Fit:
    """Bins of ``seq_len`` pairs of an input and a label, from blocks of consecutive documents.

    Row ``variant * num_samples + bin``: the bins of all blocks, end to end. The labels of what a
    bin has no documents for are :data:`NO_LABEL`, its inputs ``pad``.

    Raises:
        UsageError: nobody knows where documents end, or sequences are longer than any model's.
    """

    def __init__(self, store: TokenStore, seq_len: int, dtype: np.dtype[Any], pad: int) -> None:
        if seq_len > MAX_SEQ_LEN:
            raise UsageError(
                f"seq_len={seq_len} is more than the {MAX_SEQ_LEN} that boundaries='fit' can pack"
            )
        self._store = store
        self._seq_len = seq_len
        self._dtype = dtype
        self._pad = pad
        self._blocks: dict[int, Block] = {}
        self._filled: dict[tuple[int, int], tuple[Integers, Integers]] = {}
        num_blocks = -(-store.documents.num_documents // BLOCK_DOCUMENTS)
        blocks = [self._block(number) for number in range(num_blocks)]
        self._starts = np.cumsum([0, *(block.num_bins for block in blocks)], dtype=np.int64)
        self.num_samples = int(self._starts[-1])
        self.num_rows = self.num_samples * NUM_VARIANTS
        num_pairs = sum(block.num_pairs for block in blocks)
        self.padding = 1 - num_pairs / max(self.num_samples * seq_len, 1)

    def order(self, shuffle: Shuffle, seed: int, epoch: int, **options: int) -> FitOrder:
        """Raises UsageError for options: it has blocks of its own."""
        if options:
            raise UsageError(f"boundaries='fit' takes no {next(iter(options))}: its blocks are set")
        return FitOrder(self._starts, shuffle is not None, seed, epoch)

    def read(self, rows: Integers) -> Batch:
        documents, starts, sizes = self._pieces(rows)
        shape = len(rows), self._seq_len
        inputs, labels = self._tokens(documents, starts, sizes)
        document_ids = documents.repeat(sizes).reshape(shape)
        labels = labels.reshape(shape)
        labels[document_ids == NO_DOCUMENT] = NO_LABEL
        return {
            "inputs": inputs.reshape(shape),
            "labels": labels,
            "position_ids": counted(sizes).reshape(shape),
            "document_ids": document_ids,
        }

    def _tokens(
        self, documents: Integers, starts: Integers, sizes: Integers
    ) -> tuple[Tokens, Tokens]:
        """Inputs and labels of pieces, end to end: all tokens of a piece but its last, or first."""
        is_text = documents != NO_DOCUMENT
        starts, counts = starts[is_text], sizes[is_text] + 1
        read: Tokens = np.empty(int(counts.sum()), self._dtype)
        self._store.read(starts, counts, read)
        tokens = np.full(int(sizes.sum()) + len(sizes), self._pad, self._dtype)
        tokens[is_text.repeat(sizes + 1)] = read
        firsts = sizes.cumsum() - sizes + np.arange(len(sizes))
        is_input, is_label = np.ones((2, len(tokens)), np.bool_)
        is_input[firsts + sizes] = False
        is_label[firsts] = False
        return tokens[is_input], tokens[is_label]

    def _pieces(self, rows: Integers) -> Integers:
        """(3, P) int64: document, first token and pairs of each piece of the rows' bins, end to
        end; padding is a piece of no document."""
        variants, bins = np.divmod(rows, self.num_samples)
        blocks = self._starts.searchsorted(bins, side="right") - 1
        found = [np.empty((3, 0), np.int64)]
        places = zip(variants.tolist(), blocks.tolist(), bins.tolist(), strict=True)
        for variant, block, number in places:
            ends, pieces = self._of_block(block, variant)
            first = number - int(self._starts[block])
            here = pieces[:, ends[first] : ends[first + 1]]
            found.append(here)
            if left := self._seq_len - int(here[2].sum()):
                found.append(np.array([[NO_DOCUMENT], [0], [left]]))
        return np.concatenate(found, axis=1)

    def _of_block(self, number: int, variant: int) -> tuple[Integers, Integers]:
        """(bins + 1,) int64: where the pieces of each bin begin and end; and all pieces, as of
        :meth:`_pieces`."""
        found = self._filled.get((number, variant))
        if found is None:
            block = self._block(number)
            found = block.filled(variant, number)
            pieces = found[1]
            lengths = self._lengths(number)
            first = number * BLOCK_DOCUMENTS
            starts = self._store.documents.start(first) + lengths.cumsum() - lengths
            pieces[1] += starts[pieces[0]]
            pieces[0] += first
            remember(self._filled, (number, variant), found, _KEPT)
        return found

    def _block(self, number: int) -> Block:
        found = self._blocks.get(number)
        if found is None:
            found = Block(np.maximum(self._lengths(number) - 1, 0), self._seq_len)
            remember(self._blocks, number, found, _KEPT)
        return found

    def _lengths(self, number: int) -> Integers:
        first = number * BLOCK_DOCUMENTS
        documents = self._store.documents
        return documents.lengths(first, min(first + BLOCK_DOCUMENTS, documents.num_documents))

    def ranges(self, rows: Integers) -> tuple[Integers, Integers]:
        documents, starts, sizes = self._pieces(rows)
        is_read = documents != NO_DOCUMENT
        return starts[is_read], sizes[is_read] + 1

    def where(self, row: int) -> str:
        _, starts, sizes = self._pieces(np.array([row]))
        documents = f"{len(sizes)} pieces of documents, the first" if len(sizes) > 1 else "a piece"
        return f"{documents} from {self._store.where(int(starts[0]))}"
