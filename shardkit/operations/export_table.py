"""Parquet, as Hugging Face ``datasets`` reads and the hub stores it.

A shard becomes a file, ``data/{split}-00000-of-00003.parquet``, of row groups that fit into memory.
The schema's metadata tells ``datasets`` which columns are pictures, and the names of classes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Array
from shardkit.errors import SampleError, UsageError
from shardkit.formats.huggingface_card import feature_of
from shardkit.index.rows import NO_INT
from shardkit.operations.export_ids import Exported, readers_of
from shardkit.operations.table_columns import (
    MEDIA,
    ArrayType,
    ExportColumn,
    array_type,
    columns_for,
    features_of,
    may_be_arrays,
    notes_on_names,
    type_of_dtype,
    with_names,
)
from shardkit.samples.encoding import parse_npy
from shardkit.samples.sample import KEY, SampleBatch, Value, unpack_paths
from shardkit.shards.locate import Located
from shardkit.shards.stored import ShardReader
from shardkit.system.progress import Progress


def lists_of(arrays: Sequence[Array | None], kind: ArrayType) -> Any:
    """Arrays of one number of axes as nested lists, a list an axis, of elements of one dtype.

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


_NONE = np.zeros(0, np.int64)


def _offsets(lengths: Array) -> Any:
    import pyarrow as pa

    return pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32))


MAX_VALUE_BYTES = 2**31 - 1
"""Of a value in the type that ``datasets`` has for files."""


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

        readers = readers_of(self._place)
        info = self._place.info
        columns = with_names(find_columns(self._place, readers), info)
        features = features_of(columns)
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        fields = [(column.name, _arrow_type(column)) for column in columns]
        schema = pa.schema([*fields, (KEY, pa.string())], metadata)
        (folder / "data").mkdir()
        told = f"columns: {', '.join(schema.names)}"
        done = Exported(notes=[told, *notes_on_names(columns, info)])
        for name, reader in readers.items():
            shards = _filled_shards(reader)
            done.num_files += len(shards)
            for number, (start, stop) in enumerate(shards):
                file = f"{name}-{number:05d}-of-{len(shards):05d}.parquet"
                self._write_file(folder / "data" / file, schema, columns, reader, start, stop, bar)
        return done

    def _write_file(
        self,
        path: Path,
        schema: Any,
        columns: list[ExportColumn],
        reader: ShardReader,
        start: int,
        stop: int,
        bar: Progress,
    ) -> None:
        from pyarrow import parquet

        # No dictionaries: pictures are all different, and looked up in vain.
        with parquet.ParquetWriter(path, schema, use_dictionary=False) as writer:
            for first, last in reader.row_ranges(start, stop):
                table = _table(reader, first, reader.samples(first, last), columns, schema)
                writer.write_table(table, row_group_size=len(table))
                bar.add(last - first, table.nbytes)


def _filled_shards(reader: ShardReader) -> list[tuple[int, int]]:
    """(first row, end) of all shards that have rows: one of rejects alone has none."""
    starts = reader.index.row_starts.tolist()
    return [(a, b) for a, b in pairwise(starts) if a < b]


# --- columns ------------------------------------------------------------------------------


def find_columns(place: Located, readers: dict[str, ShardReader]) -> list[ExportColumn]:
    """Look at what samples have, in the row index, and at the types of arrays."""
    fields = place.info.fields
    together = {pair for reader in readers.values() for pair in _pairs(reader, fields)}
    types = {field: _array_type(readers, field) for field in may_be_arrays(fields)}
    arrays = {field: found for field, found in types.items() if found is not None}
    has_labels = "cls" in fields and all(map(_has_labels, readers.values()))
    return columns_for(fields, together, arrays, has_labels)


def _sizes(reader: ShardReader, field: str) -> Any:
    return reader.index.table[:, reader.index.column[f"{field}.size"]]


def _pairs(reader: ShardReader, fields: list[str]) -> Iterator[tuple[str, str]]:
    """Pictures, or the like, of which some sample has both."""
    media = [field for field in fields if feature_of(field) in MEDIA]
    for one, other in combinations(media, 2):
        if ((_sizes(reader, one) >= 0) & (_sizes(reader, other) >= 0)).any():
            yield one, other


def _has_labels(reader: ShardReader) -> bool:
    """Whether every ``cls`` there is, is a number."""
    numbers = reader.index.table[:, reader.index.column["cls"]]
    return not ((numbers == NO_INT) & (_sizes(reader, "cls") >= 0)).any()


def _array_type(readers: dict[str, ShardReader], field: str) -> ArrayType | None:
    """The type of all values of a field, if they have one. What is stored typed says it without
    being read."""
    found: set[ArrayType | None] = set()
    for reader in readers.values():
        starts = reader.index.row_starts.tolist()
        for shard, (start, stop) in enumerate(pairwise(starts)):
            encoding = reader.encoding(shard, field)
            if encoding.kind in ("array", "ragged"):
                found.add(type_of_dtype(np.dtype(encoding.dtype), len(encoding.shape)))
                continue
            for first, last in reader.row_ranges(start, stop):
                rows = np.arange(first, last, dtype=np.int64)
                found |= array_type(reader.canonical(reader.gather(rows), field))
    return found.pop() if len(found) == 1 else None


# --- values -------------------------------------------------------------------------------


def _arrow_type(column: ExportColumn) -> Any:
    import pyarrow as pa

    if column.array is not None:
        made = pa.from_numpy_dtype(np.dtype(column.array.dtype))
        for _ in range(column.array.ndim):
            made = pa.list_(made)
        return made
    if column.kind in MEDIA:
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return {"label": pa.int64(), "text": pa.string(), "bytes": pa.binary()}[column.kind]


def _table(
    reader: ShardReader, start: int, samples: SampleBatch, columns: list[ExportColumn], schema: Any
) -> Any:
    """A row group: consecutive samples, of which the first is row ``start``."""
    import pyarrow as pa

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

    made: list[Any] = []
    for i in range(len(samples)):
        field, value = _value_of(samples, column, i)
        if value is None:
            made.append(None)
            continue
        if len(value) > MAX_VALUE_BYTES:
            raise SampleError(
                f"{reader.where(start + i)}: its {field} has {len(value)} bytes, and a column of"
                f" files holds up to {MAX_VALUE_BYTES}"
            )
        try:
            made.append(_converted(samples, i, field, value, column))
        except ValueError as error:  # DataError is one
            raise SampleError(
                f"{reader.where(start + i)}: its {field} fits no column of {column.kind}: {error}"
            ) from error
    return lists_of(made, column.array) if column.array else pa.array(made, of_type)


def _value_of(samples: SampleBatch, column: ExportColumn, i: int) -> tuple[str, Value | None]:
    """The field that a sample has of those that make a column, and its value."""
    for field in column.fields:
        values = samples.columns.get(field)
        if values is not None and (value := values[i]) is not None:
            return field, value
    return column.fields[0], None


def _converted(samples: SampleBatch, i: int, field: str, value: Value, column: ExportColumn) -> Any:
    if column.array is not None:
        return parse_npy(value)
    if column.kind in MEDIA:
        return {"bytes": bytes(value), "path": _path(samples, i, field)}
    if column.kind == "label":
        return int(bytes(value))
    return str(value, "utf-8") if column.kind == "text" else bytes(value)


def _path(samples: SampleBatch, i: int, field: str) -> str:
    """Where a value came from; of one that came from no file, what unpacking would call it."""
    key = samples.keys[i]
    for name, path, _ in unpack_paths(key, samples.paths[i], [*samples.fields(i)]):
        if name == field:
            return path.decode("utf-8", "backslashreplace")
    return f"{key.decode('utf-8', 'backslashreplace')}.{field}"
