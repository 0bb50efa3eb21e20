"""Memory for batches, taken again when the batch that it was for is gone; and the last few values
that were found, by key.

Fresh memory of some MB comes from the kernel, which maps and clears it page by page, and goes back
there when it is freed: for a batch of 7 MB that takes as long as filling it, and two threads that
do so wait for one another. A thread that makes batches keeps what it gave out, and gives it out
again once nothing refers to it: no array, no tensor, no view of either.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from shardkit.arrays import Array, Bytes

LEAST_BYTES = 1 << 17
"""Less comes from the heap, which keeps it; from there on the C library may give memory back, and
does so where another thread than the one that took it lets go of it."""

MOST_KEPT = 24
"""Buffers that a thread keeps at most: more than a worker uses at once."""

SPARE = 1.25
"""A new buffer has so many times the bytes that were asked for, as batches differ in size. Only
what is used of it becomes memory."""

WASTE = 4
"""A buffer larger than so many times what is asked for is left alone."""


class _Kept(threading.local):
    """What a thread keeps."""

    def __init__(self) -> None:
        self.state = _State()


class _State:
    """``users``: callers of :func:`keeping` and :func:`keep` that have not ended yet. Without any,
    nothing is kept."""

    def __init__(self) -> None:
        self.users = 0
        self.buffers: list[Bytes] = []


_kept = _Kept()

_held = [np.empty(0, np.uint8)]
_UNUSED = sys.getrefcount(_held[0])
"""References to what nothing but a list holds, as this Python counts them."""


@contextmanager
def keeping() -> Iterator[None]:
    """Keep the buffers of the thread that began this until it ends; any thread may end it."""
    state = _kept.state
    state.users += 1
    try:
        yield
    finally:
        state.users -= 1
        if not state.users:
            state.buffers = []


def keep() -> None:
    """Keep the buffers of this thread as long as it lives."""
    _kept.state.users += 1


def empty(shape: int | Sequence[int], dtype: Any) -> Array:
    """Return an array as :func:`numpy.empty` does, with whatever is in it."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    kind = np.dtype(dtype)
    num_bytes = math.prod(shape) * kind.itemsize
    if num_bytes < LEAST_BYTES or not _kept.state.users or not _counts_are_exact():
        return np.empty(shape, kind)
    buffer = _take(_kept.state.buffers, num_bytes)
    array: Array = buffer[:num_bytes].view(kind).reshape(shape)
    return array


class _Hashable(np.ndarray[Any, Any]):
    """Values are told apart by sets of them, and a memoryview is hashed, by its bytes, only if what
    it shows can be."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def view_of(array: Bytes) -> memoryview:
    """Return its bytes, read-only, as a memoryview that can be hashed and keeps the array."""
    return array.view(_Hashable).data.toreadonly()


def _take(kept: list[Bytes], num_bytes: int) -> Bytes:
    """Return one of those that is large enough and not in use, else a new one."""
    unused = [number for number in range(len(kept)) if sys.getrefcount(kept[number]) == _UNUSED]
    for number in unused:
        if num_bytes <= kept[number].nbytes <= WASTE * num_bytes:
            return kept[number]
    if len(kept) >= MOST_KEPT and unused:
        del kept[unused[0]]
    buffer = np.empty(int(SPARE * num_bytes), np.uint8)
    if len(kept) < MOST_KEPT:
        kept.append(buffer)
    return buffer


def _counts_are_exact() -> bool:
    """Return False without the GIL: references are then not all counted in one place."""
    has_gil: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
    return has_gil


def remember(known: dict[Any, Any], key: object, value: object, most: int) -> None:
    """Add a value, and forget the oldest beyond ``most``. Threads may share the dict: two that miss
    the same key both find its value."""
    known[key] = value
    while len(known) > most:
        # In single steps: another thread may be doing the same.
        known.pop(next(iter(tuple(known))), None)
