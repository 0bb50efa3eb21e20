"""Files of a dataset, opened to be read: regular ones, of the size they should have."""

from __future__ import annotations

import os
import stat
from pathlib import Path

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
    """A regular file.

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
