"""TFRecord files written by the documents alone: nothing here is shared with what reads them."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from conftest import picture, write


def crc32c(data: bytes) -> int:
    """Bit by bit, as RFC 3720 defines it."""
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def frame(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def piece(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(values: Sequence[Any], packed: bool = True) -> bytes:
    """A ``tf.train.Feature`` of bytes, floats or ints; of no values, one that says no type."""
    if not values:
        return b""
    if isinstance(values[0], bytes):
        return piece(1, b"".join(piece(1, value) for value in values))
    if isinstance(values[0], float):
        if packed:
            return piece(2, piece(1, struct.pack(f"<{len(values)}f", *values)))
        return piece(2, b"".join(b"\x0d" + struct.pack("<f", value) for value in values))
    if packed:
        return piece(3, piece(1, b"".join(map(varint, values))))
    return piece(3, b"".join(b"\x08" + varint(value) for value in values))


def example(features: Mapping[str, Sequence[Any]], packed: bool = True) -> bytes:
    entries = [
        piece(1, piece(1, name.encode()) + piece(2, feature(values, packed)))
        for name, values in features.items()
    ]
    return piece(1, b"".join(entries))


def records(path: Path, examples: Iterable[Mapping[str, Sequence[Any]]]) -> Path:
    """A TFRecord file; compressed if it is called ``.gz``."""
    data = b"".join(frame(example(features)) for features in examples)
    return write(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def imagenet(number: int) -> dict[str, list[Any]]:
    """As TensorFlow's own scripts write ImageNet: classes from 1."""
    return {
        "image/encoded": [picture(number)],
        "image/class/label": [number % 5 + 1],
        "image/class/text": [f"class {number % 5} é".encode()],
        "image/height": [16],
        "image/object/bbox/xmin": [0.25 * i for i in range(number % 3)],
        "image/object/names": [b"a", b"b"][: number % 3],
    }
