"""What Python has no call for: maps of files that hold no descriptor.

``mmap.mmap`` keeps a descriptor for each map, and many systems let a process have 1,024: a dataset
of 900 shards could not be read. Python 3.13 has ``trackfd=False``; the C library's own call does
the same in every version.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache
from typing import Any

import numpy as np

from shardkit.buffers import view_of

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
    """Bytes of an open file, of which the descriptor may be closed at once. ``offset`` is one of
    whole pages. Raises OSError."""
    # NumPy's array keeps the map, a memoryview the array, slices of a memoryview all of them.
    return view_of(np.asarray(Map(fd, size, offset))) if size else memoryview(b"")


def map_of(view: memoryview) -> Map | None:
    """What :func:`mapped` made a view, or a slice of one, from; None for other memory."""
    found: object = view.obj
    while isinstance(found, np.ndarray):
        found = found.base
    return found if isinstance(found, Map) else None


@cache
def libc() -> Any:
    """The C library. Its calls let go of the GIL."""
    lib: Any = ctypes.CDLL(None, use_errno=True)
    # Where an address has 32 bits, mmap's offsets have as many.
    lib.map_file = getattr(lib, "mmap64", lib.mmap)
    lib.map_file.restype = ctypes.c_void_p
    lib.map_file.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    lib.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    lib.statfs.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    lib.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return lib
