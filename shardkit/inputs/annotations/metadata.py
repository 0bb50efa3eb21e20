"""Files that a table names: ``metadata.csv``, ``.jsonl``, ``.parquet``, or ``captions.txt``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError
from shardkit.inputs.annotations.listed import (
    ListedCorpus,
    ListedRow,
    annotation_folders,
    below_split,
    folders_of,
    place_names,
)
from shardkit.inputs.file_parts import MAIN, Scalar, view_of
from shardkit.inputs.files import extension, input_stamp, join
from shardkit.inputs.folders import split_folders, split_of
from shardkit.inputs.guards import role_of
from shardkit.inputs.look import Claim, Look, Strength
from shardkit.inputs.tables.columns import LABEL_NAMES
from shardkit.inputs.tables.small_tables import TableRow, read_rows
from shardkit.system.paths import first_few, show_path

_NAME = re.compile(r"metadata\.(csv|jsonl|parquet)|captions\.(csv|txt)", re.IGNORECASE)

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,3})?")
"""The notation of numbers; ``007`` is a name."""

_ARCHIVES = frozenset({".zip", ".tar", ".tgz", ".7z", ".rar", ".gz", ".zst"})


class MetadataCorpus(ListedCorpus):
    """Rows of a table, each a sample: the file that ``file_name`` names, those that
    ``*_file_name`` name, and the other columns, each a field of its own.

    A column of numbers is ``<column>.npy``, one of text ``<column>.txt``, anything else
    ``<column>.json``; the column ``text``, or ``caption``, is ``txt``, and whole numbers called
    ``label`` are ``cls``, unless class folders give it. In a file of captions the first column
    names the images; several rows of one image are ``captions.json``.
    """

    kind = "metadata"
    has_text = True
    noun = "files named by a table"

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        self.files = {file: input_stamp(source / file) for file in find_tables(Look(source))}
        tables = {file: _read(source / file) for file in self.files}
        where = f"{show_path(source)}: {first_few([*tables])}"
        rows = [row for own in tables.values() for row in own]
        columns = [*dict.fromkeys(column for row in rows for column in row)]
        named = sorted(filter(_names_files, columns), key=lambda column: column != "file_name")
        self._views = {c: view_of(c[:-10]) if c != "file_name" else "" for c in named}
        if rows and not named:
            raise CorpusError(f"{where} has no column file_name, which names the file of each row")
        folders = folders_of(source, (str(row[c]) for row in rows for c in named if row.get(c)))
        for file, own in tables.items():
            self._add(file, own, folders)
        self.classes = self._folder_classes()
        self._columns: dict[str, tuple[str, _Convert]] = {}
        is_text = not {*map(extension, tables)} <= {".jsonl", ".parquet"}
        text = next((one for one in ("text", "caption") if one in columns), None)
        for name in (column for column in columns if column not in named):
            cells = [cell for row in rows if (cell := row.get(name)) is not None]
            ending, convert = choose_form(cells, is_text)
            if not name or not ending:
                why = "it is empty, or not what JSON holds"
                self.told.append(f"column {name!r} is left out: {why}")
                continue
            field = "txt" if name == text and ending == "txt" else f"{view_of(name)}.{ending}"
            is_class = convert is int and all(abs(int(cell)) < 10**18 for cell in cells)
            is_label = name.lower() in LABEL_NAMES
            if is_label and is_class and self.classes is None:
                field, convert = "cls", str
            elif is_label:
                self.told.append(f"column {name!r} is field {field}, and not cls")
            if field in [own for own, _ in self._columns.values()]:
                raise CorpusError(f"{where}: two columns would be field {field!r}; rename {name!r}")
            self._columns[name] = field, convert

    def spec(self) -> dict[str, Any]:
        fields = {name: field for name, (field, _) in self._columns.items()}
        return {**super().spec(), "annotations": {file: {"fields": fields} for file in self.files}}

    def values(self, row: ListedRow) -> dict[str, Scalar]:
        return {
            field: convert(row.record[name])
            for name, (field, convert) in self._columns.items()
            if row.record.get(name) is not None
        }

    def label_of(self, row: ListedRow) -> int | None:
        folder = below_split(row.split, row.parts[0][1]).partition("/")[0]
        return None if self.classes is None else self.classes.index(folder)

    def _add(self, file: str, rows: Sequence[TableRow], folders: dict[str, list[str]]) -> None:
        top = Look(self.source).top
        has_mains = any(extension(name) in MAIN for name in top.names)
        splits = {} if has_mains else split_folders(top.folders) or {}
        paths: dict[str, dict[str, str]] = {}
        for column in self._views:
            names = [*dict.fromkeys(str(row[column]) for row in rows if row.get(column))]
            paths[column] = dict(zip(names, place_names(names, folders, file), strict=False))
            if len(paths[column]) < len(names):
                what = f"{len(names):,} files ({show_path(names[0])}, ...), and none is there"
                raise CorpusError(f"{show_path(file)} names {what}; fetch or rename them")
        for number, row in enumerate(rows, 1):
            own = {view: paths[c][str(row[c])] for c, view in self._views.items() if row.get(c)}
            if not own:
                raise CorpusError(f"{show_path(file)}: row {number} names no file; remove it")
            split = splits.get(next(iter(own.values())).partition("/")[0], "train")
            self.add(ListedRow(split, (file,), tuple(own.items()), row))

    def _folder_classes(self) -> list[str] | None:
        """Return class folders: two at least, that hold all files, of no other role."""
        below = [below_split(row.split, path).partition("/") for path, row in self.rows.items()]
        names = sorted({name for name, _, _ in below})
        is_odd = any(role_of(name) or split_of(name) for name in names)
        if len(names) < 2 or is_odd or not all(slash for _, slash, _ in below):
            return None
        self.told.append(
            f"class numbers are those of the {len(names):,} folders: {first_few(names)}"
        )
        return names

    @classmethod
    def claim(cls, look: Look) -> Claim | None:
        for file in find_tables(look):
            rows = _read(look.path(file), 64)
            names = [str(row[c]) for row in rows for c in row if _names_files(c) and row[c]]
            base = file.rpartition("/")[0]
            seen = {name for folder in look.folders for name in folder.names}
            last = {name.replace("\\", "/").rpartition("/")[2] for name in names}
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


def _read(path: Path, most: int | None = None) -> list[TableRow]:
    """Return rows; those of captions have a column ``file_name``, and one row a file."""
    if not path.name.lower().startswith("caption"):
        return read_rows(path, most)
    texts: dict[str, list[str]] = {}
    try:
        rows = read_rows(path, most)
        header = [[*rows[0]]] if rows and extension(next(iter(rows[0]))) in MAIN else []
        for name, *cells in [*header, *(row.values() for row in rows)]:
            if len(cells) == 1 and extension(str(name)) in MAIN:
                texts.setdefault(name, []).append(cells[0] or "")
    except CorpusError:
        if most is None:  # else it is a file of something else
            raise
    if any(len(own) > 1 for own in texts.values()):
        return [{"file_name": name, "captions": own} for name, own in texts.items()]
    return [{"file_name": name, "caption": own[0]} for name, own in texts.items()]


def _names_files(column: str) -> bool:
    return column == "file_name" or column.endswith("_file_name")


_Convert = Callable[[Any], Scalar]


def choose_form(cells: Sequence[Any], is_text: bool) -> tuple[str, _Convert]:
    """Return the ending of a column's field, and what makes values of cells; ``""`` if it is left
    out. Where all cells are text, those that are written as numbers are some."""
    kinds = {*map(type, cells)}
    if is_text and kinds == {str}:
        if all(map(_INTEGER.fullmatch, cells)):
            return "npy", int
        return ("npy", float) if all(map(_is_number, cells)) else ("txt", str)
    if kinds == {bool}:
        return "npy", bool
    if kinds == {int} and all(-(2**63) <= cell < 2**63 for cell in cells):
        return "npy", int
    if kinds and kinds <= {int, float} and all(abs(c) < 2**53 for c in cells if type(c) is int):
        return "npy", float
    try:
        if kinds == {str}:
            "".join(cells).encode()
            return "txt", str
        json.dumps(cells)
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON has
        return "json", json.dumps
    except (TypeError, ValueError, RecursionError):
        return "", str
    return "json" if cells else "", json.dumps


def _is_number(cell: str) -> bool:
    """Return True if the nearest double is written as the cell is: 20 digits of an id are not."""
    return _NUMBER.fullmatch(cell) is not None and Decimal(repr(float(cell))) == Decimal(cell)
