"""Checksums of the blocks of a file, by which damage is located."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import xxhash

from shardkit.arrays import Hashes
from shardkit.system.full_reads import pread_full
from shardkit.system.opening import open_file

BLOCK_BYTES = 256 << 10
"""Damage is located to blocks of this size; their checksums cost 0.003 % of the data."""


def block_sums(path: Path) -> Hashes:
    """XXH3-64 of each :data:`BLOCK_BYTES` block of a file; an empty file has none."""
    digest = xxhash.xxh3_64_intdigest
    with closing(open_file(path)) as file:
        buffer = memoryview(bytearray(BLOCK_BYTES))
        sums = []
        for start in range(0, file.num_bytes, BLOCK_BYTES):
            sums.append(digest(buffer[: pread_full(file.fd, buffer, start)]))
    return np.array(sums, np.uint64)
