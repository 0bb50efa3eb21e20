"""The rows of a batch, from wherever they lie in memory into one array, in one call.

``gather.c`` asks for the memory of rows before it comes to them, and lets go of the GIL where much
is copied.
Wheels bring it. Installed from source, it is built where a C compiler and Python's headers are.
Without it Python does the same, slower. Ask :func:`is_available`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np

from shardkit.arrays import Array, Bytes, Integers, Mask


class Memory(Protocol):
    """Bytes by number, from 0 on: a list of them, or files that are opened when asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> memoryview: ...


class Rows(NamedTuple):
    """Where (B,) rows lie.

    Attributes:
        memory: what they lie in; of it, what any row lies in is held for a call.
        which: (B,) int64: row i lies in ``memory[which[i]]``.
        starts, sizes: (B,) int64 bytes.
    """

    memory: Memory
    which: Integers
    starts: Integers
    sizes: Integers


OUTSIDE = "gather: a row is outside its memory, or out has not their size"


@cache
def compiled() -> ModuleType | None:
    """Return the module made from ``gather.c``, if it was built with this installation."""
    try:
        return import_module("shardkit.memory._gather")
    except ImportError:
        return None


def is_available() -> bool:
    """Return True if the compiled module was built with this installation."""
    return compiled() is not None


def look_up(table: Array, numbers: Integers, bounds: Integers) -> tuple[Array, Integers] | None:
    """Return rows of a table, and in which part of it each is; None if one is not there.

    Args:
        table: (N, C). numbers: (B,) int64. bounds: (S,) int64 from 0 to N, ascending: part i is
            rows ``[bounds[i], bounds[i + 1])``.

    Returns:
        (B, C), and (B,) int64.
    """
    if (module := compiled()) is not None and table.flags.c_contiguous and table.size:
        numbers = _integers(numbers)
        found = np.empty((len(numbers), table.shape[1]), table.dtype)
        parts = np.empty(len(numbers), np.int64)
        are_there = module.look_up(table, numbers, bounds, found, parts, table.strides[0])
        return (found, parts) if are_there else None
    # As unsigned, a negative number is a large one: one pass instead of two.
    if len(numbers) and int(numbers.view(np.uint64).max()) >= len(table):
        return None
    return table.take(numbers, axis=0), np.searchsorted(bounds, numbers, side="right") - 1


def split(
    starts: Integers, sizes: Integers, bounds: Integers, shifts: Integers, step: int
) -> tuple[Integers, Integers, Integers] | None:
    """Return where ranges of items lie, many in each of a few parts; None if one goes on in the
    next part.

    Args:
        starts, sizes: (B,) int64 in items, each inside the bounds. step: bytes of an item.
        bounds: (P + 1,) int64: part i has items ``[bounds[i], bounds[i + 1])``.
        shifts: (P,) int64: item n of part i begins at byte ``n * step + shifts[i]`` of it.

    Returns:
        (number of the part, first byte, number of bytes) of each, (B,) int64.
    """
    if (module := compiled()) is not None:
        numbers, firsts, num_bytes = np.empty((3, len(starts)), np.int64)
        ranges = _integers(starts), _integers(sizes)
        are_whole = module.split(*ranges, bounds, shifts, step, numbers, firsts, num_bytes)
        return (numbers, firsts, num_bytes) if are_whole else None
    numbers = bounds[:-1].searchsorted(starts, "right") - 1
    if (starts + sizes > bounds[numbers + 1]).any():
        return None
    return numbers, starts * step + shifts[numbers], sizes * step


def copy(rows: Rows, out: Bytes) -> None:
    """Copy rows end to end into ``out``, (N,) uint8, which has just their size.

    Raises:
        ValueError: it has another, or a row lies outside its memory; nothing is copied then.
    """
    if (module := compiled()) is not None:
        memory, *numbers = rows
        module.copy(memory, *map(_integers, numbers), out)
        return
    at, view = 0, out.data
    for value in _slices(rows, len(out)):
        view[at : at + len(value)] = value
        at += len(value)


def widen(rows: Rows, out: Array, dtype: np.dtype[Any]) -> None:
    """Copy rows of unsigned integers of this dtype end to end into ``out``: (N,) signed ones of 4
    or 8 bytes, and no fewer. Errors as of :func:`copy`."""
    if (module := compiled()) is not None and dtype.isnative:
        memory, *numbers = rows
        module.copy(memory, *map(_integers, numbers), out, dtype.itemsize, out.itemsize)
        return
    joined = b"".join(_slices(rows, len(out) * dtype.itemsize))
    if (rows.sizes % dtype.itemsize).any():
        raise ValueError(OUTSIDE)
    out[:] = np.frombuffer(joined, dtype)


def mirror(pictures: Bytes, flips: Mask) -> bool:
    """Mirror pictures left to right where ``flips`` says so, in place; False where the compiled
    module is not there, and nothing was done.

    Args:
        pictures: (B, H, W, C) uint8, contiguous; none of these is 0. flips: (B,).
    """
    if (module := compiled()) is None:
        return False
    _, height, width, channels = pictures.shape
    module.mirror(pictures, np.ascontiguousarray(flips, np.bool_), height, width, channels)
    return True


def _integers(numbers: Integers) -> Integers:
    return np.ascontiguousarray(numbers, np.int64)


def _slices(rows: Rows, num_bytes: int) -> list[memoryview]:
    """Return the bytes of each row. Raises ValueError unless all are inside, so many together."""
    memory, which, starts, sizes = rows
    if not len(which) == len(starts) == len(sizes):
        raise ValueError("gather: arguments of different lengths")
    is_inside = (which >= 0) & (which < len(memory)) & (starts >= 0) & (sizes >= 0)
    if not is_inside.all() or sizes.sum() != num_bytes:
        raise ValueError(OUTSIDE)
    held = {number: memory[number] for number in np.unique(which).tolist()}
    lengths = np.array([len(held[number]) for number in which.tolist()], np.int64)
    if (starts > lengths - sizes).any():
        raise ValueError(OUTSIDE)
    columns = which.tolist(), starts.tolist(), (starts + sizes).tolist()
    return [held[which][start:stop] for which, start, stop in zip(*columns, strict=True)]
