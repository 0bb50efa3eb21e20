"""Which columns of a table fields become, as Hugging Face ``datasets`` calls and types them.

Pictures of whatever format are one column ``image``, since a sample has one of them; class numbers
are ``label``, text is ``text``; a field with a name before its ending (``mask.png``) is called by
that. Where two would have one name, the later one keeps the name of its field.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from shardkit.errors import FormatError
from shardkit.formats.huggingface_card import feature_of
from shardkit.index.manifest import DatasetInfo
from shardkit.samples.encoding import TOKENS, is_plain_dtype, parse_npy
from shardkit.samples.sample import KEY, Value

_INT64 = np.dtype(np.int64)


def with_names(columns: Sequence[ExportColumn], info: DatasetInfo) -> list[ExportColumn]:
    """The same columns; those of class numbers with their names: ``label``, and the further ones
    whose names are kept in the manifest (CIFAR-100's ``fine_label`` and ``coarse_label``)."""
    further = names_by_field(info.provenance.spec)
    return [_with_names(column, info.classes, further) for column in columns]


def _with_names(
    column: ExportColumn, classes: Sequence[str] | None, further: Mapping[str, list[str]]
) -> ExportColumn:
    if column.kind == "label":
        if not classes or not can_be_classes(classes):
            return column
        return replace(column, names=tuple(classes))
    names = further.get(column.fields[0])
    if names is None or column.array is None or len(column.fields) > 1:
        return column
    dtype = np.dtype(column.array.dtype)
    if dtype.kind not in "iu" or not np.can_cast(dtype, _INT64):
        return column
    # A ClassLabel is stored as int64, whatever the numbers were.
    return replace(column, names=tuple(names), array=ArrayType(_INT64.str, column.array.ndim))


def names_by_field(spec: Mapping[str, Any]) -> dict[str, list[str]]:
    """Field -> names, of a dataset that was packed from tables."""
    fields = _fields(spec)
    found = {fields.get(column): names for column, names in _names(spec).items()}
    return {field: names for field, names in found.items() if field and can_be_classes(names)}


def _fields(spec: Mapping[str, Any]) -> dict[str, str]:
    """Column -> its field, of columns of arrays; the manifest is not trusted."""
    columns = spec.get("columns")
    if spec.get("kind") == "rows":  # split -> of each column name, field, and how it is stored
        parts = columns.values() if isinstance(columns, dict) else ()
        held = [own for part in parts if isinstance(part, list) for own in part]
        pairs = [(str(own[0]), str(own[1])) for own in held if isinstance(own, list) and own[1:]]
        return {name.removesuffix(".npy"): field for name, field in pairs}
    return {
        column: f"{held.get('name')}.npy"
        for column, held in (columns.items() if isinstance(columns, dict) else ())
        if isinstance(held, dict) and held.get("as") in ("number", "array")
    }


def _names(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Column -> names; of rows they stand by their numbers, which here must be all from 0 on."""
    names = spec.get("names")
    return {
        column: [*own.values()] if isinstance(own, dict) and _are_from_0(own) else own
        for column, own in (names.items() if isinstance(names, dict) else ())
    }


def _are_from_0(numbered: Mapping[str, Any]) -> bool:
    return [*numbered] == [str(i) for i in range(len(numbered))]


def notes_on_names(columns: Sequence[ExportColumn], info: DatasetInfo) -> list[str]:
    """The names for which the table has no place, a line each."""
    notes = []
    spec = info.provenance.spec
    kept = {column.fields[0] for column in columns if column.names}
    lost = [column for column in _names(spec) if _fields(spec).get(column) not in kept]
    if lost:
        notes.append(
            f"left out: the names of the numbers in {', '.join(map(repr, lost))}, whose columns"
            " cannot be ClassLabel; they are in shardkit.json, under corpus, as names"
        )
    if info.classes and "cls" in info.fields and "cls" not in kept:
        why = "some cls is no number" if can_be_classes(info.classes) else "some are equal"
        notes.append(f"left out: the names of {len(info.classes):,} classes, since {why}")
    return notes


Kind = Literal["image", "audio", "video", "label", "text", "array", "bytes"]

MEDIA: frozenset[Kind] = frozenset({"image", "audio", "video"})
"""Kinds whose value is a file, and whose column holds its path, too."""

_ORDER: tuple[Kind, ...] = ("image", "audio", "video", "label", "text", "array", "bytes")

_JSON = frozenset({"json", "jsn"})


@dataclass(frozen=True)
class ArrayType:
    """What all arrays of a column have in common: their dtype, in the machine's order of bytes, and
    how many axes they have."""

    dtype: str
    ndim: int


@dataclass(frozen=True)
class ExportColumn:
    """A column, and the fields it is made of: of each sample the one that it has.

    ``names``: of the classes whose numbers it holds, where that is known.
    """

    name: str
    fields: tuple[str, ...]
    kind: Kind
    array: ArrayType | None = None
    names: tuple[str, ...] | None = None


def columns_for(
    fields: Sequence[str],
    together: Collection[tuple[str, str]],
    arrays: Mapping[str, ArrayType],
    has_labels: bool,
) -> list[ExportColumn]:
    """The columns, media first.

    Args:
        fields: all names. together: pairs of them, in order of name, that some sample has both of.
        arrays: those that are arrays of one type. has_labels: whether ``cls`` is numbers alone.
    """
    kinds = {field: kind_of(field, arrays, has_labels) for field in fields}
    groups: dict[tuple[Kind, str], list[str]] = {}
    for field in sorted(fields, key=lambda field: (_ORDER.index(kinds[field]), field)):
        groups.setdefault((kinds[field], _short_name(field, kinds[field])), []).append(field)
    made: list[ExportColumn] = []
    taken: set[str] = {KEY}
    for (kind, short), group in groups.items():
        is_one = len(group) == 1 or (kind in MEDIA and not _any_pair(group, together))
        for part in [group] if is_one else [[field] for field in group]:
            is_free = is_one and short not in taken and short not in {*fields} - {*part}
            name = short if is_free else part[0]
            taken.add(name)
            made.append(ExportColumn(name, tuple(part), kind, arrays.get(part[0])))
    return made


def kind_of(field: str, arrays: Collection[str], has_labels: bool) -> Kind:
    """What a field's column holds."""
    if field in arrays:
        return "array"
    if field == "cls" and has_labels:
        return "label"
    feature = feature_of(field)
    if feature in ("image", "audio", "video"):
        return feature
    is_text = feature in ("string", "int64") or field.rpartition(".")[2] in _JSON
    return "text" if is_text else "bytes"


def _short_name(field: str, kind: Kind) -> str:
    before, _, ending = field.rpartition(".")
    if kind == "bytes":  # nothing but its name says what is in it
        return field
    if before:
        return before
    if kind in MEDIA or kind == "label":
        return kind
    return "text" if ending in ("txt", "transcript") else field


def _any_pair(group: Sequence[str], together: Collection[tuple[str, str]]) -> bool:
    return any((one, other) in together for one in group for other in group)


def array_type(values: Sequence[Value | None]) -> set[ArrayType | None]:
    """The types of these values; None among them if one is no array that a table can hold."""
    return {_type_of(value) for value in values if value is not None}


def _type_of(value: Value) -> ArrayType | None:
    try:
        array = parse_npy(value)
    except FormatError:
        return None
    return type_of_dtype(array.dtype, array.ndim)


def type_of_dtype(dtype: np.dtype[Any], ndim: int) -> ArrayType | None:
    """None for what no column of numbers holds: complex numbers, and those of 16 bytes."""
    if not is_plain_dtype(dtype) or dtype.kind == "c" or dtype.itemsize > 8:
        return None
    return ArrayType(dtype.newbyteorder("=").str, ndim)


def may_be_arrays(fields: Sequence[str]) -> list[str]:
    """The fields whose values may be arrays."""
    return [field for field in fields if field == TOKENS or field.rpartition(".")[2] == "npy"]


# --- what datasets is told ----------------------------------------------------------------


def can_be_classes(names: object) -> bool:
    """Whether these are the names of a ``ClassLabel``, which wants each once."""
    if not isinstance(names, list | tuple) or not names:
        return False
    return all(isinstance(name, str) for name in names) and len({*names}) == len(names)


def features_of(columns: Sequence[ExportColumn]) -> dict[str, dict[str, Any]]:
    """Column -> feature, as ``datasets`` has them in JSON, the key of samples among them."""
    return {**{column.name: _feature(column) for column in columns}, KEY: _value("string")}


def _feature(column: ExportColumn) -> dict[str, Any]:
    if column.kind in MEDIA:
        return {"_type": column.kind.capitalize()}
    names = {"names": [*column.names], "_type": "ClassLabel"} if column.names else None
    if column.kind == "label":
        return names or _value("int64")
    if column.array is not None:
        made = names or _value(np.dtype(column.array.dtype).name)
        for _ in range(column.array.ndim):
            made = {"feature": made, "_type": "Sequence"}  # the name that all its versions know
        return made
    return _value("string" if column.kind == "text" else "binary")


def _value(dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "_type": "Value"}
