"""``verify``: every checksum, and which shard, sample or region is broken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardkit.errors import FormatError, ShardkitError
from shardkit.index import DatasetInfo, SplitInfo, map_file
from shardkit.indexing.locate import locate
from shardkit.progress import Progress
from shardkit.reading.against import compare
from shardkit.sample import sample_checksums
from shardkit.shards import ShardReader
from shardkit.storage import BLOCK_BYTES, block_sums, os_errors, show_path

ROWS = 1024
"""Rows checked at a time."""

Sums = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True)
class Problem:
    """One thing found wrong.

    Attributes:
        where: a file, a shard, or a sample, in words. what: what is wrong with it.
        split, shard, key: where that is known.
    """

    where: str
    what: str
    split: str = ""
    shard: int | None = None
    key: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass
class VerifyResult:
    """What was checked, and what was found; ``ok`` if nothing."""

    num_samples: int = 0
    num_bytes: int = 0
    num_compared: int = 0
    has_checksums: bool = True
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(
    dataset: str | Path, against: str | Path | None = None, *, progress: bool | None = None
) -> VerifyResult:
    """Check every file, block and sample of a dataset against its checksums.

    Args:
        dataset: its folder. against: the original input, to compare every sample with.

    Returns:
        What was found; damage is not an exception here.

    Raises:
        ShardMissingError: there is no dataset. IndexFileError: shardkit.json itself is damaged.
        CorpusError: ``against`` is not the kind of input that the dataset was packed from.
    """
    source = Path(dataset)
    place = locate(source)
    result = VerifyResult(has_checksums=place.info.corpus.get("kind") != "tars")
    total = sum(split.num_rows for split in place.info.splits.values())
    with os_errors(f"verifying {show_path(source)}"), Progress("verifying", progress) as bar:
        bar.expect(total)
        for split in place.info.splits.values():
            checker = _SplitChecker(place.folder, place.info, split, result, bar)
            checker.run()
    if against is not None and not result.problems:
        with Progress("comparing", progress) as bar:
            bar.expect(total)
            found = compare(place.folder, place.info, Path(against), bar)
        result.num_compared = found.num_compared
        result.problems += [Problem(where, what) for where, what in found.differences]
    return result


class _SplitChecker:
    """Checks one split, adding to the result."""

    def __init__(
        self, folder: Path, info: DatasetInfo, split: SplitInfo, result: VerifyResult, bar: Progress
    ) -> None:
        self._folder = folder
        self._info = info
        self._split = split
        self._result = result
        self._bar = bar

    def run(self) -> None:
        if not self._index_files():
            return
        reader = ShardReader(self._folder, self._info, self._split)
        recorded = dict(self._recorded_sums())
        start = 0
        for number, shard in enumerate(self._split.shards):
            stop = start + shard.num_rows
            damage = self._blocks(number, recorded)
            if damage is not None:
                self._samples(reader, number, start, stop, damage)
            start = stop

    def _add(self, where: str, what: str, shard: int | None = None, key: str = "") -> None:
        self._result.problems.append(Problem(where, what, self._split.name, shard, key))

    def _index_files(self) -> bool:
        """Check rows, names, find and sums; False if no sample can be checked without them."""
        whole = True
        for name, (num_bytes, digest) in self._split.files.items():
            try:
                data = map_file(self._folder / name, num_bytes)
            except ShardkitError as error:
                self._add(name, str(error))
                whole = False
                continue
            self._result.num_bytes += num_bytes
            if self._result.has_checksums and xxhash.xxh3_64_intdigest(data) != digest:
                self._add(
                    name, "its bytes differ from those written; the samples cannot be checked"
                )
                whole = False
        return whole

    def _recorded_sums(self) -> Iterator[tuple[str, Sums]]:
        name = f"{self._split.name}.sums"
        flat = np.frombuffer(map_file(self._folder / name, self._split.files[name][0]), "<u8")
        at = 0
        for shard in self._split.shards:
            for file, num_bytes in sorted(shard.file_bytes.items()):
                count = -(-num_bytes // BLOCK_BYTES) if self._result.has_checksums else 0
                yield file, flat[at : at + count]
                at += count

    def _blocks(self, number: int, recorded: dict[str, Sums]) -> dict[str, Sums] | None:
        """Broken blocks of each file of a shard; None if a file cannot be read at all."""
        shard = self._split.shards[number]
        damage: dict[str, Sums] = {}
        for name, num_bytes in sorted(shard.file_bytes.items()):
            try:
                map_file(self._folder / name, num_bytes)
            except ShardkitError as error:
                self._add(name, f"{error} ({shard.num_rows} samples are lost with it)", number)
                return None
            self._result.num_bytes += num_bytes
            if not self._result.has_checksums:
                continue
            found = block_sums(self._folder / name)
            bad = np.flatnonzero(found != recorded[name])
            if len(bad):
                damage[name] = bad
                self._name_swap(name, number, found, recorded)
        return damage

    def _name_swap(self, name: str, number: int, found: Sums, recorded: dict[str, Sums]) -> None:
        for other, sums in recorded.items():
            if other != name and np.array_equal(found, sums):
                self._add(
                    name, f"holds the contents of {other}: the two were swapped or copied", number
                )

    def _samples(
        self, reader: ShardReader, number: int, start: int, stop: int, damage: dict[str, Sums]
    ) -> None:
        broken: list[int] = []
        for first in range(start, stop, ROWS):
            rows = np.arange(first, min(first + ROWS, stop), dtype=np.int64)
            broken += self._broken(reader, rows)
            self._result.num_samples += len(rows)
            self._bar.add(len(rows), 0)
        for row in broken:
            key = reader.index.name(row)[0].decode(errors="backslashreplace")
            self._add(reader.where(row), "its bytes differ from those packed", number, key)
        self._regions(reader, number, damage, np.array(broken, np.int64))

    def _broken(self, reader: ShardReader, rows: np.ndarray[Any, np.dtype[np.int64]]) -> list[int]:
        if not self._result.has_checksums:
            return []
        batch = reader.gather(rows)
        try:
            columns = {name: reader.canonical(batch, name) for name in self._info.fields}
        except FormatError:
            if len(rows) == 1:
                return [int(rows[0])]
            return [row for one in rows for row in self._broken(reader, np.array([one]))]
        found = sample_checksums(columns, len(rows))
        recorded = batch.table[:, 0].view(np.uint64)
        return [int(row) for row in rows[found != recorded]]

    def _regions(
        self,
        reader: ShardReader,
        number: int,
        damage: dict[str, Sums],
        broken: np.ndarray[Any, np.dtype[np.int64]],
    ) -> None:
        """Report broken blocks that no broken sample explains."""
        batch = reader.gather(broken)
        for name, blocks in damage.items():
            touched: set[int] = set()
            for field_name in self._info.fields:
                if not len(broken) or reader.file_of(number, field_name) != name:
                    continue
                starts, sizes = reader.places(batch, field_name)
                for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
                    touched.update(range(start // BLOCK_BYTES, (start + size) // BLOCK_BYTES + 1))
            for block in blocks.tolist():
                if block not in touched:
                    end = min(
                        (block + 1) * BLOCK_BYTES, self._split.shards[number].file_bytes[name]
                    )
                    self._add(
                        name,
                        f"damage outside any sample, in bytes {block * BLOCK_BYTES} to {end - 1}",
                        number,
                    )
