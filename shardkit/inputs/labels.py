"""``--labels``: class labels from a table that names files, where folders do not give them."""

from __future__ import annotations

import csv
import json
import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from os.path import isfile
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError, DataError
from shardkit.inputs.files import extension, join
from shardkit.inputs.look import Look
from shardkit.system.full_reads import pread
from shardkit.system.opening import open_file
from shardkit.system.paths import first_few, show_path

TABLE_ENDINGS = (".csv", ".tsv", ".txt", ".json")

RECIPES = "docs/recipes/labels.md"

_DELIMITERS = {".csv": ",\t;", ".tsv": "\t", ".txt": "\t,;"}
"""Looked for in the first line, in this order."""

_INDEX = re.compile(r"-?(0|[1-9][0-9]{0,17})")
"""A label that is a class index as it stands; ``007`` is a name."""

_BREAKS = re.compile("[\\n\\r\\0]")

_USUAL = ("label", "class", "category", "species", "breed", "target", "diagnosis", "dx", "name")
"""In titles of label columns, the likeliest first."""

HEAD_ROWS = 64
"""Rows that decide which column is which; all rows, if none of these names a file."""

Folder = tuple[str, str, list[str]]
"""A split, a folder of it relative to the source, and the samples' names in that."""

Row = tuple[int, Sequence[Any]]
"""The number of a row in the table, from 1, and its cells."""


class _Files:
    """The samples' files, found by their paths or by any end of them."""

    def __init__(self, folders: Sequence[Folder]) -> None:
        self.split_of: dict[str, str] = {}
        self._named: dict[str, list[str]] = {}
        self._stems: dict[str, list[str]] = {}
        self.moved = ""
        for split, base, names in folders:
            for name in names:
                path = join(base, name)
                self.split_of[path] = split
                self._named.setdefault(name, []).append(path)
                self._stems.setdefault(name.rpartition(".")[0] or name, []).append(path)

    def find(self, cell: str) -> list[str]:
        """Return the files that a cell may mean: a path from anywhere above or below the source,
        with either slash, or a bare name, with its ending or without."""
        if cell in self.split_of:
            return [cell]
        if "://" in cell:
            return []
        path = posixpath.normpath(cell.replace("\\", "/"))
        if path in self.split_of:
            return [path]
        folders = [part for part in path.split("/")[:-1] if part not in ("", "..")]
        for known in (self._named, self._stems):
            found = known.get(path.rpartition("/")[2], [])
            if found := [each for each in found if _ends_alike(each.split("/")[:-1], folders)]:
                return found
        return []


def _ends_alike(one: Sequence[str], other: Sequence[str]) -> bool:
    shared = min(len(one), len(other))
    return one[len(one) - shared :] == other[len(other) - shared :]


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


def read_labels(given: str, folders: Iterable[Folder], extensions: frozenset[str]) -> Labels:
    """Return the labels of the files in some folders, by ``FILE`` or ``FILE:COLUMN``.

    A first row that names no file and ends as none is a header.

    Raises:
        CorpusError: the table cannot be read, or does not fit the files.
    """
    file, column = split_option(given)
    where = show_path(file)
    files = _Files([*folders])
    try:
        columns = _choose_columns(file, column, files, extensions)
        labels, num_rest = _collect(file, columns, files)
    except CorpusError:
        raise
    except OSError as error:
        raise CorpusError(f"{where} cannot be read: {error.strerror}") from error
    except (csv.Error, ValueError, RecursionError) as error:
        raise CorpusError(f"{where} is no {extension(file.name)} file: {error}") from error
    where = where if column is None else f"{where}:{column}"
    names = sorted({label for label, _ in labels})
    made = Labels(None if all(map(_INDEX.fullmatch, names)) else names, where)
    index = {name: int(name) if made.classes is None else i for i, name in enumerate(names)}
    made._indices = {path: index[label] for label, path in labels if path}
    _check_splits(made, files)
    made.notes[:0] = _notes(made, num_rest, len(labels))
    if files.moved:
        made.notes.append(f"paths in {where} are not those from the source on: {files.moved}")
    return made


def split_option(given: str) -> tuple[Path, str | None]:
    """Return the file and the column of ``FILE:COLUMN``; a file may have a colon in its path."""
    parts = given.split(":")
    cuts = [(":".join(parts[:i]), ":".join(parts[i:])) for i in range(len(parts), 0, -1)]
    there = [cut for cut in cuts if isfile(cut[0])]
    named = [cut for cut in cuts if extension(cut[0]) in TABLE_ENDINGS]
    file, column = [*there, *named, cuts[0]][0]
    return Path(file), column if len(file) < len(given) else None


def _read_rows(file: Path) -> Iterator[Row]:
    ending = extension(file.name)
    if ending not in TABLE_ENDINGS:
        raise CorpusError(
            f"{show_path(file)}: labels must be a {', '.join(TABLE_ENDINGS)} file of path,label"
        )
    if file.exists() and not file.is_file():
        raise CorpusError(f"{show_path(file)} is no regular file")
    with file.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as lines:
        if ending == ".json":
            pairs = json.load(lines, object_pairs_hook=_Pairs)
            if not isinstance(pairs, _Pairs):
                raise ValueError("expected one JSON object of path: label")
            yield from enumerate(pairs, 1)
            return
        first = next((line for line in lines if line.strip()), "")
        lines.seek(0)
        delimiter = next((sign for sign in _DELIMITERS[ending] if sign in first), "")
        if not delimiter and ending == ".txt" and first:
            raise CorpusError(
                f"{show_path(file)}: its cells are separated by blanks; write it as .csv, as"
                f" {RECIPES} shows"
            )
        rows = csv.reader(lines, delimiter=delimiter or ",")
        yield from ((number, row) for number, row in enumerate(rows, 1) if row)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object whose repeated keys are not lost."""


@dataclass(frozen=True)
class _Columns:
    """The columns of file names and of labels, how many there are, and if there is a header."""

    names: int
    label: int
    count: int
    has_header: bool


def _choose_columns(
    file: Path, column: str | None, files: _Files, extensions: frozenset[str]
) -> _Columns:
    where = show_path(file)
    for most in (HEAD_ROWS, None):
        head = [row for _, row in islice(_read_rows(file), most)]
        if not head:
            raise CorpusError(f"{where} holds no labels")
        count = len(head[0])
        if count < 2:
            raise CorpusError(f"{where}: entry 1 has {count} columns, expected path,label or more")
        whole = [row for row in head if len(row) == count]
        names = _names_column(where, whole, files, column)
        if names is not None:
            break
    else:
        got = ",".join(map(str, head[-1]))[:100]
        raise CorpusError(
            f"{where} has no label for any of the files, the first of them"
            f" {show_path(next(iter(files.split_of), ''))}: none of its columns names one, as in"
            f" {got!r}; a column must hold paths or bare file names, with their endings or without"
        )
    first = str(whole[0][names]).strip()
    others = {extension(str(row[names])) for row in whole[1:]} & extensions
    names_file = bool(files.find(first)) and not (others and extension(first) not in others)
    ends_so = bool(extension(first)) and extension(first) in extensions | others
    has_header = extension(file.name) != ".json" and not names_file and not ends_so
    titles = [str(cell).strip() if has_header else str(i) for i, cell in enumerate(whole[0], 1)]
    rest = [i for i in range(count) if i != names]
    if column is None and count == 2:
        return _Columns(names, rest[0], count, has_header)
    label = None
    if column is not None and titles.count(column) == 1:
        label = titles.index(column)
    elif column is not None and column.isascii() and column.isdigit() and 0 < int(column) <= count:
        label = int(column) - 1
    if label == names:
        raise CorpusError(
            f"{where}: column {column!r} is the one that names files, as {whole[-1][names]!r}; say"
            " which holds the labels"
        )
    if label is None:
        had = f"{count} columns" if column is None else f"no one column {column!r}"
        words = (i for usual in _USUAL for i in rest if usual in titles[i].lower())
        example = option(file, titles[next(words, rest[0])])
        shown = [titles[i] if has_header else f"{titles[i]} ({whole[0][i]})" for i in rest]
        raise CorpusError(
            f"{where} has {had}{'' if has_header else ', and no header'}; say which holds the"
            f" labels, as in {example}; there are {first_few(shown, 12)}"
        )
    return _Columns(names, label, count, has_header)


def _names_column(
    where: str, rows: Sequence[Sequence[Any]], files: _Files, column: str | None
) -> int | None:
    """Return the column of which most cells name files; those with endings count first."""
    scores = []
    for i in range(len(rows[0])):
        cells = {str(row[i]) for row in rows} if str(rows[0][i]).strip() != column else set()
        found = [cell for cell in cells if files.find(cell)]
        scores.append((sum(bool(extension(cell)) for cell in found), len(found)))
    best = max(range(len(scores)), key=scores.__getitem__)
    if not scores[best][1]:
        return None
    for i, score in enumerate(scores):
        rivals = i != best and (2 * score[0] > scores[best][0] or not scores[best][0])
        if rivals and 2 * score[1] > scores[best][1] and any(r[i] != r[best] for r in rows):
            one, other = (repr(str(rows[0][k]).strip()) for k in sorted((i, best)))
            raise CorpusError(
                f"{where}: columns {one} and {other} both name files; say which holds the labels,"
                " as FILE:COLUMN, or leave one out in a copy"
            )
    return best


def _collect(file: Path, columns: _Columns, files: _Files) -> tuple[list[tuple[str, str]], int]:
    """Return (label, path) of all rows, ``""`` for no file here; and how many those are.

    Raises:
        CorpusError: a row has other columns, means several files, or labels a file anew.
    """
    where = show_path(file)
    found: list[tuple[str, str]] = []
    held: dict[str, tuple[int, str]] = {}
    for number, row in islice(_read_rows(file), int(columns.has_header), None):
        if len(row) != columns.count:
            raise CorpusError(
                f"{where}: entry {number} has {len(row)} columns, expected {columns.count} as in"
                " the first"
            )
        cell, raw = str(row[columns.names]), row[columns.label]
        if isinstance(raw, bool) or not isinstance(raw, str | int):
            raise CorpusError(
                f"{where}: entry {number}: a label must be a number or a name, got {raw!r:.40}"
            )
        label = str(raw).strip()
        if not label:
            raise CorpusError(f"{where}: entry {number}: the label is empty")
        if broken := next((text for text in (cell, label) if _BREAKS.search(text)), ""):
            raise CorpusError(
                f"{where}: {broken[:60]!r} has a line break in it; a quote before it is not closed"
            )
        paths = files.find(cell)
        if len(paths) > 1:
            raise CorpusError(
                f"{where}: {show_path(cell)} fits both {show_path(paths[0])} and"
                f" {show_path(paths[1])}; label files by their path relative to the source"
            )
        path = paths[0] if paths else ""
        name = path or cell
        if path and re.search(r"[/\\\\]", cell) and not path.startswith(posixpath.normpath(cell)):
            files.moved = files.moved or f"{cell!r} is taken for {show_path(path)}"
        if held.setdefault(name, (number, label))[1] != label:
            raise CorpusError(
                f"{where} has several rows for one file: entry {number} labels {show_path(name)}"
                f" {label!r}, entry {held[name][0]} {held[name][1]!r}; write one row a file"
            )
        found.append((label, path))
    if not found:
        raise CorpusError(f"{where} holds no labels")
    return found, sum(not path for _, path in found)


def _check_splits(made: Labels, files: _Files) -> None:
    """Raise CorpusError unless all or none of the files of each split have labels."""
    missing: dict[str, list[str]] = {}
    for path, split in files.split_of.items():
        if path not in made._indices:
            missing.setdefault(split, []).append(path)
    labelled = {files.split_of[path] for path in made._indices}
    if lacking := [path for split, own in missing.items() if split in labelled for path in own]:
        raise CorpusError(
            f"{made.where} has no label for {len(lacking):,} of the files, the first of them"
            f" {show_path(lacking[0])}; add them, as path relative to the source or bare file name"
        )
    made.without = {*missing}
    made.notes += [
        f"no cls in {split}: {made.where} has no label for any of its {len(own):,}"
        f" file{'s' * (len(own) != 1)}"
        for split, own in missing.items()
    ]


def _notes(made: Labels, num_rest: int, num_rows: int) -> Iterator[str]:
    used = {*made._indices.values()}
    if made.classes is None:
        count = f"{len(used):,} number{'s' * (len(used) != 1)}"
        yield f"cls is as {made.where} has it: {count}, {min(used)} to {max(used)}"
    if num_rest:
        are = "is" if num_rest == 1 else "are"
        yield f"{num_rest:,} of the {num_rows:,} names there {are} of no file here"
    unused = [name for i, name in enumerate(made.classes or ()) if i not in used]
    if unused:
        yield (
            f"no sample is of {len(unused):,} of these classes, which {made.where} has:"
            f" {first_few(unused)}"
        )
    if len(used) == 1:
        yield f"all labels are the same; look whether {made.where} is what you mean"


# --- tables that nobody asked for ---------------------------------------------------------


def option(file: Path, column: str | None = None) -> str:
    """Return ``--labels`` for a file, as a shell takes it."""
    text = show_path(file) if column is None else f"{show_path(file)}:{column}"
    return f"--labels {shlex.quote(text)}"


MOST_FILES = 16
"""Tables, and folders whose names they may hold, that are looked at."""


def label_notes(source: Path, names: Sequence[str], folders: Sequence[str]) -> list[str]:
    """Return one line for each table at the top of ``source`` whose first rows name samples.

    ``train.csv`` next to ``train_images/`` is passed over like any file of another kind, and a
    dataset without its labels would look complete.
    """
    tables = [name for name in names if extension(name) in TABLE_ENDINGS][:MOST_FILES]
    if not tables:
        return []
    look, known = Look(source), set[str]()
    for base in ("", *folders[:MOST_FILES]):
        below = look.list(base)
        names = below.names or [
            n for f in below.folders[:1] for n in look.list(join(base, f)).names
        ]
        known |= {name for name in names if extension(name) not in TABLE_ENDINGS}
    known |= {name.rpartition(".")[0] for name in known} - {""}
    looks = [name for name in tables if known & _first_cells(source / name)]
    return [
        f"{show_path(name)} looks like labels, and is passed over: {option(source / name)} takes a"
        f" table of path,label; for others see {RECIPES}"
        for name in looks
    ]


def _first_cells(file: Path) -> set[str]:
    """Return names in the first rows of a table; none of one that cannot be read."""
    try:
        with closing(open_file(file)) as opened:
            head = pread(opened.fd, 1 << 16, 0).decode("utf-8-sig", "ignore")
    except (OSError, DataError):
        return set()
    cells = {cell.strip(' "') for line in head.splitlines()[:HEAD_ROWS] for cell in _cells(line)}
    return {cell.rpartition("/")[2] for cell in cells}


def _cells(line: str) -> list[str]:
    return re.split(r"[,;\t{}:]", line) + line.split()[:1]
