"""Checksums of samples: equal for equal samples in every format, and never of bytes on a disk."""

from __future__ import annotations

import numpy as np
import xxhash

from shardkit.arrays import Hashes
from shardkit.memory.maps import CHUNK_BYTES, in_chunks
from shardkit.samples.sample import Value


def mix64(x: Hashes) -> Hashes:
    """splitmix64's finaliser (Steele, Lea, Flood 2014), elementwise."""
    x = x ^ (x >> np.uint64(30))  # from here on it is our own
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def sample_checksums(columns: dict[str, list[Value | None]], num_samples: int) -> Hashes:
    """One 64-bit checksum a sample, the same in every format.

    The sum, modulo 2**64, over its present fields, of splitmix64(XXH3-64(value) + XXH3-64(name)).
    """
    total = np.zeros(num_samples, np.uint64)
    for name, values in columns.items():
        largest = max(map(len, filter(None, values)), default=0)
        digest = xxhash.xxh3_64_intdigest if largest <= CHUNK_BYTES else _digest_in_chunks
        if None in values:
            present = np.array([v is not None for v in values], bool)
            hashes = np.fromiter(
                (0 if v is None else digest(v) for v in values), np.uint64, num_samples
            )
        else:
            present = None
            hashes = np.fromiter(map(digest, values), np.uint64, num_samples)  # type: ignore[arg-type]
        mixed = mix64(hashes + np.uint64(xxhash.xxh3_64_intdigest(name.encode())))
        total += mixed if present is None else np.where(present, mixed, np.uint64(0))
    return total


def _digest_in_chunks(value: Value) -> int:
    digest = xxhash.xxh3_64()
    for chunk in in_chunks(value):
        digest.update(chunk)
    return digest.intdigest()
