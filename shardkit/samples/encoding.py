"""How a value lies in a shard: its canonical bytes, or typed where those can be rebuilt exactly.

:func:`choose_encoding` decides per shard and field, from the values alone, so converting to another
container and back is the identity.
"""

from __future__ import annotations

import io
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

import numpy as np

from shardkit.arrays import Array
from shardkit.errors import FormatError
from shardkit.samples.sample import Value

INT_FIELDS = frozenset({"cls"})
"""Fields whose canonical value is a decimal integer."""

LABEL: Final = "label"
"""The kind of encoding of a label that no shard holds: it stands in the row index alone."""

TOKENS = "tokens"
"""The field of a document's tokens: a ``.npy`` of one axis, always stored ``ragged``, so that a
shard of one document, or of equal ones, has the same columns as any other."""

MAX_DIMS = 31
"""Axes of an array stored typed: HDF5 has 32, and one goes to the rows."""

DEFLATE_RATIO = 1040
"""Deflate makes at most 1,032 bytes of one, and some at the start."""

INFLATE_BYTES = 1 << 18
"""Inflated at a time."""

MAX_NPY_HEADER = 16_384
"""Longest .npy header accepted (bytes); numpy itself refuses over 10,000 characters."""


_PLAIN = re.compile(r"[<>|][biufc][0-9]{1,2}")


@dataclass(frozen=True)
class Encoding:
    """How one field lies in one shard.

    ``bytes``: the canonical value. ``int``: one little-endian int64. ``array``: elements of
    ``dtype`` in C order, each value of ``shape``. ``ragged``: the same, with ``shape[0] == -1``
    for a first axis that varies. ``codec="zlib"``: an array value is deflated by itself. ``label``:
    no byte of it is stored; read, it is what the row index has of it, as an ``int``.
    """

    kind: Literal["bytes", "int", "array", "ragged", "label"] = "bytes"
    dtype: str = ""
    shape: tuple[int, ...] = ()
    codec: Literal["", "zlib"] = ""

    @property
    def nbytes(self) -> int:
        """Size of one value, in bytes (``int``, ``label`` and ``array`` only)."""
        return (
            8
            if self.kind in ("int", LABEL)
            else np.dtype(self.dtype).itemsize * math.prod(self.shape)
        )

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"kind": self.kind}
        if self.dtype:
            out |= {"dtype": self.dtype, "shape": list(self.shape)}
        if self.codec:
            out["codec"] = self.codec
        return out

    @classmethod
    def from_json(cls, raw: Any) -> Encoding:
        """Check and build; raises FormatError on anything :meth:`to_json` cannot write."""
        try:
            made = cls(
                raw["kind"], raw.get("dtype", ""), tuple(raw.get("shape", ())), raw.get("codec", "")
            )
            ok = made.kind in ("bytes", "int", "array", "ragged", LABEL)
            ok = ok and made.codec in ("", "zlib")[: 2 if made.kind == "array" else 1]
            ok = ok and all(type(n) is int and -1 <= n < 2**48 for n in made.shape)
            if made.kind in ("array", "ragged"):
                # Of other texts NumPy may raise anything: SyntaxError of "08".
                ok = ok and _PLAIN.fullmatch(made.dtype) is not None
                ok = ok and is_plain_dtype(np.dtype(made.dtype)) and len(made.shape) <= MAX_DIMS
                ok = ok and np.dtype(made.dtype).str == made.dtype
                ok = ok and made.shape.count(-1) == (made.kind == "ragged")
                ok = ok and (made.kind == "array" or made.shape[0] == -1)
                ok = ok and abs(made.nbytes) < 2**60
            else:
                ok = ok and not made.dtype and not made.shape
        except (TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
            raise FormatError(f"{raw!r} is no field encoding") from error
        if not ok:
            raise FormatError(f"{raw!r} is no field encoding")
        return made

    def as_array(self, stored: Value) -> Array:
        """The array a stored value of kind ``array`` or ``ragged`` holds.

        Raises:
            FormatError: its size does not fit the shape.
        """
        if self.codec == "zlib":
            stored = inflate(stored, self.nbytes)
        try:
            if self.kind == "array" and len(stored) != self.nbytes:
                raise ValueError(f"{len(stored)} bytes, expected {self.nbytes}")
            return np.frombuffer(stored, np.dtype(self.dtype)).reshape(self.shape)
        except ValueError as error:
            raise FormatError(
                f"array does not fit {self.dtype}{list(self.shape)}: {error}"
            ) from error

    def canonical(self, stored: Value) -> Value:
        """The canonical value of a stored one.

        Raises:
            FormatError: it does not fit this encoding, or not into memory.
        """
        if self.kind == "bytes":
            return stored
        if self.kind in ("int", LABEL):
            if len(stored) != 8:
                raise FormatError(f"an int value has {len(stored)} bytes, expected 8")
            return b"%d" % int.from_bytes(stored, "little", signed=True)
        if self.codec == "zlib":
            return inflate(stored, self.nbytes, npy_header(self.dtype, self.shape))
        array = self.as_array(stored)
        try:
            return b"".join((npy_header(array.dtype.str, array.shape), stored))
        except MemoryError as error:
            raise FormatError(f"an array of {array.nbytes} bytes is more than memory") from error


BYTES = Encoding()


def inflate(data: Value, expected: int, head: bytes = b"") -> Value:
    """``head`` and then what zlib data holds, which are ``expected`` bytes.

    Raises:
        FormatError: the data is damaged, makes another size, or does not fit into memory.
    """
    _refuse_claim(data, expected)
    try:
        out = np.empty(len(head) + expected, np.uint8)
    except (MemoryError, ValueError) as error:
        raise FormatError(f"zlib data of {expected} bytes is more than memory") from error
    out[: len(head)] = np.frombuffer(head, np.uint8)
    inflate_into(data, out.data[len(head) :])
    out.flags.writeable = False
    return out.data


def inflate_into(data: Value, out: memoryview) -> None:
    """Undo zlib piece by piece into ``out``, which it must fill (a bomb stops there).

    New memory costs nothing until it is written to, so data that makes less costs no more than it
    makes. Decompressed in one go, the pieces and what they are joined to are there at once.

    Raises:
        FormatError: the data is damaged, or makes another size.
    """
    _refuse_claim(data, len(out))
    stream = zlib.decompressobj()
    filled = end = 0
    try:
        for piece in _inflated(stream, data, len(out)):
            end = filled + len(piece)
            if end > len(out):
                break
            out[filled:end] = piece
            filled = end
    except zlib.error as error:
        raise FormatError(f"damaged zlib data: {error}") from error
    if end != len(out):
        raise FormatError(f"zlib data inflates to other than {len(out)} bytes")
    if not stream.eof or stream.unused_data:  # else its own checksum may not have been looked at
        raise FormatError("zlib data does not end where its bytes do")


def _refuse_claim(data: Value, expected: int) -> None:
    if expected > DEFLATE_RATIO * (len(data) + 1):
        raise FormatError(f"{len(data)} bytes of zlib data cannot inflate to {expected} bytes")


def _inflated(stream: Any, data: Value, expected: int) -> Iterator[bytes]:
    if expected < INFLATE_BYTES:
        yield stream.decompress(data, expected + 1)
        return
    # Fed in blocks: what is left of one when a piece is full is copied.
    view = memoryview(data)
    for start in range(0, len(view), INFLATE_BYTES >> 4):
        block: Value = view[start : start + (INFLATE_BYTES >> 4)]
        while piece := stream.decompress(block, INFLATE_BYTES):
            yield piece
            block = stream.unconsumed_tail


def is_plain_dtype(dtype: np.dtype[Any]) -> bool:
    """Numbers and booleans: what every format here can hold without pickle."""
    return dtype.kind in "biufc" and dtype.itemsize <= 32


@lru_cache(maxsize=4096)
def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The header ``numpy.save`` writes (version 1.0, C order)."""
    out = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, header)
    return out.getvalue()


def npy_header_size(value: Value) -> int:
    """Bytes before the data of a .npy value. Raises FormatError if it is none."""
    head = bytes(value[:12])
    if head[:6] != b"\x93NUMPY" or len(head) < 12:
        raise FormatError("not a .npy value: it does not begin with \\x93NUMPY")
    size = 10 + int.from_bytes(head[8:10], "little")
    if head[6] != 1:
        size = 12 + int.from_bytes(head[8:12], "little")
    if size > MAX_NPY_HEADER or size > len(value):
        raise FormatError(f"a .npy header of {size} bytes in a value of {len(value)}")
    return size


@lru_cache(maxsize=4096)
def _parse_npy_header(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    stream = io.BytesIO(header)
    try:
        version = np.lib.format.read_magic(stream)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, fortran, dtype = read(stream)
        _check_shape(shape, dtype)
    except FormatError:
        raise
    # numpy lets through what its parser raises: SyntaxError, TokenError, RecursionError ...
    except Exception as error:
        raise FormatError(f"damaged .npy header: {type(error).__name__}") from error
    return dtype, shape, fortran


def _check_shape(shape: tuple[Any, ...], dtype: np.dtype[Any]) -> None:
    """numpy's parser takes True for a length, and numbers that no array has; and of a sub-array it
    would make axes that the shape does not name."""
    if not all(type(n) is int and 0 <= n < 2**63 for n in shape):
        raise FormatError("the shape in a .npy header has lengths that are none")
    if dtype.subdtype is not None:
        raise FormatError("a .npy of sub-arrays: its axes belong into its shape")


def npy_layout(head: Value) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """dtype, shape and bytes before the data of a .npy value, of which ``head`` is all, or the
    first :data:`MAX_NPY_HEADER` bytes.

    Raises:
        FormatError: not a .npy.
    """
    start = npy_header_size(head)
    dtype, shape, _ = _parse_npy_header(bytes(head[:start]))
    return dtype, shape, start


PICKLED = "a .npy of Python objects holds pickles, which shardkit never reads"


def holds_pickles(value: Value) -> bool:
    """Whether this is a ``.npy`` of Python objects; what is no ``.npy`` holds none."""
    try:
        return _parse_npy_header(bytes(value[: npy_header_size(value)]))[0].hasobject
    except FormatError:
        return False


def parse_npy(value: Value) -> Array:
    """A read-only array over the data of a .npy value, without a copy.

    Raises:
        FormatError: not a .npy, an object array, or data of another size than its shape says.
    """
    start = npy_header_size(value)
    dtype, shape, fortran = _parse_npy_header(bytes(value[:start]))
    if dtype.hasobject:
        raise FormatError(PICKLED)
    if len(value) - start != dtype.itemsize * math.prod(shape):
        raise FormatError(f".npy data of {len(value) - start} bytes does not fit {dtype}{shape}")
    if not dtype.itemsize:  # 10**13 of them fit in a header, and numpy loops over each
        raise FormatError(f"a .npy of {dtype} has elements of no bytes")
    try:
        if not math.prod(shape):
            return np.empty(shape, dtype)
        flat = np.frombuffer(value, dtype, offset=start)
        return flat.reshape(shape, order="F" if fortran else "C")
    except (ValueError, MemoryError) as error:  # (0, 2**62, 8): the product fits, the shape not
        raise FormatError(f"a .npy of impossible shape {shape}: {error}") from error


def choose_encoding(name: str, values: Sequence[Value | None]) -> Encoding:
    """The tightest encoding from which every present value can be rebuilt to the byte."""
    present = [v for v in values if v is not None]
    if (
        name in INT_FIELDS
        and present
        and all(_is_canonical_int(v) for v in set(map(bytes, present)))
    ):
        return Encoding("int")
    if name == TOKENS and present:
        return _tokens_encoding(present) or BYTES
    if name.rpartition(".")[2] == "npy" and present:
        return _array_encoding(present) or BYTES
    return BYTES


def _is_canonical_int(value: bytes) -> bool:
    digits = value.removeprefix(b"-")
    return (
        digits.isdigit() and (digits[:1] != b"0" or value == b"0") and -(2**63) < int(value) < 2**63
        if len(value) <= 20
        else False
    )


def _tokens_encoding(values: Sequence[Value]) -> Encoding | None:
    found = _array_encoding(values)
    if found is None or len(found.shape) != 1:
        return None
    return Encoding("ragged", found.dtype, (-1,))


def _array_encoding(values: Sequence[Value]) -> Encoding | None:
    first: tuple[str, tuple[int, ...]] | None = None
    fixed = True
    for value in values:
        try:
            array = parse_npy(value)
        except FormatError:
            return None
        dtype, shape = array.dtype, array.shape
        if len(shape) > MAX_DIMS or not is_plain_dtype(dtype):
            return None
        if bytes(value[: npy_header_size(value)]) != npy_header(dtype.str, shape):
            return None
        if first is None:
            first = (dtype.str, shape)
        elif (dtype.str, shape) != first:
            fixed = False
            if dtype.str != first[0] or len(shape) != len(first[1]) or shape[1:] != first[1][1:]:
                return None
    if first is None:
        return None
    dtype_str, shape = first
    if fixed:
        return Encoding("array", dtype_str, shape)
    return Encoding("ragged", dtype_str, (-1, *shape[1:])) if math.prod(shape[1:]) else None
