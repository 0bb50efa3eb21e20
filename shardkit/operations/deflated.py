"""Whose deflated value it was that changed, where all of them still inflate to what was packed.

A bit behind the end of a stream, or another distance in a run of zeros, makes the same bytes: no
checksum of a sample tells. But zlib makes one stream of a value, so that made anew shows which.
"""

from __future__ import annotations

import zlib

import numpy as np
import xxhash

from shardkit.arrays import Integers
from shardkit.samples.encoding import inflate
from shardkit.samples.sample import Value
from shardkit.shards.stored import Gather, ShardReader

LEVELS = range(1, 10)
"""The level is not stored."""


def changed_stream(
    reader: ShardReader, rows: range, file_name: str, start: int, data: bytes, digest: int
) -> int | None:
    """The row whose value, deflated anew, mends a block, and so is what changed; else None.

    Args:
        rows: of the shard, all whole. start, data, digest: of the block, where it begins in that
            file, its bytes as they are, and XXH3-64 of what they were.
    """
    if not rows:
        return None
    batch = reader.gather(np.arange(rows.start, rows.stop, dtype=np.int64))
    shard = int(batch.shards[0])
    for name in reader.fields_in(batch, file_name):
        encoding = reader.encoding(shard, name)
        if encoding.codec == "zlib":
            for row in _rows_in(reader, batch, name, start, start + len(data)).tolist():
                one = reader.gather(np.array([row], np.int64))
                (at,), _ = reader.places(one, name)
                stored = bytes(reader.stored(one, name)[0] or b"")
                for made in _anew(stored, inflate(stored, encoding.nbytes)):
                    if xxhash.xxh3_64_intdigest(_laid_over(data, int(at) - start, made)) == digest:
                        return int(row)
    return None


def _rows_in(reader: ShardReader, batch: Gather, name: str, start: int, stop: int) -> Integers:
    starts, sizes = reader.places(batch, name)
    return batch.rows[(sizes > 0) & (starts < stop) & (starts + sizes > start)]


def _anew(stored: bytes, value: Value) -> list[bytes]:
    streams = {zlib.compress(value, level) for level in LEVELS}
    return [stream for stream in streams if len(stream) == len(stored) and stream != stored]


def _laid_over(data: bytes, at: int, value: bytes) -> bytes:
    """``data`` with that part of ``value``, which begins at ``at``, that lies in it."""
    value = value[max(-at, 0) : len(data) - at]
    at = max(at, 0)
    return data[:at] + value + data[at + len(value) :]
