"""Maps of files that hold no descriptor.

``mmap.mmap`` keeps a descriptor for each map, and many systems let a process have 1,024: a dataset
of 900 shards could not be read. Python 3.13 has ``trackfd=False``; the C library's own call does
the same in every version.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np

from shardkit.memory.buffers import view_of
from shardkit.system.libc import libc

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
    """The map that :func:`mapped` made this view from, or one that it is a slice of; None for other
    memory."""
    found: object = view.obj
    while isinstance(found, np.ndarray):
        found = found.base
    return found if isinstance(found, Map) else None
