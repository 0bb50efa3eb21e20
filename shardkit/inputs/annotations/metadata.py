"""Files that a table names: ``metadata.csv``, ``.jsonl`` or ``.parquet``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError
from shardkit.inputs.annotations.listed import (
    ListedCorpus,
    ListedRow,
    annotation_folders,
    below_split,
    place_names,
)
from shardkit.inputs.file_parts import MAIN, Scalar, view_of
from shardkit.inputs.files import extension, input_stamp, join
from shardkit.inputs.folders import split_folders
from shardkit.inputs.guards import LABEL_NAMES, notes_on_labels
from shardkit.inputs.look import Claim, Look, Strength
from shardkit.inputs.named_files import open_table, parts_of, read_cells
from shardkit.inputs.tables.tabular import ClosedFile, arrow_errors
from shardkit.system.paths import first_few, show_path

FILE = "file_name"
"""The column that names files, as the Hugging Face hub has it."""

_NAME = re.compile(r"metadata\.(csv|jsonl|parquet)", re.IGNORECASE)

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,3})?")
"""The notation of numbers; ``007`` is a name."""

_ARCHIVES = frozenset({".zip", ".tar", ".tgz", ".7z", ".rar", ".gz", ".zst"})

TableRow = dict[str, Any]
"""Column -> value; None, or no entry, where there is none. Cells of text tables are texts."""


class MetadataCorpus(ListedCorpus):
    """Rows of a table, each a sample: the file that ``file_name`` names, and the other columns,
    each a field of its own.

    A column of numbers is ``<column>.npy``, one of text ``<column>.txt``, anything else
    ``<column>.json``; the column ``text``, or ``caption``, is ``txt``, and whole numbers called
    ``label`` are ``cls``.
    """

    kind = "metadata"
    has_text = True
    noun = "files named by a table"

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        self.files = {file: input_stamp(source / file) for file in find_tables(Look(source))}
        tables = {file: read_rows(source / file) for file in self.files}
        where = f"{show_path(source)}: {first_few([*tables])}"
        rows = [row for own in tables.values() for row in own]
        columns = [*dict.fromkeys(column for row in rows for column in row)]
        if rows and FILE not in columns:
            raise CorpusError(f"{where} has no column {FILE}, which names the file of each row")
        if others := [column for column in columns if column.endswith(f"_{FILE}")]:
            raise CorpusError(
                f"{where}: {first_few(others)} names more files of a row: leave it out, or pack"
                " rows with fn=: docs/recipes/tables.md, Rows that name files"
            )
        top = Look(source).top
        has_mains = any(extension(name) in MAIN for name in top.names)
        splits = {} if has_mains else split_folders(top.folders) or {}
        for file, own in tables.items():
            names = [*dict.fromkeys(str(row[FILE]) for row in own if row.get(FILE))]
            paths = dict(zip(names, place_names(names, self.names, file), strict=False))
            if len(paths) < len(names):
                what = f"{len(names):,} files ({show_path(names[0])}, ...), and none is there"
                raise CorpusError(f"{show_path(file)} names {what}; fetch or rename them")
            for number, row in enumerate(own, 1):
                if not row.get(FILE):
                    raise CorpusError(f"{show_path(file)}: row {number} names no file; remove it")
                path = paths[str(row[FILE])]
                split = splits.get(path.partition("/")[0], "train")
                self.add(path, ListedRow(split, (file,), row))
        self._columns: dict[str, tuple[str, _Convert]] = {}
        is_text = not {*map(extension, tables)} <= {".jsonl", ".parquet"}
        text = next((one for one in ("text", "caption") if one in columns), None)
        for name in (column for column in columns if column != FILE):
            cells = [cell for row in rows if (cell := row.get(name)) is not None]
            ending, convert = choose_form(cells, is_text)
            if not name or not ending:
                why = "it is empty, or not what JSON holds"
                self.told.append(f"column {name!r} is left out: {why}")
                continue
            field = "txt" if name == text and ending == "txt" else f"{view_of(name)}.{ending}"
            if name.lower() in LABEL_NAMES:
                if convert is int and all(abs(int(cell)) < 10**18 for cell in cells):
                    field, convert = "cls", str
                else:
                    self.told += notes_on_labels([name])
            if field in self._fields():
                raise CorpusError(f"{where}: two columns would be field {field!r}; rename {name!r}")
            self._columns[name] = field, convert
        below = [below_split(row.split, path).partition("/") for path, row in self.rows.items()]
        folders = sorted({name for name, slash, _ in below if slash})
        if len(folders) > 1 and "cls" not in self._fields():
            self.told.append(f"no cls: folders are a part of keys ({first_few(folders)})")

    def _fields(self) -> list[str]:
        return [field for field, _ in self._columns.values()]

    def spec(self) -> dict[str, Any]:
        fields = {name: field for name, (field, _) in self._columns.items()}
        return {**super().spec(), "annotations": {file: {"fields": fields} for file in self.files}}

    def values(self, row: ListedRow) -> dict[str, Scalar]:
        return {
            field: convert(row.record[name])
            for name, (field, convert) in self._columns.items()
            if row.record.get(name) is not None
        }

    @classmethod
    def claim(cls, look: Look) -> Claim | None:
        for file in find_tables(look):
            rows = read_rows(look.path(file), 64)
            names = [str(row[FILE]) for row in rows if row.get(FILE)]
            base = file.rpartition("/")[0]
            seen = {name for folder in look.folders for name in folder.names}
            last = {part for name in names for part in parts_of(name)[-1:]}
            if last & seen or any(look.path(join(base, name)).is_file() for name in names):
                what = f"files with the columns of {show_path(file)}"
                return Claim(Strength.MARKED, what, look.count(MAIN))
            archives = [n for n in look.list(base).names if extension(n) in _ARCHIVES]
            if names and archives:
                what = f"names files that are not there; unpack {first_few(archives)} first"
                raise CorpusError(f"{show_path(look.path(file))} {what}")
        return None


def find_tables(look: Look) -> list[str]:
    """Return the tables of a source that are called so.

    Raises:
        CorpusError: one folder holds several.
    """
    found = []
    for base in annotation_folders(look):
        own = [join(base, name) for name in look.list(base).names if _NAME.fullmatch(name)]
        if len(own) > 1:
            both = f"{first_few(own)}, which would both name the files there"
            raise CorpusError(f"{show_path(look.source)} holds {both}; keep one")
        found += own
    return found


def read_rows(path: Path, most: int | None = None) -> list[TableRow]:
    """Return the rows of a table: all, or the first ones.

    Raises:
        CorpusError: it cannot be read, or its rows and columns do not fit.
        StorageError: the system refused.
    """
    with open_table(path) as lines:
        if extension(path.name) == ".parquet":
            return [*islice(_parquet_rows(path), most)]
        if extension(path.name) == ".jsonl":
            rows = []
            for number, line in islice(((i, x) for i, x in enumerate(lines, 1) if x.strip()), most):
                try:
                    rows.append(json.loads(line))
                except ValueError as error:
                    raise ValueError(f"line {number}: {error}") from error
                if not isinstance(rows[-1], dict):
                    raise ValueError(f"line {number} is no JSON object")
            return rows
        header, *cells = read_cells(path, None if most is None else most + 1) or [[]]
        header = _unique([name.strip() for name in header])
        return [{n: c or None for n, c in zip(header, row, strict=True)} for row in cells]


def _parquet_rows(path: Path) -> Iterator[TableRow]:
    with arrow_errors(path):
        from pyarrow import parquet

        file = parquet.ParquetFile(ClosedFile(path))
        _unique(file.schema_arrow.names)
        for batch in file.iter_batches(use_threads=False):
            yield from batch.to_pylist()


def _unique(header: list[str]) -> list[str]:
    if twice := [name for name in header if header.count(name) > 1]:
        raise ValueError(f"{twice[0]!r} is there twice")
    return header


_Convert = Callable[[Any], Scalar]


def choose_form(cells: Sequence[Any], is_text: bool) -> tuple[str, _Convert]:
    """Return the ending of a column's field, and what makes values of cells; ``""`` if it is left
    out. Where all cells are text, those that are written as numbers are some."""
    kinds = {*map(type, cells)}
    if is_text and kinds == {str}:
        if all(map(_INTEGER.fullmatch, cells)):
            return "npy", int
        # The nearest double must be written as the cell is: 20 digits of an id are not.
        if all(_NUMBER.fullmatch(c) and Decimal(repr(float(c))) == Decimal(c) for c in cells):
            return "npy", float
    if kinds == {bool}:
        return "npy", bool
    if kinds == {int} and all(-(2**63) <= cell < 2**63 for cell in cells):
        return "npy", int
    if kinds and kinds <= {int, float} and all(abs(c) < 2**53 for c in cells if type(c) is int):
        return "npy", float
    try:
        json.dumps(cells, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):  # dates, bytes, half of a surrogate pair
        return "", str
    if kinds == {str}:
        return "txt", str
    return "json" if cells else "", json.dumps
