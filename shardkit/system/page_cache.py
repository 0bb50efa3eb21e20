"""The kernel's page cache: how much of a file is in it, and dropping it from there.

What stays warm all the same: the names and sizes of files (the kernel's inode cache), and any
cache in the drive or in a virtual machine's host. "Cold" here means the page cache alone.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from typing import Literal

import numpy as np

from shardkit.arrays import Bytes
from shardkit.system.file_systems import libc

Cache = Literal["warm", "cold", "unknown"]
"""What a timing says of the data it read: in the page cache, on the disk, or not known."""

StrPath = str | os.PathLike[str]

_COLD = 0.01
"""At most this share of the pages may be left where the state is called cold."""


def cache_state(resident: float | None) -> Cache:
    """Return the name of a :func:`resident_fraction`: mixed states are ``unknown``, as None is."""
    if resident is None or _COLD < resident < 1 - _COLD:
        return "unknown"
    return "cold" if resident <= _COLD else "warm"


def resident_fraction(paths: StrPath | Iterable[StrPath]) -> float | None:
    """Return the share of the files' pages in the page cache; None if the platform cannot tell.

    Linux tells it only of files that the user owns or may write to; of others it says that all
    pages are there. Empty files count for nothing; with no page at all the share is 0.
    """
    if not hasattr(libc(), "mincore"):
        return None
    num_there = num_pages = 0
    for path in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
        pages = _resident_pages(path)
        num_there += int(np.count_nonzero(pages & 1))
        num_pages += len(pages)
    return num_there / num_pages if num_pages else 0.0


def evict(paths: StrPath | Iterable[StrPath]) -> float | None:
    """Drop files from the page cache; return the share of their pages that is still there.

    Each file is synced first, since a page not yet on the disk cannot be dropped; nor can a page
    that a process has mapped and touched. None where the platform cannot tell or cannot drop.
    """
    listed = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not hasattr(os, "posix_fadvise"):
        return None
    for path in listed:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
    return resident_fraction(listed)


def _resident_pages(path: StrPath) -> Bytes:
    """Return one byte a page of the file; its lowest bit is set if the page is in memory."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
        if not size:
            return pages
        with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
            view = np.frombuffer(mapped, np.uint8)
            try:
                failed = libc().mincore(view.ctypes.data, size, pages.ctypes.data)
            finally:
                del view  # a mapping with a view on it cannot be closed, not even on Ctrl-C
    if failed:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), os.fspath(path))
    return pages
