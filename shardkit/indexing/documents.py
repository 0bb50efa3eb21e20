"""How long tokenized documents are, from the row index alone."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.encoding import BYTES, TOKENS, npy_header
from shardkit.index import DatasetInfo, RowIndex, SplitInfo

Lengths = np.ndarray[Any, np.dtype[np.int64]]


def document_lengths(index: RowIndex, dtype: str) -> Lengths:
    """(num_rows,) int64: ids of each document, BOS and EOS included; -1 where there is none.

    ``dtype`` is that of the ids. Where they lie as ``.npy`` values (lmdb, webdataset), each is
    taken to have the header that ``numpy.save`` writes, as every value has that shardkit made.
    """
    sizes = index.table[:, index.column[f"{TOKENS}.size"]]
    header = len(npy_header(dtype, (0,)))
    before = np.zeros(len(sizes), np.int64)
    for shard, (start, stop) in zip(index.split.shards, pairwise(index.row_starts), strict=True):
        if index.split.layouts[shard.layout].get(TOKENS, BYTES) == BYTES:
            before[start:stop] = header
    return np.where(sizes < 0, np.int64(-1), (sizes - before) // np.dtype(dtype).itemsize)


def num_tokens(folder: Path, info: DatasetInfo, split: SplitInfo) -> int:
    """Ids of all documents of a split; 0 if the dataset holds no tokenized text."""
    tokens = info.corpus.get("tokens")
    if tokens is None or TOKENS not in info.fields:
        return 0
    lengths = document_lengths(RowIndex(folder, info, split), tokens["dtype"])
    return int(np.maximum(lengths, 0).sum())
