"""TFRecord files: records end to end, each with its length before it and checksums of both.

``uint64 length, uint32 checksum of it, data, uint32 checksum of the data``, little-endian; as in
TensorFlow's ``record_writer.h``. gzip goes around the whole file, whatever it is called.
"""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from shardkit.errors import FormatError
from shardkit.inputs.containers.crc32c import masked_crc32c
from shardkit.inputs.lines import refuse_bomb
from shardkit.samples.sample import Value
from shardkit.system.full_reads import pread
from shardkit.tars.members import GZIP

_HEAD = struct.Struct("<QI")
_TAIL_BYTES = 4
_WINDOW_BYTES = 4096
"""Read at a time to find records: a page, which large ones cost in any case."""

_READ_BYTES = 1 << 20

_ENDING = re.compile(r".\.(tfrecords?|tfrec)(-\d+-of-\d+)?(\.gz)?$", re.IGNORECASE)
_SHARD = re.compile(r"[^.]+-\d{5}-of-\d{5}(\.gz)?")

Place = tuple[int, int]
"""(offset, size) of a record with all that is around it."""


def is_record_name(name: str) -> bool:
    """Whether a file may hold records, by its name: ``x.tfrecord-00000-of-00010``, or as ImageNet's
    are called, ``train-00000-of-01024``."""
    return has_record_ending(name) or _SHARD.fullmatch(name) is not None


def has_record_ending(name: str) -> bool:
    """Whether a name says so by itself."""
    return _ENDING.search(name) is not None


def looks_like_records(path: Path) -> bool:
    """Whether a file begins as TFRecord files do, or compressed ones, as gzip. Raises OSError."""
    with path.open("rb") as file:
        head = file.read(_HEAD.size)
    return head.startswith(GZIP) or _is_head(head)


def is_gzip(path: Path) -> bool:
    """Whether a file of records is compressed: those that are not begin with a length whose
    checksum fits. Raises OSError."""
    with path.open("rb") as file:
        head = file.read(_HEAD.size)
    return head.startswith(GZIP) and not _is_head(head)


def _is_head(head: bytes) -> bool:
    return len(head) == _HEAD.size and masked_crc32c(head[:8]) == _HEAD.unpack(head)[1]


def record_places(fd: int, num_bytes: int) -> Iterator[Place]:
    """Where the records of an open file lie; their data is not read.

    Raises:
        FormatError: it is damaged or cut short; says where. Records before that were given.
    """
    window, base = b"", 0
    at = 0
    while at < num_bytes:
        if not base <= at <= base + len(window) - _HEAD.size:
            window, base = pread(fd, _WINDOW_BYTES, at), at
        head = window[at - base : at - base + _HEAD.size]
        if not _is_head(head):
            what = "is cut short" if len(head) < _HEAD.size else "is damaged, or no TFRecord file"
            raise FormatError(f"{what}: no record begins at byte {at}; fetch or write it again")
        size = _HEAD.unpack(head)[0] + _HEAD.size + _TAIL_BYTES
        if at + size > num_bytes:
            raise FormatError(
                f"is cut short: the record at byte {at} ends at byte {at + size}, the file has"
                f" {num_bytes}; fetch or write it again"
            )
        yield at, size
        at += size


def data_of(record: Value) -> memoryview:
    """The data of a whole record. Raises FormatError unless its checksum fits."""
    view = memoryview(record)
    data = view[_HEAD.size : -_TAIL_BYTES]
    if masked_crc32c(data) != int.from_bytes(view[-_TAIL_BYTES:], "little"):
        raise FormatError("is damaged: its checksum (CRC-32C) does not fit its bytes")
    return data


def first_records(path: Path, at_most: int, at_most_bytes: int) -> list[Value]:
    """The data of some good records from the beginning, compressed or not: those of which the
    checksum does not fit are left out. Raises OSError.
    """
    found: list[Value] = []
    left = at_most_bytes
    for size, record in _framed(path):
        left -= size
        try:
            found.append(data_of(record))
        except FormatError:
            continue
        if len(found) == at_most or left <= 0:
            break
    return found


def _framed(path: Path) -> Iterator[tuple[int, bytes]]:
    """(size, record) from the beginning to where the file ends, or is damaged."""
    try:
        with _stream(path) as stream:
            while _is_head(head := stream.read(_HEAD.size)):
                size = _HEAD.unpack(head)[0] + _TAIL_BYTES
                refuse_bomb(size, path.stat().st_size)
                rest = _read(stream, size)
                if len(rest) < size:
                    return
                yield size, head + rest
    except (gzip.BadGzipFile, EOFError, zlib.error, FormatError):
        return  # listing says so


def _read(stream: IO[bytes], size: int) -> bytes:
    """So many bytes, fewer at the end; a length is not believed before they have come."""
    parts = []
    while size and (block := stream.read(min(size, _READ_BYTES))):
        parts.append(block)
        size -= len(block)
    return b"".join(parts)


@contextmanager
def _stream(path: Path) -> Iterator[IO[bytes]]:
    is_packed = is_gzip(path)
    with path.open("rb") as file:
        if not is_packed:
            yield file
            return
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield unpacked  # type: ignore[misc]  # reads as any file does
