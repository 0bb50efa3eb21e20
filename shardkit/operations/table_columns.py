"""Which columns of a table fields become, as Hugging Face ``datasets`` calls and types them.

Pictures of whatever format are one column ``image``, since a sample has one of them; class numbers
are ``label``, text is ``text``; a field with a name before its ending (``mask.png``) is called by
that. Where two would have one name, the later one keeps the name of its field.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from shardkit.errors import FormatError
from shardkit.formats.huggingface_card import feature_of
from shardkit.samples.encoding import TOKENS, is_plain_dtype, parse_npy
from shardkit.samples.sample import KEY, Value

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
