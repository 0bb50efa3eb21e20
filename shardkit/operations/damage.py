"""What can be told of a dataset's files by themselves: lost, swapped, or broken in some blocks."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardkit.index.manifest import SplitInfo
from shardkit.memory.mapping import map_file
from shardkit.system.storage import BLOCK_BYTES, block_sums

Sums = np.ndarray[Any, np.dtype[np.uint64]]
NO_SUMS: Sums = np.zeros(0, np.uint64)


@dataclass(frozen=True)
class Damage:
    """What is wrong with a file: ``what``, if it is no use at all, or its broken ``blocks``."""

    what: str = ""
    blocks: list[int] = field(default_factory=list)


class RecordedSums(dict[str, Sums]):
    """Name of a shard file -> its block checksums, of all splits that were added."""

    def __init__(self) -> None:
        super().__init__()
        self._holders: dict[bytes, str] = {}

    def add(self, folder: Path, split: SplitInfo) -> None:
        """Read a split's ``.sums``.

        Raises:
            DataError: it is missing, or of another size.
        """
        files = [file for shard in split.shards for file in sorted(shard.file_bytes.items())]
        counts = [-(-num_bytes // BLOCK_BYTES) for _, num_bytes in files]
        data = map_file(folder / f"{split.name}.sums", 8 * sum(counts))
        flat, at = np.frombuffer(data, "<u8"), 0
        for (name, _), count in zip(files, counts, strict=True):
            self[name] = flat[at : at + count]
            at += count

    def holder(self, found: Sums) -> str:
        """The file that these should be the checksums of; ``""`` if there is none."""
        if not self._holders:
            for name, sums in self.items():
                self._holders.setdefault(_digest(sums), name)
        return self._holders.get(_digest(found), "")


def _digest(sums: Sums) -> bytes:
    return xxhash.xxh3_128_digest(sums.tobytes())


def look_at(path: Path, num_bytes: int, recorded: RecordedSums) -> Damage:
    """Read a file, if there are checksums to compare with, else look at its size alone."""
    expected = recorded.get(path.name)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return Damage("is no regular file")
        found = block_sums(path) if expected is not None else NO_SUMS
    except FileNotFoundError:
        return Damage("is missing")
    except OSError as error:
        return Damage(f"cannot be read: {error.strerror}")
    expected = NO_SUMS if expected is None else expected
    if not np.array_equal(found, expected) and (holder := recorded.holder(found)):
        return Damage(f"holds what belongs in {holder}: swapped, or copied over it")
    if status.st_size != num_bytes:
        return Damage(f"has {status.st_size} bytes, expected {num_bytes}")
    return Damage("", np.flatnonzero(found != expected).tolist())


def regions(blocks: list[int], num_bytes: int) -> Iterator[tuple[int, int]]:
    """(first, last) byte of each run of blocks of a file of ``num_bytes``."""
    for i, block in enumerate(blocks):
        if i == 0 or blocks[i - 1] != block - 1:
            first = block
        if i == len(blocks) - 1 or blocks[i + 1] != block + 1:
            yield first * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, num_bytes) - 1
