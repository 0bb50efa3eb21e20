"""What can be told of a dataset's files by themselves: lost, swapped, or broken in some blocks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import xxhash

from shardkit.arrays import Hashes
from shardkit.errors import DataError, IndexFileError, ShardMissingError
from shardkit.index.manifest import SplitInfo
from shardkit.storage.interface import Storage
from shardkit.system.file_io import BLOCK_BYTES

NO_SUMS: Hashes = np.zeros(0, np.uint64)


Damage = tuple[str, list[int]]
"""What is wrong with a file, if it is no use at all, else the numbers of its broken blocks."""


class RecordedSums(dict[str, Hashes]):
    """Name of a shard file -> its block checksums, of all splits that were added."""

    def add(self, storage: Storage, split: SplitInfo) -> None:
        """Read a split's ``.sums``.

        Raises:
            DataError: it is missing, or of another size.
        """
        files = [file for shard in split.shards for file in sorted(shard.file_bytes.items())]
        counts = [-(-num_bytes // BLOCK_BYTES) for _, num_bytes in files]
        data = storage.contents(split.index_file("sums"), 8 * sum(counts))
        flat, at = np.frombuffer(data, "<u8"), 0
        for (name, _), count in zip(files, counts, strict=True):
            self[name] = flat[at : at + count]
            at += count

    @cached_property
    def _holders(self) -> dict[bytes, str]:
        return {_digest(self[name]): name for name in reversed(self)}

    def holder(self, found: Hashes) -> str:
        """Return the file that these should be the checksums of; ``""`` if there is none."""
        return self._holders.get(_digest(found), "")


def _digest(sums: Hashes) -> bytes:
    return xxhash.xxh3_128_digest(sums.tobytes())


def look_at(storage: Storage, name: str, num_bytes: int, recorded: RecordedSums) -> Damage:
    """Read a file, if there are checksums to compare with, else look at its size alone."""
    expected, found = recorded.get(name, NO_SUMS), NO_SUMS
    try:
        size = storage.size(name)
        if name in recorded:
            found = _block_sums(storage, name, size)
    except ShardMissingError:
        return "is missing", []
    except IndexFileError:
        return "is no regular file", []
    except DataError as error:
        reason = error.__cause__
        why = reason.strerror if isinstance(reason, OSError) else error
        return f"cannot be read: {why}", []
    if not np.array_equal(found, expected) and (holder := recorded.holder(found)):
        return f"holds what belongs in {holder}: swapped, or copied over it", []
    if size != num_bytes:
        return f"has {size} bytes, expected {num_bytes}", []
    return "", np.flatnonzero(found != expected).tolist()


def fault_of(storage: Storage, name: str, num_bytes: int, digest: int) -> str:
    """Return what is wrong with a file of which the checksum of all bytes is known, if anything."""
    if what := look_at(storage, name, num_bytes, RecordedSums())[0]:
        return what
    try:
        data = storage.contents(name, num_bytes, copied=True)
    except DataError as error:  # where it is compared before it counts
        return f"cannot be read: {error}"
    return "" if xxhash.xxh3_64_intdigest(data) == digest else "its bytes differ from those written"


def _block_sums(storage: Storage, name: str, size: int) -> Hashes:
    """Return the XXH3-64 of each block, as :func:`shardkit.system.blocks.block_sums` does."""
    files = storage.files([name], [size], copied=True)
    whole = np.array([[0, 0, size]], np.int64).T
    files.announce(*whole)
    file = files.piece(0, 0, size)
    blocks = (file[start : start + BLOCK_BYTES] for start in range(0, size, BLOCK_BYTES))
    return np.fromiter(map(xxhash.xxh3_64_intdigest, blocks), np.uint64)


def regions(blocks: list[int], num_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last) byte of each run of blocks of a file of ``num_bytes``."""
    for i, block in enumerate(blocks):
        if i == 0 or blocks[i - 1] != block - 1:
            first = block
        if i == len(blocks) - 1 or blocks[i + 1] != block + 1:
            yield first * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, num_bytes) - 1
