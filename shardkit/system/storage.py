"""Files: atomic writes, locks, block checksums, sizes people type, and the system's refusals."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardkit.arrays import Hashes
from shardkit.errors import DestinationError, ShardkitError, StorageError, UsageError

BLOCK_BYTES = 256 << 10
"""Damage is located to blocks of this size; their checksums cost 0.003 % of the data."""

LOCK_PATIENCE_S = 5.0
"""How long a packer waits for the workers of one that was just killed to be gone."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_size(text: str | int) -> int:
    """Bytes in ``"256MB"`` (10**6), ``"4MiB"`` (2**20), ``"1g"`` or a plain number.

    Raises:
        UsageError: not a size, or less than one byte.
    """
    found = _SIZE.fullmatch(str(text).strip())
    if not found:
        raise UsageError(f"{text!r} is no size: write a number and a unit, as in 256MB or 1GiB")
    number, unit, binary = found.groups()
    size = int(float(number) * (1024 if binary else 1000) ** " kmgt".index(unit.lower() or " "))
    if size < 1:
        raise UsageError(f"a size must be at least one byte, got {text!r}")
    return size


def format_bytes(num: float) -> str:
    """``1536000`` -> ``"1.5 MB"``."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(num) < 1000:
            return f"{num:.0f} {unit}" if unit == "B" else f"{num:.1f} {unit}"
        num /= 1000
    return f"{num:.2f} TB"


def as_path(path: object, what: str) -> Path:
    """A path that a caller gave. Raises UsageError, saying what it was for, if it is none."""
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"{what} must be a str or Path, got {path!r}")
    if not os.fspath(path):
        raise UsageError(f"{what} is an empty path")
    return Path(path)


def show_path(path: str | bytes | os.PathLike[Any]) -> str:
    """A path for one line of a message: quoted, control and undecodable bytes escaped."""
    text = os.fsdecode(path)
    return text if text.isprintable() and "'" not in text else ascii(text)


@contextmanager
def os_errors(what: str) -> Iterator[None]:
    """Turn OSError into a StorageError that says what was being done and what to do."""
    try:
        yield
    except ShardkitError:
        raise
    except OSError as error:
        raise StorageError(f"{what}: {_explain(error)}") from error


def _explain(error: OSError) -> str:
    where = f" ({show_path(error.filename)})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full{where}; free some space and run the same command again"
    return f"{error.strerror or error}{where}"


def fsync_path(path: Path) -> None:
    """Flush one file, or a folder's entries, to the device."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_filesystem(fd: int) -> None:
    """Flush everything written so far to the file system that an open file or folder is on."""
    sync = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if sync is None:  # not Linux
        os.sync()
    elif sync(fd):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def file_size(path: Path) -> int:
    """Bytes of a file; -1 if it is no file, or is not there."""
    return path.stat().st_size if path.is_file() else -1


def temp_name(name: str) -> str:
    """What a file is called while it is not whole."""
    return f".{name}.tmp"


def atomic_write(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Write a file that appears under its name only when whole and synced."""
    temp = path.with_name(temp_name(path.name))
    with temp.open("wb") as out:
        for chunk in chunks:
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    temp.replace(path)
    fsync_path(path.parent)


def block_sums(path: Path) -> Hashes:
    """XXH3-64 of each :data:`BLOCK_BYTES` block of a file; an empty file has none."""
    digest = xxhash.xxh3_64_intdigest
    with path.open("rb", buffering=0) as file:
        buffer = memoryview(bytearray(BLOCK_BYTES))
        sums = []
        while got := read_full(file, buffer):
            sums.append(digest(buffer[:got]))
    return np.array(sums, np.uint64)


def read_full(file: Any, buffer: memoryview) -> int:
    """Fill a buffer from an unbuffered file; bytes read, fewer only at its end."""
    done = 0
    while done < len(buffer) and (got := file.readinto(buffer[done:])):
        done += got
    return done


def pread_full(fd: int, buffer: memoryview, offset: int) -> int:
    """Fill a buffer from a place in an open file; bytes read, fewer only at its end.

    One call of the system reads at most 0x7ffff000 bytes of what was asked for, and fewer where a
    signal or a network cuts it short.
    """
    done = got = os.preadv(fd, [buffer], offset)
    while got and done < len(buffer):
        got = os.preadv(fd, [buffer[done:]], offset + done)
        done += got
    return done


def pread(fd: int, size: int, offset: int) -> bytes:
    """``size`` bytes from a place in an open file, fewer only at its end."""
    data = os.pread(fd, size, offset)
    if len(data) == size:
        return data
    parts, left = [data], size - len(data)
    while left and parts[-1]:
        parts.append(os.pread(fd, left, offset + size - left))
        left -= len(parts[-1])
    return b"".join(parts)


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

    def __init__(self, path: Path) -> None:
        deadline = time.monotonic() + LOCK_PATIENCE_S
        while not self._try(path):
            if self._holder_lives(path) or time.monotonic() > deadline:
                raise DestinationError(
                    f"{show_path(path.parent.parent)} is being written by another process"
                    f"{self._who(path)}; wait for it, or choose another destination"
                )
            time.sleep(0.05)

    def _try(self, path: Path) -> bool:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.fd = _above_stdio(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
        is_held = False
        try:
            if is_held := _lock(self.fd, path):
                os.ftruncate(self.fd, 0)
                os.pwrite(self.fd, b"%d" % os.getpid(), 0)
        except BaseException:
            is_held = False
            raise
        finally:
            if not is_held:
                os.close(self.fd)
        return is_held

    @staticmethod
    def _who(path: Path) -> str:
        text = path.read_text(errors="replace") if path.exists() else ""
        return f" (process {text})" if text.isdigit() else ""

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
