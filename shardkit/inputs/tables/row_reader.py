"""Rows of one table as samples, fast where rows come in order."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from shardkit.errors import FormatError, SampleError
from shardkit.inputs.base import Run
from shardkit.inputs.files import Reason
from shardkit.inputs.tables.beside import Beside
from shardkit.inputs.tables.by_field import by_field
from shardkit.inputs.tables.cells import At, Cell, cells_of
from shardkit.inputs.tables.columns import PackedColumn
from shardkit.inputs.tables.table_files import Table, arrow_errors
from shardkit.samples.sample import SampleBatch, pack_paths

_field = itemgetter(0)


class RowReader:
    """The cells of rows of one file; it holds one batch of its columns.

    Attributes:
        made_of: what tells this file, as it is, from others.
    """

    def __init__(
        self,
        made_of: tuple[str, int],
        path: Path,
        table: Table,
        columns: Sequence[PackedColumn],
        beside: Beside,
    ) -> None:
        self.made_of = made_of
        self._path = path
        self._table = table
        self._columns = columns
        self._names = [column.name for column in columns]
        self._beside = beside
        self._part = -1
        self._batches: Iterator[Any] = iter(())
        self._start = self._count = 0
        self._held: list[At] = []
        self._damage: dict[int, str] = {}

    def cells(self, row: int) -> list[Cell]:
        """Raises SampleError: the row has no value, or one that cannot be stored. FormatError: this
        part of the file is damaged."""
        if not self._start <= row < self._start + self._count:
            self._load(row)
        i = row - self._start
        found = [cell for at in self._held for cell in at(i)]
        if not found:
            if len(self._names) == 1:
                raise SampleError(f"column {self._names[0]!r} is null")
            raise SampleError("has a null in every column that is packed")
        return found

    def _load(self, row: int) -> None:
        part = bisect_right(self._table.starts, row) - 1
        if part in self._damage:
            raise FormatError(self._damage[part])
        try:
            with arrow_errors(self._path):
                self._advance(part, row)
        except FormatError as error:
            self._damage[part] = str(error)
            self._part, self._count, self._held = -1, 0, []
            raise

    def _advance(self, part: int, row: int) -> None:
        """Hold the batch that has the row."""
        if part != self._part or row < self._start:
            self._part, self._count = part, 0
            self._start = self._table.starts[part]
            self._batches = self._table.batches(self._names, part)
        batch = None
        while row >= self._start + self._count:
            batch, self._held = None, []  # before the next one is there
            self._start += self._count
            batch = next(self._batches, None)
            if batch is None:
                raise FormatError(f"is damaged: it ends before row {row}; fetch or write it again")
            self._count = batch.num_rows
        if batch is not None:
            arrays = (batch.column(batch.schema.get_field_index(name)) for name in self._names)
            self._held = [
                cells_of(column, array, self._beside)
                for column, array in zip(self._columns, arrays, strict=True)
            ]


def samples_of(run: Run, name: bytes, rows: Iterable[list[Cell] | Reason]) -> SampleBatch:
    """One sample for each row of a run that has cells, one reject for each that has a reason.

    ``name``: of the file, in paths.
    """
    batch = SampleBatch()
    kept: list[list[Cell]] = []
    for key, cells in zip(run.keys, rows, strict=True):
        number = key.rpartition(b"/")[2]
        if isinstance(cells, Reason):
            batch.rejects.append((at_row(name, number), cells))
            continue
        stem = b"%s/%s" % (name, number)
        batch.keys.append(key)
        batch.paths.append(
            pack_paths(key, [stem + suffix for _, _, suffix in sorted(cells, key=_field)])
        )
        kept.append(cells)
    batch.columns = by_field(kept)
    return batch


def at_row(name: bytes, number: bytes) -> str:
    """What a row is called in messages; ``number`` may have leading zeros."""
    return f"{os.fsdecode(name)} at row {os.fsdecode(number.lstrip(b'0') or b'0')}"
