"""Writes that go on where one call of the system ended: the only place that makes such calls.

``tests/test_layers.py`` says so. Elsewhere bytes go here, or through buffered file objects, which
do the same.
"""

from __future__ import annotations

import errno
import os

Buffer = bytes | memoryview


def write_full(fd: int, buffers: list[Buffer], offset: int | None = None) -> int:
    """Write at most 1,024 buffers one after another, and return how many bytes these are.

    A signal, a limit or a full disk may cut a call short; the next one writes the rest, or raises.

    Args:
        buffers: items of a memoryview are bytes. offset: where; None is where the file stands.
    """
    total = left = sum(map(len, buffers))
    while left:
        done = (
            os.writev(fd, buffers)
            if offset is None
            else os.pwritev(fd, buffers, offset + total - left)
        )
        if not done:  # would be tried for ever
            raise OSError(errno.EIO, "the system writes nothing, and does not say why")
        left -= done
        if left:
            buffers = _rest(buffers, done)
    return total


def _rest(buffers: list[Buffer], done: int) -> list[Buffer]:
    """Return the buffers without their first ``done`` bytes."""
    whole = 0
    while done >= len(buffers[whole]):
        done -= len(buffers[whole])
        whole += 1
    return [memoryview(buffers[whole])[done:], *buffers[whole + 1 :]]
