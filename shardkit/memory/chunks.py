"""Huge values that are mapped, taken in chunks, so that no more than one of them is in memory.

Pages of a mapped file count as this process's own once they were touched, until it lets go of them.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

from shardkit.memory.maps import map_of
from shardkit.system.libc import libc

CHUNK_BYTES = 64 << 20
"""A longer value is taken in chunks of this size."""


def in_chunks(value: bytes | memoryview) -> Iterator[bytes | memoryview]:
    """A value in chunks, end to end; of a mapped one, each is let go of before the next."""
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
    """Give memory that was freed back to the system. The C library keeps it where in_chunks of many
    sizes come and go: 100 MB for each 400 MB of text that were tokenized (glibc 2.36)."""
    if (give_back := getattr(libc(), "malloc_trim", None)) is not None:
        give_back(0)
