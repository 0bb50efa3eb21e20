"""Stored values of a split by row: the one read path of all formats.

A shard is a file, the row index holds byte ranges in it. Files are memory-mapped on first use, in
each process for itself, and values are slices of the map, not copies. Large values are announced
to the kernel (``MADV_WILLNEED``) before they are touched: without that a cold 110 KB value comes
in as 27 page faults, one after another.
"""

from __future__ import annotations

import mmap
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.errors import FormatError, IndexFileError
from shardkit.formats import get_format
from shardkit.index import DatasetInfo, RowIndex, SplitInfo, map_file
from shardkit.sample import BYTES, Encoding, SampleBatch, Value

Rows = np.ndarray[Any, np.dtype[np.int64]]

MAX_MAPS = 16_384
"""Open maps a field at most: a quarter of Linux's default limit of 65,530 a process."""

ANNOUNCE_BYTES = 16 << 10
"""Values from this size on are announced: below it the page faults cost less than the call."""

_PAGE = mmap.PAGESIZE


class ShardMaps(dict[int, memoryview]):
    """Shard number -> the mapped file that holds one field, opened on first use."""

    def __init__(self, folder: Path, split: SplitInfo, file_names: Sequence[str]) -> None:
        super().__init__()
        self._folder = folder
        self._names = file_names
        # A shard without the field may have no file for it: then no range fits into 0 bytes.
        sizes = [s.file_bytes.get(n, 0) for s, n in zip(split.shards, file_names, strict=True)]
        self.sizes = np.array(sizes, np.int64)

    def __missing__(self, shard: int) -> memoryview:
        if len(self) >= MAX_MAPS:
            del self[next(iter(self))]
        name = self._names[shard]
        view = memoryview(map_file(self._folder / name, int(self.sizes[shard])))
        self[shard] = view
        return view


class Warmth:
    """Whether to announce values: while page faults have lately gone to the disk.

    Announcing a 110 KB value costs 2 us, copying it 4 us, so a warm epoch should not pay for it.
    """

    BATCHES = 64
    """Batches announced after a fault that went to the disk, and at first; then one is not."""

    def __init__(self) -> None:
        self._faults = 0
        self._left = self.BATCHES

    def is_cold(self) -> bool:
        """Asked once a batch."""
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        if faults != self._faults:
            self._faults, self._left = faults, self.BATCHES
        self._left = max(self._left - 1, 0)
        return self._left > 0


class Gather:
    """One batch of rows, located: what :meth:`ShardReader.gather` returns.

    Attributes:
        rows: (B,) int64, as asked. shards: (B,) int64. table: (B, columns) int64.
    """

    __slots__ = ("rows", "shards", "table")

    def __init__(self, rows: Rows, shards: Rows, table: Rows) -> None:
        self.rows = rows
        self.shards = shards
        self.table = table


class ShardReader:
    """Reads stored values of one split. Threads may share it: two that open one shard at once
    both map it, and one map is dropped."""

    def __init__(self, folder: Path, info: DatasetInfo, split: SplitInfo) -> None:
        self.index = RowIndex(folder, info, split)
        self._folder = folder
        self._info = info
        self._split = split
        self._format = get_format(info.container)
        self._maps: dict[str, ShardMaps] = {}
        self._warmth = Warmth()
        self._plain = {
            name
            for name in info.fields
            if all(layout.get(name, BYTES).kind == "bytes" for layout in split.layouts)
        }

    def gather(self, rows: Rows) -> Gather:
        """Look rows up in the index. Raises IndexError for a row outside the split."""
        table = self.index.table
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= len(table)):
            raise IndexError(f"row outside 0..{len(table) - 1} of split {self._split.name}")
        return Gather(rows, self.index.shard_of(rows), table[rows])

    def maps(self, name: str) -> ShardMaps:
        """The files that hold a field."""
        found = self._maps.get(name)
        if found is None:
            names = [self.file_of(i, name) for i in range(len(self._split.shards))]
            found = self._maps[name] = ShardMaps(self._folder, self._split, names)
        return found

    def file_of(self, shard: int, name: str) -> str:
        """Name of the file that holds a field of a shard."""
        return self._format.file_of(self._split.stem(shard), name)

    def places(self, batch: Gather, name: str) -> tuple[Rows, Rows]:
        """(start, size) in bytes of a field in its files; size is -1 where absent.

        Raises:
            IndexFileError: a range lies outside its file.
        """
        column = self.index.column[f"{name}.start"]
        return batch.table[:, column], batch.table[:, column + 1]

    def stored(self, batch: Gather, name: str) -> list[memoryview | None]:
        """Stored values, as slices of the mapped files."""
        starts, sizes = self.places(batch, name)
        if len(sizes) and int(sizes.min()) < 0:
            present = sizes >= 0
            values = iter(
                self._slices(batch.shards[present], starts[present], sizes[present], name)
            )
            return [next(values) if there else None for there in present.tolist()]
        return self._slices(batch.shards, starts, sizes, name)  # type: ignore[return-value]

    def _slices(self, shards: Rows, starts: Rows, sizes: Rows, name: str) -> list[memoryview]:
        if not len(shards):
            return []
        maps = self.maps(name)
        ends = starts + sizes
        if int(starts.min()) < 0 or (ends > maps.sizes[shards]).any():
            raise IndexFileError(
                f"split {self._split.name}: the row index places a {name} outside its shard;"
                " `shardkit verify` tells more"
            )
        if int(sizes.max()) >= ANNOUNCE_BYTES and self._warmth.is_cold():
            _announce(maps, shards, starts, sizes)
        return [
            maps[shard][start:end]
            for shard, start, end in zip(
                shards.tolist(), starts.tolist(), ends.tolist(), strict=True
            )
        ]

    def announce(self, batch: Gather, names: Sequence[str]) -> None:
        """Tell the kernel that these values will be read soon; returns at once."""
        for name in names:
            starts, sizes = self.places(batch, name)
            _announce(self.maps(name), batch.shards, starts, sizes, at_least=0)

    def encoding(self, shard: int, name: str) -> Encoding:
        return self._split.layouts[self._split.shards[shard].layout].get(name, BYTES)

    def encodings(self, shards: Rows, name: str) -> list[Encoding]:
        """Encoding of a field in each of the given shards."""
        if len(self._split.layouts) == 1:
            return [self._split.layouts[0].get(name, BYTES)] * len(shards)
        return [self.encoding(shard, name) for shard in shards.tolist()]

    def canonical(self, batch: Gather, name: str) -> list[Value | None]:
        """Canonical values: the bytes the original files held.

        Raises:
            FormatError: a stored value does not fit its encoding; names shard and row.
        """
        stored = self.stored(batch, name)
        if name in self._plain:
            return stored  # type: ignore[return-value]
        encodings = self.encodings(batch.shards, name)
        out: list[Value | None] = []
        for i, (value, encoding) in enumerate(zip(stored, encodings, strict=True)):
            try:
                out.append(None if value is None else encoding.canonical(value))
            except FormatError as error:
                raise FormatError(
                    f"{self.where(int(batch.rows[i]))}, field {name}: {error}"
                ) from error
        return out

    def where(self, row: int) -> str:
        """A row in words, for messages."""
        shard = int(self.index.shard_of(np.array([row]))[0])
        key = self.index.name(row)[0]
        return f"sample {key.decode(errors='backslashreplace')!r} (row {row}, {self._split.stem(shard)})"

    def samples(self, start: int, stop: int) -> SampleBatch:
        """Rows [start, stop) with keys, paths and canonical values of all fields."""
        batch = self.gather(np.arange(start, stop, dtype=np.int64))
        names = [self.index.name(row) for row in range(start, stop)]
        columns = {name: self.canonical(batch, name) for name in self._info.fields}
        columns = {n: v for n, v in columns.items() if any(x is not None for x in v)}
        return SampleBatch([k for k, _ in names], [p for _, p in names], columns)


def _announce(
    maps: ShardMaps, shards: Rows, starts: Rows, sizes: Rows, at_least: int = ANNOUNCE_BYTES
) -> None:
    if not hasattr(mmap, "MADV_WILLNEED"):
        return
    aligned = starts // _PAGE * _PAGE
    lengths = starts + sizes - aligned
    for shard, start, length, size in zip(
        shards.tolist(), aligned.tolist(), lengths.tolist(), sizes.tolist(), strict=True
    ):
        if size >= at_least and size > 0:
            maps[shard].obj.madvise(mmap.MADV_WILLNEED, start, length)
