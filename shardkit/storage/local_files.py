"""A folder that the system can open, as the storage of a dataset: its files are mapped, or copied.

Values of a mapped file are slices of the map. That costs no copy, but a file that is cut short
while it is mapped ends the process (SIGBUS), and whoever writes to it changes what was read. So
files are copied, each range once, where a map would not be safe (behind a network or another
process) or where their bytes may not change (``verify=True``): what was checked is then what is
used, and a file that is cut short, or a network that fails, is an error.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from shardkit.arrays import Array, Bytes, Integers
from shardkit.errors import FormatError
from shardkit.memory import buffers, gather
from shardkit.memory.maps import map_file, map_whole, will_need
from shardkit.storage.interface import Files, Turn
from shardkit.storage.opened import Check, Opened, OpenLimit, Warmth, merged, worth_announcing
from shardkit.system.file_io import OpenFile, open_file, pread, pread_full
from shardkit.system.file_systems import is_remote
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

T = TypeVar("T")
ReadOne = Callable[[int, int, int], bytes | memoryview]


@dataclass(frozen=True)
class Folder:
    """:class:`shardkit.storage.interface.Storage` of the files in one folder, or of links in it.

    Attributes:
        check: called after each file is opened: raises if these are not the files that they were.
    """

    path: Path
    check: Callable[[], object] = field(default=int, compare=False)

    def contents(self, name: str, num_bytes: int, *, copied: bool = False) -> memoryview:
        """Map it, or read it: as :func:`shardkit.memory.maps.map_file` does."""
        try:
            return map_file(self.path / name, num_bytes, copied=copied)
        finally:
            self.check()

    def size(self, name: str) -> int:
        with closing(open_file(self.path / name)) as file:
            return file.num_bytes

    def files(self, names: Sequence[str], sizes: Sequence[int], *, copied: bool = False) -> Files:
        if copied or must_copy(self.path, names):
            return CopiedFiles(self.path, names, sizes, check=self.check)
        return MappedFiles(self.path, names, sizes, check=self.check)

    def show(self, name: str) -> str:
        return show_path(self.path / name)


def must_copy(folder: Path, names: Sequence[str]) -> bool:
    """Return True if files are not safe to map where they lie. An index beside links to tars may be
    on another file system than they are."""
    return any(is_remote(path) for path in [folder, *(folder / name for name in names[:1])])


MOST_MAPS = 32_768
"""Maps that a process keeps at most: half of Linux's default limit of 65,530."""

ANNOUNCE_BYTES = 16 << 10
"""Values from this size on are announced before they are read: without that a cold one of 110 KB
comes in as 27 page faults, one after another. Below it the page faults cost less than the call."""

map_limit = OpenLimit(lambda: MOST_MAPS)


class _LocalFiles(Opened[T]):
    """Files of which the kernel is told what will be read, while reading goes to the disk."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._warmth = Warmth()

    def announce(
        self, numbers: Integers, starts: Integers, sizes: Integers, turn: Turn | None = None
    ) -> None:
        """Does nothing on platforms without ``madvise`` or ``posix_fadvise``."""
        self._tell_kernel(*worth_announcing(numbers, starts, sizes, 1))

    def _announce_large(self, numbers: Integers, starts: Integers, sizes: Integers) -> None:
        self._tell_kernel(*worth_announcing(numbers, starts, sizes, ANNOUNCE_BYTES))

    def _tell_kernel(self, numbers: Integers, starts: Integers, sizes: Integers) -> None:
        raise NotImplementedError

    def is_cold(self) -> bool:
        return self._warmth.is_cold()


# --- mapped -------------------------------------------------------------------------------


class MappedFiles(_LocalFiles[memoryview]):
    """:class:`shardkit.storage.interface.Files` of a folder, each mapped as a whole."""

    def __init__(
        self, folder: Path, names: Sequence[str], sizes: Sequence[int], check: Check = int
    ) -> None:
        super().__init__(folder, names, sizes, map_whole, map_limit, check)

    def read(self, numbers: Integers, starts: Integers, sizes: Integers) -> MappedRanges:
        if int(sizes.max(initial=0)) >= ANNOUNCE_BYTES and self._warmth.is_cold():
            self._announce_large(numbers, starts, sizes)
        return MappedRanges(self, numbers, starts, sizes)

    def piece(self, number: int, start: int, stop: int) -> memoryview:
        return self[number][start:stop]

    def _tell_kernel(self, numbers: Integers, starts: Integers, sizes: Integers) -> None:
        if not len(numbers):
            return
        opened, which = np.unique(numbers, return_inverse=True)
        # Held until they were announced: the address of a map that is gone may be another's.
        held = [np.frombuffer(self[number], np.uint8) for number in opened.tolist()]
        addresses = np.array([view.ctypes.data for view in held], np.int64)
        will_need(addresses[which] + starts, sizes)


class MappedRanges(gather.Rows):
    """:class:`shardkit.storage.interface.Ranges` of maps."""

    __slots__ = ()

    def slices(self) -> list[memoryview]:
        maps = cast("Opened[memoryview]", self.memory)
        try:
            return self._cut(maps.now)
        except KeyError:  # not all of them are open
            return self._cut(maps.held(self.which.tolist()))

    def _cut(self, maps: dict[int, memoryview]) -> list[memoryview]:
        starts, ends = self.starts.tolist(), (self.starts + self.sizes).tolist()
        places = zip(self.which.tolist(), starts, ends, strict=True)
        return [maps[number][start:end] for number, start, end in places]

    def copy_to(self, out: Bytes) -> None:
        gather.copy(self, out)

    def widen_to(self, out: Array, dtype: np.dtype[Any]) -> None:
        gather.widen(self, out, dtype)

    def joined(self, size: int) -> Bytes:
        out: Bytes = buffers.empty((len(self.starts), size), np.uint8)
        self.copy_to(out.reshape(-1))
        return out


# --- copied -------------------------------------------------------------------------------

MOST_OPEN = 1024
"""Descriptors that all :class:`CopiedFiles` of a process keep at most; and a quarter of those that
the process may have."""

_MOST_BYTES = 1 << 62


def _most_open() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_OPEN if limit == resource.RLIM_INFINITY else max(min(limit // 4, MOST_OPEN), 1)


_limit = OpenLimit(_most_open)


class CopiedFiles(_LocalFiles[OpenFile]):
    """:class:`shardkit.storage.interface.Files` of a folder, of which each range is read once."""

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        sizes: Sequence[int],
        opener: Callable[[Path, int], OpenFile] = open_file,
        advice: str = "restore it",
        check: Check = int,
    ) -> None:
        super().__init__(folder, names, sizes, opener, _limit, check)
        self._advice = advice

    def read(self, numbers: Integers, starts: Integers, sizes: Integers) -> CopiedRanges:
        if int(sizes.max(initial=0)) >= ANNOUNCE_BYTES and self._warmth.is_cold():
            self._announce_large(numbers, starts, sizes)
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
        numbers, starts, sizes = merged(numbers, starts, sizes, most_gap=0)
        number, view, ends = 0, out.data, sizes.cumsum().tolist()
        places = zip(numbers.tolist(), starts.tolist(), [0, *ends], ends, strict=False)
        try:
            for number, start, at, end in places:
                file = self[number]  # kept until it was read, whoever closes it
                got = pread_full(file.fd, view[at:end], start)
                if got != end - at:
                    raise self._cut_short(number, start, end - at, got)
        except OSError:
            with os_errors(f"reading {self.show(number)}"):
                raise

    def piece(self, number: int, start: int, stop: int) -> CopiedPiece:
        return CopiedPiece(self.read_one, number, start, stop)

    def read_one(self, number: int, start: int, size: int) -> bytes:
        """Read one range, at once."""
        file = self[number]
        with os_errors(f"reading {self.show(number)}"):
            data = pread(file.fd, size, start)
        if len(data) != size:
            raise self._cut_short(number, start, size, len(data))
        return data

    def _tell_kernel(self, numbers: Integers, starts: Integers, sizes: Integers) -> None:
        if hasattr(os, "posix_fadvise"):
            for number, start, size in np.stack([numbers, starts, sizes], axis=1).tolist():
                os.posix_fadvise(self[number].fd, start, size, os.POSIX_FADV_WILLNEED)

    def _cut_short(self, number: int, start: int, size: int, got: int) -> FormatError:
        return FormatError(
            f"{self.show(number)} was cut short while it was open: expected {size} bytes"
            f" from byte {start} on, got {got}; {self._advice}"
        )


@dataclass(slots=True)
class CopiedRanges:
    """:class:`shardkit.storage.interface.Ranges` in one buffer."""

    _buffer: Bytes
    _ends: Integers

    def slices(self) -> list[memoryview]:
        view, ends = buffers.view_of(self._buffer), self._ends.tolist()
        return [view[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def copy_to(self, out: Bytes) -> None:
        out[:] = self._buffer

    def widen_to(self, out: Array, dtype: np.dtype[Any]) -> None:
        out[:] = self._buffer.view(dtype)

    def joined(self, size: int) -> Bytes:
        return self._buffer.reshape(-1, size)


@dataclass(slots=True)
class CopiedPiece:
    """Bytes of one file; each slice is read when it is taken."""

    _read_one: ReadOne
    _number: int
    _start: int
    _stop: int

    def __getitem__(self, wanted: slice) -> bytes | memoryview:
        start, stop, _ = wanted.indices(self._stop - self._start)
        return self._read_one(self._number, self._start + start, max(stop - start, 0))
