"""What becomes of the columns of a metadata file: a field's name and its values. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from shardkit.errors import CorpusError
from shardkit.inputs.annotations.annotated import Scalar
from shardkit.inputs.annotations.metadata_files import FileRow, is_file_column
from shardkit.inputs.annotations.track_plan import view_of

Held = Literal["integer", "number", "truth", "text", "json"]
"""What a column holds."""

TEXTS = ("text", "caption")
"""The first of these columns that is there is the sample's text."""

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
"""As :mod:`shardkit.inputs.labels` has it: ``007`` is a name."""

_NUMBER = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,3})?")

_EXACT = 2**53
"""A double has every integer below."""


@dataclass(frozen=True)
class MetadataColumn:
    """One column: the field it becomes, and what it holds."""

    field: str
    held: Held

    def value(self, cell: Any) -> Scalar:
        """The value of a cell that is not None."""
        if self.held == "json":
            return json.dumps(cell)
        if self.held == "integer":
            return int(cell)
        return float(cell) if self.held == "number" else cell


@dataclass(frozen=True)
class MetadataPlan:
    """All columns. ``files``: those that name files -> view; ``left_out``: others -> why."""

    files: dict[str, str]
    columns: dict[str, MetadataColumn]
    left_out: dict[str, str] = field(default_factory=dict)

    def values(self, row: Mapping[str, Any]) -> dict[str, Scalar]:
        """The values of a row, by field."""
        return {
            column.field: column.value(row[name])
            for name, column in self.columns.items()
            if row.get(name) is not None
        }


def plan_columns(rows: Sequence[FileRow], is_text: bool, where: str) -> MetadataPlan:
    """What becomes of all columns of some rows; ``is_text``: every cell is text, as of a csv.

    Raises:
        CorpusError: no column names files, one names several a row, or two would be one field.
    """
    names = [*dict.fromkeys(name for row in rows for name in row)]
    named = sorted(filter(is_file_column, names), key=lambda name: name != "file_name")
    files = {name: _view(name) for name in named}
    _refuse_lists(names, where)
    if rows and not files:
        raise CorpusError(
            f"{where} has no column file_name, nor any that ends so; name the picture of each row"
            " there, relative to its folder"
        )
    columns: dict[str, MetadataColumn] = {}
    left_out: dict[str, str] = {}
    text = next((name for name in TEXTS if name in names and name not in files), None)
    for name in names:
        if name in files:
            continue
        cells = [cell for row in rows if (cell := row.get(name)) is not None]
        held = _held(cells, is_text) if name else None
        if held is None:
            left_out[name] = _why_not(name, cells)
            continue
        ending = _ENDINGS[held]
        is_first = name == text and ending == "txt"
        columns[name] = MetadataColumn("txt" if is_first else f"{view_of(name)}.{ending}", held)
    _refuse_twins({name: column.field for name, column in columns.items()}, where)
    _refuse_twins(files, where)
    return MetadataPlan(files, columns, left_out)


_ENDINGS: dict[Held, str] = {
    "integer": "npy",
    "number": "npy",
    "truth": "npy",
    "text": "txt",
    "json": "json",
}


def _view(column: str) -> str:
    """``mask_file_name`` gives ``mask``, and ``file_name`` the plain field."""
    name = column.removesuffix("file_name").removesuffix("_")
    return view_of(name) if name else ""


def _held(cells: Sequence[Any], is_text: bool) -> Held | None:
    """What a column of these cells holds; None if it is left out."""
    if not cells or next(_odd(cells), None) is not None:
        return None
    if is_text:
        return _held_as_text(cells)
    kinds = {type(cell) for cell in cells}
    if kinds == {bool}:
        return "truth"
    if kinds == {int} and all(-(2**63) <= cell < 2**63 for cell in cells):
        return "integer"
    if kinds <= {int, float} and all(abs(c) < _EXACT for c in cells if type(c) is int):
        return "number"
    return "text" if kinds == {str} and all(map(_is_unicode, cells)) else "json"


def _why_not(name: str, cells: Sequence[Any]) -> str:
    if not name:
        return "it has no name"
    odd = next(_odd(cells), None)
    return "it is empty" if odd is None else f"it holds {odd}, which JSON has not"


def _held_as_text(cells: Iterable[str]) -> Held:
    if all(_INTEGER.fullmatch(cell) for cell in cells):
        return "integer"
    return "number" if all(map(_is_number, cells)) else "text"


def _is_number(cell: str) -> bool:
    """Whether it is a number, and the double that is nearest is written as it is: an identifier of
    20 digits is not."""
    if _NUMBER.fullmatch(cell) is None or not math.isfinite(float(cell)):
        return False
    return Decimal(repr(float(cell))) == Decimal(cell)


def _is_unicode(cell: str) -> bool:
    """Whether a text is no half of a surrogate pair, which UTF-8 has not, but JSON has."""
    try:
        cell.encode()
    except UnicodeEncodeError:
        return False
    return True


def _odd(cells: Iterable[Any]) -> Iterator[str]:
    """The types of what is no JSON: bytes, dates, decimals."""
    for cell in cells:
        if isinstance(cell, dict):
            yield from _odd(cell.values())
        elif isinstance(cell, list):
            yield from _odd(cell)
        elif cell is not None and not isinstance(cell, (str, int, float, bool)):
            yield type(cell).__name__


def _refuse_lists(names: Sequence[str], where: str) -> None:
    for name in names:
        if name == "file_names" or name.endswith("_file_names"):
            raise CorpusError(
                f"{where}: column {name!r} names several files of one row, which is not packed;"
                " give each a column of its own, as in left_file_name, right_file_name"
            )


def _refuse_twins(fields: Mapping[str, str], where: str) -> None:
    seen: dict[str, str] = {}
    for column, own in fields.items():
        if (other := seen.setdefault(own, column)) != column:
            raise CorpusError(
                f"{where}: columns {other!r} and {column!r} would both be called {own!r} as fields;"
                " rename one"
            )
