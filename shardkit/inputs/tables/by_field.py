"""Rows of fields turned into columns of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardkit.samples.sample import Value


def by_field(rows: Sequence[Sequence[tuple[Any, ...]]]) -> dict[str, list[Value | None]]:
    """Columns as a :class:`shardkit.samples.sample.SampleBatch` has them, of rows whose entries
    begin with (field, value); an absent field is None."""
    columns: dict[str, list[Value | None]] = {}
    for i, row in enumerate(rows):
        for field, value, *_ in row:
            column = columns.get(field)
            if column is None:
                column = columns[field] = [None] * len(rows)
            column[i] = value
    return columns
