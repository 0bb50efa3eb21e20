"""``verify``: every checksum, and which shard, sample or region is broken."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash

from shardkit.errors import FormatError
from shardkit.index import INDEX_NAME, DatasetInfo, SplitInfo, is_sealed, read_index
from shardkit.indexing.locate import locate
from shardkit.mapping import map_file
from shardkit.progress import Progress
from shardkit.reading.against import Originals
from shardkit.reading.damage import Damage, RecordedSums, Sums, look_at, regions
from shardkit.shards import Rows, ShardReader
from shardkit.storage import BLOCK_BYTES, os_errors, show_path

_WITHOUT = {
    "rows": "no sample of this split could be checked",
    "names": "no sample of this split could be checked",
    "find": "samples may not be found by key",
    "sums": "only samples could be checked, not what lies around them",
}
"""What is lost with each of a split's own files."""


@dataclass(frozen=True)
class Problem:
    """One thing found wrong.

    Attributes:
        where: a file or a sample, in words. what: what is wrong with it.
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
    """What was checked, and what was found; ``ok`` if nothing.

    Attributes:
        num_samples, num_bytes: samples and bytes looked at.
        num_compared: samples compared with the originals.
        has_checksums: False for tars made by others: only sizes were looked at.
    """

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
        dataset: its folder. against: the original input, to compare every sample with; left
            undone if the dataset itself is broken.

    Returns:
        What was found; damage is not an exception here.

    Raises:
        ShardMissingError: there is no dataset. IndexFileError: shardkit.json cannot be read.
        CorpusError: ``against`` is not the kind of input that the dataset was packed from.
    """
    source = Path(dataset)
    place = locate(source)
    originals = None if against is None else Originals(place.folder, place.info, Path(against))
    splits = place.info.splits.values()
    result = VerifyResult(has_checksums=all(split.has_checksums for split in splits))
    if not is_sealed(read_index(place.folder)):
        what = "its bytes differ from those written; nothing else can be checked"
        result.problems.append(Problem(INDEX_NAME, what))
        return result
    with os_errors(f"verifying {show_path(source)}"), Progress("verifying", progress) as bar:
        bar.expect(sum(split.num_rows for split in splits))
        recorded = RecordedSums(place.folder, place.info)
        for split in splits:
            _SplitCheck(place.folder, place.info, split, recorded, result, bar).run()
    if originals is not None and result.ok:
        with Progress("comparing", progress) as bar:
            bar.expect(result.num_samples)
            for where, what in originals.differences(bar):
                result.problems.append(Problem(where, what))
        result.num_compared = originals.num_compared
    return result


class _SplitCheck:
    """Checks one split, adding to the result."""

    def __init__(
        self,
        folder: Path,
        info: DatasetInfo,
        split: SplitInfo,
        recorded: RecordedSums,
        result: VerifyResult,
        bar: Progress,
    ) -> None:
        self._folder = folder
        self._info = info
        self._split = split
        self._recorded = recorded
        self._result = result
        self._bar = bar

    def run(self) -> None:
        whole = {kind for kind in _WITHOUT if self._index_file(kind)}
        sums = self._recorded.of(self._split) if "sums" in whole else {}
        reader = None
        if {"rows", "names"} <= whole:
            reader = ShardReader(self._folder, self._info, self._split)
        start = 0
        for number, shard in enumerate(self._split.shards):
            rows = range(start, start + shard.num_rows)
            self._shard(reader, number, rows, sums)
            start = rows.stop

    def _add(self, where: str, what: str, shard: int | None = None, key: str = "") -> None:
        self._result.problems.append(Problem(where, what, self._split.name, shard, key))

    def _index_file(self, kind: str) -> bool:
        name = f"{self._split.name}.{kind}"
        num_bytes, digest = self._split.files[name]
        damage = look_at(self._folder / name, num_bytes, None, self._recorded)
        what = damage.what
        if not what:
            self._result.num_bytes += num_bytes
            if xxhash.xxh3_64_intdigest(map_file(self._folder / name, num_bytes)) != digest:
                what = "its bytes differ from those written"
        if what:
            self._add(name, f"{what}; {_WITHOUT[kind]}")
        return not what

    def _shard(
        self, reader: ShardReader | None, number: int, rows: range, sums: dict[str, Sums]
    ) -> None:
        damages = self._files(number, sums)
        if any(damage.what for damage in damages.values()):
            reader = None
        broken = self._samples(reader, number, rows) if reader else np.zeros(0, np.int64)
        for name, damage in damages.items():
            if damage.what:
                self._add(name, f"{damage.what}; its {len(rows)} samples were not checked", number)
            where, blocks = "", damage.blocks
            if reader is not None:
                where, blocks = "outside any sample, ", _outside(reader, broken, name, blocks)
            for first, last in regions(blocks, self._split.shards[number].file_bytes[name]):
                self._add(name, f"damage {where}in bytes {first} to {last}", number)

    def _files(self, number: int, sums: dict[str, Sums]) -> dict[str, Damage]:
        damages = {}
        for name, num_bytes in sorted(self._split.shards[number].file_bytes.items()):
            damages[name] = look_at(self._folder / name, num_bytes, sums.get(name), self._recorded)
            self._result.num_bytes += num_bytes
            self._bar.add(0, num_bytes)
        return damages

    def _samples(self, reader: ShardReader, number: int, rows: range) -> Rows:
        """The broken rows, each named."""
        broken = []
        for start, stop in reader.pieces(rows.start, rows.stop):
            if self._split.has_checksums:
                broken += _broken(reader, np.arange(start, stop, dtype=np.int64))
            self._result.num_samples += stop - start
            self._bar.add(stop - start, 0)
        for row in broken:
            key = reader.index.name(row)[0].decode(errors="surrogateescape")
            self._add(reader.where(row), "its bytes differ from those packed", number, key)
        return np.array(broken, np.int64)


def _broken(reader: ShardReader, rows: Rows) -> list[int]:
    try:
        matches = reader.matches(reader.gather(rows))
    except FormatError:  # a value does not fit its encoding: whose?
        if len(rows) == 1:
            return [int(rows[0])]
        return [row for one in rows for row in _broken(reader, np.array([one]))]
    return [int(row) for row in rows[~matches]]


def _outside(reader: ShardReader, rows: Rows, file_name: str, blocks: list[int]) -> list[int]:
    """Those blocks of a shard's file that hold nothing of the shard's given rows."""
    batch = reader.gather(rows)
    for name in reader.fields_in(batch, file_name):
        starts, sizes = reader.places(batch, name)
        first = starts[sizes > 0] // BLOCK_BYTES
        last = (starts + sizes - 1)[sizes > 0] // BLOCK_BYTES
        blocks = [b for b in blocks if not ((first <= b) & (b <= last)).any()]
    return blocks
