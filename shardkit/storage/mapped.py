"""Files mapped into memory: values are slices of the maps, not copies.

A mapped value costs no copy, but a file that is cut short while it is mapped ends the process, and
whoever writes to it changes what was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Array, Bytes, Integers
from shardkit.memory import buffers, gather
from shardkit.memory.madvise import will_need
from shardkit.memory.whole_files import map_whole
from shardkit.storage.base import Turn
from shardkit.storage.neighbours import worth_announcing
from shardkit.storage.opened import Check, Opened, OpenLimit
from shardkit.storage.warmth import Warmth

MOST_MAPS = 32_768
"""Maps that a process keeps at most: half of Linux's default limit of 65,530."""

ANNOUNCE_BYTES = 16 << 10
"""Values from this size on are announced before they are read: without that a cold one of 110 KB
comes in as 27 page faults, one after another. Below it the page faults cost less than the call."""

RANGES_A_FILE = 8
"""Fewer than that of each file, and a copy for each range is as fast as one for each file."""

map_limit = OpenLimit(lambda: MOST_MAPS)


class MappedFiles:
    """:class:`shardkit.storage.base.Files` of a folder, each mapped as a whole."""

    def __init__(
        self, folder: Path, names: Sequence[str], sizes: Sequence[int], check: Check = int
    ) -> None:
        self._maps = Opened(folder, names, sizes, map_whole, map_limit, check)
        self.sizes = self._maps.sizes
        self._warmth = Warmth()

    def read(self, numbers: Integers, starts: Integers, sizes: Integers) -> MappedRanges:
        if int(sizes.max(initial=0)) >= ANNOUNCE_BYTES and self._warmth.is_cold():
            _announce(self._maps, numbers, starts, sizes, ANNOUNCE_BYTES)
        return MappedRanges(self._maps, numbers, starts, sizes)

    def piece(self, number: int, start: int, stop: int) -> memoryview:
        return self._maps[number][start:stop]

    def announce(
        self, numbers: Integers, starts: Integers, sizes: Integers, turn: Turn | None = None
    ) -> None:
        """Does nothing on platforms without ``madvise``."""
        _announce(self._maps, numbers, starts, sizes, 1)

    def is_cold(self) -> bool:
        return self._warmth.is_cold()


class MappedRanges:
    """:class:`shardkit.storage.base.Ranges` of maps."""

    __slots__ = ("_maps", "_numbers", "_sizes", "_starts")

    def __init__(
        self, maps: Opened[memoryview], numbers: Integers, starts: Integers, sizes: Integers
    ) -> None:
        self._maps = maps
        self._numbers = numbers
        self._starts = starts
        self._sizes = sizes

    def slices(self) -> list[memoryview]:
        try:
            return self._cut(self._maps.now)
        except KeyError:  # not all of them are open
            return self._cut(self._maps.held(self._numbers.tolist()))

    def _cut(self, maps: dict[int, memoryview]) -> list[memoryview]:
        starts = self._starts
        return [
            maps[number][start:end]
            for number, start, end in zip(
                self._numbers.tolist(),
                starts.tolist(),
                (starts + self._sizes).tolist(),
                strict=True,
            )
        ]

    def copy_to(self, out: Bytes) -> None:
        gather.copy(self._rows(), out)

    def widen_to(self, out: Array, dtype: np.dtype[Any]) -> None:
        gather.widen(self._rows(), out, dtype)

    def _rows(self) -> gather.Rows:
        return gather.Rows(self._maps, self._numbers, self._starts, self._sizes)

    def joined(self, size: int) -> Bytes | None:
        if not gather.is_available():
            return self._taken(size)
        out: Bytes = buffers.empty((len(self._starts), size), np.uint8)
        self.copy_to(out.reshape(-1))
        return out

    def _taken(self, size: int) -> Bytes | None:
        """As NumPy does it: None if ranges do not lie in steps of ``size``, or if there are nearly
        as many files as ranges."""
        numbers, starts = self._numbers, self._starts
        files = np.flatnonzero(np.bincount(numbers))
        if len(files) * RANGES_A_FILE > len(starts):
            return None
        out = buffers.empty(len(starts), f"V{size}")
        steps, rest = np.divmod(starts, size)
        for number in files.tolist():
            own = np.flatnonzero(numbers == number) if len(files) > 1 else slice(None)
            view, skip = self._maps[number], rest[own]
            if (skip != skip[0]).any():
                return None
            items = np.frombuffer(view, out.dtype, (len(view) - skip[0]) // size, skip[0])
            if len(files) > 1:
                out[own] = items.take(steps[own])
            else:
                # Any mode but "raise" writes to `out` directly; nothing is out of range here.
                items.take(steps, out=out, mode="clip")
        return out.view(np.uint8).reshape(len(starts), size)


def _announce(
    maps: Opened[memoryview],
    numbers: Integers,
    starts: Integers,
    sizes: Integers,
    at_least: int,
) -> None:
    numbers, starts, sizes = worth_announcing(numbers, starts, sizes, at_least)
    if not len(numbers):
        return
    opened, which = np.unique(numbers, return_inverse=True)
    # Held until they were announced: the address of a map that is gone may be another's.
    held = [np.frombuffer(maps[number], np.uint8) for number in opened.tolist()]
    addresses = np.array([view.ctypes.data for view in held], np.int64)
    will_need(addresses[which] + starts, sizes)
