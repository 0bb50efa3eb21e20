"""Files that an annotation file names, each a sample with what the file holds of it; and tables
that name files."""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from shardkit.errors import CorpusError
from shardkit.inputs.corpus import Claim, Look, Run, Strength
from shardkit.inputs.file_parts import (
    MAIN,
    FilePart,
    PartsCorpus,
    PartsEntry,
    Scalar,
    is_part,
    view_of,
)
from shardkit.inputs.files import extension, input_stamp, join, pass_over, walk
from shardkit.inputs.folders import nothing_found, split_folders, split_of
from shardkit.inputs.guards import LABEL_NAMES, notes_on_labels, role_of
from shardkit.inputs.named_files import NamedFiles, open_table, parts_of, read_cells
from shardkit.inputs.tables.tabular import ClosedFile, arrow_errors
from shardkit.system.paths import first_few, show_path

MAX_FOLDERS = 256
"""Looked into for annotation files, at most, of those at one place."""

_Found = dict[str, tuple[int, int]]
"""Path -> its size and stamp, as it was listed."""


class ListedRow(NamedTuple):
    """A sample, as annotation files hold it.

    Attributes:
        split: where it belongs. files: the annotation files that name it.
        record: what the corpus finds its values by.
    """

    split: str
    files: tuple[str, ...]
    record: Any


class ListedCorpus(PartsCorpus):
    """Files that annotation files name, which derived kinds read when they are made.

    Order is that of the folders, not of the annotation file. A named file that is not there is a
    reject, and a file that no row names is passed over, counted and reported.

    Attributes:
        files: path of an annotation file, relative to the source -> its stamp.
        rows: path of a sample's file -> what is held of it.
        told: what there is to report of annotation files.
        names: all files of the source.
    """

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        self.files: dict[str, int] = {}
        self.rows: dict[str, ListedRow] = {}
        self.told: list[str] = []
        self.names = NamedFiles(
            join(folder.base, name)
            for folder in walk(source, measure=False)
            for name in folder.names
        )

    def add(self, path: str, row: ListedRow) -> None:
        """Add the sample of a file. Raises CorpusError if that is in another."""
        try:
            may_be_part = b"\0" not in os.fsencode(path) and is_part(path)
        except UnicodeEncodeError:  # half a surrogate pair
            may_be_part = False
        if not may_be_part:
            what = f"{path[:200]!r}, which cannot be a part of a sample"
            raise CorpusError(f"{first_few(row.files)} names {what}; rename it")
        if path in self.rows:
            why = f"{show_path(path)} is named twice, and a file can belong to one sample only"
            raise CorpusError(f"{first_few(row.files)}: {why}; join the rows, or keep one")
        self.rows[path] = row

    def values(self, row: ListedRow) -> dict[str, Scalar]:
        """Return field -> value of one sample."""
        raise NotImplementedError

    def splits(self) -> list[str]:
        return sorted({row.split for row in self.rows.values()}) or ["train"]

    def runs(self, scratch: Path) -> Iterator[Run]:
        self.ignored.clear()
        if not self.rows:
            raise nothing_found(self.noun, self.source, self.ignored)
        found: _Found = {}
        lost, unnamed = list[str](), list[str]()
        for folder in walk(self.source, "", None, self.ignored):
            lost += [join(folder.base, name) for name in folder.lost]
            for name, known in folder.files().items():
                path = join(folder.base, name)
                found[path] = known
                if path not in self.rows and path not in self.files:
                    pass_over(name, self.ignored)
                    unnamed += [path] if extension(path) in MAIN else []
        self.notes = [f"annotations of {', '.join(map(show_path, self.files))}", *self.told]
        if unnamed:
            self.notes.append(f"{len(unnamed):,} files that it does not name: {first_few(unnamed)}")
        for split in self.splits():
            yield from self.runs_of(split, self._entries(split, found))
            yield from self.runs_of(split, map(self.lost, (p for p in lost if p not in self.rows)))
            lost = []

    def _entries(self, split: str, found: _Found) -> Iterator[PartsEntry]:
        rows = {path: row for path, row in self.rows.items() if row.split == split}
        order = [path for path in found if path in rows]
        order += [path for path in rows if path not in found]
        bare = {path: path.rpartition(".")[0] for path in rows}
        below = {path: below_split(split, one) for path, one in bare.items()}
        # cat/0.jpg may lie next to train-2012/cat/0.jpg, or to cat/0.png.
        unique = (keys for keys in (below, bare) if len({*keys.values()}) == len(keys))
        keys = next(unique, {path: path for path in rows})
        for path in order:
            row = rows[path]
            parts = [FilePart("", path, *found.get(path, (-1, 0)))]
            why = f"{show_path(path)} is named in {first_few(row.files)}, and is not there"
            stamp = sum(self.files[file] for file in row.files)
            held = self.values(row) if path in found else {}
            reason = why * (path not in found)
            yield PartsEntry(keys[path], parts, held, stamp=stamp, reason=reason)


def below_split(split: str, path: str) -> str:
    """Return a path without the folder of its split, if it begins with that."""
    first, slash, rest = path.partition("/")
    return rest if slash and split in (first, split_of(first)) else path


# --- where annotation files lie, and which file a name means -------------------------------


def annotation_folders(look: Look) -> list[str]:
    """Return the source, its folders, and theirs if those are called as splits, images or
    annotations: annotation files are looked for there."""
    if look.is_file:
        return []
    tops = look.top.folders[:MAX_FOLDERS]
    known = [n for n in tops if split_of(n) or role_of(n) or n.startswith(("annotation", "data"))]
    below = [f"{name}/{b}" for name in known for b in look.list(name).folders[:MAX_FOLDERS]]
    return ["", *tops, *below]


def place_names(
    names: Sequence[str], files: NamedFiles, table: str, split: str | None = None
) -> list[str]:
    """Return the paths, relative to the source, of the files that a table names; none if none of
    them is there.

    They lie in one folder, or below it as the names say. It is looked for in the table's own
    folder first, then in those above that; folders of other splits do not count.

    Raises:
        CorpusError: less than half of the files are there, or they may lie in two places.
    """
    where, base = show_path(table), posixpath.dirname(table)
    found = [files.find(name, base) for name in names]
    if split is not None:
        found = [[p for p in own if _may_be_of(posixpath.dirname(p), split)] for own in found]
    while base and not any(path.startswith(f"{base}/") for own in found for path in own):
        base = posixpath.dirname(base)
    found = [[path for path in own if path.startswith(join(base, ""))] for own in found]
    starts: dict[str, str] = {}
    for name, own in zip(names, found, strict=True):
        starts |= {"/".join(path.split("/")[: -len(parts_of(name))]): path for path in own}
    two = next((own[:2] for own in found if len(own) > 1), [*starts.values()][:2])
    if len(two) > 1:
        places = f"{show_path(two[0])} or {show_path(two[1])}"
        advice = "move it into the folder of its files, or write paths from the source on"
        raise CorpusError(f"{where} may name files in two places, as {places}; {advice}")
    num_found = sum(map(bool, found))
    if 0 < 2 * num_found < len(names):
        what = f"{len(names):,} files, of which only {num_found:,} are there"
        raise CorpusError(f"{where} names {what}; fetch the others, or correct the names")
    if not starts:
        return []
    start = next(iter(starts))
    return [
        own[0] if own else join(start, "/".join(parts_of(name)))
        for name, own in zip(names, found, strict=True)
    ]


@cache
def _may_be_of(folder: str, split: str) -> bool:
    """Return True unless a part of a folder's path is called after another split."""
    called = {*map(_alike, folder.split("/"))} - {None}
    return not called or _alike(split) in called


def _alike(name: str) -> str | None:
    split = split_of(name)
    return "val" if split in ("valid", "validation", "dev") else split


# --- tables: metadata.csv, .jsonl or .parquet ------------------------------------------------

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
