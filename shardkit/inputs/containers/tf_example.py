"""``tf.train.Example``, the message in most TFRecord files, read without TensorFlow.

It is a map of names to lists of bytes, of floats or of integers. Of Protocol Buffers it uses two
wire types: varints, and pieces of a length (packed numbers, too); the third is here for writers
that do not pack floats. Field numbers are those of TensorFlow's ``example.proto``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from shardkit.arrays import Array
from shardkit.errors import FormatError
from shardkit.inputs.files import HUGE_BYTES
from shardkit.samples.sample import Value

Feature = list[Value] | Array | None
"""Byte strings, (n,) float32, (n,) int64; or nothing at all, which says no type."""

_VARINT, _DOUBLE, _PIECE, _FLOAT = 0, 1, 2, 5

_MAX_VARINT = 10
"""Bytes of the longest varint: 64 bits, seven a byte."""

_MANY = 64
"""From so many bytes on, NumPy is faster at varints."""


def parse_example(data: Value) -> dict[str, Feature]:
    """The features of a serialized Example; of a name that is there twice, the last.

    Raises:
        FormatError: it is damaged, or another message.
    """
    view = memoryview(data)
    features: dict[str, Feature] = {}
    for number, kind, piece in _fields(view):
        if number == 2 and kind == _PIECE:
            raise FormatError(
                "is a tf.train.SequenceExample: only tf.train.Example is read; write each list as"
                " a feature of its own"
            )
        if number != 1 or kind != _PIECE:
            raise _no_example()
        for inner, inner_kind, entry in _fields(piece):
            if inner != 1 or inner_kind != _PIECE:
                raise _no_example()
            name, feature = _entry(entry)
            features[name] = feature
    return features


def _entry(entry: memoryview) -> tuple[str, Feature]:
    """One name and its list."""
    name, feature = "", None
    for number, kind, piece in _fields(entry):
        if kind != _PIECE or number not in (1, 2):
            raise _no_example()
        if number == 2:
            feature = _feature(piece)
            continue
        try:
            name = str(piece, "utf-8")
        except UnicodeDecodeError as error:
            raise _no_example() from error
    return name, feature


def _feature(data: memoryview) -> Feature:
    found: Feature = None
    for number, kind, piece in _fields(data):
        if kind != _PIECE or number not in (1, 2, 3):
            raise _no_example()
        found = _READERS[number](piece)
    return found


def _byte_strings(data: memoryview) -> list[Value]:
    found: list[Value] = []
    for number, kind, piece in _fields(data):
        if number != 1 or kind != _PIECE:
            raise _no_example()
        found.append(piece if len(piece) >= HUGE_BYTES else bytes(piece))
    return found


def _floats(data: memoryview) -> Array:
    parts = []
    for number, kind, piece in _fields(data):
        if number != 1 or kind not in (_PIECE, _FLOAT) or len(piece) % 4:
            raise _no_example()
        if len(piece):
            parts.append(np.frombuffer(piece, "<f4"))
    return _joined(parts, "<f4")


def _integers(data: memoryview) -> Array:
    parts = []
    for number, kind, piece in _fields(data):
        if number != 1 or kind not in (_PIECE, _VARINT):
            raise _no_example()
        parts.append(unpack_varints(piece))
    return _joined(parts, "<i8")


_READERS: dict[int, Any] = {1: _byte_strings, 2: _floats, 3: _integers}


def _joined(parts: list[Array], dtype: str) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype), *parts])


# --- the wire -----------------------------------------------------------------------------


def _fields(data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """(number, wire type, bytes) of each field of a message; of a varint its own bytes."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        start = at
        if kind == _PIECE:
            size, start = _varint(data, at)
            at = start + size
        elif kind == _VARINT:
            _, at = _varint(data, at)
        elif kind in (_FLOAT, _DOUBLE):
            at += 4 if kind == _FLOAT else 8
        else:
            raise _no_example()
        if at > end:
            raise FormatError("is damaged: a field of its message ends behind the message")
        yield number, kind, data[start:at]


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """The number at a place, and where it ends."""
    value = 0
    for i, byte in enumerate(data[at : at + _MAX_VARINT]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, at + i + 1
    raise FormatError("is damaged: a number of its message has no end")


def unpack_varints(data: memoryview) -> Array:
    """(n,) int64: numbers end to end. Raises FormatError."""
    if len(data) < _MANY:
        found, at = [], 0
        while at < len(data):
            value, at = _varint(data, at)
            found.append(value & 0xFFFFFFFFFFFFFFFF)
        return np.array(found, np.uint64).view(np.int64)
    held = np.frombuffer(data, np.uint8)
    last = np.flatnonzero(held < 0x80)
    first = np.concatenate([[0], last[:-1] + 1])
    sizes = last - first + 1
    if not len(last) or last[-1] != len(held) - 1 or sizes.max() > _MAX_VARINT:
        raise FormatError("is damaged: a number of its message has no end")
    values = np.zeros(len(last), np.uint64)
    for i in range(int(sizes.max())):
        has = sizes > i
        bits = held[first[has] + i].astype(np.uint64) & np.uint64(0x7F)
        values[has] |= bits << np.uint64(7 * i)
    return values.view(np.int64)


def _no_example() -> FormatError:
    return FormatError("is no tf.train.Example, but another message; write it as one")
