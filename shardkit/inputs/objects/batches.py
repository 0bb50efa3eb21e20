"""Samples of fields put together, column by column."""

from __future__ import annotations

from collections.abc import Mapping

from shardkit.samples.sample import SampleBatch, Value, pack_paths

_PATHS: dict[tuple[str, ...], bytes] = {}
"""Fields in order -> encoded paths: these only say that each is called as the key and the field."""


def add_sample(batch: SampleBatch, key: bytes, fields: Mapping[str, Value]) -> None:
    """Append a sample that comes from no file. Columns may be short until :func:`fill`."""
    num = len(batch.keys)
    names = tuple(fields)
    paths = _PATHS.get(names)
    if paths is None:
        paths = _PATHS[names] = pack_paths(b"", [b"." + name.encode() for name in sorted(names)])
    batch.keys.append(key)
    batch.paths.append(paths)
    columns = batch.columns
    for name, value in fields.items():
        column = columns.get(name)
        if column is None:
            column = columns[name] = []
        if len(column) < num:
            column += [None] * (num - len(column))
        column.append(value)


def fill(batch: SampleBatch) -> SampleBatch:
    """Return a batch all of whose columns are as long as it is."""
    for column in batch.columns.values():
        column += [None] * (len(batch.keys) - len(column))
    return batch
