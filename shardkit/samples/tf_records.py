"""TFRecord files, and ``tf.train.Example``, the message in most of them, read without TensorFlow.

Records lie end to end: ``uint64 length, uint32 checksum of it, data, uint32 checksum of the data``,
little-endian; as in TensorFlow's ``record_writer.h``. gzip goes around the whole file, whatever it
is called. An Example is a map of names to lists of bytes, floats or integers, as Protocol Buffers
of three levels. Field numbers are those of TensorFlow's ``example.proto``.
"""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from crc32c import crc32c

from shardkit.arrays import Array
from shardkit.errors import FormatError
from shardkit.samples.sample import Value

HEAD = struct.Struct("<QI")
_TAIL_BYTES = 4
_GZIP = b"\x1f\x8b"


def masked_crc32c(data: bytes | memoryview) -> int:
    """Return a checksum as TFRecord files store it: rotated, with a constant added."""
    crc = crc32c(data)
    return (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF


def begins_as_records(head: bytes) -> bool:
    """Return True if a file begins as TFRecord files do, or compressed ones, as gzip."""
    return head.startswith(_GZIP) or _is_head(head[: HEAD.size])


def is_gzip(head: bytes) -> bool:
    """Return True if a file is compressed: others begin with a length whose checksum fits."""
    return head.startswith(_GZIP) and not _is_head(head[: HEAD.size])


def _is_head(head: bytes) -> bool:
    return len(head) == HEAD.size and masked_crc32c(head[:8]) == HEAD.unpack(head)[1]


def record_places(file: IO[bytes], num_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield offset and size of each record; the file is behind its head then.

    Raises:
        FormatError: it is damaged or cut short; says where. Records before that were given.
    """
    at = 0
    while at < num_bytes:
        file.seek(at)
        head = file.read(HEAD.size)
        if not _is_head(head):
            what = "is cut short" if len(head) < HEAD.size else "is damaged, or no TFRecord file"
            raise FormatError(f"{what}: no record begins at byte {at}; fetch or write it again")
        size = HEAD.unpack(head)[0] + HEAD.size + _TAIL_BYTES
        if at + size > num_bytes:
            raise FormatError(
                f"is cut short: the record at byte {at} ends at byte {at + size}, the file has"
                f" {num_bytes}; fetch or write it again"
            )
        yield at, size
        at += size


def data_of(rest: bytes | memoryview) -> memoryview:
    """Return the data of a record without its head. Raises FormatError unless its checksum fits."""
    view = memoryview(rest)
    if masked_crc32c(view[:-_TAIL_BYTES]) != int.from_bytes(view[-_TAIL_BYTES:], "little"):
        raise FormatError("is damaged: its checksum (CRC-32C) does not fit its bytes")
    return view[:-_TAIL_BYTES]


def first_records(
    path: Path, at_most: int, at_most_bytes: int, max_unpacked: Callable[[int], int]
) -> list[Value]:
    """Return the data of the first records, compressed or not, up to where the file is damaged;
    those whose own checksum does not fit are left out. Raises OSError.

    ``max_unpacked``: how many bytes a compressed file of a size may have; no larger record is read.
    """
    found: list[Value] = []
    with path.open("rb") as packed:
        file: Any = packed
        num_bytes = os.fstat(packed.fileno()).st_size
        if is_gzip(packed.read(HEAD.size)):
            packed.seek(0)
            file, num_bytes = gzip.GzipFile(fileobj=packed), max_unpacked(num_bytes)
        with suppress(gzip.BadGzipFile, EOFError, zlib.error, FormatError):  # listing says so
            for _, size in record_places(file, num_bytes):
                with suppress(FormatError):
                    found.append(data_of(file.read(size - HEAD.size)))
                at_most_bytes -= size
                if len(found) == at_most or at_most_bytes <= 0:
                    break
    return found


# --- Examples -----------------------------------------------------------------------------

Feature = list[Value] | Array | None
"""Byte strings, (n,) float32, (n,) int64; or None, for a feature of no type and no values."""

_VARINT, _PIECE, _FLOAT = 0, 2, 5
"""Wire types: a number, a length and so many bytes, four bytes."""

_HUGE_BYTES = 64 << 20
"""Values of so many bytes are not copied: they may be mapped."""

_MANY = 64
"""From so many bytes on, NumPy is faster at varints."""

_MAX_VARINT = 10
"""Bytes of the longest varint: 64 bits, seven a byte."""


def parse_example(data: Value) -> dict[str, Feature]:
    """Return the features of a serialized Example; of a repeated name, the last.

    Raises:
        FormatError: it is damaged, or another message.
    """
    features: dict[str, Feature] = {}
    for number, message in _pieces(memoryview(data), {1, 2}):
        if number == 2:
            raise FormatError(
                "is a tf.train.SequenceExample: only tf.train.Example is read; write each list as"
                " a feature of its own"
            )
        for _, entry in _pieces(message, {1}):
            parts = dict(_pieces(entry, {1, 2}))
            try:
                name = str(parts.get(1, b""), "utf-8")
                features[name] = _feature(parts.get(2, memoryview(b"")))
            except ValueError as error:  # no UTF-8, or floats of odd sizes
                raise _no_example() from error
    return features


def _feature(data: memoryview) -> Feature:
    found: Feature = None
    for kind, values in _pieces(data, {1, 2, 3}):
        if kind == 1:
            strings = [piece for _, piece in _pieces(values, {1})]
            found = [piece if len(piece) >= _HUGE_BYTES else bytes(piece) for piece in strings]
            continue
        # Numbers are packed into one piece; some writers do not, which joined is the same.
        single = _FLOAT if kind == 2 else _VARINT
        packed = b"".join(piece for _, piece in _pieces(values, {1}, single))
        found = np.frombuffer(packed, "<f4") if kind == 2 else unpack_varints(packed)
    return found


def _pieces(
    data: memoryview, numbers: AbstractSet[int], single: int | None = None
) -> Iterator[tuple[int, memoryview]]:
    """Yield (number, bytes) of the fields of a message that has no others: all are pieces, or of
    the wire type ``single``."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        start, number, wire = at, tag >> 3, tag & 7
        if number not in numbers or wire not in (_PIECE, single):
            raise _no_example()
        if wire == _PIECE:
            size, start = _varint(data, at)
            at = start + size
        else:
            at = at + 4 if wire == _FLOAT else _varint(data, at)[1]
        if at > end:
            raise FormatError("is damaged: a field of its message ends behind the message")
        yield number, data[start:at]


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the number at a place, and where it ends."""
    if at < len(data) and data[at] < 0x80:  # as most are
        return data[at], at + 1
    value = 0
    for i, byte in enumerate(data[at : at + _MAX_VARINT]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, at + i + 1
    raise _endless()


def unpack_varints(data: bytes) -> Array:
    """Return numbers stored end to end, (n,) int64. Raises FormatError."""
    if len(data) < _MANY:
        found, at, view = [], 0, memoryview(data)
        while at < len(data):
            value, at = _varint(view, at)
            found.append(value & 0xFFFFFFFFFFFFFFFF)
        return np.array(found, np.uint64).view(np.int64)
    held = np.frombuffer(data, np.uint8)
    last = np.flatnonzero(held < 0x80)
    first = np.concatenate([[0], last + 1])
    sizes = np.diff(first)
    if first[-1] != len(held) or sizes.max(initial=0) > _MAX_VARINT:
        raise _endless()
    values = np.zeros(len(last), np.uint64)
    for i in range(int(sizes.max(initial=0))):
        has = sizes > i
        bits = held[first[:-1][has] + i].astype(np.uint64) & np.uint64(0x7F)
        values[has] |= bits << np.uint64(7 * i)
    return values.view(np.int64)


def _no_example() -> FormatError:
    return FormatError("is no tf.train.Example, but another message; write it as one")


def _endless() -> FormatError:
    return FormatError("is damaged: a number of its message has no end")
