"""Convert columns of Arrow to stored values, row by row.

Bytes, texts, labels and numbers are converted a batch at once, arrays and JSON row by row.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from shardkit.errors import FormatError
from shardkit.images.sniff import image_field
from shardkit.inputs.tables import media
from shardkit.inputs.tables.columns import FILES, TableColumn, TableColumns, field_base
from shardkit.inputs.tables.row_files import Cell
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
    inner, shape = _plain_type(held), ()
    kind, names = _feature(feature)
    many = _is_list(inner) and _is_file(_plain_type(inner.value_type))
    inner = _plain_type(inner.value_type) if many else inner
    if _is(inner, "string", "large_string"):
        is_json = kind == "Json" or getattr(held, "extension_name", "") == "arrow.json"
        how = "json text" if is_json else "text"
    elif _is(inner, "null"):
        how = "nothing"
    elif _is(inner, "integer", "floating", "boolean"):
        how = "integer" if _is(inner, "integer") else "number"
    elif _is_file(inner):
        how = _FEATURES.get(kind, media.FILE if _is(inner, "struct") else "bytes")
    else:
        axes = []
        while _is_list(inner):
            axes.append(getattr(inner, "list_size", None))
            inner = _plain_type(inner.value_type)
        declared = feature.get("shape") if kind.startswith("Array") else getattr(held, "shape", ())
        shape = tuple(declared or ()) if len(axes) in (1, len(declared or ())) else ()
        is_array = axes and _is(inner, "integer", "floating", "boolean")
        how = "array" if is_array and (shape or None not in axes[1:]) else "json"
    return TableColumn(name, how, "", many, shape, str(held), names)


def _feature(feature: Any) -> tuple[str, list[str] | None]:
    """Return the type of a feature of ``datasets``, or of what its lists hold; and the names of its
    classes."""
    if isinstance(feature, list):
        return _feature(feature[0])
    kind = feature.get("_type", "") if isinstance(feature, dict) else ""
    if kind == "ClassLabel":
        return kind, [
            *map(str, feature.get("names") or range(int(feature.get("num_classes") or 0)))
        ]
    is_list = kind in ("List", "LargeList", "Sequence")
    return _feature(feature.get("feature")) if is_list else (kind, None)


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


def cells_of(column: TableColumn, array: Any) -> list[Cells]:
    """Return the cells of a column of a batch, row by row.

    Raises what pyarrow raises if parts of the array do not fit one another: it would read beyond
    them.
    """
    array, how = _plain(array), column.how
    if _is(array.type, "null"):
        return [()] * len(array)
    if how in ("text", "json text"):
        # As bytes, which need not be valid Unicode.
        array = array.cast("large_binary" if _is(array.type, "large_string") else "binary")
        array.validate(full=True)
        return _cells(column, array.to_pylist())
    array.validate(full=True)
    if how in FILES:
        return [_file_cells(column, value) for value in array.to_pylist()]
    if how in ("label", "index"):
        return [_label(column, number) for number in array.to_pylist()]
    if how == "array":
        return [_array(column, value) for value in array]
    if how == "json":
        return [_json(column, value) for value in _moments(array)]
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


def _array(column: TableColumn, value: Any) -> Cells:
    """Return a list of numbers as an array; as JSON, in a field of that ending, if it holds nulls
    or inner lists of several lengths."""
    from pyarrow import compute

    leaf = value.values
    if leaf is None:
        return ()
    shape = [len(leaf)]
    while _is_list(leaf.type):
        sizes = compute.list_value_length(leaf)
        shape.append(getattr(leaf.type, "list_size", None) or compute.max(sizes).as_py() or 0)
        leaf = _plain(leaf.flatten())
    if column.shape:
        wanted = [shape[0] if n is None else n for n in column.shape]
        shape = wanted if len(shape) == 1 or 0 in shape or shape == wanted else [-1]
    if leaf.null_count or math.prod(shape) != len(leaf):
        return _json(column, value)
    numbers = leaf.to_numpy(zero_copy_only=False)
    return _cells(column, [npy_header(numbers.dtype.str, tuple(shape)) + numbers.tobytes()])[0]


def _json(column: TableColumn, value: Any) -> Cells:
    try:
        held = value if value is None or isinstance(value, str) else value.as_py()
        made = json.dumps(held, ensure_ascii=False, default=_in_json).encode()
    except (ValueError, OverflowError, RecursionError) as error:
        return f"column {column.name!r} holds what JSON cannot: {error}"
    return () if held is None else _cells(column, [made], "json")[0]


def _in_json(value: Any) -> Any:
    """Return what JSON has no word for: bytes in base64, decimals as their digits, dates and times
    as ISO 8601 has them, in UTC."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime):
        value = value if value.tzinfo is None else value.astimezone(datetime.UTC)
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value.item() if isinstance(value, np.generic) else str(value)


def _moments(array: Any) -> Iterable[Any]:
    """Return points of time, and times of day, as text: to the last digit, of any year."""
    if _is(array.type, "time"):
        return array.cast("string").to_pylist()  # type: ignore[no-any-return]
    if not _is(array.type, "timestamp"):
        return array  # type: ignore[no-any-return]
    texts = np.datetime_as_string(array.to_numpy(zero_copy_only=False)).tolist()
    zone = "Z" if array.type.tz else ""
    return [None if text == "NaT" else text + zone for text in texts]


# --- files --------------------------------------------------------------------------------


def _files(column: TableColumn, value: Any) -> Iterator[tuple[str, bytes | None, str | None]]:
    """Yield (place in a list, bytes, path) of the files in a value."""
    for i, file in enumerate(value or () if column.many else [value]):
        place = f"{i}." if column.many else ""
        if isinstance(file, dict):
            yield place, file["bytes"], file.get("path")
        else:
            yield place, file, None


def _file_cells(column: TableColumn, value: Any) -> Cells:
    """Return each file as a field that its content names; in a list by its place, too:
    ``images.0.jpg``."""
    if column.many and len(value or ()) > MAX_FILES:
        return (
            f"column {column.name!r} holds {len(value)} files, and a sample takes at most"
            f" {MAX_FILES} of one column; leave it out with --fields"
        )
    found: list[Cell] = []
    for place, data, path in _files(column, value):
        if data is None and path:
            why = "and holds no bytes of it: see docs/recipes/tables.md"
            return f"column {column.name!r} names {path!r} {why}"
        if data is None:
            continue
        head = data[: media.HEAD_BYTES]
        if column.how == "bytes":
            ending = media.RAW
        else:
            is_picture = column.how == media.PICTURE
            ending = (image_field(head) or "") if is_picture else media.ending_of(head, path)
        if not ending:
            begins = f"it begins with {data[:12]!r}" if data else "it is empty"
            return f"column {column.name!r} holds no picture: {begins}"
        field, kept = column.field(place + ending), media.kept_name(path)
        folder = f"/{field_base(column.name)}/{place.replace('.', '/')}"
        found.append((field, data, (folder + kept if kept else f".{field}").encode()))
    return found
