"""Locks on files, which a process that dies lets go of."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from shardkit.commit.own_files import (
    MAX_LINE_BYTES,
    open_lock,
    own_folder,
    read_own,
    refuse_others,
)
from shardkit.errors import DestinationError, StorageError
from shardkit.system.file_io import write_full
from shardkit.system.paths import show_path

MAX_DIGITS = 10
"""A process id has fewer: Linux's largest is 4,194,304."""

LOCK_PATIENCE_S = 5.0
"""How long a packer waits for the workers of one that was just killed to be gone."""


def _above_stdio(fd: int) -> int:
    """The same open file as 3 or more: where stdin, stdout or stderr was closed, it took their
    number, and a child process gets its pipes, not this file, under those."""
    if fd > 2:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved


def _lock(fd: int, path: Path) -> bool:
    """Lock the file open under ``path``; False if another has it, or has removed it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The last holder removes the file when done: a lock on a removed file is none.
        return os.fstat(fd).st_ino == path.stat().st_ino
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError as error:
        raise StorageError(
            f"{show_path(path)} cannot be locked, so that two could pack there at once:"
            f" {error.strerror}; choose a destination on a file system that has locks"
        ) from error


class Lock:
    """An advisory lock on a file, held until closed or until every process that has it is gone.

    Worker processes inherit ``fd``: after a kill -9 of the packer the lock stays with its workers
    until the last of them has died, so nobody starts while one may still write.
    """

    def __init__(self, path: Path, folder: Path | None = None, shown: Path | None = None) -> None:
        """Wait for the lock, as long as a process that was just killed may need to be gone.

        Args:
            folder: the one in which its holder writes, if that is not the lock's own.
            shown: what is said to be taken; default: the folder above the lock's own.

        Raises:
            DestinationError: another holds it, or that folder has links or the like in it.
        """
        folder = folder or path.parent
        own_folder(folder)
        deadline = time.monotonic() + LOCK_PATIENCE_S
        while not self._try(path):
            if self._holder_lives(path) or time.monotonic() > deadline:
                raise DestinationError(
                    f"{show_path(shown or path.parent.parent)} is being written by another process"
                    f"{self._who(path)}; wait for it, or choose another destination"
                )
            time.sleep(0.05)
        try:
            refuse_others(folder)
        except BaseException:
            self.close()
            raise

    def _try(self, path: Path) -> bool:
        own_folder(path.parent)  # the last holder may have removed it meanwhile
        self.fd = _above_stdio(open_lock(path))
        is_held = False
        try:
            if is_held := _lock(self.fd, path):
                os.ftruncate(self.fd, 0)
                write_full(self.fd, [b"%d" % os.getpid()], 0)
        except BaseException:
            is_held = False
            raise
        finally:
            if not is_held:
                os.close(self.fd)
        return is_held

    @staticmethod
    def _who(path: Path) -> str:
        try:
            text = read_own(path, MAX_LINE_BYTES) or b""
        except OSError:  # its holder has removed it meanwhile
            text = b""
        return f" (process {int(text)})" if text.isdigit() and len(text) < MAX_DIGITS else ""

    @classmethod
    def _holder_lives(cls, path: Path) -> bool:
        text = cls._who(path).removeprefix(" (process ").removesuffix(")")
        if not text:
            return False
        try:
            os.kill(int(text), 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    def close(self) -> None:
        os.close(self.fd)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
