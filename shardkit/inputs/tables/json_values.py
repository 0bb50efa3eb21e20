"""Columns of Arrow as JSON: structs, maps, lists of anything, dates, decimals.

What JSON has no word for is a text: dates and times as ISO 8601 has them, to the last digit and in
UTC; decimals as their digits; bytes in base64. So nothing is rounded, and what comes out depends on
no library that is installed or not.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from shardkit.arrays import Array, Integers
from shardkit.errors import FormatError
from shardkit.inputs.tables.arrow_types import is_bytes, is_list, is_number, is_of, is_string

_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""How many are a second."""

_DAY_MS = 86_400_000


def to_json(value: Any) -> bytes:
    """Compact but for a space behind each comma and colon, in UTF-8. What is no number stands there
    as Python writes and reads it: ``NaN``, ``Infinity``."""
    return json.dumps(value, ensure_ascii=False).encode()


def plain(array: Any) -> Any:
    """The values themselves: of extension types what they are stored as, dictionaries and run-ends
    undone."""
    import pyarrow as pa

    held = array.type
    if isinstance(held, pa.BaseExtensionType):
        return plain(array.storage)
    if is_of(held, "dictionary"):
        return plain(array.dictionary_decode())
    if is_of(held, "run_end_encoded"):
        from pyarrow import compute

        return plain(compute.run_end_decode(array))
    return array


def values(array: Any) -> list[Any]:
    """Each value as what ``json.dumps`` takes; null is None.

    Raises:
        FormatError: a type that has no JSON; see :func:`shardkit.inputs.tables.arrow_types.how_of`.
    """
    array = plain(array)
    held = array.type
    if is_of(held, "null"):
        return [None] * len(array)
    if is_number(held):
        return [None if x is None else _number(x) for x in array.to_pylist()]
    if is_string(held):
        return list(array.to_pylist())
    if is_bytes(held):
        encode = base64.b64encode
        return [None if x is None else encode(x).decode() for x in array.to_pylist()]
    if is_of(held, "struct"):
        return _structs(array)
    if is_of(held, "map"):
        return _lists(array, array.keys, array.items)
    if is_list(held):
        return _lists(array, array.values)
    return _texts(array)


def _number(x: Any) -> Any:
    """NumPy's scalars, as an older pyarrow has those of half precision, are none of JSON's."""
    return float(x) if isinstance(x, np.floating) else x


def _structs(array: Any) -> list[Any]:
    names = [array.type.field(i).name for i in range(array.type.num_fields)]
    members = [values(member) for member in array.flatten()]
    nulls = array.is_null().to_pylist()
    rows = zip(*members, strict=True) if members else ((),) * len(array)
    return [
        None if is_null else dict(zip(names, row, strict=True))
        for is_null, row in zip(nulls, rows, strict=True)
    ]


def _lists(array: Any, *children: Any) -> list[Any]:
    """Of a map, which has two children, each entry is a list of two."""
    starts, stops = bounds(array)
    first, last = span(starts, stops)
    inner = [values(child.slice(first, last - first)) for child in children]
    held = inner[0] if len(inner) == 1 else [list(pair) for pair in zip(*inner, strict=True)]
    nulls = array.is_null().to_pylist()
    spans = zip(nulls, (starts - first).tolist(), (stops - first).tolist(), strict=True)
    return [None if is_null else held[start:stop] for is_null, start, stop in spans]


def span(starts: Integers, stops: Integers) -> tuple[int, int]:
    """The part of a child that lists lie in."""
    return (int(starts.min()), int(stops.max())) if len(starts) else (0, 0)


def bounds(array: Any) -> tuple[Integers, Integers]:
    """(N,) int64, twice: where each list, or map, begins and ends in its child."""
    if is_of(array.type, "fixed_size_list"):
        size = array.type.list_size
        starts = (np.arange(len(array), dtype=np.int64) + array.offset) * size
        return starts, starts + size
    if is_of(
        array.type, "list_view", "large_list_view"
    ):  # pyarrow 26 casts those with nulls wrongly
        starts = np.array(array.offsets.to_numpy(zero_copy_only=False), np.int64)
        return starts, starts + array.sizes.to_numpy(zero_copy_only=False)
    offsets = np.array(array.offsets.to_numpy(zero_copy_only=False), np.int64)
    return offsets[:-1], offsets[1:]


# --- texts --------------------------------------------------------------------------------


def _texts(array: Any) -> list[Any]:
    held = array.type
    if is_of(held, "decimal"):
        return [None if x is None else str(x) for x in array.to_pylist()]
    if is_of(held, "interval"):
        return [None if x is None else list(x) for x in array.to_pylist()]
    for kind, write in _WRITERS.items():
        if is_of(held, kind):
            nulls = array.is_null().to_pylist()
            written = write(_integers(array), held)
            return [None if n else text for n, text in zip(nulls, written, strict=True)]
    raise FormatError(f"values of type {held} have no JSON")


def _integers(array: Any) -> Integers:
    """The numbers that dates and times are stored as; anything where a value is null."""
    import pyarrow as pa

    numbers = array.cast(pa.int64()) if array.type.bit_width == 64 else array.cast(pa.int32())
    return numbers_of(numbers).astype(np.int64)


def numbers_of(array: Any) -> Array:
    """(N,): the numbers of an array, to the bit, and anything where a value is null."""
    import pyarrow as pa

    if is_of(array.type, "boolean"):
        return numbers_of(array.cast(pa.uint8())).view(np.bool_)
    dtype = np.dtype(array.type.to_pandas_dtype())
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)


def _dates(numbers: Integers, held: Any) -> list[str]:
    """``2020-02-29``; those of 64 bits count milliseconds, of whole days as they are checked."""
    return _moments(numbers if held.bit_width == 32 else numbers // _DAY_MS, "D")


def _timestamps(numbers: Integers, held: Any) -> list[str]:
    """``2020-02-29T12:00:00.000001``; what has a zone is in UTC, and ends in ``Z``."""
    zone = "Z" if held.tz else ""
    return [moment + zone for moment in _moments(numbers, held.unit)]


def _moments(numbers: Integers, unit: str) -> list[str]:
    written: list[str] = np.datetime_as_string(numbers.view(f"M8[{unit}]")).tolist()
    return written


def _times(numbers: Integers, held: Any) -> list[str]:
    """``23:59:59.999``"""
    return [_time(number, _UNITS[held.unit]) for number in numbers.tolist()]


def _time(number: int, second: int) -> str:
    seconds, part = divmod(number, second)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{seconds:02d}{_fraction(part, second)}"


def _durations(numbers: Integers, held: Any) -> list[str]:
    """``PT1.5S``, ``-PT3S``"""
    second = _UNITS[held.unit]
    return [
        f"{'-' * (n < 0)}PT{abs(n) // second}{_fraction(abs(n) % second, second)}S"
        for n in numbers.tolist()
    ]


def _fraction(part: int, second: int) -> str:
    return f".{part:0{len(str(second)) - 1}d}" if second > 1 else ""


_WRITERS: dict[str, Callable[[Integers, Any], list[str]]] = {
    "date": _dates,
    "timestamp": _timestamps,
    "time": _times,
    "duration": _durations,
}
