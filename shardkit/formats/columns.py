"""How the column formats (HDF5, .npy) lay a field out: as one typed array, or two, or three.

========== ============================== =============================== ====================
encoding   ``{field}``                    ``{field}.offsets`` (uint64)    absent somewhere
========== ============================== =============================== ====================
``bytes``  all values joined (uint8)      n + 1, in bytes                 ``{field}.present``
``int``    (n,) int64                     none                            ... and 0 in its place
``array``  (n, *shape)                    none                            ... and zeros in its place
``ragged`` (sum of first axes, *trailing) n + 1, along the first axis     ``{field}.present``
========== ============================== =============================== ====================

``{field}.present`` is uint8, 1 where the sample has the field. The key is a field like others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardkit.arrays import Array, Integers
from shardkit.formats.format import Extents
from shardkit.formats.writev import Buffer
from shardkit.samples.encoding import Encoding, choose_encoding, npy_header, npy_header_size
from shardkit.samples.sample import KEY, Value

BYTE = "|u1"


@dataclass(frozen=True)
class Column:
    """One array. ``data`` is its bytes in C order, to be taken once."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Iterable[Buffer]


@dataclass(frozen=True)
class FieldColumns:
    """A field's arrays, that of its values first, and where the values lie in that one."""

    columns: list[Column]
    extents: Extents
    """Starts count from the first byte of ``columns[0]``."""


def all_fields(
    keys: list[bytes], columns: dict[str, list[Value | None]]
) -> dict[str, Sequence[Value | None]]:
    """The key and the fields, sorted by name."""
    named: dict[str, Sequence[Value | None]] = {KEY: keys, **columns}
    return dict(sorted(named.items()))


def sizes_of(values: Sequence[Value | None]) -> Integers:
    """Length of each value, -1 where absent."""
    try:
        return np.fromiter(map(len, values), np.int64, len(values))  # type: ignore[arg-type]
    except TypeError:  # None has no length; asking each value first takes twice as long
        pass
    return np.fromiter((-1 if v is None else len(v) for v in values), np.int64, len(values))


def lay_out(field: str, values: Sequence[Value | None]) -> FieldColumns:
    """Choose a field's encoding in this shard and make its arrays."""
    encoding = choose_encoding(field, values)
    return _LAY_OUT[encoding.kind](field, values, encoding)


def _lay_out_ints(field: str, values: Sequence[Value | None], encoding: Encoding) -> FieldColumns:
    ints = np.array([0 if v is None else int(bytes(v)) for v in values], "<i8")
    column = Column(field, "<i8", ints.shape, [as_buffer(ints)])
    return _fixed(column, values, encoding)


def _lay_out_arrays(field: str, values: Sequence[Value | None], encoding: Encoding) -> FieldColumns:
    header = len(npy_header(encoding.dtype, encoding.shape))
    zeros = bytes(encoding.nbytes)
    data = (zeros if v is None else memoryview(v)[header:] for v in values)
    column = Column(field, encoding.dtype, (len(values), *encoding.shape), data)
    return _fixed(column, values, encoding)


def _fixed(column: Column, values: Sequence[Value | None], encoding: Encoding) -> FieldColumns:
    """Rows of one size, absent ones included."""
    present = sizes_of(values) >= 0
    start = np.arange(len(values), dtype=np.int64) * encoding.nbytes
    size = np.where(present, np.int64(encoding.nbytes), np.int64(-1))
    return _finish([column], Extents(start, size, encoding))


def _lay_out_bytes(field: str, values: Sequence[Value | None], encoding: Encoding) -> FieldColumns:
    size = sizes_of(values)
    ends = _ends(size)
    data = (v for v in values if v is not None)
    columns = [Column(field, BYTE, (int(ends[-1]),), data), _offsets(field, ends)]
    return _finish(columns, Extents(ends[:-1], size, encoding))


def _lay_out_ragged(field: str, values: Sequence[Value | None], encoding: Encoding) -> FieldColumns:
    header = np.fromiter((0 if v is None else npy_header_size(v) for v in values), np.int64)
    size = sizes_of(values) - header
    ends = _ends(size)
    step = Encoding("array", encoding.dtype, encoding.shape[1:]).nbytes
    data = (
        memoryview(v)[h:] for v, h in zip(values, header.tolist(), strict=True) if v is not None
    )
    shape = (int(ends[-1]) // step, *encoding.shape[1:])
    columns = [Column(field, encoding.dtype, shape, data), _offsets(field, ends // step)]
    return _finish(columns, Extents(ends[:-1], size, encoding))


_LAY_OUT = {
    "bytes": _lay_out_bytes,
    "int": _lay_out_ints,
    "array": _lay_out_arrays,
    "ragged": _lay_out_ragged,
}


def _ends(size: Integers) -> Integers:
    """(n + 1,): where values begin that lie one after another, and the end of the last."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.maximum(size, 0))])


def _offsets(field: str, ends: Integers) -> Column:
    return Column(f"{field}.offsets", "<u8", ends.shape, [as_buffer(ends.astype("<u8"))])


def _finish(columns: list[Column], extents: Extents) -> FieldColumns:
    present = extents.size >= 0
    if not present.all():
        field = columns[0].name
        data = [as_buffer(present.astype(BYTE))]
        columns.append(Column(f"{field}.present", BYTE, present.shape, data))
    return FieldColumns(columns, extents)


def as_buffer(array: Array) -> Buffer:
    """An array's bytes, not copied (a memoryview of no items cannot be cast)."""
    return array.data.cast("B") if array.size else b""


def moved(extents: Extents, by: int) -> Extents:
    """The same extents, counted from ``by`` bytes earlier."""
    return Extents(extents.start + by, extents.size, extents.encoding)


def lay_out_all(
    keys: list[bytes], columns: dict[str, list[Value | None]]
) -> Iterator[tuple[str, FieldColumns]]:
    """Every field and the key, sorted by name, one at a time."""
    for field, values in all_fields(keys, columns).items():
        yield field, lay_out(field, values)
