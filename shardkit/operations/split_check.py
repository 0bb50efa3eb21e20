"""What ``verify`` looks at in one split, and what it says of it.

Checksums tell that files are as somebody wrote them, not that what was written is true: an index
may have been written anew, hashes and seal included. So it is compared with itself, and with the
shards that it is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import xxhash

from shardkit.arrays import Array, Integers
from shardkit.errors import FormatError, IndexFileError
from shardkit.index.assembling import find_chunks, repeats
from shardkit.index.file_names import DALI_INDEX
from shardkit.index.making import integers
from shardkit.index.manifest import SplitInfo
from shardkit.index.rows import NO_INT, RowIndex, row_sums
from shardkit.operations.file_damage import RecordedSums, fault_of, look_at, regions
from shardkit.samples.encoding import TOKENS, Encoding, parse_npy
from shardkit.samples.sample import Value
from shardkit.shards.locate import Located
from shardkit.shards.stored import ShardReader
from shardkit.system.file_io import BLOCK_BYTES
from shardkit.system.progress import Progress
from shardkit.tokens.spec import TokenizerSpec

CHUNK_ROWS = 1 << 16

Found = Iterator[tuple[int, str]]
"""(row, what is wrong with it)."""

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


@dataclass
class SplitCheck:
    """Checks one split, adding to the result.

    Attributes:
        whole: which of rows, names, find and sums are as they were written.
    """

    place: Located
    split: SplitInfo
    recorded: RecordedSums
    result: VerifyResult
    bar: Progress
    whole: set[str] = field(default_factory=set)
    _reader: ShardReader | None = None
    _told: set[int] = field(default_factory=set)

    def index(self) -> None:
        """Check rows, names, find and sums, and open those that are whole."""
        whole = set()
        for kind, loss in _WITHOUT.items():
            name = self.split.index_file(kind)
            num_bytes, digest = self.split.files[name]
            if what := fault_of(self.place.storage, name, num_bytes, digest):
                self.add(name, f"{what}; {loss}")
            else:
                self.result.num_bytes += num_bytes
                whole.add(kind)
        self.open(whole)
        if self._reader is None:
            return
        index = self._reader.index
        self._tell(_wrong_rows(index, self.place.info.classes))
        if self._told:  # the rest would follow from it
            return
        for rows in find_chunks(index) if self.split.has_checksums else ():
            self._tell((b, f"row {a} has the same key") for a, b, _ in repeats(index, rows))
        for file, what in _wrong_files(index, "find" in whole):
            self.add(file, what)

    def open(self, whole: set[str]) -> None:
        """Open what is whole of rows, names, find and sums."""
        self.whole = whole
        place = self.place
        if "sums" in whole and self.split.has_checksums:
            self.recorded.add(place.storage, self.split)
        if {"rows", "names"} <= whole:
            self._reader = ShardReader(place.storage, place.info, self.split, copied=True)

    def add(self, where: str, what: str, shard: int | None = None, key: str = "") -> None:
        self.result.problems.append(Problem(where, what, self.split.name, shard, key))

    def shard(self, number: int) -> None:
        """Check one shard's files, and the samples in it if they can be read."""
        sizes, damages = self.split.shards[number].file_bytes, {}
        for name, num_bytes in sorted(sizes.items()):
            damages[name] = look_at(self.place.storage, name, num_bytes, self.recorded)
            self.result.num_bytes += num_bytes
            self.bar.add(0, num_bytes)
        for name in filter(DALI_INDEX.fullmatch, sizes):
            what, blocks = damages.pop(name)
            if what := "its bytes differ from those written" if blocks else what:
                self.add(name, f"{what}; shardkit.dali.write_index(...) makes it anew", number)
        reader = None if any(what for what, _ in damages.values()) else self._reader
        broken = self._samples(reader, number) if reader else np.zeros(0, np.int64)
        for name, (what, blocks) in damages.items():
            where, num_rows = "", self.split.shards[number].num_rows
            if what:
                self.add(name, f"{what}; its {num_rows} samples were not checked", number)
            if reader is not None:
                where, blocks = "that changes no sample, ", _outside(reader, broken, name, blocks)
            for first, last in regions(blocks, sizes[name]):
                self.add(name, f"damage {where}in bytes {first} to {last}", number)

    def _samples(self, reader: ShardReader, shard: int) -> Integers:
        """Return the broken rows, each named."""
        broken, spec = list[int](), self.place.info.tokenizer
        for start, stop in reader.row_ranges(*reader.index.row_starts[shard : shard + 2].tolist()):
            whole = np.arange(start, stop, dtype=np.int64)
            if self.split.has_checksums:
                found = _broken(reader, whole)
                broken += found
                whole = np.setdiff1d(whole, found)
                self._tell(_wrong_labels(reader, whole))
            if spec is not None and TOKENS in self.place.info.fields:
                self._tell(_impossible_ids(reader, whole, spec))
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


# --- an index by itself -------------------------------------------------------------------


def _wrong_rows(index: RowIndex, classes: list[str] | None) -> Found:
    """Yield rows that contradict themselves or their names, each once."""
    fingerprint = _fingerprint_of_rows(index)
    names_end = np.zeros(1, np.int64)
    for start in range(0, len(index.table), CHUNK_ROWS):
        table = index.table[start : start + CHUNK_ROWS]
        numbers = range(start, start + len(table))
        sums = row_sums(table, np.array(numbers), fingerprint)
        unlike = sums != table[:, -1].view(np.uint64)
        begin, size = table[:, index.column["name.start"]], table[:, index.column["name.size"]]
        ends = np.concatenate([names_end, begin + size])
        apart, names_end = begin != ends[:-1], ends[-1:]
        keys = table[:, index.column["key"]].view(np.uint64).tolist()
        labels = np.full(len(table), NO_INT)
        if classes is not None and "cls" in index.column:
            labels = table[:, index.column["cls"]]
        unnamed = (labels != NO_INT) & ((labels < 0) | (labels >= len(classes or ())))
        for at, row in enumerate(numbers):
            try:
                key = index.name(row)[0]
            except IndexFileError as error:
                yield row, str(error).partition(": ")[2]
                continue
            if xxhash.xxh3_64_intdigest(key) != keys[at]:
                yield row, "its key is not the one that the index has the hash of"
            elif unlike[at]:
                yield row, "its entries in the row index differ from those written"
            elif apart[at]:
                yield row, "its name does not follow that of the row before"
            elif unnamed[at]:
                last = len(classes or ()) - 1
                yield row, f"its label is {labels[at]}, and classes are 0 to {last}"


def _wrong_files(index: RowIndex, has_find: bool) -> Iterator[tuple[str, str]]:
    """Yield (file, what is wrong with it) of what is about all rows together."""
    split, num_names = index.split, len(index.names())
    if num_names != (index.table[-1, 2:4].sum() if len(index.table) else 0):
        what = f"has {num_names} bytes, and names do not end there"
        yield split.index_file("names"), what
    if not split.has_checksums:
        return
    if _fingerprint(index) != split.fingerprint:
        what = "the fingerprint in shardkit.json is that of other samples"
        yield split.index_file("rows"), what
    if has_find and not _is_sorted(index):
        what = "is not all rows, sorted by key; samples may not be found"
        yield split.index_file("find"), what


def _fingerprint_of_rows(index: RowIndex) -> str:
    """Return that which is in the rows' checksums. If no row has that of shardkit.json, it is
    another, which is said once, and not of all rows."""
    declared, table = index.split.fingerprint, index.table[:CHUNK_ROWS]
    sums = row_sums(table, np.arange(len(table)), declared)
    is_another = (sums != table[:, -1].view(np.uint64)).all()
    return _fingerprint(index) if is_another else declared


def _fingerprint(index: RowIndex) -> str:
    """Return what the rows say; of tars made by others nothing does."""
    if not index.split.has_checksums:
        return index.split.fingerprint
    seen = xxhash.xxh3_128()
    for start in range(0, len(index.table), CHUNK_ROWS):
        seen.update(index.table[start : start + CHUNK_ROWS, :2].tobytes())
    return seen.hexdigest()


def _is_sorted(index: RowIndex) -> bool:
    order, at = index.by_key_hash(), 0
    for rows in find_chunks(index):
        if not np.array_equal(order[at : at + len(rows)], rows):
            return False
        at += len(rows)
    return True


# --- values -------------------------------------------------------------------------------


def _broken(reader: ShardReader, rows: Integers) -> list[int]:
    try:
        matches = reader.matches(reader.gather(rows))
    except FormatError:  # a value does not fit its encoding: whose?
        if len(rows) == 1:
            return [int(rows[0])]
        return [row for one in rows for row in _broken(reader, np.array([one]))]
    return [int(row) for row in rows[~matches]]


def _outside(reader: ShardReader, rows: Integers, file_name: str, blocks: list[int]) -> list[int]:
    """Return those blocks of a shard's file that hold nothing of the shard's given rows."""
    batch = reader.gather(rows)
    for name in reader.fields_in(batch, file_name):
        starts, sizes = reader.places(batch, name)
        first = starts[sizes > 0] // BLOCK_BYTES
        last = (starts + sizes - 1)[sizes > 0] // BLOCK_BYTES
        blocks = [b for b in blocks if not ((first <= b) & (b <= last)).any()]
    return blocks


def _wrong_labels(reader: ShardReader, rows: Integers) -> Found:
    """Yield rows whose ``cls`` is not what their value of that name says."""
    if "cls" not in reader.index.column:
        return
    batch = reader.gather(rows)
    labels = batch.table[:, reader.index.column["cls"]]
    said = integers(reader.canonical(batch, "cls"))
    for at in np.flatnonzero(labels != said).tolist():
        label = "none" if labels[at] == NO_INT else labels[at]
        value = "no integer" if said[at] == NO_INT else said[at]
        yield int(rows[at]), f"its label in the row index is {label}, its value {value}"


def _impossible_ids(reader: ShardReader, rows: Integers, spec: TokenizerSpec) -> Found:
    """Yield documents that the tokenizer cannot have made.

    Raises:
        FormatError: a value does not fit its encoding.
    """
    for row, ids in zip(rows.tolist(), reader.each(reader.gather(rows), TOKENS, _ids), strict=True):
        if ids is None:
            continue
        if ids.ndim != 1 or ids.dtype.str != spec.dtype:
            kind = f"{ids.dtype.str}{list(ids.shape)}"
            yield row, f"its tokens are {kind}, expected {spec.dtype}[n]"
        elif len(ids) and int(ids.max()) >= spec.vocab_size:
            yield row, f"has id {ids.max()}, and the vocabulary ends before {spec.vocab_size}"


def _ids(encoding: Encoding, value: Value) -> Array:
    return parse_npy(value) if encoding.kind == "bytes" else encoding.as_array(value)
