"""Convert columns of Arrow to stored values, row by row.

Bytes, texts, labels and numbers are converted a batch at once, arrays and JSON row by row.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from shardkit.errors import FormatError
from shardkit.images.sniff import image_field
from shardkit.inputs.sample_files import Cell
from shardkit.inputs.tables import columns as media
from shardkit.inputs.tables.columns import FILES, TableColumn, TableColumns, field_base
from shardkit.samples.encoding import npy_header

Cells = Sequence[Cell] | str
"""The cells of one value, none if it is null; or why there are none."""

MAX_FILES = 64
"""Files in one value: each place in a list is a field of its own, and each field costs 16 bytes per
row in the index."""

PEEK_VALUES = 16
"""Values of a column of bytes that are looked at to see what they are."""

_FEATURES = {"Image": media.PICTURE, "Audio": media.SOUND, "Video": media.FILM}


# --- types --------------------------------------------------------------------------------


def _is(held: Any, *names: str) -> bool:
    from pyarrow import types

    return any(getattr(types, f"is_{name}")(held) for name in names)


def _is_list(held: Any) -> bool:
    return _is(held, "list", "large_list", "fixed_size_list")


def _is_file(held: Any) -> bool:
    """Return True for bytes, and for ``{bytes, path}`` as ``datasets`` stores files."""
    if not _is(held, "struct"):
        return _is(held, "binary", "large_binary", "fixed_size_binary")
    names = {held.field(i).name for i in range(held.num_fields)}
    return "bytes" in names and names <= {"bytes", "path"} and _is_file(held.field("bytes").type)


def _plain_type(held: Any) -> Any:
    """Return the storage type of an extension type, and the value type of a dictionary."""
    held = getattr(held, "storage_type", held)
    return _plain_type(held.value_type) if _is(held, "dictionary") else held


def _plain(array: Any) -> Any:
    """Return an array of :func:`_plain_type`."""
    array = getattr(array, "storage", array)
    return _plain(array.dictionary_decode()) if _is(array.type, "dictionary") else array


def columns_of(schema: Any, features: dict[str, Any]) -> TableColumns:
    """Return the columns of a schema, by types and by ``features``, the JSON of ``datasets``.
    Raises FormatError if two have one name."""
    names = schema.names
    if twice := [name for name in names if names.count(name) > 1]:
        raise FormatError(f"has two columns {twice[0]!r}; rename one in the table")
    return {name: _column(name, schema.field(name).type, features.get(name)) for name in names}


def _column(name: str, held: Any, feature: Any) -> TableColumn:
    inner = _plain_type(held)
    kind, names = _feature(feature)
    many = _is_list(inner) and _is_file(_plain_type(inner.value_type))
    inner = _plain_type(inner.value_type) if many else inner
    if _is(inner, "string", "large_string"):
        how = "text"
    elif _is(inner, "null"):
        how = "nothing"
    elif _is(inner, "integer", "floating", "boolean"):
        how = "integer" if _is(inner, "integer") else "number"
    elif _is_file(inner):
        how = _FEATURES.get(kind, media.FILE if _is(inner, "struct") else "bytes")
    else:
        # Lists in lists have one shape if that was declared, or if inner ones are of fixed size.
        is_even, depth = kind.startswith("Array") or bool(getattr(held, "shape", ())), 0
        while _is_list(inner) and (is_even or not depth or _is(inner, "fixed_size_list")):
            inner, depth = _plain_type(inner.value_type), depth + 1
        how = "array" if depth and _is(inner, "integer", "floating", "boolean") else "json"
    return TableColumn(name, how, "", many, str(held), names)


def _feature(feature: Any) -> tuple[str, list[str] | None]:
    """Return the type of a feature of ``datasets``, or of what its lists hold; and the names of its
    classes."""
    while isinstance(feature, list) or (isinstance(feature, dict) and "feature" in feature):
        feature = feature[0] if isinstance(feature, list) else feature["feature"]
    kind = feature.get("_type", "") if isinstance(feature, dict) else ""
    return kind, [*map(str, feature["names"])] if kind == "ClassLabel" else None


def kind_of_files(column: TableColumn, array: Any) -> str:
    """Return what a column of bytes or of files is, by its first values: pictures, sounds ..., if
    one of them is. Lists of bytes that are no files are JSON."""
    array = _plain(array)
    array.validate(full=True)
    files = (file for value in array for file in _files(column, value.as_py()))
    heads = islice((data[: media.HEAD_BYTES] for _, data, _ in files if data), PEEK_VALUES)
    known = next((found[0] for head in heads if (found := media.sniff(head))), None)
    return known or ("json" if column.many and column.how == "bytes" else column.how)


# --- values -------------------------------------------------------------------------------


def rows_of(columns: Sequence[TableColumn], batch: Any) -> list[list[Cell] | str]:
    """Return the cells of each row of a batch, or why it has none. Raises as :func:`_cells_of`."""
    return [*map(_joined, zip(*(_cells_of(c, batch[c.name]) for c in columns), strict=True))]


def _joined(values: Sequence[Cells]) -> list[Cell] | str:
    found: list[Cell] = []
    for value in values:
        if isinstance(value, str):
            return value
        found += value
    return found or "has a null in each column"


def _cells_of(column: TableColumn, array: Any) -> list[Cells]:
    """Return the cells of a column of a batch, row by row.

    Raises what pyarrow raises if parts of the array do not fit one another: it would read beyond
    them.
    """
    shape, array, how = getattr(array.type, "shape", ()), _plain(array), column.how
    if _is(array.type, "null"):
        return [()] * len(array)
    if how == "text":
        # As bytes, which need not be valid Unicode.
        array = array.cast("large_binary" if _is(array.type, "large_string") else "binary")
    array.validate(full=True)
    if how == "text":
        return _cells(column, array.to_pylist())
    if how in FILES:
        return [_file_cells(column, value) for value in array.to_pylist()]
    if how in ("label", "index"):
        return [_label(column, number) for number in array.to_pylist()]
    if how == "array":
        return [_array(column, value, shape) for value in array]
    if how == "json":
        return [_json(column, value) for value in array]
    numbers = array.drop_null().to_numpy(zero_copy_only=False)
    data, size, header = numbers.tobytes(), numbers.itemsize, npy_header(numbers.dtype.str, ())
    values = iter([header + data[i : i + size] for i in range(0, len(data), size)])
    return _cells(
        column, [next(values) if valid else None for valid in array.is_valid().to_pylist()]
    )


def _cells(column: TableColumn, values: Iterable[bytes | None], ending: str = "") -> list[Cells]:
    name = column.field(ending)
    suffix = b"." + name.encode()
    return [() if value is None else ((name, value, suffix),) for value in values]


def _label(column: TableColumn, number: Any) -> Cells:
    classes = column.names if column.how == "label" else None
    if number is None or (number == -1 and classes is not None):
        return ()
    if type(number) is not int or (classes is not None and not 0 <= number < len(classes)):
        return f"column {column.name!r} holds {number}, which is none of its classes"
    if abs(number) >= 10**18:  # an index reads no more digits
        return f"column {column.name!r} holds {number}, and a class has at most 18 digits"
    return (("cls", b"%d" % number, b".cls"),)


def _array(column: TableColumn, value: Any, shape: Sequence[int]) -> Cells:
    """Return a list of numbers as an array, of this shape if it is a tensor; as JSON, in a field of
    that ending, if it holds nulls or inner lists of several lengths."""
    from pyarrow import compute

    leaf = value.values
    if leaf is None:
        return ()
    axes = [len(leaf)]
    while _is_list(leaf.type):
        axes.append(compute.max(compute.list_value_length(leaf)).as_py() or 0)
        leaf = _plain(leaf.flatten())
    axes = [*shape] if len(axes) == 1 and shape else axes
    if leaf.null_count or math.prod(axes) != len(leaf):
        return _json(column, value)
    numbers = leaf.to_numpy(zero_copy_only=False)
    return _cells(column, [npy_header(numbers.dtype.str, tuple(axes)) + numbers.tobytes()])[0]


def _json(column: TableColumn, value: Any) -> Cells:
    try:
        held = value.as_py()
        made = json.dumps(held, ensure_ascii=False, default=_in_json).encode()
    except (ValueError, OverflowError, RecursionError) as error:
        return f"column {column.name!r} holds what JSON cannot: {error}"
    return () if held is None else _cells(column, [made], "json")[0]


def _in_json(value: Any) -> Any:
    """Return what JSON has no word for: bytes in base64, decimals, dates and times as texts."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


# --- files --------------------------------------------------------------------------------


def _files(column: TableColumn, value: Any) -> Iterator[tuple[str, bytes | None, str | None]]:
    """Yield (place in a list, bytes, path) of the files in a value."""
    for i, file in enumerate(value or () if column.many else [value]):
        place = f"{i}." if column.many else ""
        held = file if isinstance(file, dict) else {"bytes": file}
        yield place, held["bytes"], held.get("path")


def _file_cells(column: TableColumn, value: Any) -> Cells:
    """Return each file as a field that its content names; in a list by its place, too:
    ``images.0.jpg``."""
    found: list[Cell] = []
    for place, data, path in _files(column, value):
        if data is None and path:
            why = "and holds no bytes of it: see docs/recipes/tables.md"
            return f"column {column.name!r} names {path!r} {why}"
        if data is None:
            continue
        head = data[: media.HEAD_BYTES]
        ending = media.RAW if column.how == "bytes" else media.ending_of(head, path)
        if column.how == media.PICTURE and image_field(head) is None:
            return f"column {column.name!r} holds no picture: it begins with {data[:12]!r}"
        field, kept = column.field(place + ending), media.kept_name(path)
        folder = f"/{field_base(column.name)}/{place.replace('.', '/')}"
        found.append((field, data, (folder + kept if kept else f".{field}").encode()))
    if len(found) > MAX_FILES:
        found_in = f"column {column.name!r} holds {len(found)} files, and a sample takes at most"
        return f"{found_in} {MAX_FILES} of one column; leave it out with --fields"
    return found
