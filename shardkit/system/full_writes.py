"""Writes that go on where one call of the system ended: the only place that makes such calls, as
``tests/test_layers.py`` says. Buffered file objects do the same."""

from __future__ import annotations

import errno
import os

Buffer = bytes | memoryview


def write_full(fd: int, buffers: list[Buffer], offset: int | None = None) -> int:
    """Write up to 1,024 buffers end to end, at ``offset`` or where the file stands; bytes written.

    A signal, a limit or a full disk cuts a call short: the next one writes the rest, or raises.
    The list is used up. Items of a memoryview are bytes.
    """
    total = left = sum(map(len, buffers))
    while left:
        at = None if offset is None else offset + total - left
        done = os.writev(fd, buffers) if at is None else os.pwritev(fd, buffers, at)
        if not done:  # would be tried for ever
            raise OSError(errno.EIO, "the system writes nothing, and does not say why")
        left -= done
        while left and done >= len(buffers[0]):
            done -= len(buffers.pop(0))
        if left:
            buffers[0] = memoryview(buffers[0])[done:]
    return total
