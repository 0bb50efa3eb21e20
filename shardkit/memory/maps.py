"""Maps of files that hold no descriptor, and advice to the kernel about them.

``mmap.mmap`` keeps a descriptor for each map, and many systems let a process have 1,024: a dataset
of 900 shards could not be read. Python 3.13 has ``trackfd=False``; the C library's own call does
the same in every version.

``mmap.madvise`` keeps the GIL, and on a cold disk the kernel takes 35 us to begin on a value of
110 KB: 2 ms for a batch of 64, in which a training loop beside a worker thread would stand still.
A call for each value that lets go of the GIL may wait 5 ms each time to get it back. So it is one
call for all of them, ``process_madvise`` of Linux >= 5.10.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Integers
from shardkit.errors import IndexFileError
from shardkit.memory.buffers import view_of
from shardkit.system.file_io import open_file, pread
from shardkit.system.file_systems import is_remote, libc
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

_FAILED = ctypes.c_void_p(-1).value


class Map:
    """Bytes of a file, mapped to be read, for as long as a view of :func:`mapped` is in use.

    A child process after a fork has them, too, and lets go of its own.
    """

    __slots__ = ("__weakref__", "_unmap", "address", "size")

    def __init__(self, fd: int, size: int, offset: int = 0) -> None:
        """Raises OSError."""
        self.size = 0
        lib = libc()
        self._unmap = lib.munmap  # not looked up where the process ends, and modules are empty
        found = lib.map_file(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, offset)
        if found == _FAILED:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        self.address = found
        self.size = size

    def __del__(self) -> None:
        if self.size:
            self._unmap(self.address, self.size)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        place = self.address, True  # read-only
        return {"data": place, "shape": (self.size,), "typestr": "|u1", "version": 3}


def mapped(fd: int, size: int, offset: int = 0) -> memoryview:
    """Map bytes of an open file, of which the descriptor may be closed at once. ``offset`` is one
    of whole pages. Raises OSError."""
    # NumPy's array keeps the map, a memoryview the array, slices of a memoryview all of them.
    return view_of(np.asarray(Map(fd, size, offset))) if size else memoryview(b"")


def map_of(view: memoryview) -> Map | None:
    """Return the map that :func:`mapped` made this view, or what it is a slice of, from; None for
    other memory."""
    found: object = view.obj
    while isinstance(found, np.ndarray):
        found = found.base
    return found if isinstance(found, Map) else None


# --- whole files --------------------------------------------------------------------------

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
        return map_whole(path, expected_bytes)
    with closing(open_file(path, expected_bytes)) as file, os_errors(f"reading {show_path(path)}"):
        data = pread(file.fd, expected_bytes, 0)
    if len(data) != expected_bytes:
        raise IndexFileError(
            f"{show_path(path)} was cut short while it was read, to {len(data)} bytes of"
            f" {expected_bytes}; restore it"
        )
    return memoryview(data)


def map_whole(path: Path, expected_bytes: int | None = None) -> memoryview:
    """Memory-map a file, of whatever size it has if none is expected; errors as of
    :func:`map_file`."""
    with closing(open_file(path, expected_bytes)) as file, os_errors(f"mapping {show_path(path)}"):
        return mapped(file.fd, file.num_bytes)


def read_file(path: Path, at_most: int) -> bytes:
    """Return the contents of a file that is not trusted.

    Raises:
        ShardMissingError: no such file. IndexFileError: over ``at_most`` bytes, or no file.
        StorageError: it cannot be opened or read.
    """
    with closing(open_file(path)) as file:
        if file.num_bytes > at_most:
            raise IndexFileError(f"{show_path(path)} is over {at_most} bytes; refusing to read")
        with os_errors(f"reading {show_path(path)}"):
            return pread(file.fd, file.num_bytes, 0)


# --- huge values --------------------------------------------------------------------------

CHUNK_BYTES = 64 << 20
"""A longer value is taken in chunks of this size."""


def in_chunks(value: bytes | memoryview) -> Iterator[bytes | memoryview]:
    """Yield a value in chunks, end to end; of a mapped one, each is let go of before the next."""
    if len(value) <= CHUNK_BYTES:
        yield value
        return
    view = memoryview(value)
    for start in range(0, len(view), CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]
        release_pages(view)


def release_pages(value: bytes | memoryview) -> None:
    """Give back the pages of the file that a value is mapped from; who needs them gets them again
    from the file, or from where the system keeps it. Other values hold their own memory."""
    if not isinstance(value, memoryview) or not value.readonly:
        return
    if isinstance(value.obj, mmap.mmap):
        value.obj.madvise(mmap.MADV_DONTNEED)
    elif (held := map_of(value)) is not None:
        libc().madvise(held.address, held.size, mmap.MADV_DONTNEED)


def release_freed() -> None:
    """Give memory that was freed back to the system. The C library keeps it where chunks of many
    sizes come and go: 100 MB for each 400 MB of text that were tokenized (glibc 2.36)."""
    if (give_back := getattr(libc(), "malloc_trim", None)) is not None:
        give_back(0)


# --- advice -------------------------------------------------------------------------------

_PAGE = mmap.PAGESIZE
_PROCESS_MADVISE = 440  # the same number on all architectures
_MAX_RANGES = 1024  # the kernel's UIO_MAXIOV


def will_need(addresses: Integers, sizes: Integers) -> None:
    """Tell the kernel that (N,) ranges of this process's memory, all mapped, will be read soon.

    Returns before they are there. Does nothing where the platform has no such call.
    """
    starts = addresses // _PAGE * _PAGE
    ranges = np.stack([starts, addresses + sizes - starts], axis=1)
    for first in range(0, len(ranges), _MAX_RANGES):
        some = ranges[first : first + _MAX_RANGES]
        if not _all_at_once(some):
            _one_by_one(some)


def _all_at_once(ranges: Integers) -> bool:
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        fd = os.pidfd_open(os.getpid())
    except OSError:  # an older kernel, or a sandbox
        return False
    try:
        advised = libc().syscall(
            ctypes.c_long(_PROCESS_MADVISE),
            ctypes.c_int(fd),
            ctypes.c_void_p(ranges.ctypes.data),
            ctypes.c_size_t(len(ranges)),
            ctypes.c_int(mmap.MADV_WILLNEED),
            ctypes.c_uint(0),
        )
    finally:
        os.close(fd)
    return bool(advised == ranges[:, 1].sum())  # in bytes: it may have stopped on the way


def _one_by_one(ranges: Integers) -> None:
    if hasattr(mmap, "MADV_WILLNEED"):
        madvise = libc().madvise
        for start, size in ranges.tolist():
            madvise(start, size, mmap.MADV_WILLNEED)
