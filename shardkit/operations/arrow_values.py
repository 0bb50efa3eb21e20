"""Columns of arrays for an Arrow table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardkit.arrays import Array
from shardkit.operations.table_columns import ArrayType


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
