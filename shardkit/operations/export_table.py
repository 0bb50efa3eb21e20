"""Parquet, as Hugging Face ``datasets`` reads and the hub stores it.

A shard becomes a file, ``data/{split}-00000-of-00003.parquet``, of row groups that fit into memory.
The schema's metadata tells ``datasets`` which columns are pictures, and the names of classes.

Pictures of whatever format are one column ``image``, since a sample has one of them; class numbers
are ``label``, text is ``text``; a field with a name before its ending (``mask.png``) is called by
that. Where two would have one name, the later one keeps the name of its field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shardkit.arrays import Array, Mask
from shardkit.errors import FormatError, SampleError, UsageError
from shardkit.formats.huggingface_card import feature_of
from shardkit.index.manifest import DatasetInfo
from shardkit.index.rows import NO_INT
from shardkit.operations.duplicates import labels_of
from shardkit.operations.export_ids import Exported
from shardkit.samples.encoding import TOKENS, is_plain_dtype, parse_npy
from shardkit.samples.sample import KEY, SampleBatch, Value, unpack_paths
from shardkit.shards.locate import Located
from shardkit.shards.stored import ShardReader
from shardkit.system.progress import Progress

MAX_VALUE_BYTES = 2**31 - 1
"""Of a value in the type that ``datasets`` has for files."""

Kind = Literal["image", "audio", "video", "label", "text", "array", "bytes"]

MEDIA: frozenset[Kind] = frozenset({"image", "audio", "video"})
"""Kinds whose value is a file, and whose column holds its path, too."""

_ORDER: tuple[Kind, ...] = ("image", "audio", "video", "label", "text", "array", "bytes")

_INT64 = np.dtype(np.int64)
_NONE = np.zeros(0, np.int64)


class ParquetExport:
    """Every field of every sample, in columns.

    Raises:
        UsageError: pyarrow is not installed.
    """

    name = "parquet"

    def __init__(self, place: Located) -> None:
        try:
            import pyarrow.parquet  # noqa: F401  said before anything is read
        except ImportError as error:
            how = "pip install 'shardkit[parquet]'"
            raise UsageError(f"parquet files need the pyarrow library: {how}") from error
        self._place = place

    def write(self, folder: Path, bar: Progress) -> Exported:
        """Write all splits. Raises DataError: a value is damaged, or fits no column."""
        import pyarrow as pa
        from pyarrow import parquet

        readers = self._place.readers()
        info = self._place.info
        columns = with_names(_find_columns(self._place, readers), info)
        features = features_of(columns)
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        fields = [(name, _arrow_type(feature)) for name, feature in features.items()]
        schema = pa.schema(fields, metadata)
        (folder / "data").mkdir()
        told = f"columns: {', '.join(schema.names)}"
        done = Exported(notes=[told, *notes_on_names(columns, info)])
        for name, reader in readers.items():
            starts = reader.index.row_starts.tolist()
            shards = [(a, b) for a, b in pairwise(starts) if a < b]  # one of rejects has no rows
            done.num_files += len(shards)
            for number, (start, stop) in enumerate(shards):
                file = f"{name}-{number:05d}-of-{len(shards):05d}.parquet"
                # No dictionaries: pictures are all different, and looked up in vain.
                with parquet.ParquetWriter(
                    folder / "data" / file, schema, use_dictionary=False
                ) as writer:
                    for first, last in reader.row_ranges(start, stop):
                        table = _table(reader, first, last, columns, schema)
                        writer.write_table(table, row_group_size=len(table))
                        bar.add(last - first, table.nbytes)
        return done


# --- which columns fields become ----------------------------------------------------------


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


def _find_columns(place: Located, readers: dict[str, ShardReader]) -> list[ExportColumn]:
    """Look at what samples have, in the row index, and at the types of arrays."""
    fields = place.info.fields
    media = [field for field in fields if feature_of(field) in MEDIA]
    together = {
        (one, other)
        for reader in readers.values()
        for one, other in combinations(media, 2)
        if (_has(reader, one) & _has(reader, other)).any()
    }
    types = {
        field: _array_type(readers, field)
        for field in fields
        if field == TOKENS or field.rpartition(".")[2] == "npy"
    }
    arrays = {field: found for field, found in types.items() if found is not None}
    # Every class there is, is a number.
    has_labels = "cls" in fields and not any(
        (_has(reader, "cls") & (labels_of(reader.index) == NO_INT)).any()
        for reader in readers.values()
    )
    return columns_for(fields, together, arrays, has_labels)


def _has(reader: ShardReader, field: str) -> Mask:
    """Return (num_rows,) bool: whether a sample has a field."""
    return np.asarray(reader.index.table[:, reader.index.column[f"{field}.size"]] >= 0)


def _array_type(readers: dict[str, ShardReader], field: str) -> ArrayType | None:
    """Return the type of all values of a field, if they have one. What is stored typed says it
    without being read."""
    found: set[ArrayType | None] = set()
    for reader in readers.values():
        starts = reader.index.row_starts.tolist()
        for shard, (start, stop) in enumerate(pairwise(starts)):
            encoding = reader.encoding(shard, field)
            if encoding.kind in ("array", "ragged"):
                found.add(_type_of(np.dtype(encoding.dtype), len(encoding.shape)))
                continue
            for first, last in reader.row_ranges(start, stop):
                rows = np.arange(first, last, dtype=np.int64)
                found |= array_type(reader.canonical(reader.gather(rows), field))
    return found.pop() if len(found) == 1 else None


def array_type(values: Sequence[Value | None]) -> set[ArrayType | None]:
    """Return the types of these values; None among them if one is no array that a table holds."""
    found: set[ArrayType | None] = set()
    for value in values:
        try:
            if value is not None:
                array = parse_npy(value)
                found.add(_type_of(array.dtype, array.ndim))
        except FormatError:
            found.add(None)
    return found


def _type_of(dtype: np.dtype[Any], ndim: int) -> ArrayType | None:
    """Return None for what no column of numbers holds: complex numbers, and those of 16 bytes."""
    if not is_plain_dtype(dtype) or dtype.kind == "c" or dtype.itemsize > 8:
        return None
    return ArrayType(dtype.newbyteorder("=").str, ndim)


def columns_for(
    fields: Sequence[str],
    together: Collection[tuple[str, str]],
    arrays: Mapping[str, ArrayType],
    has_labels: bool,
) -> list[ExportColumn]:
    """Return the columns, media first.

    Args:
        fields: all names. together: pairs of them, in order of name, that some sample has both of.
        arrays: those that are arrays of one type. has_labels: whether ``cls`` is numbers alone.
    """
    found = {field: _kind_and_name(field, arrays, has_labels) for field in fields}
    groups: dict[tuple[Kind, str], list[str]] = {}
    for field in sorted(fields, key=lambda field: (_ORDER.index(found[field][0]), field)):
        groups.setdefault(found[field], []).append(field)
    made: list[ExportColumn] = []
    taken: set[str] = {KEY}
    for (kind, short), group in groups.items():
        are_apart = not any((one, other) in together for one in group for other in group)
        is_one = len(group) == 1 or (kind in MEDIA and are_apart)
        for part in [group] if is_one else [[field] for field in group]:
            is_free = is_one and short not in taken and short not in {*fields} - {*part}
            name = short if is_free else part[0]
            taken.add(name)
            made.append(ExportColumn(name, tuple(part), kind, arrays.get(part[0])))
    return made


def _kind_and_name(field: str, arrays: Collection[str], has_labels: bool) -> tuple[Kind, str]:
    """Return what a field's column holds, and what it is called if no other is."""
    before, _, ending = field.rpartition(".")
    feature = feature_of(field)
    if field in arrays:
        return "array", before or field
    if field == "cls" and has_labels:
        return "label", "label"
    if feature in ("image", "audio", "video"):
        return feature, before or feature
    if feature in ("string", "int64") or ending in ("json", "jsn"):
        return "text", before or ("text" if ending in ("txt", "transcript") else field)
    return "bytes", field  # nothing but its name says what is in it


# --- names of classes, and what datasets is told ------------------------------------------


def with_names(columns: Sequence[ExportColumn], info: DatasetInfo) -> list[ExportColumn]:
    """Return the columns, those of class numbers with their names: ``label``, and the further ones
    whose names are kept in the manifest (CIFAR-100's ``fine_label`` and ``coarse_label``)."""
    further, made = names_by_field(info.provenance.spec), []
    for column in columns:
        names = further.get(column.fields[0])
        if column.kind == "label" and info.classes and can_be_classes(info.classes):
            column = replace(column, names=tuple(info.classes))
        elif names is not None and column.array is not None and len(column.fields) == 1:
            dtype = np.dtype(column.array.dtype)
            if dtype.kind in "iu" and np.can_cast(dtype, _INT64):
                # A ClassLabel is stored as int64, whatever the numbers were.
                array = ArrayType(_INT64.str, column.array.ndim)
                column = replace(column, names=tuple(names), array=array)
        made.append(column)
    return made


def names_by_field(spec: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return field -> names, of a dataset that was packed from tables."""
    fields = _fields(spec)
    found = {fields.get(column): names for column, names in _names(spec).items()}
    return {field: names for field, names in found.items() if field and can_be_classes(names)}


def _fields(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return column -> its field, of columns of arrays; the manifest is not trusted."""
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
    """Return column -> names; those of rows stand by their numbers, which must be all from 0 on."""
    names = spec.get("names")
    found = dict(names) if isinstance(names, dict) else {}
    for column, own in found.items():
        if isinstance(own, dict) and [*own] == [str(i) for i in range(len(own))]:
            found[column] = [*own.values()]
    return found


def notes_on_names(columns: Sequence[ExportColumn], info: DatasetInfo) -> list[str]:
    """Return what there is to say of names for which the table has no place, a line each."""
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


def can_be_classes(names: object) -> bool:
    """Return True if these can be the names of a ``ClassLabel``, which wants each once."""
    if not isinstance(names, list | tuple) or not names:
        return False
    return all(isinstance(name, str) for name in names) and len({*names}) == len(names)


def features_of(columns: Sequence[ExportColumn]) -> dict[str, dict[str, Any]]:
    """Return column -> feature, as ``datasets`` has them in JSON, the key of samples among them."""
    features = {column.name: _feature(column) for column in columns}
    return features | {KEY: {"dtype": "string", "_type": "Value"}}


def _feature(column: ExportColumn) -> dict[str, Any]:
    if column.kind in MEDIA:
        return {"_type": column.kind.capitalize()}
    dtype = {"label": "int64", "text": "string"}.get(column.kind, "binary")
    if column.array is not None:
        dtype = np.dtype(column.array.dtype).name
    made: dict[str, Any] = {"dtype": dtype, "_type": "Value"}
    if column.names:
        made = {"names": [*column.names], "_type": "ClassLabel"}
    for _ in range(column.array.ndim if column.array is not None else 0):
        made = {"feature": made, "_type": "Sequence"}  # the name that all its versions know
    return made


# --- values -------------------------------------------------------------------------------


def _arrow_type(feature: dict[str, Any]) -> Any:
    import pyarrow as pa

    if feature["_type"] == "Sequence":
        return pa.list_(_arrow_type(feature["feature"]))
    if feature["_type"] in ("Value", "ClassLabel"):
        return pa.type_for_alias(feature.get("dtype", "int64"))
    return pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def _table(
    reader: ShardReader, start: int, stop: int, columns: list[ExportColumn], schema: Any
) -> Any:
    """Return the row group of the rows [start, stop)."""
    import pyarrow as pa

    samples = reader.samples(start, stop)
    made = [
        _column(reader, start, samples, column, schema.field(column.name).type)
        for column in columns
    ]
    keys = [key.decode("utf-8", "backslashreplace") for key in samples.keys]
    return pa.Table.from_arrays([*made, pa.array(keys, pa.string())], schema=schema)


def _column(
    reader: ShardReader, start: int, samples: SampleBatch, column: ExportColumn, of_type: Any
) -> Any:
    import pyarrow as pa

    held = [(field, samples.columns[field]) for field in column.fields if field in samples.columns]
    made: list[Any] = []
    for i in range(len(samples)):
        field, value = next(((f, own[i]) for f, own in held if own[i] is not None), ("", None))
        if value is None:
            made.append(None)
            continue
        try:
            if len(value) > MAX_VALUE_BYTES:
                raise SampleError(f"{len(value)} bytes, and a value has up to {MAX_VALUE_BYTES}")
            made.append(_converted(samples, i, field, value, column))
        except ValueError as error:  # DataError is one
            raise SampleError(
                f"{reader.where(start + i)}: its {field} fits no column of {column.kind}: {error}"
            ) from error
    return lists_of(made, column.array) if column.array else pa.array(made, of_type)


def _converted(samples: SampleBatch, i: int, field: str, value: Value, column: ExportColumn) -> Any:
    if column.array is not None:
        return parse_npy(value)
    if column.kind in MEDIA:
        return {"bytes": bytes(value), "path": _path(samples, i, field)}
    if column.kind == "label":
        return int(bytes(value))
    return str(value, "utf-8") if column.kind == "text" else bytes(value)


def _path(samples: SampleBatch, i: int, field: str) -> str:
    """Return where a value came from; if from no file, what unpacking would call it."""
    key = samples.keys[i]
    for name, path, _ in unpack_paths(key, samples.paths[i], [*samples.fields(i)]):
        if name == field:
            return path.decode("utf-8", "backslashreplace")
    return f"{key.decode('utf-8', 'backslashreplace')}.{field}"


def lists_of(arrays: Sequence[Array | None], kind: ArrayType) -> Any:
    """Return arrays with equally many axes as nested lists, a list an axis, of one dtype.

    All elements lie end to end in one buffer, and offsets cut it, so that none becomes an object of
    Python.
    """
    import pyarrow as pa

    present = [array for array in arrays if array is not None]
    flat = [array.astype(kind.dtype, copy=False).reshape(-1) for array in present]
    made = pa.array(np.concatenate([np.zeros(0, kind.dtype), *flat]))
    absent = np.array([array is None for array in arrays], bool)
    if not kind.ndim:
        return made.take(pa.array(np.cumsum(~absent) - 1, mask=absent))
    for axis in range(kind.ndim - 1, 0, -1):
        counts = [np.full(math.prod(a.shape[:axis]), a.shape[axis]) for a in present]
        made = pa.ListArray.from_arrays(_offsets(np.concatenate([_NONE, *counts])), made)
    lengths = [0 if array is None else array.shape[0] for array in arrays]
    return pa.ListArray.from_arrays(_offsets(np.array(lengths)), made, mask=pa.array(absent))


def _offsets(lengths: Array) -> Any:
    import pyarrow as pa

    return pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32))
