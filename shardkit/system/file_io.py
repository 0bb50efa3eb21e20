"""Files opened, read and written, and checksums of their blocks, by which damage is located.

Reads and writes go on where one call of the system ended. This is the only place that makes such
calls, as ``tests/test_layers.py`` says. Buffered file objects do the same.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import closing
from pathlib import Path

import numpy as np
import xxhash

from shardkit.arrays import Hashes
from shardkit.errors import IndexFileError, ShardMissingError, StorageError
from shardkit.system.paths import show_path


class OpenFile:
    """A descriptor that is closed when nobody uses it any more, or by :meth:`close`."""

    __slots__ = ("fd", "num_bytes")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.num_bytes = 0

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def open_file(path: Path, expected_bytes: int | None = None) -> OpenFile:
    """Open a regular file.

    Raises:
        ShardMissingError: no such file. IndexFileError: another size than expected, or no file.
        StorageError: it cannot be opened.
    """
    try:
        # Without O_NONBLOCK, a FIFO under the name of a shard would block for ever.
        file = OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except FileNotFoundError as error:
        raise ShardMissingError(
            f"{show_path(path)} is missing; restore it or pack again"
        ) from error
    except OSError as error:
        raise StorageError(f"{show_path(path)} cannot be opened: {error.strerror}") from error
    status = os.fstat(file.fd)
    file.num_bytes = status.st_size
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise IndexFileError(f"{show_path(path)} is no regular file; restore it or pack again")
    if expected_bytes is not None and file.num_bytes != expected_bytes:
        file.close()
        raise IndexFileError(
            f"{show_path(path)} has {file.num_bytes} bytes, expected {expected_bytes}:"
            " truncated or replaced; `shardkit verify` tells more"
        )
    return file


def pread_full(fd: int, buffer: memoryview, offset: int) -> int:
    """Fill a buffer from a place in an open file. Return the bytes read: fewer only at its end.

    One call of the system reads at most 0x7ffff000 bytes of what was asked for, and fewer where a
    signal or a network cuts it short.
    """
    done = got = os.preadv(fd, [buffer], offset)
    while got and done < len(buffer):
        got = os.preadv(fd, [buffer[done:]], offset + done)
        done += got
    return done


def pread(fd: int, size: int, offset: int) -> bytes:
    """Return ``size`` bytes from a place in an open file, fewer only at its end."""
    data = os.pread(fd, size, offset)
    while len(data) < size and (more := os.pread(fd, size - len(data), offset + len(data))):
        data += more
    return data


Buffer = bytes | memoryview


def write_full(fd: int, buffers: list[Buffer], offset: int | None = None) -> int:
    """Write up to 1,024 buffers end to end, at ``offset`` or where the file stands.

    Returns the bytes written.

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


BLOCK_BYTES = 256 << 10
"""Damage is located to blocks of this size; their checksums cost 0.003 % of the data."""


def block_sums(path: Path) -> Hashes:
    """Return the XXH3-64 of each :data:`BLOCK_BYTES` block of a file; an empty file has none."""
    digest = xxhash.xxh3_64_intdigest
    with closing(open_file(path)) as file:
        buffer = memoryview(bytearray(BLOCK_BYTES))
        sums = []
        for start in range(0, file.num_bytes, BLOCK_BYTES):
            sums.append(digest(buffer[: pread_full(file.fd, buffer, start)]))
    return np.array(sums, np.uint64)
