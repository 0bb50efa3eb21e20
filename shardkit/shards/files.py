"""The files that hold a field, and the two ways to read them: mapped, or copied.

A mapped value costs no copy, but a file that is cut short while it is mapped ends the process, and
whoever writes to it changes what was read. So files are copied where that may happen (behind a
network or another process) or must not matter (``verify=True``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from shardkit.memory.mapping import Buffer, FileMaps, Places
from shardkit.shards.copied import FileReads
from shardkit.system.file_systems import is_remote

MAX_MAPS = 32_768
"""Open maps a split at most: half of Linux's default limit of 65,530 a process."""


class Ranges(Protocol):
    """B ranges of bytes that were found."""

    def slices(self) -> list[memoryview]:
        """Their bytes, read-only, which stay good."""
        ...

    def joined(self, size: int) -> Buffer | None:
        """(B, size) uint8: their bytes in one array, which is the caller's; all have this size.
        None where :meth:`slices` are as good."""
        ...


class Sliceable(Protocol):
    """Bytes of a file."""

    def __getitem__(self, wanted: slice, /) -> bytes | memoryview: ...


class Files(Protocol):
    """Ranges of bytes in numbered files, which are opened on first use, in each process for itself.
    Threads may share it.

    Methods but ``announce`` raise ShardMissingError, IndexFileError and StorageError as
    :func:`shardkit.system.opening.open_file` does; those that read, FormatError for a file that was
    cut short while it was open. Ranges must lie inside ``sizes``.

    Attributes:
        sizes: (F,) int64, the bytes that each file should have.
    """

    sizes: Places

    def ranges(self, numbers: Places, starts: Places, sizes: Places) -> Ranges:
        """(B,) int64 each, to be read."""
        ...

    def piece(self, number: int, start: int, stop: int) -> Sliceable:
        """A range of one file, to be read in parts; those beyond its end are cut off."""
        ...

    def announce(self, numbers: Places, starts: Places, sizes: Places, at_least: int) -> None:
        """Tell the kernel that those ranges which have so many bytes will be read soon. Returns at
        once."""
        ...


def open_files(
    folder: Path, names: Sequence[str], sizes: Sequence[int], *, copied: bool, most: int = MAX_MAPS
) -> Files:
    """Files of one folder; at most ``most`` stay mapped. Nothing is opened yet."""
    if copied:
        return FileReads(folder, names, sizes)
    return FileMaps(folder, names, sizes, most)


def must_copy(folder: Path, names: Sequence[str]) -> bool:
    """Whether files are not safe to map where they lie. An index beside links to tars may be on
    another file system than they are."""
    return any(is_remote(path) for path in [folder, *(folder / name for name in names[:1])])
