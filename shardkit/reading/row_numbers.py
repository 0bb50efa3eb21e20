"""Rows as callers give them: integers of any kind, or lists and arrays of them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from shardkit.arrays import Array, Integers
from shardkit.errors import UsageError


def row_numbers(rows: Sequence[int] | Integers) -> Integers:
    """(B,) int64. Raises UsageError for what is no list of integers."""
    numbers = as_array(rows)
    if numbers.dtype == bool:
        raise UsageError(
            "rows must be a list of integers, got a mask: use select(mask), or"
            " numpy.flatnonzero(mask)"
        )
    if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
        raise UsageError(f"rows must be a list of integers, got {numbers.dtype}{numbers.shape}")
    return numbers.astype(np.int64, copy=False)


def from_front(row: int, num_rows: int, hint: str = "") -> int:
    """A row as a list takes it, below 0 counted from the end, counted from the front.

    Raises:
        UsageError: it is no integer; ``hint`` is what to do. IndexError: there is no such row.
    """
    try:
        number = operator.index(row)
    except TypeError as error:
        raise UsageError(f"a row is an integer, got {row!r}{hint}") from error
    if not -num_rows <= number < num_rows:
        raise IndexError(f"row {row} is outside 0..{num_rows - 1}")
    return number % num_rows


def as_array(rows: Any) -> Array:
    try:
        return np.asarray(rows)
    except (ValueError, TypeError) as error:  # lists of unequal lengths, tensors of a GPU
        raise UsageError(f"rows must be a list of integers: {error}") from error


def listed_rows(rows: Iterable[int]) -> list[int]:
    try:
        return list(rows)
    except TypeError as error:
        raise UsageError(f"rows must be a list of integers, got {rows!r}") from error
