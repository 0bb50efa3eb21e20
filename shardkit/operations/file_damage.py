"""What can be told of a dataset's files by themselves: lost, swapped, or broken in some blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import xxhash

from shardkit.arrays import Hashes
from shardkit.errors import DataError, IndexFileError, ShardMissingError
from shardkit.index.manifest import SplitInfo
from shardkit.storage.interface import Storage
from shardkit.system.file_io import BLOCK_BYTES

NO_SUMS: Hashes = np.zeros(0, np.uint64)


@dataclass(frozen=True)
class Damage:
    """What is wrong with a file: ``what``, if it is no use at all, or its broken ``blocks``."""

    what: str = ""
    blocks: list[int] = field(default_factory=list)


class RecordedSums(dict[str, Hashes]):
    """Name of a shard file -> its block checksums, of all splits that were added."""

    def __init__(self) -> None:
        super().__init__()
        self._holders: dict[bytes, str] = {}

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

    def holder(self, found: Hashes) -> str:
        """The file that these should be the checksums of; ``""`` if there is none."""
        if not self._holders:
            for name, sums in self.items():
                self._holders.setdefault(_digest(sums), name)
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
        return Damage("is missing")
    except IndexFileError:
        return Damage("is no regular file")
    except DataError as error:
        reason = error.__cause__
        return Damage(
            f"cannot be read: {reason.strerror if isinstance(reason, OSError) else error}"
        )
    if not np.array_equal(found, expected) and (holder := recorded.holder(found)):
        return Damage(f"holds what belongs in {holder}: swapped, or copied over it")
    if size != num_bytes:
        return Damage(f"has {size} bytes, expected {num_bytes}")
    return Damage("", np.flatnonzero(found != expected).tolist())


def fault_of(storage: Storage, name: str, num_bytes: int, digest: int) -> str:
    """Return what is wrong with a file of which the checksum of all bytes is known, if anything."""
    if what := look_at(storage, name, num_bytes, RecordedSums()).what:
        return what
    try:
        data = storage.contents(name, num_bytes, copied=True)
    except DataError as error:  # where it is compared before it counts
        return f"cannot be read: {error}"
    return "" if xxhash.xxh3_64_intdigest(data) == digest else "its bytes differ from those written"


def _block_sums(storage: Storage, name: str, size: int) -> Hashes:
    """XXH3-64 of each block, as :func:`shardkit.system.file_io.block_sums` makes them."""
    files = storage.files([name], [size], copied=True)
    whole = np.array([[0, 0, size]], np.int64).T
    files.announce(*whole)
    file = files.piece(0, 0, size)
    blocks = (file[start : start + BLOCK_BYTES] for start in range(0, size, BLOCK_BYTES))
    return np.fromiter(map(xxhash.xxh3_64_intdigest, blocks), np.uint64)


def regions(blocks: list[int], num_bytes: int) -> Iterator[tuple[int, int]]:
    """(first, last) byte of each run of blocks of a file of ``num_bytes``."""
    for i, block in enumerate(blocks):
        if i == 0 or blocks[i - 1] != block - 1:
            first = block
        if i == len(blocks) - 1 or blocks[i + 1] != block + 1:
            yield first * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, num_bytes) - 1
