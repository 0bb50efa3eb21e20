"""Tables as inputs: each row is a sample, and every column a field of it.

Parquet files, folders that ``save_to_disk`` of Hugging Face ``datasets`` wrote, and rows of Python
objects that wait in Parquet files. Rows are read in batches of bounded size, of the columns that
are packed.
"""

from __future__ import annotations

import io
import json
import os
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Self

from shardkit.errors import CorpusError, FormatError, ShardkitError
from shardkit.index.file_names import is_field_name
from shardkit.inputs.corpus import Claim, Look, Run, Strength
from shardkit.inputs.files import join, pass_over
from shardkit.inputs.folders import list_names
from shardkit.inputs.guards import notes_on_labels, notes_on_splits
from shardkit.inputs.sample_files import MAX_BYTES, Cell, Listed, SampleFile, SampleFiles
from shardkit.inputs.tables.column_fields import (
    FILES,
    TableColumn,
    TableColumns,
    columns_of,
    kind_of_files,
    listed,
    make_plan,
    rows_of,
)
from shardkit.memory.maps import read_file
from shardkit.system.file_io import pread
from shardkit.system.paths import show_path

BATCH_BYTES = 8 << 20
"""About how much of the columns is decoded at a time, by the mean of their row group."""

MAX_BATCH_ROWS = 4096


class ClosedFile:
    """A file that is open only while it is read: a table may be kept from call to call, and leaves
    no descriptor behind however its user ends. For pyarrow, which reads a megabyte at a time."""

    closed = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = path.stat().st_size
        self._at = 0

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        with self._path.open("rb", buffering=0) as file:
            left = max(os.fstat(file.fileno()).st_size - self._at, 0)
            data = pread(file.fileno(), left if size < 0 else min(size, left), self._at)
        self._at += len(data)
        return data


@contextmanager
def arrow_errors(path: Path) -> Iterator[None]:
    """Import pyarrow, and turn what it raises of a damaged file into a FormatError, which does not
    name it. What the system refused stays an OSError."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise CorpusError(
            f"{show_path(path)} needs the pyarrow library: pip install 'shardkit[parquet]'"
        ) from error
    bad = (pa.ArrowException, OSError, ValueError, RuntimeError, EOFError, LookupError, MemoryError)
    odd = (TypeError, AttributeError, OverflowError)  # features in the schema may be any JSON
    try:
        yield
    except ShardkitError:
        raise
    except (*bad, *odd) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        what = str(error).partition("\n")[0] or type(error).__name__
        raise FormatError(f"is damaged: {what}; fetch or write it again"[:400]) from error


class ParquetTable:
    """A Parquet file. Methods raise what pyarrow raises: see :func:`arrow_errors`.

    Attributes:
        schema: as pyarrow has it. starts: rows at which reading can begin, those of row groups.
    """

    def __init__(self, path: Path) -> None:
        from pyarrow import parquet

        # A buffer: else a row group's whole column is read before its first page is decoded.
        self._file = parquet.ParquetFile(ClosedFile(path), buffer_size=1 << 20, pre_buffer=False)
        self.schema: Any = self._file.schema_arrow
        meta = self._file.metadata
        self._groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
        self.starts = [*accumulate((group.num_rows for group in self._groups), initial=0)][:-1]

    def sizes(self, columns: Sequence[str]) -> list[tuple[int, int]]:
        """Return (rows, bytes of those columns) of consecutive pieces of the file."""
        return [(group.num_rows, _num_bytes(group, columns)) for group in self._groups]

    def batches(self, columns: Sequence[str], part: int) -> Iterator[Any]:
        """Return record batches that have those columns, from row ``starts[part]`` to the end of
        that part."""
        group = self._groups[part]
        rows = BATCH_BYTES * group.num_rows // max(_num_bytes(group, columns), 1)
        batches: Iterator[Any] = self._file.iter_batches(
            batch_size=min(max(rows, 1), MAX_BATCH_ROWS),
            row_groups=[part],
            columns=[*columns],
            use_threads=False,
        )
        return batches


def _num_bytes(group: Any, columns: Sequence[str]) -> int:
    # A column's name may have dots, which stand between the parts of a path, too.
    starts = tuple(f"{column}." for column in columns)
    leaves = map(group.column, range(group.num_columns))
    sizes = [
        leaf.total_uncompressed_size
        for leaf in leaves
        if f"{leaf.path_in_schema}.".startswith(starts)
    ]
    return max(int(sum(sizes)), 0)


class ArrowTable:
    """A stream of Arrow, as ``save_to_disk`` writes it: a table of one part, that can be read from
    its start alone."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self._arrow = pa
        self._path = path
        self.schema: Any = pa.ipc.open_stream(ClosedFile(path)).schema
        self.starts = [0]

    def sizes(self, columns: Sequence[str]) -> list[tuple[int, int]]:
        with self._arrow.memory_map(os.fsencode(self._path)) as mapped:  # nothing is read
            return [(batch.num_rows, batch.nbytes) for batch in self._batches(mapped, columns)]

    def batches(self, columns: Sequence[str], part: int) -> Iterator[Any]:
        return self._batches(ClosedFile(self._path), columns)

    def _batches(self, source: Any, columns: Sequence[str]) -> Iterator[Any]:
        wanted = sorted(self.schema.names.index(column) for column in columns)
        ipc = self._arrow.ipc
        options = ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
        yield from ipc.open_stream(source, options=options)


Table = ParquetTable | ArrowTable


ARRAY_BYTES = 128
"""The overhead of a number or an array of numbers as the ``.npy`` file that it becomes.
It counts as input, so that a shard of a million small numbers does not take more memory than one of
pictures."""


class TableCorpus(SampleFiles):
    """Rows of files of tables; a locator is the row's number in its file. Reading goes on where the
    last call ended.

    What each column becomes is decided by the first file that is not damaged. Files of other
    columns are rejected: nothing of them is left out without a word.
    """

    options = frozenset({"text_field", "fields", "tokenized"})
    table: ClassVar[type[Table]] = ParquetTable
    _made_of: tuple[Path, int] | None = None
    _table: Table
    _part: int
    _rows: range
    _batches: Iterator[Any]
    _held: list[list[Cell] | str] | str

    def __init__(
        self,
        source: Path,
        text_field: str | None = None,
        fields: Sequence[str] | None = None,
        tokenized: bool = False,
    ) -> None:
        super().__init__(source)
        self._is_chosen = fields is not None or tokenized
        self._files = self.find()
        self._there: TableColumns = {}
        columns: Sequence[TableColumn] = ()
        if seen := self.first_good(partial(self._look, is_deep=True)):
            self._there, where = seen[0], self.shown(seen[1])
            columns = make_plan(self._there, where, fields, text_field, tokenized=tokenized)
        others = [repr(name) for name in self._there if name not in {c.name for c in columns}]
        is_alone = tokenized and fields is None and others
        self._take(columns, [c.name for c in columns] if is_alone else fields)
        if is_alone:
            self.notes.append(f"only the text is tokenized, not {', '.join(others)}")
        if self.has_card_classes and not any(c.names for c in columns):
            self.notes.append("README.md names classes, and no file does: docs/recipes/tables.md")

    def _take(self, columns: Sequence[TableColumn], fields: Sequence[str] | None) -> None:
        self._columns = columns
        self._fields = None if fields is None else [*fields]
        if not any(column.how in ("label", "index") for column in columns):
            odd = [column.name for column in columns if column.how not in FILES]
            named = [column.name for column in columns if column.names]
            self.notes = [*notes_on_labels(odd, named), *self.notes]
        texts = [c.name for c in columns if c.how == "text" and not c.base]
        self.text_field = texts[0] if texts else None
        self.classes = next((c.names for c in columns if c.how == "label"), None)
        self.has_text = bool(texts) or not columns
        self.has_pictures = any(c.how == "picture" and not c.base for c in columns)

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        made = super().from_spec(source, spec)
        columns = []
        for name, own in spec["columns"].items():
            names = spec["classes"] if own["as"] == "label" else spec["names"].get(name)
            columns.append(TableColumn(name, own["as"], own["name"], own["many"], names=names))
        made._take(columns, spec.get("fields"))
        return made

    def spec(self) -> dict[str, Any]:
        made: dict[str, Any] = {"kind": self.kind, "text_field": self.text_field}
        made |= {} if self._fields is None else {"fields": self._fields}
        columns = {c.name: {"as": c.how, "name": c.base, "many": c.many} for c in self._columns}
        names = {c.name: c.names for c in self._columns if c.names and c.how != "label"}
        return made | {"columns": columns, "classes": self.classes, "names": names}

    def described(self, path: Path) -> dict[str, Any]:
        """Return what Hugging Face says of a file's columns next to it: column -> feature."""
        return {}

    def shown(self, path: Path) -> str:
        """Return a file's name for messages."""
        return show_path(path)

    def _look(self, path: Path, *, is_deep: bool = False) -> TableColumns:
        """Return a file's columns, judged by types and by what Hugging Face says; ``is_deep``: by
        the first values, too, where nobody says what bytes are. Raises FormatError."""
        with arrow_errors(path):
            table = self.table(path)
            held = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
            features = (held.get("info") or {}).get("features") or {}
            there = columns_of(table.schema, {**self.described(path), **features})
            for name, column in there.items() if is_deep else ():
                if column.how in ("bytes", "file"):
                    batch = next(table.batches([name], 0), None)
                    how = kind_of_files(column, batch.column(0)) if batch else column.how
                    there[name] = replace(column, how=how, many=column.many and how != "json")
            return there

    # --- listing and reading --------------------------------------------------------------

    def listed(self, file: SampleFile, stamp: int, scratch: Path) -> Iterator[Listed]:
        path = self._path(file.base)
        self._refuse_misfit(self._look(path))
        arrays = sum(column.how in ("number", "array") for column in self._columns) * ARRAY_BYTES
        with arrow_errors(path):
            pieces = self.table(path).sizes([c.name for c in self._columns])
        start = 0
        for num_rows, num_bytes in pieces:
            rows = range(start, start + num_rows)
            yield from self.numbered(file, rows, num_bytes // max(num_rows, 1) + arrays)
            start = rows.stop

    def _refuse_misfit(self, there: TableColumns) -> None:
        """Raise FormatError if a file has not the columns and types of the first one."""
        packed = {column.name for column in self._columns}
        others = {name for name, column in there.items() if column.how != "nothing"} - packed
        bad = [name for name in packed if name not in there]
        bad += [
            name for name in packed & there.keys() if not there[name].is_like(self._there[name])
        ]
        if bad := sorted(bad) + sorted(() if self._is_chosen else others):
            raise FormatError(
                f"has {listed(there)}: {bad[0]!r} is not in all files, or of several types or"
                " classes; choose others with --fields, or see docs/recipes/tables.md"
            )

    def rows(self, run: Run, scratch: Path) -> Iterator[list[Cell] | str]:
        made_of = self._path(run.base), run.stamps[0]
        for locator in run.locators:
            row = int(locator)
            if made_of != self._made_of or row not in self._rows:
                self._hold(made_of, row)
            yield self._held if isinstance(self._held, str) else self._held[row - self._rows.start]

    def _hold(self, made_of: tuple[Path, int], row: int) -> None:
        """Hold the rows of the batch that has a row; or why its part cannot be read."""
        end = row + 1
        try:
            with arrow_errors(made_of[0]):
                if made_of != self._made_of:
                    self._made_of, self._part = None, -1
                    self._table = self.table(made_of[0])
                    self._made_of = made_of
                part = bisect_right(self._table.starts, row) - 1
                start, end = [*self._table.starts, sys.maxsize][part : part + 2]
                if part != self._part or row < self._rows.start:
                    self._part, self._rows = part, range(start, start)
                    self._batches = self._table.batches([c.name for c in self._columns], part)
                while row not in self._rows:
                    self._held, batch = "", None  # before the next one is there
                    batch = next(self._batches)
                    self._rows = range(self._rows.stop, self._rows.stop + batch.num_rows)
                self._held = rows_of(self._columns, batch)
        except (FormatError, StopIteration) as error:
            why = str(error) or f"is damaged: it ends before row {row}"
            self._part, self._rows, self._held = -1, range(row, end), why


# --- kinds of tables ----------------------------------------------------------------------


class ParquetCorpus(TableCorpus):
    """Parquet files: one, or a folder of them. ``fields`` takes parts of a partitioned table."""

    kind = "parquet"
    noun = "tables"
    reading = "a sample is a row of tables"
    extensions = frozenset({".parquet"})
    table = ParquetTable

    def refuse_folder(self, base: str) -> None:
        folder = self.source / base
        logs = ("_delta_log", "metadata/*.metadata.json", ".hoodie")  # Delta Lake, Iceberg, Hudi
        log = next((path for pattern in logs for path in folder.glob(pattern)), None)
        if log is not None or (base and "=" in folder.name and not self._is_chosen):
            what = f"its log, {log.relative_to(folder)}, says which files it has" if log else ""
            raise CorpusError(
                f"{show_path(folder)} is no table that can be read file by file:"
                f" {what or 'a column is in names of folders'}; see docs/recipes/tables.md"
            )


class SpooledCorpus(ParquetCorpus):
    """The rows of splits that were written into files for the time of one pack:
    ``{split}.parquet`` each, in one folder."""

    def __init__(self, source: Path, splits: Sequence[str], *options: Any) -> None:
        self._splits = splits
        super().__init__(source, *options)

    def find(self) -> list[SampleFile]:
        self.notes += notes_on_splits(self._splits)
        return [SampleFile(own, spool_name(own), spool_name(own)) for own in self._splits]

    def shown(self, path: Path) -> str:
        return f"split {path.stem!r}"


def spool_name(split: str) -> str:
    """Return the file of a split of a :class:`SpooledCorpus`."""
    return f"{split}.parquet"


_INFO, _STATE, _DICT = "dataset_info.json", "state.json", "dataset_dict.json"


class SavedCorpus(TableCorpus):
    """A folder that ``Dataset.save_to_disk`` wrote: ``state.json`` names its ``.arrow`` files in
    order; or one such folder for each split that ``dataset_dict.json`` names."""

    kind = "hf"
    noun = "saved datasets"
    is_one_file = False
    table = ArrowTable

    @classmethod
    def claim(cls, look: Look) -> Claim | None:
        is_one = _DICT in look.top.names or {_INFO, _STATE} <= {*look.top.names}
        return Claim(Strength.MARKED, "a sample is a row of a saved dataset") if is_one else None

    def find(self) -> list[SampleFile]:
        try:
            found = [*self._saved()] if self.claim(Look(self.source)) else []
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            where = show_path(self.source)
            raise FormatError(f"{where} cannot be read: {error}; save the dataset again") from error
        self.notes += notes_on_splits([*dict.fromkeys(file.split for file in found)])
        return found

    def _saved(self) -> Iterator[SampleFile]:
        splits = [""]
        if (self.source / _DICT).is_file():
            splits = _read_json(self.source / _DICT)["splits"]
        for base in splits:
            if base and not is_field_name(base):
                raise ValueError(f"{_DICT} names {base!r}")
            state = _read_json(self.source / base / _STATE)
            if state.get("_indices_data_files") or state.get("_indices_files"):
                raise ValueError("it is a selection of rows, call flatten_indices()")
            names = [part["filename"] for part in state["_data_files"]]
            there = {*list_names(self.source, base, frozenset({".arrow"})).names}
            if absent := [name for name in names if name not in there]:
                raise ValueError(f"{_STATE} names {absent[0]!r}, which is not there")
            for name in there.difference(names):  # of a dataset that was saved there before
                pass_over(name, self._passed)
            split = base or str(state.get("_split") or "train")
            yield from (SampleFile(split, join(base, name), name) for name in names)

    def described(self, path: Path) -> dict[str, Any]:
        info = path.parent / _INFO
        found = _read_json(info).get("features") if info.is_file() else None
        return found or {}


def _read_json(path: Path) -> Any:
    return json.loads(read_file(path, MAX_BYTES))
