"""What tells equal samples from others: all that they hold, their keys and class numbers apart."""

from __future__ import annotations

import numpy as np
import xxhash

from shardkit.arrays import Hashes
from shardkit.memory.chunks import CHUNK_BYTES, in_chunks
from shardkit.samples.sample import SampleBatch, Value

LABEL = "cls"

NUM_HASHES = 3


def contents_of(batch: SampleBatch) -> Hashes:
    """(num_samples, 3) uint64: XXH3-128 of a sample's contents, in two halves, and XXH3-64 of its
    label, 0 where it has none.

    Contents are names and values of all fields but the label, whatever that holds. A sample of
    nothing else has none, and both halves are 0.
    """
    joined = [b""] * len(batch)
    for name in sorted(batch.columns.keys() - {LABEL}):
        before = name.encode() + b"\0"
        for i, value in enumerate(batch.columns[name]):
            if value is not None:
                joined[i] += before + _digest(value)
    nothing = bytes(16)
    halves = b"".join(xxhash.xxh3_128_digest(held) if held else nothing for held in joined)
    found = np.zeros((len(batch), NUM_HASHES), np.uint64)
    found[:, :2] = np.frombuffer(halves, "<u8").reshape(-1, 2)
    labels = batch.columns.get(LABEL, [])
    found[: len(labels), 2] = [
        0 if value is None else xxhash.xxh3_64_intdigest(value) for value in labels
    ]
    return found


def _digest(value: Value) -> bytes:
    if len(value) <= CHUNK_BYTES:
        return xxhash.xxh3_128_digest(value)
    digest = xxhash.xxh3_128()
    for chunk in in_chunks(value):
        digest.update(chunk)
    return digest.digest()
