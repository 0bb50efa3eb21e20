"""Stored values of a split by row: the one read path of all formats.

A shard is a file, the row index holds byte ranges in it. How they are read is up to what stands
behind :class:`shardkit.storage.interface.Storage`: of files on this machine they are slices of
memory maps, or copies, made once a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from shardkit.arrays import Array, Bytes, Integers, Mask, Offsets
from shardkit.errors import ChecksumError, FormatError, IndexFileError
from shardkit.formats import FORMATS, Format
from shardkit.index.manifest import DatasetInfo, SplitInfo
from shardkit.index.rows import NO_INT, RowIndex
from shardkit.memory import buffers
from shardkit.memory.gather import look_up
from shardkit.samples.checksums import sample_checksums
from shardkit.samples.encoding import BYTES, LABEL, Encoding
from shardkit.samples.sample import SampleBatch, Value
from shardkit.shards.joined import Joined, lay_out, offsets_of, room_for
from shardkit.storage.interface import Files, Ranges, Storage, Turn

T = TypeVar("T")

ROWS_AT_ONCE = 1024
BYTES_AT_ONCE = 32 << 20
"""Who goes through a whole split takes at most so many rows at once, and about so many bytes."""


def num_that_fit(sizes: Sequence[int] | Integers) -> int:
    """How many leading values have less than :data:`BYTES_AT_ONCE` together; at least one."""
    return max(int(np.searchsorted(np.cumsum(sizes), BYTES_AT_ONCE)), 1)


class Gather:
    """One batch of rows, located: what :meth:`ShardReader.gather` returns.

    Attributes:
        rows: (B,) int64, as asked. shards: (B,) int64. table: (B, columns) int64.
        ranges: field -> its bytes, once they were found: what was checked is what is used.
    """

    __slots__ = ("ranges", "rows", "shards", "table")

    def __init__(self, rows: Integers, shards: Integers, table: Integers) -> None:
        self.rows = rows
        self.shards = shards
        self.table = table
        self.ranges: dict[str, Ranges] = {}


def container_of(info: DatasetInfo) -> Format:
    """The format a dataset says it is in. Raises IndexFileError if there is none of that name."""
    if info.container not in FORMATS:
        raise IndexFileError(
            f"this shardkit knows no container {info.container!r}, only {', '.join(FORMATS)};"
            " upgrade shardkit"
        )
    return FORMATS[info.container]


Columns = dict[str, list[Value | None]]


def _match(batch: Gather, columns: Columns) -> Mask:
    recorded = batch.table[:, 0].view(np.uint64)
    return np.asarray(sample_checksums(columns, len(batch.rows)) == recorded)


class ShardReader:
    """Reads stored values of one split. Threads may share it.

    Args:
        copied: read values into memory, once a batch, wherever the files lie: whoever writes to
            them then changes nothing that :meth:`refuse_damage` has seen.

    Attributes:
        index: the split's rows. storage: where its files lie.
    """

    def __init__(
        self, storage: Storage, info: DatasetInfo, split: SplitInfo, *, copied: bool = False
    ) -> None:
        self.index = RowIndex(storage, info, split, copied=copied)
        self.storage = storage
        self._copied = copied
        self._info = info
        self._split = split
        self._format = container_of(info)
        self._files: dict[str, Files] = {}
        self._by_first_file: dict[str, Files] = {}
        self._plain = {
            name
            for name in info.fields
            if all(layout.get(name, BYTES).kind == "bytes" for layout in split.layouts)
        }
        self._deflated = {n for layout in split.layouts for n, e in layout.items() if e.codec}
        self._unstored = {
            name for lay in split.layouts for name, e in lay.items() if e.kind == LABEL
        }

    def gather(self, rows: Integers) -> Gather:
        """Look rows up in the index. Raises IndexError for a row outside the split."""
        table = self.index.table
        found = look_up(table, rows, self.index.row_starts)
        if found is None:
            raise IndexError(f"row outside 0..{len(table) - 1} of split {self._split.name}")
        entries, shards = found
        return Gather(rows, shards, entries)

    def files(self, name: str) -> Files:
        """The files that hold a field, by number of shard; one object for all fields that lie in
        the same files."""
        found = self._files.get(name)
        if found is None:
            first = self.file_of(0, name)
            found = self._by_first_file.get(first)
            if found is None:
                found = self._by_first_file[first] = self._find_files(name)
            self._files[name] = found
        return found

    def _find_files(self, name: str) -> Files:
        shards = self._split.shards
        names = [self.file_of(i, name) for i in range(len(shards))]
        # A shard without the field may have no file for it: then no range fits into 0 bytes.
        sizes = [shard.file_bytes.get(n, 0) for shard, n in zip(shards, names, strict=True)]
        return self.storage.files(names, sizes, copied=self._copied)

    def file_of(self, shard: int, name: str) -> str:
        """Name of the file that holds a field of a shard."""
        return self._format.file_of(self._split.stem(shard), name)

    def fields_in(self, batch: Gather, file_name: str) -> list[str]:
        """The fields that one file holds, of the shard that all rows of the batch are in."""
        shards = set(batch.shards.tolist())
        return [f for f in self._info.fields for i in shards if self.file_of(i, f) == file_name]

    def places(self, batch: Gather, name: str) -> tuple[Integers, Integers]:
        """(start, size) in bytes of a field in its files, as the index has it; size is negative
        where the field is absent."""
        column = self.index.column[f"{name}.start"]
        return batch.table[:, column], batch.table[:, column + 1]

    def stored(self, batch: Gather, name: str) -> list[memoryview | None]:
        """Stored values, read-only.

        Raises:
            IndexFileError: a range lies outside its file. DataError: it cannot be read.
        """
        found = self._ranges(batch, name).slices()
        if name in self._unstored:
            return self._with_labels(batch, name, found)
        return self._with_absent(batch, name, found)

    def _with_absent(
        self, batch: Gather, name: str, found: list[memoryview]
    ) -> list[memoryview | None]:
        if len(found) == len(batch.rows):
            return found  # type: ignore[return-value]
        present = self.places(batch, name)[1] >= 0
        values = iter(found)
        return [next(values) if there else None for there in present.tolist()]

    def _with_labels(
        self, batch: Gather, name: str, found: list[memoryview]
    ) -> list[memoryview | None]:
        """The same, where some shards have a label in the row index alone: as one int64."""
        values = self._with_absent(batch, name, found)
        labels = batch.table[:, self.index.column[name]].astype("<i8")
        for at, encoding in enumerate(self.encodings(batch.shards, name)):
            if encoding.kind == LABEL and labels[at] != NO_INT:
                values[at] = memoryview(labels[at : at + 1].tobytes())
        return values

    def _ranges(self, batch: Gather, name: str) -> Ranges:
        """The bytes of a field, for those rows that have it."""
        found = batch.ranges.get(name)
        if found is None:
            shards, starts, sizes = self._present(batch, name)
            files = self._checked(shards, starts, sizes, name)
            found = batch.ranges[name] = files.read(shards, starts, sizes)
        return found

    def _present(self, batch: Gather, name: str) -> tuple[Integers, Integers, Integers]:
        """(shard, start, size) of a field, for those rows that have it."""
        starts, sizes = self.places(batch, name)
        shards = batch.shards
        if len(sizes) and int(sizes.min()) < 0:
            present = sizes >= 0
            shards, starts, sizes = shards[present], starts[present], sizes[present]
        return shards, starts, sizes

    def fixed(self, batch: Gather, name: str) -> Array | None:
        """Arrays of one shape and dtype as one new array (B, ...), gathered in one go.

        None where shapes or dtypes differ, or values lie deflated, are absent, or must be read one
        by one.

        Raises:
            IndexFileError: a range lies outside its file.
        """
        if not len(batch.rows):
            return None
        is_one = len(self._split.layouts) == 1
        shards = batch.shards[:1] if is_one else np.unique(batch.shards)
        encodings = set(self.encodings(shards, name))
        encoding = encodings.pop()
        sizes = self.places(batch, name)[1]
        plain = encoding.kind == "array" and not encoding.codec and encoding.dtype[0] in "<|"
        if encodings or not plain or not encoding.nbytes or (sizes != encoding.nbytes).any():
            return None
        found = self._ranges(batch, name).joined(encoding.nbytes)
        return found.view(encoding.dtype).reshape(-1, *encoding.shape)

    def _checked(self, shards: Integers, starts: Integers, sizes: Integers, name: str) -> Files:
        files = self.files(name)
        # Sizes are not negative here, so this cannot overflow, as starts + sizes could.
        if int(starts.min(initial=0)) < 0 or (starts > files.sizes[shards] - sizes).any():
            raise IndexFileError(
                f"split {self._split.name}: the row index places a {name} outside its shard;"
                " `shardkit verify` tells more"
            )
        return files

    def is_cold(self, names: Sequence[str]) -> bool:
        """Whether it pays to announce values of these fields: see
        :meth:`shardkit.storage.interface.Files.is_cold`."""
        return any(self.files(name).is_cold() for name in names)

    def announce(self, batch: Gather, names: Sequence[str], turn: Turn | None = None) -> None:
        """Say that these values will be read soon, or at that turn; returns at once."""
        for name in names:
            starts, sizes = self.places(batch, name)
            there = sizes > 0
            if there.any():
                shards, starts, sizes = batch.shards[there], starts[there], sizes[there]
                files = self._checked(shards, starts, sizes, name)
                files.announce(shards, starts, sizes, turn)

    def encoding(self, shard: int, name: str) -> Encoding:
        return self._split.layouts[self._split.shards[shard].layout].get(name, BYTES)

    def encodings(self, shards: Integers, name: str) -> list[Encoding]:
        """Encoding of a field in each of the given shards."""
        if len(self._split.layouts) == 1:
            return [self._split.layouts[0].get(name, BYTES)] * len(shards)
        return [self.encoding(shard, name) for shard in shards.tolist()]

    def canonical(self, batch: Gather, name: str) -> list[Value | None]:
        """Canonical values: the bytes the original files held.

        Raises:
            FormatError: a stored value does not fit its encoding; names shard and row.
        """
        if name in self._plain:
            return self.stored(batch, name)  # type: ignore[return-value]
        return self.each(batch, name, Encoding.canonical)

    def each(
        self, batch: Gather, name: str, make: Callable[[Encoding, Value], T]
    ) -> list[T | None]:
        """What is made of each stored value and its encoding; None where the field is absent.

        Raises:
            FormatError: as ``make`` does; names shard and row.
        """
        stored = self.stored(batch, name)
        encodings = self.encodings(batch.shards, name)
        self.refuse_shared(batch, name)
        out: list[T | None] = []
        for i, (value, encoding) in enumerate(zip(stored, encodings, strict=True)):
            try:
                out.append(None if value is None else make(encoding, value))
            except FormatError as error:
                raise FormatError(
                    f"{self.where(int(batch.rows[i]))}, field {name}: {error}"
                ) from error
        return out

    def refuse_shared(self, batch: Gather, name: str) -> None:
        """Raise IndexFileError where deflated values come to more bytes than their shard has.

        They share them then, and each may inflate to a thousand times as many: no batch may make
        more than deflate could of the whole file.
        """
        if name not in self._deflated:
            return
        _, first = np.unique(batch.rows, return_index=True)
        sizes = np.maximum(self.places(batch, name)[1][first], 0)
        totals = np.bincount(batch.shards[first], sizes)
        for shard in np.flatnonzero(totals).tolist():
            num_bytes = self._split.shards[shard].file_bytes.get(self.file_of(shard, name), 0)
            if totals[shard] > num_bytes:
                raise IndexFileError(
                    f"{self._split.stem(shard)}: values of {name} share their bytes: they come to"
                    f" {int(totals[shard])}, and the file has {num_bytes}; `shardkit verify` tells"
                    " more"
                )

    def copy(self, batch: Gather, name: str, out: Bytes) -> Offsets:
        """Copy canonical values end to end into ``out``, absent ones as empty.

        Returns:
            (B + 1,) int64: where each begins and ends.

        Raises:
            UsageError: they need more bytes than ``out`` has.
            FormatError: as of :meth:`canonical`.
        """
        if name in self._plain:
            ranges = self._ranges(batch, name)
            offsets = self._offsets(batch, name)
            ranges.copy_to(room_for(offsets, out))
            return offsets
        values = self.canonical(batch, name)
        offsets = offsets_of([0 if value is None else len(value) for value in values])
        lay_out(values, offsets, room_for(offsets, out).data)
        return offsets

    def joined(self, batch: Gather, name: str) -> Joined | None:
        """Canonical values end to end, or None where these are not stored as they are.

        Raises:
            IndexFileError: a range lies outside its file. DataError: it cannot be read.
        """
        if name not in self._plain:
            return None
        ranges = self._ranges(batch, name)
        offsets = self._offsets(batch, name)
        data: Bytes = buffers.empty(int(offsets[-1]), np.uint8)
        ranges.copy_to(data)
        return Joined(data, offsets)

    def _offsets(self, batch: Gather, name: str) -> Offsets:
        """Of stored values, from what the index says."""
        return offsets_of(np.maximum(self.places(batch, name)[1], 0))

    def matches(self, batch: Gather) -> Mask:
        """Whether each sample's bytes are those that were packed.

        Raises:
            FormatError: as of :meth:`canonical`.
        """
        return _match(batch, self._columns(batch))

    def refuse_damage(self, batch: Gather, columns: Columns | None = None) -> None:
        """Raise ChecksumError, naming the first sample, unless all match, and IndexFileError
        where it is their rows that do not; DataError where they cannot be read."""
        self.index.refuse_damage(batch.rows, batch.table)
        matches = _match(batch, self._columns(batch) if columns is None else columns)
        if not matches.all():
            where = self.where(int(batch.rows[np.argmin(matches)]))
            raise ChecksumError(f"{where}: its bytes differ from those packed; restore the shard")

    def _columns(self, batch: Gather) -> Columns:
        return {name: self.canonical(batch, name) for name in self._info.fields}

    def where(self, row: int) -> str:
        """A row in words, for messages."""
        stem = self._split.stem(int(self.index.shard_of(np.array([row]))[0]))
        key = self.index.name(row)[0].decode(errors="surrogateescape")
        return f"sample {key!r} (row {row}, {stem})"

    def row_ranges(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """[start, stop) as ranges of rows that can be held in memory at once."""
        while start < stop:
            rows = np.arange(start, min(start + ROWS_AT_ONCE, stop), dtype=np.int64)
            end = start + num_that_fit(self._costs(self.gather(rows)))
            yield start, end
            start = end

    def _costs(self, batch: Gather) -> Integers:
        costs = np.zeros(len(batch.rows), np.int64)
        for name in self._info.fields:
            sizes = np.clip(self.places(batch, name)[1], 0, BYTES_AT_ONCE)
            if name not in self._plain:
                encodings = self.encodings(batch.shards, name)
                made = [min(e.nbytes, BYTES_AT_ONCE) if e.codec else 0 for e in encodings]
                sizes = np.maximum(sizes, made)
            costs += sizes
        return costs

    def samples(self, start: int, stop: int) -> SampleBatch:
        """Rows [start, stop) with keys, paths and canonical values of all fields."""
        batch = self.gather(np.arange(start, stop, dtype=np.int64))
        names = [self.index.name(row) for row in range(start, stop)]
        columns = self._columns(batch)
        if self._split.has_checksums:
            self.refuse_damage(batch, columns)
        columns = {n: v for n, v in columns.items() if any(x is not None for x in v)}
        return SampleBatch([k for k, _ in names], [p for _, p in names], columns)
