"""Files mapped into memory: opened on first use, few at a time, announced before they are read."""

from __future__ import annotations

import mmap
import resource
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.errors import IndexFileError
from shardkit.memory import buffers
from shardkit.memory.madvise import will_need
from shardkit.memory.maps import mapped
from shardkit.system.file_systems import is_remote
from shardkit.system.opening import open_file
from shardkit.system.storage import os_errors, pread, show_path

Places = np.ndarray[Any, np.dtype[np.int64]]
Buffer = np.ndarray[Any, np.dtype[np.uint8]]

ANNOUNCE_BYTES = 16 << 10
"""Values from this size on are announced: below it the page faults cost less than the call."""

RANGES_A_FILE = 8
"""Fewer than that of each file, and a copy for each range is as fast as one for each file."""

READ_BYTES = 16 << 20
"""An index that may be cut short while it is open is read up to this size, and mapped beyond: each
process would have a copy of its own."""


def map_file(path: Path, expected_bytes: int, *, copied: bool = False) -> memoryview:
    """Memory-map a whole file of a known size; or read it, behind a network or if it is to be
    ``copied``: see :data:`READ_BYTES`.

    Raises:
        ShardMissingError: no such file. IndexFileError: another size than expected, or no file.
        StorageError: it cannot be opened, mapped or read.
    """
    if expected_bytes > READ_BYTES or not (copied or is_remote(path)):
        return _map(path, expected_bytes)
    with closing(open_file(path, expected_bytes)) as file, os_errors(f"reading {show_path(path)}"):
        data = pread(file.fd, expected_bytes, 0)
    if len(data) != expected_bytes:
        raise IndexFileError(
            f"{show_path(path)} was cut short while it was read, to {len(data)} bytes of"
            f" {expected_bytes}; restore it"
        )
    return memoryview(data)


def map_whole(path: Path) -> memoryview:
    """Memory-map a file of whatever size it has; errors as of :func:`map_file`."""
    return _map(path, None)


def _map(path: Path, expected_bytes: int | None) -> memoryview:
    with closing(open_file(path, expected_bytes)) as file, os_errors(f"mapping {show_path(path)}"):
        return mapped(file.fd, file.num_bytes)


def read_file(path: Path, at_most: int) -> bytes:
    """The contents of a file that is not trusted.

    Raises:
        ShardMissingError: no such file. IndexFileError: over ``at_most`` bytes, or no file.
        StorageError: it cannot be opened or read.
    """
    with closing(open_file(path)) as file:
        if file.num_bytes > at_most:
            raise IndexFileError(f"{show_path(path)} is over {at_most} bytes; refusing to read")
        with os_errors(f"reading {show_path(path)}"):
            return pread(file.fd, file.num_bytes, 0)


class FileMaps(dict[int, memoryview]):
    """Number -> the mapped file of that number: :class:`shardkit.shards.files.Files` whose values
    are slices of the maps, not copies. Threads may share it: two that open one file at once both
    map it, and one map is dropped."""

    def __init__(self, folder: Path, names: Sequence[str], sizes: Sequence[int], most: int) -> None:
        """At most ``most`` stay open; slices of those closed stay good."""
        super().__init__()
        self._folder = folder
        self._names = names
        self._most = most
        self.sizes = np.array(sizes, np.int64)

    def __missing__(self, number: int) -> memoryview:
        if len(self) >= self._most:
            # The oldest, taken in single steps: another thread may be doing the same.
            self.pop(next(iter(tuple(self)), number), None)
        path = self._folder / self._names[number]
        view = self[number] = _map(path, int(self.sizes[number]))
        return view

    def ranges(self, numbers: Places, starts: Places, sizes: Places) -> MappedRanges:
        return MappedRanges(self, numbers, starts, sizes)

    def piece(self, number: int, start: int, stop: int) -> memoryview:
        return self[number][start:stop]

    def take(self, numbers: Places, starts: Places, size: int) -> Buffer | None:
        """Copy ranges of one size, which must lie inside, into one array: (B, size) uint8.

        None where that would not be faster than slice by slice: if ranges do not lie in steps of
        ``size``, or if there are nearly as many files as ranges.
        """
        files = np.flatnonzero(np.bincount(numbers))
        if len(files) * RANGES_A_FILE > len(starts):
            return None
        out = buffers.empty(len(starts), f"V{size}")
        steps, rest = np.divmod(starts, size)
        for number in files.tolist():
            own = np.flatnonzero(numbers == number) if len(files) > 1 else slice(None)
            view, skip = self[number], rest[own]
            if (skip != skip[0]).any():
                return None
            items = np.frombuffer(view, out.dtype, (len(view) - skip[0]) // size, skip[0])
            if len(files) > 1:
                out[own] = items.take(steps[own])
            else:
                # Any mode but "raise" writes to `out` directly; nothing is out of range here.
                items.take(steps, out=out, mode="clip")
        return out.view(np.uint8).reshape(len(starts), size)

    def announce(self, numbers: Places, starts: Places, sizes: Places, at_least: int) -> None:
        """Does nothing on platforms without ``madvise``. Neighbours that come after one another
        are announced as one."""
        large = sizes >= at_least
        if not large.any():
            return
        numbers, starts, sizes = merged(numbers[large], starts[large], sizes[large])
        opened, which = np.unique(numbers, return_inverse=True)
        # Held until they were announced: the address of a map that is gone may be another's.
        held = [np.frombuffer(self[number], np.uint8) for number in opened.tolist()]
        addresses = np.array([view.ctypes.data for view in held], np.int64)
        will_need(addresses[which] + starts, sizes)


class MappedRanges:
    """Of one batch, as :class:`shardkit.shards.files.Ranges` has them."""

    __slots__ = ("_maps", "_numbers", "_sizes", "_starts")

    def __init__(self, maps: FileMaps, numbers: Places, starts: Places, sizes: Places) -> None:
        self._maps = maps
        self._numbers = numbers
        self._starts = starts
        self._sizes = sizes

    def slices(self) -> list[memoryview]:
        maps, starts = self._maps, self._starts
        return [
            maps[number][start:end]
            for number, start, end in zip(
                self._numbers.tolist(),
                starts.tolist(),
                (starts + self._sizes).tolist(),
                strict=True,
            )
        ]

    def joined(self, size: int) -> Buffer | None:
        return self._maps.take(self._numbers, self._starts, size)


def merged(numbers: Places, starts: Places, sizes: Places) -> tuple[Places, Places, Places]:
    """One range for those that follow one another in a file with at most a page between."""
    ends = starts + sizes
    gaps = starts[1:] - ends[:-1]
    is_first = np.ones(len(numbers), np.bool_)
    is_first[1:] = (numbers[1:] != numbers[:-1]) | (gaps < 0) | (gaps > mmap.PAGESIZE)
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(numbers)) - 1
    return numbers[firsts], starts[firsts], ends[lasts] - starts[firsts]


class Warmth:
    """Whether to announce values: while page faults, or what was announced, went to the disk.

    Announcing a 110 KB value costs 2 us, copying it 4 us, so a warm epoch should not pay for it.
    """

    BATCHES = 64
    """Batches announced after one that went to the disk, and at first; then one is not."""

    ASKED_EVERY = 8
    """Batches, while they are not announced: it takes 1 us, and a batch of tokens 27."""

    def __init__(self) -> None:
        self._seen = (0, 0)
        self._left = self.BATCHES
        self._quiet = 0

    def is_cold(self) -> bool:
        """Asked once a batch."""
        if self._quiet > 0:
            self._quiet -= 1
            return False
        usage = resource.getrusage(resource.RUSAGE_SELF)
        seen = (usage.ru_majflt, usage.ru_inblock)
        if seen != self._seen:
            self._seen, self._left = seen, self.BATCHES
        self._left = max(self._left - 1, 0)
        self._quiet = 0 if self._left else self.ASKED_EVERY - 1
        return self._left > 0
