"""Which field each column of a table becomes: decided once, from names and types alone.

The main text, picture, sound, film and label have fields of their own (``txt``, ``jpg``, ``cls``
...); any other column is named by itself, with an ending that says what it holds: ``caption.txt``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Self

from shardkit.inputs.tables.arrow_types import How
from shardkit.inputs.tables.media import FILM, PICTURE, SOUND

Columns = dict[str, str]
"""Name -> type, as Arrow writes it."""

STRINGS = frozenset({"string", "large_string", "string_view"})
_BYTES = frozenset({"binary", "large_binary", "binary_view"})

LABEL_NAMES = ("label", "labels", "cls")

CLASS_WORDS = frozenset({*LABEL_NAMES, "category", "class"})
"""What a column of names of classes is called, of which nothing but its text is packed."""

ALL_NULL = "all its values are null"
"""Why a column is left out that has no values, so that there is nothing to leave out."""

MANY_NUMBERS = 100
"""Columns of a number each, over which a table is hardly meant to have a field for each."""

MAX_BASE = 50
"""Of the name of a column that a field is named by: with an ending, a field's name has 64."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")

ENDINGS: dict[str, str] = {
    "text": "txt",
    "bytes": "bin",
    "label": "cls",
    "index": "cls",
    "number": "npy",
    "array": "npy",
    "json": "json",
    "json text": "json",
}
"""What the field of a column ends in, by what becomes of it; of files that is what they hold."""

_SHOWN = {PICTURE: "jpg, png ...", SOUND: "wav, flac ...", FILM: "mp4 ..."}


@dataclass(frozen=True)
class Fact:
    """What is known of a column before anything is chosen.

    Attributes:
        type: for messages. how: what becomes of its values; None: nothing, and ``why``.
        many: whether each value is a list of files. names: of the classes whose numbers it holds.
        inner_names: the same for what lies in it, by where. shape: of its arrays, if that was said
            beside the type.
    """

    type: str
    how: How | None
    why: str = ""
    many: bool = False
    names: list[str] | None = None
    inner_names: dict[str, list[str]] = field(default_factory=dict)
    shape: tuple[int | None, ...] | None = None


Facts = dict[str, Fact]


@dataclass(frozen=True)
class PackedColumn:
    """A column that is packed.

    Attributes:
        name: in the table. how: what becomes of it: a :data:`How`, or ``label`` (-1 is none) or
            ``index`` (any number), which become ``cls``.
        base: what the field's name begins with, before a dot; ``""``: the ending is all of it.
        many, shape: as of :class:`Fact`. num_classes: of a label.
    """

    name: str
    how: str
    base: str = ""
    many: bool = False
    shape: tuple[int | None, ...] | None = None
    num_classes: int | None = None

    def field(self, ending: str) -> str:
        """The field's name."""
        return f"{self.base}.{ending}" if self.base else ending

    def to_json(self) -> dict[str, Any]:
        """What differs from the defaults, in JSON; :meth:`from_json` is its inverse."""
        own: dict[str, Any] = {"as": self.how}
        if self.base:
            own["name"] = self.base
        if self.many:
            own["many"] = True
        if self.shape is not None:
            own["shape"] = list(self.shape)
        return own

    @classmethod
    def from_json(cls, name: str, raw: dict[str, Any], classes: list[str] | None) -> Self:
        shape = tuple(raw["shape"]) if "shape" in raw else None
        most = len(classes) if raw["as"] == "label" and classes is not None else None
        return cls(name, raw["as"], raw.get("name", ""), raw.get("many", False), shape, most)


@dataclass(frozen=True)
class TablePlan:
    """What becomes of all columns.

    Attributes:
        columns: those that are packed. text: the one that is field ``txt``, if there is one.
        classes: names of classes of field ``cls``. names: those of other columns, by column and
            where in it. left_out: the other columns, and why.
    """

    columns: tuple[PackedColumn, ...]
    text: str | None = None
    classes: list[str] | None = None
    names: dict[str, list[str]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def is_text(self) -> bool:
        """Whether one column of text is all that is packed."""
        return [column.name for column in self.columns] == [self.text]

    @property
    def has_pictures(self) -> bool:
        return any(column.how == PICTURE and not column.base for column in self.columns)

    def to_json(self) -> dict[str, Any]:
        """What the plan of a text alone has besides ``text_field``: nothing."""
        made: dict[str, Any] = {}
        if not self.is_text:
            made["columns"] = {column.name: column.to_json() for column in self.columns}
            made["classes"] = self.classes
        if self.names:
            made["names"] = self.names
        if self.left_out:
            made["left_out"] = self.left_out
        return made

    @classmethod
    def from_json(cls, text: str | None, raw: dict[str, Any]) -> Self:
        """The plan of ``text_field`` and of what :meth:`to_json` gave."""
        classes = raw.get("classes")
        given = raw.get("columns", {text: {"as": "text"}} if text is not None else {})
        columns = [PackedColumn.from_json(name, own, classes) for name, own in given.items()]
        is_main = any(column.name == text and not column.base for column in columns)
        return cls(
            tuple(columns),
            text if is_main else None,
            classes,
            raw.get("names", {}),
            raw.get("left_out", {}),
        )

    def notes(self) -> list[str]:
        """What there is to say of it, a line each."""
        said = []
        shown = [_told(column, self.classes) for column in self.columns if not _is_plain(column)]
        if shown and not self.is_text:
            more = ""
            if any(map(_is_plain, self.columns)):
                more = "; each other column is a field of its own name"
            said.append(f"columns: {', '.join(shown)}{more}")
        several = [c.name for c in self.columns if c.how == "number" and c.name in self.names]
        if len(several) > 1 and not any(
            column.how in ("label", "index") for column in self.columns
        ):
            named = ", ".join(map(repr, several))
            said.append(f"{named} hold classes; if --fields names but one of them, it is field cls")
        numbers = [c.name for c in self.columns if c.how in ("number", "label", "index")]
        if len(numbers) > MANY_NUMBERS:
            said.append(many_numbers(numbers))
        said += self._notes_on_classes()
        reasons: dict[str, list[str]] = {}
        for name, why in self.left_out.items():
            reasons.setdefault(why, []).append(repr(name))
        said += [f"left out: {', '.join(names)} ({why})" for why, names in reasons.items()]
        return said

    def _notes_on_classes(self) -> list[str]:
        if any(column.how in ("label", "index") for column in self.columns):
            return []
        return [
            f"column {column.name!r} is field {column.field(ENDINGS[column.how])},"
            f" not cls, which holds whole numbers, from a column called {LABEL_NAMES[0]}, or of a"
            f" ClassLabel: dataset.class_encode_column({column.name!r}) of datasets makes one, and"
            " shardkit.pack takes the dataset"
            for column in self.columns
            if column.how in ENDINGS and column.name.lower() in CLASS_WORDS
        ]


def many_numbers(names: list[str]) -> str:
    """What is said of a table that is rather one array: pixels, embeddings."""
    return (
        f"{len(names):,} columns hold a number each ({names[0]!r}, {names[1]!r} ...), and are as"
        " many fields; if they are pixels, or one vector, numpy.savez('x.npz', images=...,"
        " labels=...) of them packs as rows: docs/your-data.md#lines-of-python-for-other-data"
    )


def _is_plain(column: PackedColumn) -> bool:
    """Whether a field's name says which column it was."""
    return column.base == column.name and not column.many


def _told(column: PackedColumn, classes: list[str] | None) -> str:
    ending = ENDINGS.get(column.how) or _SHOWN.get(column.how, "bin, pdf ...")
    if column.base:
        number = "0." if column.many else ""
        ending = f"{column.base}.{number}{ending}"
    more = f" of {len(classes):,} classes" if column.how == "label" and classes else ""
    return f"{column.name!r} is field {ending}{more}"


def field_base(column: str) -> str:
    """What a field is named by that has the name of a column: each character but A-Z a-z 0-9 _ . -
    is ``_``, it does not begin with a dot or a dash, and what is over 50 characters is cut off."""
    name = _UNSAFE.sub("_", column)[:MAX_BASE]
    return "_" + name[1:] if name[:1] in ("", ".", "-") else name


def inner_place(column: str, path: str) -> str:
    """Where names of classes belong that lie at ``path`` in a column."""
    return f"{column}.{path}" if path else column


def types_of(facts: Facts) -> Columns:
    return {name: fact.type for name, fact in facts.items()}


def is_text(held: str) -> bool:
    """Whether a type's values may be the text of samples."""
    return held in STRINGS | _BYTES


def listed(columns: Columns) -> str:
    """Columns and their types, for a message."""
    if not columns:
        return "no columns"
    return f"columns {', '.join(f'{name!r} ({held})' for name, held in columns.items())}"[:300]
