"""The C library, for calls that Python does not have."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


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
