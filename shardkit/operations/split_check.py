"""What ``verify`` looks at in one split, and what it says of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash

from shardkit.arrays import Array, Integers
from shardkit.errors import DataError, FormatError, IndexFileError
from shardkit.index.manifest import DALI_INDEX, SplitInfo
from shardkit.index.rows import RowIndex
from shardkit.memory.maps import read_file
from shardkit.operations.contradictions import (
    repeated_keys,
    wrong_files,
    wrong_labels,
    wrong_rows,
)
from shardkit.operations.file_damage import Damage, RecordedSums, look_at, regions
from shardkit.samples.encoding import TOKENS, parse_npy
from shardkit.shards.locate import Located
from shardkit.shards.stored import ShardReader
from shardkit.system.file_io import BLOCK_BYTES
from shardkit.system.progress import Progress
from shardkit.tokens.spec import TokenizerSpec


def tokenizer_problem(folder: Path, spec: TokenizerSpec) -> tuple[str, str] | None:
    """(file, what is wrong with it) of the tokenizer's file, if anything is."""
    if spec.file is None:
        return None
    try:
        data = read_file(folder / spec.file, spec.num_bytes + 1)
    except DataError as error:
        is_gone = isinstance(error, FileNotFoundError)
        return spec.file, f"{'is missing' if is_gone else error}; ids cannot be decoded"
    if spec.matches(data):
        return None
    return spec.file, "its bytes differ from those written; ids may be decoded wrongly"


def foreign_ids(reader: ShardReader, rows: Integers, spec: TokenizerSpec) -> list[tuple[int, str]]:
    """(row, what is wrong) of documents that the tokenizer cannot have made.

    Raises:
        FormatError: a value does not fit its encoding.
    """
    batch = reader.gather(rows)
    values = reader.stored(batch, TOKENS)
    encodings = reader.encodings(batch.shards, TOKENS)
    found = []
    for row, value, encoding in zip(rows.tolist(), values, encodings, strict=True):
        if value is None:
            continue
        ids = parse_npy(value) if encoding.kind == "bytes" else encoding.as_array(value)
        if what := _what_is_foreign(ids, spec):
            found.append((row, what))
    return found


def _what_is_foreign(ids: Array, spec: TokenizerSpec) -> str:
    if ids.ndim != 1 or ids.dtype.str != spec.dtype:
        return f"its tokens are {ids.dtype.str}{list(ids.shape)}, expected {spec.dtype}[n]"
    if len(ids) and int(ids.max()) >= spec.vocab_size:
        return f"has id {ids.max()}, and the vocabulary ends before {spec.vocab_size}"
    return ""


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
        is_compared, num_compared: whether the originals were looked at, as they are if the
            dataset itself is whole, and how many samples were compared with them.
        has_checksums: False for tars made by others: only sizes were looked at.
        notes: what else there is to know, a line each.
    """

    num_samples: int = 0
    num_bytes: int = 0
    is_compared: bool = False
    num_compared: int = 0
    has_checksums: bool = True
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


class SplitCheck:
    """Checks one split, adding to the result."""

    def __init__(
        self,
        place: Located,
        split: SplitInfo,
        spec: TokenizerSpec | None,
        recorded: RecordedSums,
        result: VerifyResult,
        bar: Progress,
    ) -> None:
        self._place = place
        self.split = split
        self._spec = spec
        self._recorded = recorded
        self.result = result
        self.bar = bar
        self._reader: ShardReader | None = None
        self._told: set[int] = set()
        self.whole: set[str] = set()

    def index(self) -> None:
        """Check rows, names, find and sums, and open those that are whole."""
        self.open({kind for kind in _WITHOUT if self._is_whole(kind)})
        if self._reader is not None:
            self._index_itself(self._reader.index, "find" in self.whole)

    def open(self, whole: set[str]) -> None:
        """Open what is whole of rows, names, find and sums."""
        self.whole = whole
        if "sums" in whole and self.split.has_checksums:
            self._recorded.add(self._place.storage, self.split)
        if {"rows", "names"} <= whole:
            self._reader = ShardReader(
                self._place.storage, self._place.info, self.split, copied=True
            )

    def _index_itself(self, index: RowIndex, has_find: bool) -> None:
        """Look for what an index says that cannot be, though it is as it was written."""
        self._tell(wrong_rows(index, self._place.info.classes))
        if self._told:  # the rest would follow from it
            return
        self._tell(repeated_keys(index))
        for file, what in wrong_files(index, has_find):
            self.add(file, what)

    def shards(self) -> None:
        """Check every shard's files, and the samples in those that can be read."""
        for number, rows in self.ranges():
            self.shard(number, rows)

    def ranges(self) -> Iterator[tuple[int, range]]:
        """Each shard's number, and its rows."""
        start = 0
        for number, shard in enumerate(self.split.shards):
            yield number, range(start, start + shard.num_rows)
            start += shard.num_rows

    def add(self, where: str, what: str, shard: int | None = None, key: str = "") -> None:
        self.result.problems.append(Problem(where, what, self.split.name, shard, key))

    def _is_whole(self, kind: str) -> bool:
        storage, name = self._place.storage, self.split.index_file(kind)
        num_bytes, digest = self.split.files[name]
        what = look_at(storage, name, num_bytes, self._recorded).what
        if not what:
            self.result.num_bytes += num_bytes
            try:
                data = storage.contents(name, num_bytes, copied=True)
                if xxhash.xxh3_64_intdigest(data) != digest:
                    what = "its bytes differ from those written"
            except DataError as error:  # where it is compared before it counts
                what = f"cannot be read: {error}"
        if what:
            self.add(name, f"{what}; {_WITHOUT[kind]}")
        return not what

    def shard(self, number: int, rows: range) -> None:
        """Check one shard."""
        sizes = self.split.shards[number].file_bytes
        damages = {name: self._file(name, sizes[name]) for name in sorted(sizes)}
        for name in filter(DALI_INDEX.fullmatch, sizes):
            self._dali_index(name, damages.pop(name), number)
        reader = None if any(damage.what for damage in damages.values()) else self._reader
        broken = self._samples(reader, rows) if reader else np.zeros(0, np.int64)
        for name, damage in damages.items():
            if damage.what:
                self.add(name, f"{damage.what}; its {len(rows)} samples were not checked", number)
            where, blocks = "", damage.blocks
            if reader is not None:
                where, blocks = "that changes no sample, ", _outside(reader, broken, name, blocks)
            for first, last in regions(blocks, sizes[name]):
                self.add(name, f"damage {where}in bytes {first} to {last}", number)

    def _dali_index(self, name: str, damage: Damage, shard: int) -> None:
        what = damage.what or ("its bytes differ from those written" if damage.blocks else "")
        if what:
            self.add(name, f"{what}; shardkit.dali.write_index(...) makes it anew", shard)

    def _file(self, name: str, num_bytes: int) -> Damage:
        damage = look_at(self._place.storage, name, num_bytes, self._recorded)
        self.result.num_bytes += num_bytes
        self.bar.add(0, num_bytes)
        return damage

    def _samples(self, reader: ShardReader, rows: range) -> Integers:
        """The broken rows, each named."""
        broken = []
        for start, stop in reader.row_ranges(rows.start, rows.stop):
            piece = np.arange(start, stop, dtype=np.int64)
            found = _broken(reader, piece) if self.split.has_checksums else []
            whole = np.setdiff1d(piece, found)
            if self.split.has_checksums:
                self._tell(wrong_labels(reader, whole))
            self._tokens(reader, whole)
            broken += found
            self.result.num_samples += stop - start
            self.bar.add(stop - start, 0)
        self._tell((row, "its bytes differ from those packed") for row in broken)
        return np.array(broken, np.int64)

    def _tell(self, found: Iterable[tuple[int, str]]) -> None:
        """Add what is wrong with rows: of each, what was found first."""
        for row, what in found:
            if row in self._told or self._reader is None:
                continue
            self._told.add(row)
            shard = int(self._reader.index.shard_of(np.array([row]))[0])
            try:
                key = self._reader.index.name(row)[0].decode(errors="surrogateescape")
            except IndexFileError:
                self.add(f"row {row} ({self.split.stem(shard)})", what, shard)
            else:
                self.add(self._reader.where(row), what, shard, key)

    def _tokens(self, reader: ShardReader, rows: Integers) -> None:
        if self._spec is not None and TOKENS in self._place.info.fields:
            self._tell(foreign_ids(reader, rows, self._spec))


def _broken(reader: ShardReader, rows: Integers) -> list[int]:
    try:
        matches = reader.matches(reader.gather(rows))
    except FormatError:  # a value does not fit its encoding: whose?
        if len(rows) == 1:
            return [int(rows[0])]
        return [row for one in rows for row in _broken(reader, np.array([one]))]
    return [int(row) for row in rows[~matches]]


def _outside(reader: ShardReader, rows: Integers, file_name: str, blocks: list[int]) -> list[int]:
    """Those blocks of a shard's file that hold nothing of the shard's given rows."""
    batch = reader.gather(rows)
    for name in reader.fields_in(batch, file_name):
        starts, sizes = reader.places(batch, name)
        first = starts[sizes > 0] // BLOCK_BYTES
        last = (starts + sizes - 1)[sizes > 0] // BLOCK_BYTES
        blocks = [b for b in blocks if not ((first <= b) & (b <= last)).any()]
    return blocks
