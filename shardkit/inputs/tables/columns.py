"""The fields of a table's columns: decided once, from names and types alone.

The main text, image, audio, video and label have fields of their own (``txt``, ``jpg``, ``cls``
...); any other column is named by itself, with an ending that says what it holds: ``caption.txt``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from shardkit.errors import CorpusError
from shardkit.images.sniff import image_field
from shardkit.inputs.guards import LABEL_NAMES

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
