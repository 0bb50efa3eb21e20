"""The fields of a table's columns: decided once, from names and types alone; and the values that
are stored, made of columns of Arrow.

The main text, image, audio, video and label have fields of their own (``txt``, ``jpg``, ``cls``
...); any other column is named by itself, with an ending that says what it holds: ``caption.txt``.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Final

from shardkit.errors import CorpusError, FormatError
from shardkit.images.sniff import image_field
from shardkit.inputs.guards import LABEL_NAMES
from shardkit.inputs.sample_files import Cell
from shardkit.samples.encoding import npy_header

HEAD_BYTES = 64
"""Bytes of a value that are looked at."""

PICTURE: Final = "picture"
SOUND: Final = "sound"
FILM: Final = "film"
FILE: Final = "file"
"""Contents of a column of files; ``file`` is anything."""

RAW = "bin"
"""The ending of bytes of which nothing more is known."""

_MAGIC = [
    (re.compile(magic, re.DOTALL), kind, ending)
    for magic, kind, ending in (
        (b"fLaC", SOUND, "flac"),
        (b"OggS", SOUND, "ogg"),
        (b"RIFF....WAVE", SOUND, "wav"),
        (b"....ftypM4[AB]", SOUND, "m4a"),
        (b"....ftypqt", FILM, "mov"),
        (b"....ftyp", FILM, "mp4"),
        (b"\x1a\x45\xdf\xa3.*webm", FILM, "webm"),
        (b"\x1a\x45\xdf\xa3", FILM, "mkv"),
        (b"ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]", SOUND, "mp3"),  # a frame of layer III of MPEG
    )
]
"""Patterns of the first bytes, what the file is, and its ending."""

_RESERVED = frozenset({"npy", "cls", "txt", "json", "tokens"})
"""Endings that say how a field is read, so that no file's own name may choose them."""


def sniff(head: bytes) -> tuple[str, str] | None:
    """Return what a file that begins with ``head`` is, and its ending; None if that is unknown."""
    if (picture := image_field(head)) is not None:
        return PICTURE, picture
    return next(((kind, end) for magic, kind, end in _MAGIC if magic.match(head)), None)


def ending_of(head: bytes, path: str | None) -> str:
    """Return a file's ending, lower case without a dot: by its content, else as its ``path`` ends,
    else ``bin``."""
    if (found := sniff(head)) is not None:
        return found[1]
    stem, _, named = (kept_name(path) or "").lower().rpartition(".")
    is_good = stem and re.fullmatch("[a-z0-9]{1,8}", named) and named not in _RESERVED
    return named if is_good else RAW


def kept_name(path: str | None) -> str | None:
    """Return the name under which ``unpack`` writes a value that a table has a path or a URL for:
    its last part. None if there is none, or it is no valid name."""
    name = (path or "").rpartition("/")[2]
    is_long = len(name.encode("utf-8", "surrogatepass")) > 200  # file systems take 255 bytes
    return None if is_long or name in ("", ".", "..") or "\0" in name else name


MAIN_NAMES = {
    PICTURE: ("image", "img", "picture", "photo", "jpg", "jpeg", "png", "webp"),
    SOUND: ("audio", "sound", "speech", "wav", "flac", "mp3"),
    FILM: ("video", "film", "movie", "clip", "mp4"),
}
"""Names of the main one of several columns of a kind, in order; the only one may have any name."""

FILES = (PICTURE, SOUND, FILM, FILE, "bytes")
"""Contents of columns of files and of bytes; the content names their fields."""

ENDINGS = {"text": "txt", "label": "cls", "index": "cls", "number": "npy", "array": "npy"} | {
    "json": "json",
    **dict.fromkeys(FILES, "bin"),
}
"""The ending of a column's field, by what the column holds."""

_FAMILIES = {"integer": "number", "array": "json", **dict.fromkeys(FILES, "bytes")}


def field_base(column: str) -> str:
    """Return the field name that a column's name makes: each character but A-Z a-z 0-9 _ . - is
    ``_``, it does not begin with a dot or a dash, and of over 50 characters the rest is cut off, as
    a field's name has 64 with its ending."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", column)[:50]
    return "_" + name[1:] if name[:1] in ("", ".", "-") else name


@dataclass(frozen=True)
class TableColumn:
    """A column of a table.

    Attributes:
        name: in the table. how: a key of :data:`ENDINGS`, "integer" or "nothing"; ``label`` (-1 is
            none) and ``index`` (any number) become ``cls``. base: what the field's name begins
            with, before a dot; ``""``: the ending is all of it. many: True if values are lists of
            files. type: for messages. names: of its classes.
    """

    name: str
    how: str
    base: str = ""
    many: bool = False
    type: str = ""
    names: list[str] | None = None

    def field(self, ending: str = "") -> str:
        """Return the field's name."""
        ending = ending or ENDINGS[self.how]
        return f"{self.base}.{ending}" if self.base else ending

    def is_like(self, other: TableColumn) -> bool:
        """Return True if both hold the same, as far as another file of a table may differ."""
        families = [_FAMILIES.get(each.how, each.how) for each in (self, other)]
        is_same = families[0] == families[1] and self.many == other.many
        is_same |= self.many and other.how == "json"  # bytes that were looked at, and are no files
        return "nothing" in families or (is_same and self.names in (None, other.names))


TableColumns = dict[str, TableColumn]


def make_plan(
    there: TableColumns,
    where: str,
    fields: Sequence[str] | None = None,
    text_field: str | None = None,
    *,
    tokenized: bool = False,
) -> list[TableColumn]:
    """Return what becomes of the columns of a table: the label is of class numbers, and the text is
    the one of how ``text`` without a base.

    Args:
        where: the table, for messages. fields: columns to pack, None for all. text_field: the one
            that is the text. tokenized: if no fields were chosen, take the text alone.

    Raises:
        CorpusError: no such column, two whose fields would be one, or no text to tokenize.
    """
    seen = f"{where} has {listed(there)}"
    if tokenized and fields is None:
        fields = [str(_choose_text(there, text_field, seen, must=True))]
    if absent := [name for name in fields or () if name not in there]:
        raise CorpusError(f"{seen}: there is no column {absent[0]!r}")
    chosen = {
        name: column
        for name, column in there.items()
        if column.how != "nothing" and (fields is None or name in fields)
    }
    if not chosen:
        raise CorpusError(f"{seen}: there is nothing to pack in it")
    text = _choose_text(chosen, text_field, seen, must=tokenized)
    mains = {text}
    for kind, names in MAIN_NAMES.items():
        own = [c.name for c in chosen.values() if c.how == kind and not c.many and c.name != text]
        mains.add(own[0] if len(own) == 1 else _first_of(names, own))
    integers = [name for name, column in chosen.items() if column.how == "integer"]
    known = [name for name in integers if there[name].names is not None]
    label = known[0] if len(known) == 1 else _first_of(LABEL_NAMES, known)
    label = label or _first_of(LABEL_NAMES, integers)
    classes = None if label is None else there[label].names
    columns: dict[str, TableColumn] = {}
    for name, column in chosen.items():
        how = {text: "text", label: "index" if classes is None else "label"}.get(name, column.how)
        how = "number" if how == "integer" else how
        base = "" if name in (*mains, label) else field_base(name)
        other = columns.setdefault(base.lower() or f"/{name}", replace(column, how=how, base=base))
        if other.name != name:  # others fold case
            raise CorpusError(
                f"{where}: columns {other.name!r} and {name!r} would both be field {base!r}; rename"
                " one in the table, or leave one out with --fields"
            )
    return [*columns.values()]


def _first_of(wanted: Iterable[str], names: Iterable[str]) -> str | None:
    lower = {name.lower(): name for name in reversed([*names])}
    return next((lower[name] for name in wanted if name in lower), None)


def _choose_text(there: TableColumns, wanted: str | None, seen: str, *, must: bool) -> str | None:
    """Return the column of the text: ``wanted``; else ``text``; else the only one of strings, but
    for those that tools add: ``__key__``, or pandas' ``__index_level_0__``."""
    may_be = [name for name, c in there.items() if c.how == "text" or c.type.endswith("binary")]
    strings = [name for name in may_be if there[name].how == "text" and not name.startswith("__")]
    wanted = wanted or ("text" if "text" in may_be else None)
    if wanted is not None and wanted not in may_be:
        raise CorpusError(f"{seen}: column {wanted!r} holds no strings, or is not there")
    if wanted is None and must and len(strings) != 1:
        shown = ", ".join(map(repr, strings)) or "none"
        raise CorpusError(f"{seen}: {shown} hold strings; pass --text-field to say which")
    return wanted or (strings[0] if len(strings) == 1 else None)


def listed(there: TableColumns) -> str:
    """Return columns and their types, for a message."""
    shown = ", ".join(f"{name!r} ({column.type})" for name, column in there.items())
    return f"columns {shown}"[:300] if there else "no columns"


Cells = Sequence[Cell] | str
"""The cells of one value, none if it is null; or why there are none."""

MAX_FILES = 64
"""Files in one value: each place in a list is a field of its own, and each field costs 16 bytes per
row in the index."""

PEEK_VALUES = 16
"""Values of a column of bytes that are looked at to see what they are."""

_FEATURES = {"Image": PICTURE, "Audio": SOUND, "Video": FILM}


# --- types of Arrow -----------------------------------------------------------------------


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
        how = _FEATURES.get(kind, FILE if _is(inner, "struct") else "bytes")
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
    heads = islice((data[:HEAD_BYTES] for _, data, _ in files if data), PEEK_VALUES)
    known = next((found[0] for head in heads if (found := sniff(head))), None)
    return known or ("json" if column.many and column.how == "bytes" else column.how)


# --- values -------------------------------------------------------------------------------


def rows_of(columns: Sequence[TableColumn], batch: Any) -> list[list[Cell] | str]:
    """Return the cells of each row of a batch, or why it has none. Raises as :func:`_cells_of`."""
    rows: list[list[Cell] | str] = []
    for values in zip(*(_cells_of(c, batch[c.name]) for c in columns), strict=True):
        why = next((value for value in values if isinstance(value, str)), "")
        rows.append(why or [*chain.from_iterable(values)] or "has a null in each column")
    return rows


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
        head = data[:HEAD_BYTES]
        ending = RAW if column.how == "bytes" else ending_of(head, path)
        if column.how == PICTURE and image_field(head) is None:
            return f"column {column.name!r} holds no picture: it begins with {data[:12]!r}"
        field, kept = column.field(place + ending), kept_name(path)
        folder = f"/{field_base(column.name)}/{place.replace('.', '/')}"
        found.append((field, data, (folder + kept if kept else f".{field}").encode()))
    if len(found) > MAX_FILES:
        found_in = f"column {column.name!r} holds {len(found)} files, and a sample takes at most"
        return f"{found_in} {MAX_FILES} of one column; leave it out with --fields"
    return found
