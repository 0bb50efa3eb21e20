"""Durable files: one has its name only when it is whole and on the disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from shardkit.commit.own_files import create
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors


def fsync_path(path: Path) -> None:
    """Flush one file, or a folder's entries, to the device."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def temp_name(name: str) -> str:
    """What a file is called while it is not whole."""
    return f".{name}.tmp"


def write_output(path: str | Path, data: bytes) -> None:
    """Write a file that a person named: it is there when it is whole, but a pipe, a device or a
    link to something stays what it is. Raises StorageError."""
    place = Path(path).resolve()
    with os_errors(f"writing {show_path(path)}"):
        if place.exists() and not place.is_file():
            place.write_bytes(data)
        else:
            atomic_write(place, [data])


@contextmanager
def appearing(path: Path) -> Iterator[IO[bytes]]:
    """Give a file that is ``path`` once the block ends, synced. Whoever else makes it meanwhile may
    be on another machine, under the same process number."""
    part = path.with_suffix(f".{os.uname().nodename}-{os.getpid()}.part")
    try:
        with create(part) as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def atomic_write(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Write a file that appears under its name only when whole and synced."""
    temp = path.with_name(temp_name(path.name))
    with create(temp) as out:
        for chunk in chunks:
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    temp.replace(path)
    fsync_path(path.parent)
