"""The rows of a batch, from wherever they lie in memory into one array, in one call.

``gather.c`` does it with the GIL released, and asks for the memory of rows before it comes to them.
Wheels bring it. Installed from source, it is built where a C compiler and Python's headers are.
Without it Python does the same, slower. Ask :func:`is_available`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

import numpy as np

from shardkit.arrays import Bytes, Integers


class Rows(NamedTuple):
    """Where (B,) rows lie.

    Attributes:
        memory: what they lie in, each bytes-like; held for a call.
        which: (B,) int64: row i lies in ``memory[which[i]]``.
        starts, sizes: (B,) int64 bytes.
    """

    memory: Sequence[memoryview]
    which: Integers
    starts: Integers
    sizes: Integers

    def slices(self) -> list[memoryview]:
        """The bytes of each."""
        memory, starts = self.memory, self.starts
        columns = self.which.tolist(), starts.tolist(), (starts + self.sizes).tolist()
        return [memory[which][start:stop] for which, start, stop in zip(*columns, strict=True)]


@cache
def compiled() -> ModuleType | None:
    """The module made from ``gather.c``, if it was built with this installation."""
    try:
        return import_module("shardkit.memory._gather")
    except ImportError:
        return None


def is_available() -> bool:
    """Was the compiled module built with this installation?"""
    return compiled() is not None


def copy(rows: Rows, out: Bytes) -> None:
    """Copy rows end to end into ``out``, (N,) uint8, which has just their size.

    Raises:
        ValueError: it has another, or a row lies outside its memory; nothing is copied then.
    """
    if (module := compiled()) is not None:
        memory, *numbers = rows
        module.copy(memory, *map(_integers, numbers), out)
        return
    _refuse_outside(rows, len(out))
    at, view = 0, out.data
    for value in rows.slices():
        view[at : at + len(value)] = value
        at += len(value)


def _integers(numbers: Integers) -> Integers:
    return np.ascontiguousarray(numbers, np.int64)


def _refuse_outside(rows: Rows, num_bytes: int) -> None:
    _, which, starts, sizes = rows
    if not len(which) == len(starts) == len(sizes):
        raise ValueError("gather: arguments of different lengths")
    lengths = np.array([len(view) for view in rows.memory], np.int64)
    is_inside = (which >= 0) & (which < len(lengths)) & (starts >= 0) & (sizes >= 0)
    if not is_inside.all() or (starts > lengths[which] - sizes).any() or sizes.sum() != num_bytes:
        raise ValueError("gather: a row is outside its memory, or out has not their size")
