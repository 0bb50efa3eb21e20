"""From columns of Arrow to the canonical values of fields, row by row.

What can be done for a whole batch at once is done when a batch comes (numbers, JSON); bytes are
copied out row by row, or, where they are huge, not at all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from shardkit.arrays import Array, Integers
from shardkit.errors import SampleError
from shardkit.images.sniff import image_field
from shardkit.inputs.files import HUGE_BYTES
from shardkit.inputs.tables.arrow_types import (
    Shape,
    array_shape,
    is_list,
    is_of,
    list_depth,
    plain_type,
)
from shardkit.inputs.tables.beside import ADVICE, Beside
from shardkit.inputs.tables.columns import ENDINGS, PackedColumn, field_base
from shardkit.inputs.tables.json_values import bounds, numbers_of, plain, span, to_json, values
from shardkit.inputs.tables.media import HEAD_BYTES, PICTURE, RAW, ending_of, kept_name, sniff
from shardkit.samples.encoding import npy_header
from shardkit.samples.sample import Value

Cell = tuple[str, Value, bytes]
"""(field, value, what follows the row's number in the path of the file it is restored as)."""

At = Callable[[int], Sequence[Cell]]
"""The cells of a row of the batch, none if it is null. Raises SampleError."""

MAX_FILES = 64
"""Files in one value: each place in a list is a field of its own, and each field costs 16 bytes a
row in the index."""

_NONE: tuple[Cell, ...] = ()


def cells_of(column: PackedColumn, array: Any, beside: Beside) -> At:
    """What becomes of a column of a batch.

    Raises what pyarrow raises if the array's parts do not fit one another: pyarrow itself would
    read beyond them.
    """
    if is_of(plain_type(array.type), "null"):
        return lambda i: _NONE
    if column.many:
        return _many_files(column, array)
    return _MAKERS.get(column.how, _files)(column, array, beside)


# --- texts and labels ---------------------------------------------------------------------


def _texts(column: PackedColumn, array: Any, beside: Beside) -> At:
    data = as_binary(array)
    name, suffix = _named(column)

    def at(i: int) -> Sequence[Cell]:
        value = value_at(data, i)
        return _NONE if value is None else ((name, value, suffix),)

    return at


def as_binary(array: Any) -> Any:
    """Strings or bytes as bytes. What is in them may be anything, where it lies is checked."""
    array = plain(array)
    is_large = is_of(array.type, "large_string", "large_binary")
    array = array.cast("large_binary" if is_large else "binary")
    array.validate(full=True)
    return array


def value_at(data: Any, i: int) -> Value | None:
    """A value of bytes; a huge one lies where the batch does."""
    held = data[i].as_buffer()
    if held is None:
        return None
    return memoryview(held) if held.size >= HUGE_BYTES else bytes(held.to_pybytes())


def _named(column: PackedColumn) -> tuple[str, bytes]:
    name = column.field(ENDINGS[column.how])
    return name, b"." + name.encode()


def _json_texts(column: PackedColumn, array: Any, beside: Beside) -> At:
    texts = _texts(column, array, beside)

    def at(i: int) -> Sequence[Cell]:
        cells = texts(i)
        for _, value, _ in cells:
            try:
                json.loads(bytes(value))
            except (ValueError, RecursionError) as error:
                raise SampleError(f"column {column.name!r} is not JSON: {error}") from error
        return cells

    return at


def _labels(column: PackedColumn, array: Any, beside: Beside) -> At:
    array = _checked(array)
    numbers = numbers_of(array).tolist()
    is_null = array.is_null().to_pylist()
    name, suffix = _named(column)
    most = column.num_classes

    def at(i: int) -> Sequence[Cell]:
        number = numbers[i]
        if is_null[i] or (number == -1 and column.how == "label"):
            return _NONE
        if most is not None and not 0 <= number < most:
            are = "is" if most == 1 else "are"
            raise SampleError(f"column {column.name!r} has class {number}, and there {are} {most}")
        return ((name, b"%d" % number, suffix),)

    return at


def _checked(array: Any) -> Any:
    array = plain(array)
    array.validate(full=True)
    return array


# --- numbers ------------------------------------------------------------------------------


def _numbers(column: PackedColumn, array: Any, beside: Beside) -> At:
    array = _checked(array)
    numbers = numbers_of(array)
    size, data = numbers.dtype.itemsize, numbers.tobytes()
    is_null = array.is_null().to_pylist()
    header = npy_header(numbers.dtype.str, ())
    name, suffix = _named(column)

    def at(i: int) -> Sequence[Cell]:
        if is_null[i]:
            return _NONE
        return ((name, header + data[i * size : (i + 1) * size], suffix),)

    return at


def _arrays(column: PackedColumn, array: Any, beside: Beside) -> At:
    array = _checked(array)
    is_null = array.is_null().to_pylist()
    shape = column.shape or array_shape(array.type)
    name, suffix = _named(column)
    found = leaves(array, shape)
    if found is None:
        return lambda i: _NONE if is_null[i] else (_one_array(column, array.slice(i, 1), shape),)
    numbers = found[3]
    lengths, starts, stops = (found[part].tolist() for part in range(3))
    dtype = numbers.dtype.str

    def at(i: int) -> Sequence[Cell]:
        if is_null[i]:
            return _NONE
        header = npy_header(dtype, whole_shape(shape, lengths[i]))
        return ((name, header + numbers[starts[i] : stops[i]].tobytes(), suffix),)

    return at


def _one_array(column: PackedColumn, array: Any, shape: Shape | None) -> Cell:
    """One value, of a batch of which some are no arrays: they have nulls in them, or inner lists of
    other lengths than was said. Those are JSON, in a field that says so."""
    found = leaves(array, shape)
    if found is None:
        name = column.field("json")
        return name, to_json(values(array)[0]), b"." + name.encode()
    lengths, starts, stops, numbers = found
    name, suffix = _named(column)
    own = numbers[int(starts[0]) : int(stops[0])]
    header = npy_header(own.dtype.str, whole_shape(shape, int(lengths[0])))
    return name, header + own.tobytes(), suffix


def whole_shape(shape: Shape | None, length: int) -> tuple[int, ...]:
    """The shape of a value whose outer list has this length, where the first axis varies."""
    first, *others = shape or (None,)
    return (length if first is None else first, *(n or 0 for n in others))


def leaves(array: Any, shape: Shape | None) -> tuple[Integers, Integers, Integers, Array] | None:
    """Of each list of an array its length, where it begins and ends in the numbers that all of them
    come to, and those numbers; None if some list has another length than its axis, or a null in it.

    ``shape`` has as many axes as there are lists in one another, or there is but one list.
    """
    axes = shape or (None,)
    inner = axes[1:] if list_depth(array.type) == len(axes) else ()
    starts, stops = bounds(array)
    lengths = stops - starts
    wanted = axes[0] if inner or len(axes) == 1 else math.prod(n or 0 for n in axes)
    is_there = ~array.is_null().to_numpy(zero_copy_only=False)
    if wanted is not None and (lengths[is_there] != wanted).any():
        return None
    child = plain(array.values)
    for axis in inner:
        first, last = span(starts, stops)
        begins, ends = bounds(child)
        if child.slice(first, last - first).null_count:
            return None
        length = axis or 0
        shift = int(begins[first]) - first * length if last > first else 0
        expected = np.arange(first, last, dtype=np.int64) * length + shift
        if (begins[first:last] != expected).any() or (ends[first:last] != expected + length).any():
            return None
        starts, stops = starts * length + shift, stops * length + shift
        child = plain(child.values)
    first, last = span(starts, stops)
    if child.slice(first, last - first).null_count:
        return None
    return lengths, starts, stops, numbers_of(child)


def _json(column: PackedColumn, array: Any, beside: Beside) -> At:
    found = values(_checked(array))
    name, suffix = _named(column)
    return lambda i: _NONE if found[i] is None else ((name, to_json(found[i]), suffix),)


# --- files --------------------------------------------------------------------------------


def _files(column: PackedColumn, array: Any, beside: Beside) -> At:
    data, paths = bytes_and_paths(_checked_files(array))
    folder = b"/" + field_base(column.name).encode()

    def at(i: int) -> Sequence[Cell]:
        value, path = value_at(data, i), None if paths is None else paths[i].as_py()
        if value is None and not path:
            return _NONE
        try:
            if value is None:
                value = beside.read(str(path))
            ending = _ending(column, value, path)
        except SampleError as error:
            raise SampleError(f"column {column.name!r} {error}") from error
        return (_file_cell(column.field(ending), value, folder, path),)

    return at


def _checked_files(array: Any) -> Any:
    """Bytes alone are checked as such: texts beside them must be UTF-8."""
    array = plain(array)
    if is_of(array.type, "struct"):
        array.validate(full=True)
    return array


def bytes_and_paths(array: Any) -> tuple[Any, Any]:
    """The bytes of files, and their paths, or None where the type has none."""
    if not is_of(array.type, "struct"):
        return as_binary(array), None
    names = [array.type.field(i).name for i in range(array.type.num_fields)]
    members = dict(zip(names, array.flatten(), strict=True))  # null where the struct is
    paths = members.get("path")
    return as_binary(members["bytes"]), None if paths is None else plain(paths)


def _ending(column: PackedColumn, value: Value, path: str | None) -> str:
    """What a field ends in. Raises SampleError for what should be a picture and is none."""
    head = bytes(value[:HEAD_BYTES])
    if column.how == PICTURE:
        found = image_field(head)
        if found is None:
            begins = f"it begins with {bytes(value[:12])!r}" if value else "it is empty"
            raise SampleError(f"holds no picture: {begins}")
        return found
    return RAW if column.how == "bytes" else ending_of(head, path)


def _file_cell(field: str, value: Value, folder: bytes, path: str | None) -> Cell:
    kept = kept_name(path)
    if kept is None:
        return field, value, b"." + field.encode()
    return field, value, folder + b"/" + kept.encode()


def _many_files(column: PackedColumn, array: Any) -> At:
    """Lists of files: each place in the list is a field, ``images.0.jpg``."""
    array = plain(array)
    array.validate(full=True)
    is_null = array.is_null().to_pylist()
    starts, stops = bounds(array)
    data, paths = bytes_and_paths(plain(array.values))

    def at(i: int) -> Sequence[Cell]:
        if is_null[i]:
            return _NONE
        places = range(int(starts[i]), int(stops[i]))
        if len(places) > MAX_FILES:
            raise SampleError(
                f"column {column.name!r} holds {len(places)} files, and a sample takes at most"
                f" {MAX_FILES} of one column; leave it out with --fields"
            )
        cells = (cell(number, place) for number, place in enumerate(places))
        return [one for one in cells if one is not None]

    def cell(number: int, place: int) -> Cell | None:
        value, path = value_at(data, place), None if paths is None else paths[place].as_py()
        base = f"{column.base}.{number}"
        if value is None and not path:
            return None
        try:
            if value is None:
                raise SampleError(f"names the file {path!r} and holds no bytes of it; {ADVICE}")
            field = f"{base}.{_ending(column, value, path)}"
        except SampleError as error:
            raise SampleError(f"column {column.name!r} {error}") from error
        return _file_cell(field, value, f"/{column.base}/{number}".encode(), path)

    return at


def kind_of_bytes(array: Any, at_most: int) -> str | None:
    """What the first values of a column of bytes or of files are: pictures, sounds ..., if one of
    them is; ``""`` if none is; None if there are no values."""
    array = plain(array)
    array.validate(full=True)
    if is_list(array.type):
        first, last = span(*bounds(array))
        array = plain(array.values).slice(first, last - first)
    data, _ = bytes_and_paths(array)
    heads = (head_at(data, i) for i in range(len(data)))
    found = [*islice((head for head in heads if head is not None), at_most)]
    kinds = [known[0] for head in found if (known := sniff(head)) is not None]
    return kinds[0] if kinds else ("" if found else None)


def head_at(data: Any, i: int) -> bytes | None:
    held = data[i].as_buffer()
    return None if held is None else bytes(held[:HEAD_BYTES])


_MAKERS: dict[str, Callable[[PackedColumn, Any, Beside], At]] = {
    "text": _texts,
    "label": _labels,
    "index": _labels,
    "number": _numbers,
    "array": _arrays,
    "json": _json,
    "json text": _json_texts,
}
