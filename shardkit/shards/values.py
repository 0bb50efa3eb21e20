"""From stored values to what a training script wants: text, numbers, arrays, pictures."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from shardkit.arrays import Array
from shardkit.errors import DataError, FormatError, ShardkitError, UsageError
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.index.rows import NO_INT
from shardkit.samples.encoding import BYTES, TOKENS, Encoding, inflate_into, parse_npy
from shardkit.samples.sample import Value
from shardkit.shards.joined import Joined
from shardkit.shards.sound_film import opener
from shardkit.shards.stored import Gather, ShardReader

Decode = Literal["pil", "torchcodec"] | bool
Column = Sequence[Any] | Array


def read_column(reader: ShardReader, batch: Gather, name: str, decode: Decode) -> Column:
    """One field of a batch.

    Returns, for ``decode`` other than False: ``cls`` as (B,) int64; ``txt`` as list of str;
    ``json`` as list of objects; ``npy`` as one array (B, ...) where all have one shape and dtype,
    else a list of arrays; ``tokens`` as a list of arrays; pictures as PIL images
    (``decode="pil"``); sound and film as decoders of torchcodec (``decode="torchcodec"``);
    everything else, and all with ``decode=False``, as list of bytes-like
    canonical values. Absent values are None, in a list.

    Raises:
        DataError: a value cannot be decoded; names the sample.
    """
    if not decode:
        return reader.canonical(batch, name)
    kind = _kind(name)
    if name == "cls":
        return _classes(reader, batch)
    if name == TOKENS:
        return reader.each(batch, name, _array)
    if kind == "npy":
        return _arrays(reader, batch, name)
    values = reader.canonical(batch, name)
    if kind == "txt":
        return _each(reader, batch, name, values, _text)
    if kind == "json":
        return _each(reader, batch, name, values, _json)
    if decode == "pil" and name in IMAGE_FIELDS:
        return _each(reader, batch, name, values, pil_image)
    if decode == "torchcodec" and (opened := opener(kind)) is not None:
        return _each(reader, batch, name, values, opened)
    return values


def read_joined(reader: ShardReader, batch: Gather, name: str, decode: Decode) -> Joined | Column:
    """As :func:`read_column`, but bytes that this would give as they are stored come end to end."""
    found = None if decode and _is_decoded(name, decode) else reader.joined(batch, name)
    return read_column(reader, batch, name, decode) if found is None else found


def _is_decoded(name: str, decode: Decode) -> bool:
    kind = _kind(name)
    if name in ("cls", TOKENS) or kind in ("npy", "txt", "json"):
        return True
    is_picture = decode == "pil" and name in IMAGE_FIELDS
    return is_picture or (decode == "torchcodec" and opener(kind) is not None)


def _kind(name: str) -> str:
    return name.rpartition(".")[2]


def own_values(name: str, column: Column) -> list[Any]:
    """A column of :func:`read_column`, each value for itself: no view of a mapped file, which could
    not be pickled, ``cls`` as int."""
    if not isinstance(column, np.ndarray):
        return [_own(value) for value in column]
    # By [i, ...], or arrays without axes would become NumPy's scalars.
    return column.tolist() if name == "cls" else [column[i, ...] for i in range(len(column))]


def _own(value: Any) -> Any:
    if isinstance(value, memoryview):
        return bytes(value)
    return value.copy() if isinstance(value, np.ndarray) else value


def _classes(reader: ShardReader, batch: Gather) -> Column:
    numbers = batch.table[:, reader.index.column["cls"]]
    odd = numbers == NO_INT
    if not odd.any():
        return numbers
    for row, size in zip(batch.rows[odd], reader.places(batch, "cls")[1][odd], strict=True):
        if size >= 0:
            raise DataError(
                f"{reader.where(int(row))}: its cls is no integer; open with decode=False to get"
                " its bytes"
            )
    return [
        None if bad else number for number, bad in zip(numbers.tolist(), odd.tolist(), strict=True)
    ]


def _arrays(reader: ShardReader, batch: Gather, name: str) -> Column:
    gathered = reader.fixed(batch, name)
    if gathered is not None:
        return gathered
    inflated = _inflated(reader, batch, name)
    if inflated is not None:
        return inflated
    arrays = reader.each(batch, name, _array)
    kinds = {None if a is None else (a.dtype, a.shape) for a in arrays}
    if len(kinds) == 1 and None not in kinds:
        return np.stack(arrays)  # type: ignore[arg-type]
    return arrays


def _inflated(reader: ShardReader, batch: Gather, name: str) -> Array | None:
    """Deflated arrays of one shape and dtype as one new array (B, ...), each inflated to its place;
    None where shapes or dtypes differ, or values are not deflated, or absent."""
    encodings = set(reader.encodings(batch.shards, name))
    encoding = encodings.pop() if len(encodings) == 1 else BYTES
    if not encoding.codec or not encoding.nbytes or (reader.places(batch, name)[1] < 0).any():
        return None
    reader.refuse_shared(batch, name)
    try:
        out = np.empty((len(batch.rows), encoding.nbytes), np.uint8)
    except (MemoryError, ValueError) as error:
        raise FormatError(
            f"{len(batch.rows)} arrays of {encoding.nbytes} bytes are more than memory"
        ) from error
    for i, value in enumerate(reader.stored(batch, name)):
        try:
            inflate_into(value or b"", memoryview(out[i]))
        except FormatError as error:
            raise FormatError(
                f"{reader.where(int(batch.rows[i]))}, field {name}: {error}"
            ) from error
    return out.view(encoding.dtype).reshape(-1, *encoding.shape)


def _array(encoding: Encoding, value: Value) -> Array:
    return encoding.as_array(value) if encoding.dtype else parse_npy(encoding.canonical(value))


def _each(
    reader: ShardReader, batch: Gather, name: str, values: Sequence[Value | None], convert: Any
) -> Column:
    out = []
    for i, value in enumerate(values):
        try:
            out.append(None if value is None else convert(value))
        except ShardkitError:
            raise
        # Decoders of damaged input raise nearly anything; whatever it is, it names the sample.
        except Exception as error:
            raise DataError(
                f"{reader.where(int(batch.rows[i]))}: field {name} does not decode:"
                f" {type(error).__name__}: {error}"
            ) from error
    return out


def _text(value: Value) -> str:
    return str(value, "utf-8")


def _json(value: Value) -> Any:
    return json.loads(bytes(value))


def pil_image(value: Value) -> Any:
    """A loaded PIL image. Raises UsageError where no Pillow is installed."""
    try:
        from PIL import Image
    except ImportError as error:
        raise UsageError(
            "decode='pil' needs a decoder: pip install 'shardkit[simd]' or 'shardkit[pillow]'"
        ) from error
    image = Image.open(io.BytesIO(value))
    image.load()
    return image
