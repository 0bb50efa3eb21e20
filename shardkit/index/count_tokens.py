"""How many tokens a split holds, from its row index alone."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from shardkit.index.rows import RowIndex
from shardkit.samples.encoding import BYTES, TOKENS, npy_header


def num_tokens(index: RowIndex, dtype: str) -> int:
    """Ids of all documents, BOS and EOS included; ``dtype`` is that of the ids.

    Where they lie as ``.npy`` values (lmdb, webdataset), each is taken to have the header that
    ``numpy.save`` writes, as all have that shardkit made.
    """
    sizes = index.table[:, index.column[f"{TOKENS}.size"]]
    header = len(npy_header(dtype, (0,)))
    num_bytes = 0
    for shard, (start, stop) in zip(index.split.shards, pairwise(index.row_starts), strict=True):
        own = sizes[start:stop]
        own = own[own >= 0]
        is_npy = index.split.layouts[shard.layout].get(TOKENS, BYTES) == BYTES
        num_bytes += int(np.sum(own)) - header * len(own) * is_npy
    return num_bytes // np.dtype(dtype).itemsize
