"""Files mapped into memory: opened on first use, few at a time, announced before they are read."""

from __future__ import annotations

import mmap
import os
import resource
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from shardkit import buffers
from shardkit.advise import will_need
from shardkit.errors import IndexFileError, ShardMissingError, StorageError
from shardkit.storage import os_errors, show_path

Places = np.ndarray[Any, np.dtype[np.int64]]
Buffer = np.ndarray[Any, np.dtype[np.uint8]]

ANNOUNCE_BYTES = 16 << 10
"""Values from this size on are announced: below it the page faults cost less than the call."""

RANGES_A_FILE = 8
"""Fewer than that of each file, and a copy for each range is as fast as one for each file."""


def map_file(path: Path, expected_bytes: int) -> mmap.mmap | bytes:
    """Memory-map a whole file of a known size (mapping an empty file is not possible).

    Raises:
        ShardMissingError: no such file. IndexFileError: another size than expected, or no file.
        StorageError: it cannot be opened or mapped.
    """
    with _opened(path) as (fd, num_bytes):
        if num_bytes != expected_bytes:
            raise IndexFileError(
                f"{show_path(path)} has {num_bytes} bytes, expected {expected_bytes}:"
                " truncated or replaced; `shardkit verify` tells more"
            )
        with os_errors(f"mapping {show_path(path)}"):
            return mmap.mmap(fd, expected_bytes, access=mmap.ACCESS_READ) if expected_bytes else b""


def map_whole(path: Path) -> mmap.mmap | bytes:
    """Memory-map a file of whatever size it has; errors as of :func:`map_file`."""
    with _opened(path) as (fd, num_bytes), os_errors(f"mapping {show_path(path)}"):
        return mmap.mmap(fd, num_bytes, access=mmap.ACCESS_READ) if num_bytes else b""


def read_file(path: Path, at_most: int) -> bytes:
    """The contents of a file that is not trusted.

    Raises:
        ShardMissingError: no such file. IndexFileError: over ``at_most`` bytes, or no file.
        StorageError: it cannot be opened or read.
    """
    with _opened(path) as (fd, num_bytes):
        if num_bytes > at_most:
            raise IndexFileError(f"{show_path(path)} is over {at_most} bytes; refusing to read")
        with os_errors(f"reading {show_path(path)}"), open(fd, "rb", closefd=False) as file:
            return file.read(at_most)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[int, int]]:
    """A regular file, open, and its size."""
    try:
        # Without O_NONBLOCK, a FIFO under the name of a shard would block for ever.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise ShardMissingError(
            f"{show_path(path)} is missing; restore it or pack again"
        ) from error
    except OSError as error:
        raise StorageError(f"{show_path(path)} cannot be opened: {error.strerror}") from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise IndexFileError(f"{show_path(path)} is no regular file; restore it or pack again")
        yield fd, status.st_size
    finally:
        os.close(fd)


class FileMaps(dict[int, memoryview]):
    """Number -> the mapped file of that number. Threads may share it: two that open one file at
    once both map it, and one map is dropped."""

    def __init__(self, folder: Path, names: Sequence[str], sizes: Sequence[int], most: int) -> None:
        """At most ``most`` stay open; slices of those closed stay good."""
        super().__init__()
        self._folder = folder
        self._names = names
        self._most = most
        self._addresses = np.zeros(len(names), np.int64)
        self.sizes = np.array(sizes, np.int64)

    def __missing__(self, number: int) -> memoryview:
        if len(self) >= self._most:
            # The oldest, taken in single steps: another thread may be doing the same.
            self.pop(next(iter(tuple(self)), number), None)
        path = self._folder / self._names[number]
        view = self[number] = memoryview(map_file(path, int(self.sizes[number])))
        if len(view):
            self._addresses[number] = np.frombuffer(view, np.uint8).ctypes.data
        return view

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
        """Tell the kernel that these ranges, which must lie inside, will be read soon.

        Returns at once; does nothing on platforms without ``madvise``. Neighbours that come after
        one another are announced as one.
        """
        large = sizes >= at_least
        if not large.any():
            return
        numbers, starts, sizes = merged(numbers[large], starts[large], sizes[large])
        opened = [self[number] for number in np.unique(numbers).tolist()]  # and not closed yet
        will_need(self._addresses[numbers] + starts, sizes)
        del opened


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
