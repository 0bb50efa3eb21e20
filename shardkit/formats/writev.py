"""Gathered writes: many values into one file, in few system calls and without joining them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice

from shardkit.memory.maps import CHUNK_BYTES, in_chunks
from shardkit.system.file_io import Buffer, write_full

__all__ = ["IOV_MAX", "Buffer", "write_all"]

IOV_MAX = 1024
"""Buffers a call: the limit of Linux, of macOS and of the BSDs."""


def write_all(fd: int, buffers: Iterable[Buffer], offset: int) -> int:
    """Write buffers one after another from ``offset`` on; returns the offset behind the last.

    ``buffers`` is consumed lazily, :data:`IOV_MAX` at a time. Items of a memoryview are bytes.
    """
    source = iter(buffers)
    while batch := list(islice(source, IOV_MAX)):
        if max(map(len, batch)) > CHUNK_BYTES:
            for piece in chain.from_iterable(map(in_chunks, batch)):
                offset = write_all(fd, [piece], offset)
            continue
        offset += write_full(fd, batch, offset)
    return offset
