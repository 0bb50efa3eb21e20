"""Ranges of files read into memory of our own, each once.

What was checked is then what is used, whoever writes to the file meanwhile, and a file that is cut
short, or a network that fails, is an error: of a mapped file both end the process (SIGBUS).
"""

from __future__ import annotations

import os
import resource
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shardkit.errors import FormatError
from shardkit.memory import buffers
from shardkit.memory.mapping import Buffer, Places, merged
from shardkit.system.opening import OpenFile, open_file
from shardkit.system.storage import os_errors, pread, pread_full, show_path

MOST_OPEN = 1024
"""Descriptors that all :class:`FileReads` of a process keep at most; and a quarter of those that
the process may have."""

_MOST_BYTES = 1 << 62

_opened: deque[tuple[weakref.ref[FileReads], int]] = deque()
"""What is open, the oldest first."""


class FileReads(dict[int, OpenFile]):
    """Number -> the open file of that number: :class:`shardkit.shards.files.Files` that copies."""

    def __init__(self, folder: Path, names: Sequence[str], sizes: Sequence[int]) -> None:
        super().__init__()
        self._folder = folder
        self._names = names
        self.sizes = np.array(sizes, np.int64)

    def __missing__(self, number: int) -> OpenFile:
        _make_room()
        path = self._folder / self._names[number]
        file = self[number] = open_file(path, int(self.sizes[number]))
        _opened.append((weakref.ref(self), number))
        return file

    def ranges(self, numbers: Places, starts: Places, sizes: Places) -> CopiedRanges:
        ends = sizes.cumsum()
        # Of a hostile index the sum may be no int64.
        if sizes.sum(dtype=np.float64) > _MOST_BYTES:
            raise MemoryError
        out: Buffer = buffers.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
        # What lies end to end in a file, as rows in stored order do, is one call.
        is_first = np.ones(len(numbers), np.bool_)
        is_first[1:] = (numbers[1:] != numbers[:-1]) | (starts[1:] != (starts + sizes)[:-1])
        firsts = np.flatnonzero(is_first)
        lasts = np.append(firsts, len(numbers))[1:] - 1
        self._fill(
            out.data,
            numbers[firsts].tolist(),
            starts[firsts].tolist(),
            [0, *ends[lasts].tolist()],
        )
        return CopiedRanges(out, ends)

    def _fill(
        self, out: memoryview, numbers: list[int], starts: list[int], ends: list[int]
    ) -> None:
        number = 0
        try:
            for number, start, at, end in zip(numbers, starts, ends, ends[1:], strict=False):
                file = self[number]  # kept until it was read, whoever closes it
                got = pread_full(file.fd, out[at:end], start)
                if got != end - at:
                    raise self._cut_short(number, start, end - at, got)
        except OSError:
            with os_errors(f"reading {self._show(number)}"):
                raise

    def piece(self, number: int, start: int, stop: int) -> Piece:
        return Piece(self, number, start, stop)

    def read(self, number: int, start: int, size: int) -> bytes:
        """Raises FormatError, StorageError."""
        file = self[number]
        with os_errors(f"reading {self._show(number)}"):
            data = pread(file.fd, size, start)
        if len(data) != size:
            raise self._cut_short(number, start, size, len(data))
        return data

    def announce(self, numbers: Places, starts: Places, sizes: Places, at_least: int) -> None:
        """Does nothing on platforms without ``posix_fadvise``."""
        large = sizes >= at_least
        if not large.any() or not hasattr(os, "posix_fadvise"):
            return
        ranges = merged(numbers[large], starts[large], sizes[large])
        for number, start, size in zip(*(column.tolist() for column in ranges), strict=True):
            file = self[number]
            os.posix_fadvise(file.fd, start, size, os.POSIX_FADV_WILLNEED)

    def _show(self, number: int) -> str:
        return show_path(self._folder / self._names[number])

    def _cut_short(self, number: int, start: int, size: int, got: int) -> FormatError:
        return FormatError(
            f"{self._show(number)} was cut short while it was open: expected {size} bytes from byte"
            f" {start} on, got {got}; restore it"
        )


class CopiedRanges:
    """Of one batch, as :class:`shardkit.shards.files.Ranges` has them."""

    __slots__ = ("_buffer", "_ends")

    def __init__(self, buffer: Buffer, ends: Places) -> None:
        self._buffer = buffer
        self._ends = ends

    def slices(self) -> list[memoryview]:
        view, ends = buffers.view_of(self._buffer), self._ends.tolist()
        return [view[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def joined(self, size: int) -> Buffer:
        return self._buffer.reshape(-1, size)


class Piece:
    """A range of a file, whose slices are read."""

    __slots__ = ("_files", "_number", "_start", "_stop")

    def __init__(self, files: FileReads, number: int, start: int, stop: int) -> None:
        self._files = files
        self._number = number
        self._start = start
        self._stop = stop

    def __getitem__(self, wanted: slice) -> bytes:
        start, stop, _ = wanted.indices(self._stop - self._start)
        return self._files.read(self._number, self._start + start, max(stop - start, 0))


def _make_room() -> None:
    """Close the oldest, whosever they are: a mix has many datasets in one process."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = MOST_OPEN if limit == resource.RLIM_INFINITY else max(min(limit // 4, MOST_OPEN), 1)
    while len(_opened) >= most:
        try:
            owner, number = _opened.popleft()
        except IndexError:  # another thread was faster
            return
        files = owner()
        if files is not None:
            files.pop(number, None)
