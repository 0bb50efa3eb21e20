"""Names of classes that an exported table keeps, and those for which it has no place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardkit.index.manifest import DatasetInfo
from shardkit.operations.table_columns import ArrayType, ExportColumn, can_be_classes

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
