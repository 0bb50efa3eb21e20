"""Ranges of files read into memory of our own, each once.

What was checked is then what is used, whoever writes to the file meanwhile, and a file that is cut
short, or a network that fails, is an error: of a mapped file both end the process (SIGBUS).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shardkit.arrays import Array, Bytes, Integers
from shardkit.errors import FormatError
from shardkit.memory import buffers
from shardkit.storage.base import Turn
from shardkit.storage.mapped import ANNOUNCE_BYTES
from shardkit.storage.neighbours import worth_announcing
from shardkit.storage.opened import Check, Opened, OpenLimit
from shardkit.storage.warmth import Warmth
from shardkit.system.full_reads import pread, pread_full
from shardkit.system.opening import OpenFile, open_file
from shardkit.system.refusals import os_errors

MOST_OPEN = 1024
"""Descriptors that all :class:`CopiedFiles` of a process keep at most; and a quarter of those that
the process may have."""

_MOST_BYTES = 1 << 62


def _most_open() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_OPEN if limit == resource.RLIM_INFINITY else max(min(limit // 4, MOST_OPEN), 1)


_limit = OpenLimit(_most_open)


class CopiedFiles:
    """:class:`shardkit.storage.base.Files` of a folder, of which each range is read once."""

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        sizes: Sequence[int],
        opener: Callable[[Path, int], OpenFile] = open_file,
        advice: str = "restore it",
        check: Check = int,
    ) -> None:
        self._advice = advice
        self._opened: Opened[OpenFile] = Opened(folder, names, sizes, opener, _limit, check)
        self.sizes = self._opened.sizes
        self._warmth = Warmth()

    def read(self, numbers: Integers, starts: Integers, sizes: Integers) -> CopiedRanges:
        if int(sizes.max(initial=0)) >= ANNOUNCE_BYTES and self._warmth.is_cold():
            self._announce(numbers, starts, sizes, ANNOUNCE_BYTES)
        ends = sizes.cumsum()
        # Of a hostile index the sum may be no int64.
        if sizes.sum(dtype=np.float64) > _MOST_BYTES:
            raise MemoryError
        out: Bytes = buffers.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
        self.read_into(out, numbers, starts, sizes)
        return CopiedRanges(out, ends)

    def read_into(self, out: Bytes, numbers: Integers, starts: Integers, sizes: Integers) -> None:
        """Read the bytes of ranges, end to end, into memory that holds just as many."""
        # What lies end to end in a file, as rows in stored order do, is one call.
        is_first = np.ones(len(numbers), np.bool_)
        is_first[1:] = (numbers[1:] != numbers[:-1]) | (starts[1:] != (starts + sizes)[:-1])
        firsts = np.flatnonzero(is_first)
        lasts = np.append(firsts, len(numbers))[1:] - 1
        ends = [0, *sizes.cumsum()[lasts].tolist()]
        self._fill(out.data, numbers[firsts].tolist(), starts[firsts].tolist(), ends)

    def _fill(
        self, out: memoryview, numbers: list[int], starts: list[int], ends: list[int]
    ) -> None:
        number = 0
        try:
            for number, start, at, end in zip(numbers, starts, ends, ends[1:], strict=False):
                file = self._opened[number]  # kept until it was read, whoever closes it
                got = pread_full(file.fd, out[at:end], start)
                if got != end - at:
                    raise self._cut_short(number, start, end - at, got)
        except OSError:
            with os_errors(f"reading {self._opened.show(number)}"):
                raise

    def piece(self, number: int, start: int, stop: int) -> CopiedPiece:
        return CopiedPiece(self, number, start, stop)

    def read_one(self, number: int, start: int, size: int) -> bytes:
        """One range, at once."""
        file = self._opened[number]
        with os_errors(f"reading {self._opened.show(number)}"):
            data = pread(file.fd, size, start)
        if len(data) != size:
            raise self._cut_short(number, start, size, len(data))
        return data

    def announce(
        self, numbers: Integers, starts: Integers, sizes: Integers, turn: Turn | None = None
    ) -> None:
        """Does nothing on platforms without ``posix_fadvise``."""
        self._announce(numbers, starts, sizes, 1)

    def _announce(
        self, numbers: Integers, starts: Integers, sizes: Integers, at_least: int
    ) -> None:
        if not hasattr(os, "posix_fadvise"):
            return
        ranges = worth_announcing(numbers, starts, sizes, at_least)
        for number, start, size in zip(*(column.tolist() for column in ranges), strict=True):
            file = self._opened[number]
            os.posix_fadvise(file.fd, start, size, os.POSIX_FADV_WILLNEED)

    def is_cold(self) -> bool:
        return self._warmth.is_cold()

    def _cut_short(self, number: int, start: int, size: int, got: int) -> FormatError:
        return FormatError(
            f"{self._opened.show(number)} was cut short while it was open: expected {size} bytes"
            f" from byte {start} on, got {got}; {self._advice}"
        )


class CopiedRanges:
    """:class:`shardkit.storage.base.Ranges` in one buffer."""

    __slots__ = ("_buffer", "_ends")

    def __init__(self, buffer: Bytes, ends: Integers) -> None:
        self._buffer = buffer
        self._ends = ends

    def slices(self) -> list[memoryview]:
        view, ends = buffers.view_of(self._buffer), self._ends.tolist()
        return [view[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def copy_to(self, out: Bytes) -> None:
        out[:] = self._buffer

    def widen_to(self, out: Array, dtype: np.dtype[Any]) -> None:
        out[:] = self._buffer.view(dtype)

    def joined(self, size: int) -> Bytes:
        return self._buffer.reshape(-1, size)


class ReadsOne(Protocol):
    """Files of which one range is read at once."""

    def read_one(self, number: int, start: int, size: int) -> bytes | memoryview: ...


class CopiedPiece:
    """Bytes of one file; each slice is read when it is taken."""

    __slots__ = ("_files", "_number", "_start", "_stop")

    def __init__(self, files: ReadsOne, number: int, start: int, stop: int) -> None:
        self._files = files
        self._number = number
        self._start = start
        self._stop = stop

    def __getitem__(self, wanted: slice) -> bytes | memoryview:
        start, stop, _ = wanted.indices(self._stop - self._start)
        return self._files.read_one(self._number, self._start + start, max(stop - start, 0))
