"""The fields of a table's columns: decided once, from names and types alone.

The main text, image, audio, video and label have fields of their own (``txt``, ``jpg``, ``cls``
...); any other column is named by itself, with an ending that says what it holds: ``caption.txt``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from shardkit.errors import CorpusError
from shardkit.inputs.tables.media import FILE, FILM, PICTURE, SOUND

LABEL_NAMES = ("label", "labels", "cls")

CLASS_WORDS = frozenset({*LABEL_NAMES, "category", "class"})
"""Names of a column of class names, of which nothing but its text is packed."""

MAIN_NAMES = {
    PICTURE: ("image", "img", "picture", "photo", "jpg", "jpeg", "png", "webp"),
    SOUND: ("audio", "sound", "speech", "wav", "flac", "mp3"),
    FILM: ("video", "film", "movie", "clip", "mp4"),
}
"""Names of the main one of several columns of a kind, in order; the only one may have any name."""

FILES = (PICTURE, SOUND, FILM, FILE, "bytes")
"""Contents of columns of files and of bytes; the content names their fields."""

ENDINGS = {"text": "txt", "label": "cls", "index": "cls", "number": "npy", "array": "npy"} | {
    **dict.fromkeys(("json", "json text"), "json"),
    **dict.fromkeys(FILES, "bin"),
}
"""The ending of a column's field, by what the column holds."""

_FAMILIES = {"integer": "number", "array": "json", **dict.fromkeys(FILES, "bytes")}

_BYTES = ("binary", "large_binary")


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
            files. shape: of its arrays, if it was declared. type: for messages. names: of its
            classes.
    """

    name: str
    how: str
    base: str = ""
    many: bool = False
    shape: Sequence[int | None] = ()
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


@dataclass(frozen=True)
class TablePlan:
    """The fields of all columns.

    Attributes:
        columns: those that are packed. text: the one that is field ``txt``, if there is one.
        classes: names of classes of field ``cls``. names: those of other columns. left_out: the
            other columns, and why.
    """

    columns: Sequence[TableColumn] = ()
    text: str | None = None
    classes: list[str] | None = None
    names: dict[str, list[str]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON; a text alone needs no more than ``text_field``."""
        made: dict[str, Any] = {}
        if [column.name for column in self.columns] != [self.text]:
            made = {"columns": {}, "classes": self.classes}
            for c in self.columns:
                own = {"as": c.how, "name": c.base, "many": c.many, "shape": [*c.shape]}
                made["columns"][c.name] = {key: value for key, value in own.items() if value}
        more = {"names": self.names, "left_out": self.left_out}
        return made | {key: value for key, value in more.items() if value}

    @classmethod
    def from_json(cls, text: str | None, raw: dict[str, Any]) -> Self:
        """Return the plan of ``text_field`` and of what :meth:`to_json` gave."""
        columns = []
        for name, own in raw.get("columns", {text: {"as": "text"}} if text else {}).items():
            how, base = own["as"], own.get("name", "")
            names = raw["classes"] if how == "label" else None
            shape = own.get("shape", ())
            columns.append(TableColumn(name, how, base, "many" in own, shape, names=names))
        main = next((c.name for c in columns if c.name == text and not c.base), None)
        more = {name: raw[name] for name in ("classes", "names", "left_out") if name in raw}
        return cls(columns, main, **more)

    def notes(self) -> list[str]:
        """Return what there is to say of the columns, a line each."""
        has_label = any(c.how in ("label", "index") for c in self.columns)
        notes = [
            f"column {c.name!r} is field {c.field()}, not cls, which holds whole numbers of a"
            " column called label or of the only ClassLabel: docs/recipes/tables.md"
            for c in (() if has_label else self.columns)
            if c.name in self.names or (c.name.lower() in CLASS_WORDS and c.how not in FILES)
        ]
        for why in dict.fromkeys(self.left_out.values()):
            names = [repr(name) for name, own in self.left_out.items() if own == why]
            notes.append(f"left out: {', '.join(names)} ({why})")
        return notes


def make_plan(
    there: TableColumns,
    where: str,
    fields: Sequence[str] | None = None,
    text_field: str | None = None,
    *,
    tokenized: bool = False,
) -> TablePlan:
    """Return what becomes of the columns of a table.

    Args:
        where: the table, for messages. fields: columns to pack, None for all. text_field: the one
            that is the text. tokenized: if no fields were chosen, take the text alone.

    Raises:
        CorpusError: no such column, two whose fields would be one, or no text to tokenize.
    """
    seen = f"{where} has {listed(there)}"
    why = "not among --fields"
    if tokenized and fields is None:
        fields = [str(_choose_text(there, text_field, seen, must=True))]
        why = "text is tokenized; --fields keeps others beside it"
    if absent := [name for name in fields or () if name not in there]:
        raise CorpusError(f"{seen}: there is no column {absent[0]!r}")
    left_out = {name: why for name in there if fields is not None and name not in fields}
    nulls = [name for name, column in there.items() if column.how == "nothing"]
    left_out |= {name: "all its values are null" for name in nulls if name not in left_out}
    chosen = {name: column for name, column in there.items() if name not in left_out}
    text = _choose_text(chosen, text_field, seen, must=tokenized)
    if not chosen:
        raise CorpusError(f"{seen}: there is nothing to pack in it")
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
        other = columns.get(base.lower() or f"/{name}")  # others fold case
        if other is not None:
            raise CorpusError(
                f"{where}: columns {other.name!r} and {name!r} would both be field {base!r}; rename"
                " one in the table, or leave one out with --fields"
            )
        columns[base.lower() or f"/{name}"] = replace(column, how=how, base=base)
    names_of = {c.name: c.names for c in chosen.values() if c.names and c.name != label}
    return TablePlan([*columns.values()], text, classes, names_of, left_out)


def _first_of(wanted: Iterable[str], names: Iterable[str]) -> str | None:
    lower = {name.lower(): name for name in reversed([*names])}
    return next((lower[name] for name in wanted if name in lower), None)


def _choose_text(there: TableColumns, wanted: str | None, seen: str, *, must: bool) -> str | None:
    """Return the column of the text: ``wanted``; else ``text``; else the only one of strings, but
    for those that tools add: ``__key__``, or pandas' ``__index_level_0__``."""
    may_be = [name for name, c in there.items() if c.how == "text" or c.type in _BYTES]
    strings = [name for name in may_be if there[name].how == "text" and not name.startswith("__")]
    if wanted is None and "text" not in may_be:
        if must and len(strings) != 1:
            shown = ", ".join(map(repr, strings)) or "none"
            raise CorpusError(f"{seen}: {shown} hold strings; pass --text-field to say which")
        return strings[0] if len(strings) == 1 else None
    wanted = wanted or "text"
    if wanted not in may_be:
        what = f"is {there[wanted].type}, expected strings" if wanted in there else "is not there"
        raise CorpusError(f"{seen}: column {wanted!r} {what}")
    return wanted


def listed(there: TableColumns) -> str:
    """Return columns and their types, for a message."""
    shown = ", ".join(f"{name!r} ({column.type})" for name, column in there.items())
    return f"columns {shown}"[:300] if there else "no columns"


def misfit(
    plan: TablePlan,
    known: TableColumns,
    there: TableColumns,
    lacking: Collection[str],
    *,
    all_chosen: bool,
) -> str:
    """Return why a file's columns cannot be packed as those that the plan was made of, ``known``;
    "" if they can.

    ``lacking``: columns that its split is known not to have. ``all_chosen``: True if nobody chose
    columns, so that one that the plan does not know would be left out without a word.
    """
    for name in [column.name for column in plan.columns]:
        if name not in there and name not in lacking:
            return f"has {listed(there)}: column {name!r} is not there"
        if name in there and not there[name].is_like(known[name]):
            return (
                f"has a column {name!r} ({there[name].type[:80]}) of another type, or of other"
                " classes, than the files before it; leave it out with --fields, or pack it"
                " separately"
            )
    for name, column in there.items() if all_chosen else ():
        if column.how != "nothing" and (name not in known or known[name].how == "nothing"):
            return (
                f"has a column {name!r} ({column.type[:80]}) with values, which the files before"
                " it have not; say which columns to pack with --fields"
            )
    return ""
