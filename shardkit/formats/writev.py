"""Gathered writes: many values into one file, in few system calls and without joining them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import chain, islice

from shardkit.memory.chunks import CHUNK_BYTES, in_chunks

Buffer = bytes | memoryview

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
        left = sum(map(len, batch))
        while left:
            done = os.pwritev(fd, batch, offset)
            offset += done
            left -= done
            if left:
                # Signals and full disks cut calls short.
                _drop(batch, done)
    return offset


def _drop(batch: list[Buffer], done: int) -> None:
    """Remove the first ``done`` bytes."""
    whole = 0
    while done >= len(batch[whole]):
        done -= len(batch[whole])
        whole += 1
    del batch[:whole]
    batch[0] = memoryview(batch[0])[done:]
