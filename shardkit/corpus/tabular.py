"""What the corpora made of tables share: each row is a sample, one column of which is its text.

pyarrow reads them, in batches of bounded size and of that one column. It is imported when a file
is opened: a dataset can be read without it.
"""

from __future__ import annotations

import io
import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, Self

from shardkit.corpus.base import Input, Run
from shardkit.corpus.files import HUGE_BYTES, Reason, input_stamp
from shardkit.corpus.folders import Root, nothing_found
from shardkit.errors import CorpusError, FormatError, SampleError
from shardkit.samples.sample import SampleBatch, Value, pack_paths
from shardkit.system.full_reads import pread
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

Columns = dict[str, str]
"""Name -> type, as Arrow writes it."""

_STRINGS = frozenset({"string", "large_string", "string_view"})
_BYTES = frozenset({"binary", "large_binary", "binary_view"})

_REJECT = b"!"
"""Begins a locator that holds, in place of a row, why a whole file is refused."""

RUN_ROWS = 65_536


class ClosedFile(io.RawIOBase):
    """A file that is open only while it is read: a table may be kept from call to call, and leaves
    no descriptor behind however its user ends. For pyarrow, which reads a megabyte at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = path.stat().st_size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

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


class Table(Protocol):
    """A file of rows. Methods raise what pyarrow raises: see :func:`arrow_errors`."""

    columns: Columns
    starts: list[int]
    """Rows at which reading can begin; the first is 0."""

    def sizes(self, column: str) -> list[tuple[int, int]]:
        """(rows, bytes of the column) of consecutive pieces of the file."""

    def arrays(self, column: str, part: int) -> Iterator[Any]:
        """The column from row ``starts[part]`` on: Arrow arrays of bytes, end to end."""


class TableCorpus(Input):
    """Rows of files of tables; a locator is the row's number in its file.

    A run's base is the file; where the source itself is the file, ``""``. Keys and paths carry the
    row's number, as those of lines carry an offset. Reading goes on where the last call ended.
    """

    has_text = True
    options = frozenset({"text_field"})

    def __init__(self, source: Path, text_field: str | None = None) -> None:
        self.source = source
        self.classes: list[str] | None = None
        self.ignored: dict[str, int] = {}
        self.text_field = self._first_choice() if text_field is None else text_field
        self._reader: _RowReader | None = None

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        return cls(source, spec["text_field"])

    def spec(self) -> dict[str, Any]:
        return {"kind": self.kind, "text_field": self.text_field}

    def splits(self) -> list[str]:
        return list(dict.fromkeys(root.split for root, _ in self.files({})))

    def files(self, ignored: dict[str, int]) -> Iterator[tuple[Root, str]]:
        """Every file, relative to the source; those of one split together."""
        raise NotImplementedError

    def open_table(self, path: Path) -> Table:
        """Open a file; raises what pyarrow raises."""
        raise NotImplementedError

    def runs(self, scratch: Path) -> Iterator[Run]:
        self.ignored.clear()
        found = False
        for root, base in self.files(self.ignored):
            for run in self._file_runs(root, base, is_first=not found):
                found = True
                yield run
        if not found:
            raise nothing_found(f"rows of {self.kind}", self.source, self.ignored)

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        name = os.fsencode(run.base or self.source.name)
        if run.locators and run.locators[0].startswith(_REJECT):
            reason = os.fsdecode(run.locators[0].removeprefix(_REJECT))
            return SampleBatch(rejects=[(os.fsdecode(name), reason)])
        batch, values = SampleBatch(), []
        for key, value in zip(run.keys, self._values(run), strict=True):
            number = key.rpartition(b"/")[2]
            if isinstance(value, Reason):
                batch.rejects.append((f"{os.fsdecode(name)} at row {int(number)}", value))
                continue
            values.append(value)
            batch.keys.append(key)
            batch.paths.append(pack_paths(key, [b"%s/%s.txt" % (name, number)]))
        batch.columns = {"txt": [*values]} if values else {}
        return batch

    def _values(self, run: Run) -> Iterator[Value | Reason]:
        if not run.locators:
            return
        with os_errors(f"reading {show_path(self.source / run.base)}"):
            try:
                reader = self._rows_of(run)
            except (SampleError, FormatError) as error:
                yield from [str(error)] * len(run)
                return
            for locator in run.locators:
                try:
                    yield reader.value(int(locator))
                except (SampleError, FormatError) as error:
                    yield str(error)

    def _first_choice(self) -> str | None:
        """The column that the first undamaged file speaks for; None if there is no such file."""
        for _, base in self.files({}):
            path = self.source / base
            try:
                return choose_column(self._columns(path), None, show_path(path))
            except FormatError:
                continue  # listing makes a reject of it
        return None

    def _columns(self, path: Path) -> Columns:
        with os_errors(f"opening {show_path(path)}"), arrow_errors(path):
            input_stamp(path)
            return self.open_table(path).columns

    def _file_runs(self, root: Root, base: str, is_first: bool) -> Iterator[Run]:
        path = self.source / base
        prefix = os.fsencode(root.key_base(base or self.source.name))
        with os_errors(f"listing the rows of {show_path(path)}"):
            try:
                stamp = input_stamp(path)
                sizes = self._sizes(path, is_first)
            except FormatError as error:
                reason = _REJECT + os.fsencode(str(error))
                yield Run(root.split, base, None, [reason], [prefix], [0], [0])
                return
        for start, run_sizes in _run_sizes(sizes):
            rows = range(start, start + len(run_sizes))
            yield Run(
                split=root.split,
                base=base,
                locators=[b"%d" % row for row in rows],
                keys=[b"%s/%012d" % (prefix, row) for row in rows],
                sizes=run_sizes,
                stamps=[stamp] * len(rows),
            )

    def _sizes(self, path: Path, is_first: bool) -> list[tuple[int, int]]:
        with arrow_errors(path):
            table = self.open_table(path)
            try:
                column = choose_column(table.columns, self.text_field, show_path(path))
            except CorpusError as error:
                if is_first:
                    raise
                raise FormatError(str(error).removeprefix(show_path(path) + " ")) from error
            return table.sizes(column)

    def _rows_of(self, run: Run) -> _RowReader:
        """The reader of the run's file, kept while it is the same file."""
        path = self.source / run.base
        if input_stamp(path) != run.stamps[0]:
            raise SampleError("the file changed while packing")
        made_of = run.base, run.stamps[0]
        if self._reader is None or self._reader.made_of != made_of:
            self._reader = None
            with arrow_errors(path):
                table = self.open_table(path)
            self._reader = _RowReader(made_of, path, table, str(self.text_field))
        return self._reader


class _RowReader:
    """Values of one column by row, fast where rows come in order."""

    def __init__(self, made_of: tuple[str, int], path: Path, table: Table, column: str) -> None:
        self.made_of = made_of
        self._path = path
        self._table = table
        self._column = column
        self._part = -1
        self._arrays: Iterator[Any] = iter(())
        self._held: Any = ()
        self._start = 0
        self._damage: dict[int, str] = {}

    def value(self, row: int) -> Value:
        """Raises SampleError: null. FormatError: this part of the file is damaged."""
        if not self._start <= row < self._start + len(self._held):
            self._load(row)
        held = self._held[row - self._start].as_buffer()
        if held is None:
            raise SampleError(f"column {self._column!r} is null")
        return memoryview(held) if held.size >= HUGE_BYTES else bytes(held.to_pybytes())

    def _load(self, row: int) -> None:
        part = bisect_right(self._table.starts, row) - 1
        if part in self._damage:
            raise FormatError(self._damage[part])
        try:
            with arrow_errors(self._path):
                self._advance(part, row)
        except FormatError as error:
            self._damage[part] = str(error)
            self._part, self._held = -1, ()
            raise

    def _advance(self, part: int, row: int) -> None:
        if part != self._part or row < self._start:
            self._part, self._held = part, ()
            self._start = self._table.starts[part]
            self._arrays = self._table.arrays(self._column, part)
        while row >= self._start + len(self._held):
            self._start += len(self._held)
            self._held = ()
            self._held = _checked(next(self._arrays, None), row)


def _checked(array: Any, row: int) -> Any:
    """An array whose offsets lie inside its data: pyarrow itself would read beyond it."""
    if array is None:
        raise FormatError(f"is damaged: it ends before row {row}; fetch or write it again")
    if str(array.type).startswith("dictionary"):
        array = array.dictionary_decode()
    array = array.cast("large_binary" if "large" in str(array.type) else "binary")
    array.validate(full=True)
    return array


def choose_column(columns: Columns, wanted: str | None, where: str) -> str:
    """The column to pack as text: ``wanted``; else ``text``; else the only one of strings.

    Raises:
        CorpusError: there is none, or several.
    """
    if wanted is not None:
        if columns.get(wanted) in _STRINGS | _BYTES:
            return wanted
        what = f"is {columns[wanted]}, expected strings" if wanted in columns else "is not there"
        raise CorpusError(f"{where} has {_listed(columns)}: column {wanted!r} {what}")
    strings = [name for name, held in columns.items() if held in _STRINGS]
    if columns.get("text") in _STRINGS | _BYTES:
        return "text"
    if len(strings) == 1:
        return strings[0]
    if strings:
        listed = ", ".join(map(repr, strings))
        raise CorpusError(f"{where} has several columns of strings: {listed}; pass --text-field")
    raise CorpusError(f"{where} has {_listed(columns)}: none holds strings, so there is no text")


def _listed(columns: Columns) -> str:
    if not columns:
        return "no columns"
    return f"columns {', '.join(f'{name!r} ({held})' for name, held in columns.items())}"[:300]


def columns_of(schema: Any) -> Columns:
    """What an Arrow schema holds; a dictionary of strings is strings."""
    return {field.name: _type_name(field.type) for field in schema}


def _type_name(held: Any) -> str:
    name = str(held)
    return str(held.value_type) if name.startswith("dictionary") else name


def _run_sizes(pieces: list[tuple[int, int]]) -> Iterator[tuple[int, list[int]]]:
    """(first row, bytes of each row) of runs: the rows of a piece count alike."""
    start = 0
    for num_rows, num_bytes in pieces:
        for left in range(num_rows, 0, -RUN_ROWS):
            count = min(left, RUN_ROWS)
            yield start, [num_bytes // num_rows] * count
            start += count


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
    try:
        yield
    except (FormatError, CorpusError):
        raise
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        RuntimeError,
        EOFError,
        KeyError,
        IndexError,
        OverflowError,
        MemoryError,
    ) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        what = str(error).partition("\n")[0] or type(error).__name__
        raise FormatError(f"is damaged: {what}; fetch or write it again"[:400]) from error
