"""A check, before anything is timed, that all targets return the same samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardkit.arrays import Integers
from shardkit.errors import DataError
from shardkit.measure.bench.target import Target

HELD = 256
"""Samples of every target that are in memory at once."""


@dataclass(frozen=True)
class Samples:
    """Samples that all targets return.

    Attributes:
        fields: names. sizes: (N,) int64, bytes of each sample's values; labels count for nothing.
    """

    fields: list[str]
    sizes: Integers


def align(base: Target, targets: Sequence[Target], rows: Integers) -> list[Integers]:
    """Return the rows, in each target, of the samples that are ``rows`` of the base: by key.

    Raises:
        DataError: a target lacks one.
    """
    keys = base.keys(rows)
    return [rows if one is base else _found(base, one, rows, keys) for one in targets]


def _found(base: Target, target: Target, rows: Integers, keys: list[str] | None) -> Integers:
    is_as_long = len(target) == len(base)
    if keys is None or target.keys(rows[:0]) is None:
        if not is_as_long:
            raise DataError(
                f"{target.name} has {len(target):,} samples, {base.name} {len(base):,}:"
                " they do not hold the same"
            )
        return rows
    # Mostly packed in one order, and then far quicker than to look every key up.
    if is_as_long and target.keys(rows) == keys:
        return rows
    try:
        return target.find(keys)
    except DataError:
        if not is_as_long:
            raise
        return rows  # third-party tars name theirs otherwise: the values decide


def check_same(targets: Sequence[Target], rows: Sequence[Integers]) -> Samples:
    """Read these rows of every target and compare all values with the first's.

    Raises:
        DataError: names the first difference.
    """
    sources = [target.open(own) for target, own in zip(targets, rows, strict=True)]
    sizes = np.zeros(len(rows[0]), np.int64)
    fields: list[str] = []
    for start in range(0, len(sizes), HELD):
        part = np.arange(start, min(start + HELD, len(sizes)))
        first = _columns(sources[0].read(part))
        fields = sorted(first)
        sizes[part] = targets[0].sample_bytes or _sizes(first, len(part))
        for target, source in zip(targets[1:], sources[1:], strict=True):
            difference = find_difference(first, _columns(source.read(part)))
            if difference is not None:
                at, field = difference
                where = sample_name(targets[0], int(rows[0][start + at]))
                raise DataError(
                    f"{target.name} does not return the samples of {targets[0].name}: {field} of"
                    f" {where} differs"
                )
    return Samples(fields, sizes)


Columns = dict[str, list[Any]]


def _columns(read: dict[str, Any]) -> Columns:
    """Return lists of values; a column without a single value is left out."""
    lists = {
        name: values.tolist() if isinstance(values, np.ndarray) and values.ndim == 1 else [*values]
        for name, values in read.items()
    }
    return {name: column for name, column in lists.items() if any(v is not None for v in column)}


def find_difference(first: Columns, other: Columns) -> tuple[int, str] | None:
    """Return (which sample, which field) of the first difference; None if there is none."""
    num = len(next(iter((first or other).values()), []))
    nothing = [None] * num
    for at in range(num):
        for name in sorted(first.keys() | other.keys()):
            own, theirs = first.get(name, nothing)[at], other.get(name, nothing)[at]
            if _plain(own) != _plain(theirs):
                return at, name
    return None


def _plain(value: Any) -> Any:
    """Return a value to compare: of arrays dtype, shape and bytes, so that NaN equals NaN."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return bytes(value) if isinstance(value, bytes | memoryview) else repr(value)


def _sizes(columns: Columns, num: int) -> Integers:
    sizes = np.zeros(num, np.int64)
    for column in columns.values():
        sizes += [_size(value) for value in column]
    return sizes


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, str):
        return len(value.encode(errors="surrogateescape"))
    if isinstance(value, bytes | bytearray | memoryview):
        return len(value)
    return 0 if value is None or isinstance(value, int | float) else len(repr(value))


def sample_name(target: Target, row: int) -> str:
    keys = target.keys(np.array([row]))
    return f"row {row}" if keys is None else f"sample {keys[0]!r}"
