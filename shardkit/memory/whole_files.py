"""Whole files as bytes in memory: mapped, or read where a map would not be safe."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from shardkit.errors import IndexFileError
from shardkit.memory.maps import mapped
from shardkit.system.file_systems import is_remote
from shardkit.system.full_reads import pread
from shardkit.system.opening import open_file
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

READ_BYTES = 16 << 20
"""An index that may be cut short while it is open is read up to this size, and mapped beyond: each
process would have a copy of its own."""


def map_file(path: Path, expected_bytes: int, *, copied: bool = False) -> memoryview:
    """Memory-map a whole file of a known size; or read it, behind a network or if it is to be
    ``copied``: see :data:`READ_BYTES`.

    Raises:
        ShardMissingError: no such file. IndexFileError: another size than expected, or no file.
        StorageError: it cannot be opened, mapped or read.
    """
    if expected_bytes > READ_BYTES or not (copied or is_remote(path)):
        return map_whole(path, expected_bytes)
    with closing(open_file(path, expected_bytes)) as file, os_errors(f"reading {show_path(path)}"):
        data = pread(file.fd, expected_bytes, 0)
    if len(data) != expected_bytes:
        raise IndexFileError(
            f"{show_path(path)} was cut short while it was read, to {len(data)} bytes of"
            f" {expected_bytes}; restore it"
        )
    return memoryview(data)


def map_whole(path: Path, expected_bytes: int | None = None) -> memoryview:
    """Memory-map a file, of whatever size it has if none is expected; errors as of
    :func:`map_file`."""
    with closing(open_file(path, expected_bytes)) as file, os_errors(f"mapping {show_path(path)}"):
        return mapped(file.fd, file.num_bytes)


def read_file(path: Path, at_most: int) -> bytes:
    """The contents of a file that is not trusted.

    Raises:
        ShardMissingError: no such file. IndexFileError: over ``at_most`` bytes, or no file.
        StorageError: it cannot be opened or read.
    """
    with closing(open_file(path)) as file:
        if file.num_bytes > at_most:
            raise IndexFileError(f"{show_path(path)} is over {at_most} bytes; refusing to read")
        with os_errors(f"reading {show_path(path)}"):
            return pread(file.fd, file.num_bytes, 0)
