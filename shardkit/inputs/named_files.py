"""Tables whose cells name files, and ``--labels``, which are one."""

from __future__ import annotations

import csv
import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from os.path import isfile
from pathlib import Path
from typing import BinaryIO

from shardkit.errors import CorpusError, StorageError
from shardkit.inputs.files import DOCUMENTS, extension, join, stem
from shardkit.system.paths import first_few, show_path
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
        *folders, name = parts
        has_ending = extension(name) in self.endings
        found = []
        for path in self._by_stem.get(_stem(name) if has_ending else name, ()):
            *above, own = path.split("/")
            shared = min(len(above), len(folders))
            ends = [names[len(names) - shared :] for names in (above, folders)]
            found += [path] if ends[0] == ends[1] and own == (name if has_ending else own) else []
        return found


def parts_of(cell: str) -> list[str]:
    """Return the names that a cell's path is made of."""
    return [part for part in cell.replace("\\", "/").split("/") if part not in ("", ".", "..")]


def _stem(path: str) -> str:
    name = path.rpartition("/")[2]
    return name.rpartition(".")[0] or name


TABLE_ENDINGS = (".csv", ".tsv", ".txt")

RECIPES = "docs/recipes/labels.md"

_INDEX = re.compile(r"-?(0|[1-9][0-9]{0,17})")
"""A label that is a class index as it stands; ``007`` is a name."""


@dataclass
class Labels:
    """Class indices of samples, by the path of a file.

    Attributes:
        classes: the sorted label names; None where the labels are indices already.
        where: file and column, for messages.
        without: splits without any label.
        notes: what there is to say besides, one line each.
    """

    classes: list[str] | None
    where: str
    without: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    _indices: dict[str, int] = field(default_factory=dict)

    def of(self, base: str, names: Sequence[str]) -> list[int | None]:
        """Return the class index of each file in a folder; None for one without a label."""
        return [self._indices.get(join(base, name)) for name in names]


def read_labels(given: str, folders: Iterable[tuple[str, str, list[str]]]) -> Labels:
    """Return the labels of the files in some folders, by ``FILE`` or ``FILE:COLUMN``. ``folders``
    are (split, place relative to the source, names of samples).

    A first row that names no file and ends as none is a header.

    Raises:
        CorpusError: the table cannot be read, or does not fit the files.
    """
    path, _, column = (given, "", "") if isfile(given) else given.rpartition(":")
    file, where = Path(path or given), show_path(path or given)
    if extension(file.name) not in TABLE_ENDINGS:
        what = f"labels must be a {', '.join(TABLE_ENDINGS)} file of path,label"
        raise CorpusError(f"{where}: {what}; for others see {RECIPES}")
    rows = read_cells(file)
    if not rows:
        raise CorpusError(f"{where} holds no labels")
    if len(rows[0]) < 2:
        what = "holds no two columns with a comma, a semicolon or a tab between them"
        raise CorpusError(f"{where} {what}; write it as .csv, as {RECIPES} shows")
    split_of = {join(base, name): split for split, base, names in folders for name in names}
    files = NamedFiles(split_of)
    own, at, has_header = _find_columns(file, rows, files, column)
    made = Labels(None, f"{where}:{column}" if column else where)
    held = _collect(made, [(row[own], row[at].strip()) for row in rows[has_header:]], files)
    names = sorted({*held.values()})
    if not all(map(_INDEX.fullmatch, names)):
        made.classes = names
    index = {name: i if made.classes else int(name) for i, name in enumerate(names)}
    made._indices = {path: index[label] for path, label in held.items() if path in split_of}
    if made.classes is None:
        numbers = f"{min(index.values())} to {max(index.values())}"
        made.notes.insert(0, f"cls is as {made.where} has it: {numbers}")
    _check_splits(made, split_of)
    return made


def _find_columns(
    file: Path, rows: Sequence[Sequence[str]], files: NamedFiles, column: str
) -> tuple[int, int, bool]:
    """Return the column that names the most files, that of the labels, and True if the first row
    is a header.

    Raises:
        CorpusError: none names any, or it is not clear which holds the labels.
    """
    where, titles = show_path(file), [cell.strip() for cell in rows[0]]
    others = [i for i, title in enumerate(titles) if not column or title != column]
    named = {i: {path for row in rows for path in files.find(row[i])} for i in others}
    best, *rest = sorted(named, key=lambda i: -len(named[i])) or [0]
    if not named.get(best):
        got = ",".join(rows[-1])[:100]
        raise CorpusError(
            f"{where} has no label for any of the files, the first of them"
            f" {show_path(min(files.paths, default=''))}: none of its columns names one, as in"
            f" {got!r}; a column must hold paths or bare file names, with their endings or without"
        )
    rival = next((i for i in rest if 2 * len(named[i]) > len(named[best])), best)
    if any(row[best] != row[rival] for row in rows):
        one, other = (repr(titles[i]) for i in sorted((best, rival)))
        raise CorpusError(
            f"{where}: columns {one} and {other} both name files; say which holds the labels, as"
            " FILE:COLUMN, or leave one out in a copy"
        )
    has_header = not files.find(titles[best]) and extension(titles[best]) not in files.endings
    names = titles if has_header else [str(i) for i in range(1, len(titles) + 1)]
    label = None
    if not column and len(names) == 2:
        label = 1 - best
    elif names.count(column) == 1:
        label = names.index(column)
    elif column.isdecimal() and 0 < int(column) <= len(names):
        label = int(column) - 1
    if label is None or label == best:
        shown = [n if has_header else f"{n} ({t})" for n, t in zip(names, titles, strict=True)]
        had = f"no column {column!r} of labels" if column else f"{len(titles)} columns"
        del shown[best], names[best]
        example = shlex.quote(f"{where}:{names[0]}")
        raise CorpusError(
            f"{where} has {had}{'' if has_header else ', and no header'}; say which holds the"
            f" labels, as in --labels {example}; there are {first_few(shown, 12)}"
        )
    return best, label, has_header


def _collect(made: Labels, rows: Sequence[tuple[str, str]], files: NamedFiles) -> dict[str, str]:
    """Return the label of each file, by its path, and of each name that is no file's.

    Raises:
        CorpusError: a row has no label, means several files, or labels a file anew.
    """
    held: dict[str, str] = {}
    moved = ""
    for cell, label in rows:
        if not label:
            raise CorpusError(f"{made.where}: the label of {show_path(cell)} is empty")
        paths = files.find(cell)
        if len(paths) > 1:
            raise CorpusError(
                f"{made.where}: {show_path(cell)} fits both {show_path(paths[0])} and"
                f" {show_path(paths[1])}; label files by their path relative to the source"
            )
        name = paths[0] if paths else cell
        if held.setdefault(name, label) != label:
            raise CorpusError(
                f"{made.where} has several rows for one file: {show_path(name)} is"
                f" {held[name]!r} and {label!r}; write one row a file"
            )
        is_path = re.search(r"[/\\]", cell)
        if paths and is_path and not name.startswith(posixpath.normpath(cell)):
            moved = moved or f"{cell!r} is taken for {show_path(name)}"
    if num_rest := len(held.keys() - files.paths):
        made.notes.append(f"{made.where}: {num_rest:,} of {len(held):,} names are of no file here")
    if moved:
        made.notes.append(f"paths in {made.where} are not those from the source on: {moved}")
    return held


def _check_splits(made: Labels, split_of: dict[str, str]) -> None:
    """Raise CorpusError unless all or none of the files of each split have labels."""
    missing: dict[str, list[str]] = {}
    for path, split in split_of.items():
        if path not in made._indices:
            missing.setdefault(split, []).append(path)
    labelled = {split_of[path] for path in made._indices}
    if lacking := [path for split, own in missing.items() if split in labelled for path in own]:
        raise CorpusError(
            f"{made.where} has no label for {len(lacking):,} of the files, the first of them"
            f" {show_path(lacking[0])}; add them, as path relative to the source or bare file name"
        )
    made.without = {*missing}
    for split, own in missing.items():
        files = f"{len(own):,} file{'s' * (len(own) != 1)}"
        made.notes.append(f"no cls in {split}: {made.where} has no label for any of its {files}")


def label_notes(names: Iterable[str]) -> list[str]:
    """Return a line for files next to images, called ``names``, that may be tables of labels.

    ``train.csv`` next to ``train_images/`` is passed over like any file of another kind, and a
    dataset without its labels would look complete.
    """
    tables = [n for n in names if extension(n) in (*TABLE_ENDINGS, ".json")]
    tables = [name for name in tables if stem(name).lower() not in DOCUMENTS]
    if not tables:
        return []
    are = "is" if len(tables) == 1 else "are"
    return [
        f"{first_few(tables)} may hold labels, and {are} passed over: --labels FILE takes a table"
        f" of path,label; for others see {RECIPES}"
    ]
