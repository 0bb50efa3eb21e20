"""``metadata.csv``, ``.jsonl`` and ``.parquet``, as Hugging Face's imagefolder wants them: found,
and read as rows.

A file lies in the folder that the paths in it are relative to: at the top, in a split, or below.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from os.path import isfile
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError, StorageError
from shardkit.inputs.folders import peek, split_of
from shardkit.inputs.names import extension, join
from shardkit.inputs.roles import role_of
from shardkit.inputs.tables.table_files import ClosedFile, arrow_errors
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

METADATA_NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")

MAX_FOLDERS = 256
"""Looked into for annotation files, at most, of those at one place."""

HEAD_ROWS = 64
"""Rows read to tell what a file is."""

FileRow = dict[str, Any]
"""A row: column -> value; None, or no entry, where there is none."""


def shallow_folders(source: Path) -> list[str]:
    """The source, its folders, and theirs where those are called as splits, or as what holds
    pictures or annotations: where annotation files are looked for."""
    tops = peek(source, "", frozenset()).folders[:MAX_FOLDERS]
    found = ["", *tops]
    for name in tops:
        if is_known(name):
            below = peek(source, name, frozenset()).folders[:MAX_FOLDERS]
            found += [f"{name}/{each}" for each in below]
    return found


def is_known(name: str) -> bool:
    """Whether a folder is called as a split, or as what holds pictures or annotations."""
    is_data = name.lower().startswith(("annotation", "data"))
    return is_data or split_of(name) is not None or role_of(name) != ""


def find_metadata(source: Path) -> list[str]:
    """The metadata files of a source, relative to it.

    Raises:
        CorpusError: one folder holds several.
    """
    found = []
    for base in shallow_folders(source):
        own = [join(base, name) for name in METADATA_NAMES if isfile(source / base / name)]
        if len(own) > 1:
            raise CorpusError(
                f"{show_path(source)} holds {' and '.join(map(show_path, own))}, which would both"
                " name the pictures there; keep one"
            )
        found += own
    return found


def is_file_column(column: str) -> bool:
    """Whether a column names a file of each row: ``file_name``, ``mask_file_name``."""
    return column == "file_name" or column.endswith("_file_name")


def names_files(path: Path) -> bool:
    """Whether one of the first rows names a file that is there: else it is a table like others.

    Raises:
        CorpusError: the file cannot be read.
    """
    with _errors(path):
        rows = islice(_rows(path), HEAD_ROWS)
        named = (cell for row in rows for column, cell in row.items() if is_file_column(column))
        return any(isinstance(cell, str) and isfile(path.parent / cell) for cell in named)


def first_columns(path: Path) -> list[str]:
    """The columns that the beginning of a file tells of; those of a later line may be more.

    Raises:
        CorpusError: the file cannot be read.
    """
    with _errors(path):
        if extension(path.name) == ".parquet":
            return [*_parquet(path).schema_arrow.names]
        if extension(path.name) == ".csv":
            with path.open(newline="", encoding="utf-8-sig") as lines:
                return _header(csv.reader(lines, strict=True))
        return [column for row in islice(_json_rows(path), 1) for column in row]


def read_rows(path: Path) -> list[FileRow]:
    """All rows of a file.

    Raises:
        CorpusError: it cannot be read, or its rows and columns do not fit.
        StorageError: the system refused.
    """
    with _errors(path):
        return [*_rows(path)]


def _rows(path: Path) -> Iterator[FileRow]:
    """Yield rows, with slashes in names of files, unless a file's own name has the backslashes."""
    for row in _READERS[extension(path.name)](path):
        for column in filter(is_file_column, row):
            name = row[column]
            if isinstance(name, str) and "\\" in name and not isfile(path.parent / name):
                row[column] = name.replace("\\", "/")
        yield row


def _csv_rows(path: Path) -> Iterator[FileRow]:
    """Rows by the names in the header; an empty cell is None."""
    with path.open(newline="", encoding="utf-8-sig") as lines:
        reader = csv.reader(lines, strict=True)
        header = _header(reader)
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise ValueError(
                    f"line {reader.line_num} has {len(row)} columns, and the header {len(header)}"
                )
            yield {name: cell or None for name, cell in zip(header, row, strict=True)}


def _header(reader: Iterator[list[str]]) -> list[str]:
    names = [name.strip() for name in next(reader, [])]
    _refuse_repeated(names)
    return names


def _json_rows(path: Path) -> Iterator[FileRow]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line, object_pairs_hook=_unique)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"line {number}: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is no JSON object")
            yield row


def _parquet_rows(path: Path) -> Iterator[FileRow]:
    with arrow_errors(path):
        file = _parquet(path)
        _refuse_repeated(file.schema_arrow.names)
        for batch in file.iter_batches(use_threads=False):
            yield from batch.to_pylist()


_READERS: dict[str, Callable[[Path], Iterator[FileRow]]] = {
    ".csv": _csv_rows,
    ".jsonl": _json_rows,
    ".parquet": _parquet_rows,
}


def _parquet(path: Path) -> Any:
    with arrow_errors(path):
        from pyarrow import parquet

        return parquet.ParquetFile(ClosedFile(path))


def _unique(pairs: list[tuple[str, Any]]) -> FileRow:
    _refuse_repeated([name for name, _ in pairs])
    return dict(pairs)


def _refuse_repeated(names: list[str]) -> None:
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is there twice")


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Turn what reading raises into a CorpusError that names the file."""
    where = show_path(path)
    with os_errors(f"reading {where}"):
        try:
            yield
        except (CorpusError, StorageError):
            raise
        except (ValueError, csv.Error) as error:
            raise CorpusError(
                f"{where} cannot be read: {error}; mend it, move it away, or choose another"
                " --corpus"
            ) from error
