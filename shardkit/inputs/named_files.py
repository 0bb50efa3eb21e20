"""Tables of other people whose cells name files, read within bounds, and the files they mean."""

from __future__ import annotations

import csv
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from shardkit.errors import CorpusError, StorageError
from shardkit.inputs.files import extension, join
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

MAX_LINE = 16 << 20
"""Bytes of one line; a longer one is no row of a table."""


def read_cells(path: Path, most: int | None = None) -> list[list[str]]:
    """Return the rows of a text table: all, or the first ones. Commas, semicolons or tabs separate
    cells: whichever is the commonest in the first line.

    Raises:
        CorpusError: it cannot be read, or a row has other columns than the first.
        StorageError: the system refused.
    """
    with open_table(path) as lines:
        first = next((line for line in lines if line.strip()), "")
        signs = "\t" if extension(path.name) == ".tsv" else ",;\t"
        delimiter = max(signs, key=first.count)
        reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
        rows = list[list[str]]()
        for row in islice(filter(None, reader), most):
            rows.append(row)
            if len(row) != len(rows[0]):
                one = f"line {reader.line_num} has {len(row)} columns"
                raise ValueError(f"{one}, and the first {len(rows[0])}")
        return rows


@contextmanager
def open_table(path: Path) -> Iterator[Iterator[str]]:
    """Open a table, and yield its lines; raise what its readers raise as a CorpusError that names
    it.

    Raises:
        CorpusError: it is no regular file, or what is read of it is no table.
        StorageError: the system refused.
    """
    where = show_path(path)
    with os_errors(f"reading {where}"):
        try:
            if not path.is_file():  # opening a FIFO would wait for ever
                raise ValueError("it is no regular file" if path.exists() else "it is not there")
            with path.open("rb") as file:
                yield _lines(file)
        except (CorpusError, StorageError):
            raise
        except (ValueError, csv.Error, RecursionError) as error:
            why = f"{error}; correct it, or move it away"
            raise CorpusError(f"{where} cannot be read: {why}") from error


def _lines(file: BinaryIO) -> Iterator[str]:
    coding = "utf-8-sig"
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), 1):
        if len(line) > MAX_LINE:
            raise ValueError(f"line {number} has over {MAX_LINE:,} bytes")
        yield line.decode(coding)
        coding = "utf-8"


class NamedFiles:
    """Files of a source, found by what cells of a table call them.

    Attributes:
        paths: all of them, relative to the source. endings: those that they have.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = {*paths}
        self.endings = {*map(extension, self.paths)} - {""}
        self._by_stem: dict[str, list[str]] = {}
        for path in sorted(self.paths):
            self._by_stem.setdefault(_stem(path), []).append(path)

    def find(self, cell: str, base: str = "") -> list[str]:
        """Return the files that a cell may mean: a path from the table's folder ``base``, from the
        source, or from anywhere above or below it, with either slash; or a bare name. An ending
        that no file has is a part of the name, and the ending is missing."""
        parts = parts_of(cell)
        if "://" in cell or not parts:
            return []
        path = posixpath.normpath(cell.replace("\\", "/"))
        for exact in (posixpath.normpath(join(base, path)), path, cell):
            if exact in self.paths:
                return [exact]
        if extension(parts[-1]) in self.endings:
            found = [
                path
                for path in self._by_stem.get(_stem(parts[-1]), ())
                if path.rpartition("/")[2] == parts[-1]
            ]
        else:
            found = self._by_stem.get(parts[-1], [])
        return [path for path in found if _ends_alike(path.split("/")[:-1], parts[:-1])]


def parts_of(cell: str) -> list[str]:
    """Return the names that a cell's path is made of."""
    return [part for part in cell.replace("\\", "/").split("/") if part not in ("", ".", "..")]


def _stem(path: str) -> str:
    name = path.rpartition("/")[2]
    return name.rpartition(".")[0] or name


def _ends_alike(one: Sequence[str], other: Sequence[str]) -> bool:
    shared = min(len(one), len(other))
    return one[len(one) - shared :] == other[len(other) - shared :]
