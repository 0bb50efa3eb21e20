"""Choosing what each column of a table becomes: the main text, picture, sound, film and label."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from shardkit.errors import CorpusError
from shardkit.inputs.tables.columns import (
    ALL_NULL,
    LABEL_NAMES,
    STRINGS,
    Columns,
    Fact,
    Facts,
    PackedColumn,
    TablePlan,
    field_base,
    inner_place,
    is_text,
    listed,
    types_of,
)
from shardkit.inputs.tables.media import FILM, PICTURE, SOUND

MAIN_NAMES = {
    PICTURE: ("image", "img", "picture", "photo", "jpg", "jpeg", "png", "webp"),
    SOUND: ("audio", "sound", "speech", "wav", "flac", "mp3"),
    FILM: ("video", "film", "movie", "clip", "mp4"),
}
"""What the main one of several columns of a kind may be called, in order; the only one may be
called anything."""


def make_plan(
    facts: Facts,
    where: str,
    fields: Sequence[str] | None = None,
    text_field: str | None = None,
    *,
    tokenized: bool = False,
) -> TablePlan:
    """What becomes of the columns of a table.

    Args:
        where: the table, for messages. fields: columns to pack, None for all. text_field: the one
            that is the text. tokenized: if no fields were chosen, take the text alone.

    Raises:
        CorpusError: no such column, one that cannot be stored, two whose fields would be one, or no
            text to tokenize.
    """
    why = "not among --fields"
    if tokenized and fields is None:
        fields = [choose_column(types_of(facts), text_field, where)]
        why = "text is tokenized; --fields keeps others beside it"
    chosen = _chosen(facts, fields, where)
    left_out = dict.fromkeys([name for name in facts if name not in chosen], why)
    left_out |= {name: ALL_NULL for name in chosen if facts[name].how == "nothing"}
    chosen = [name for name in chosen if name not in left_out]
    _refuse_unstorable(facts, chosen, where)
    text = _text_of({name: facts[name] for name in chosen}, text_field, where)
    if tokenized and text is None:
        choose_column({name: facts[name].type for name in chosen}, None, where)  # says why
    if not chosen:
        raise CorpusError(f"{where} has {listed(types_of(facts))}: there is nothing to pack in it")
    mains = _mains(facts, [name for name in chosen if name != text])
    label = _label(facts, [name for name in chosen if name != text])
    columns = [_column(name, facts[name], text, mains, label) for name in chosen]
    _refuse_equal(columns, where)
    classes = facts[label].names if label is not None else None
    names = _names({name: facts[name] for name in chosen if name != label})
    return TablePlan(tuple(columns), text, classes, names, left_out)


def _names(facts: Facts) -> dict[str, list[str]]:
    """Names of classes of columns that are not the label, by column and where in it."""
    names: dict[str, list[str]] = {}
    for name, fact in facts.items():
        if fact.names is not None:
            names[name] = fact.names
        names |= {inner_place(name, path): own for path, own in fact.inner_names.items()}
    return names


def _chosen(facts: Facts, fields: Sequence[str] | None, where: str) -> list[str]:
    """In the order of the table."""
    for name in fields or ():
        if name not in facts:
            raise CorpusError(f"{where} has {listed(types_of(facts))}: there is no column {name!r}")
    if fields is not None and not fields:
        raise CorpusError(f"--fields names no column; {where} has {listed(types_of(facts))}")
    return [name for name in facts if fields is None or name in fields]


def _refuse_unstorable(facts: Facts, chosen: list[str], where: str) -> None:
    bad = [name for name in chosen if facts[name].how is None]
    if bad:
        fact, good = facts[bad[0]], [name for name in chosen if name not in bad]
        advice = f"leave it out: --fields {','.join(good)}" if good else "nothing else is there"
        raise CorpusError(
            f"{where}: column {bad[0]!r} ({fact.type[:80]}) {fact.why}, so that it cannot be"
            f" stored; {advice}"
        )


def _text_of(facts: Facts, text_field: str | None, where: str) -> str | None:
    types = types_of(facts)
    if text_field is not None:
        return choose_column(types, text_field, where)
    if "text" in facts and is_text(facts["text"].type):
        return "text"
    strings = _strings(types)
    return strings[0] if len(strings) == 1 else None


def _strings(columns: Columns) -> list[str]:
    """Columns that may be the text, but for those that tools add: ``__key__``, or pandas'
    ``__index_level_0__``."""
    return [n for n, held in columns.items() if held in STRINGS and not n.startswith("__")]


def _mains(facts: Facts, chosen: list[str]) -> set[str]:
    """The main column of each kind of file."""
    found = set()
    for kind, names in MAIN_NAMES.items():
        own = [name for name in chosen if facts[name].how == kind and not facts[name].many]
        main = own[0] if len(own) == 1 else _first_of(names, own)
        found |= {main} if main is not None else set()
    return found


def _label(facts: Facts, chosen: list[str]) -> str | None:
    """The column of class numbers: one that Hugging Face says holds some, if it is the only one or
    is named so; else one of whole numbers that is named so."""
    known = [name for name in chosen if facts[name].names is not None]
    if len(known) == 1:
        return known[0]
    integers = [name for name in chosen if facts[name].how == "integer"]
    return _first_of(LABEL_NAMES, known) or _first_of(LABEL_NAMES, integers)


def _first_of(wanted: Iterable[str], names: list[str]) -> str | None:
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[name] for name in wanted if name in lower), None)


def _column(
    name: str, fact: Fact, text: str | None, mains: set[str], label: str | None
) -> PackedColumn:
    if name == text:
        return PackedColumn(name, "text")
    if name == label:
        if fact.names is None:
            return PackedColumn(name, "index")
        return PackedColumn(name, "label", num_classes=len(fact.names))
    how = "number" if fact.how == "integer" else str(fact.how)
    base = "" if name in mains else field_base(name)
    return PackedColumn(name, how, base, fact.many, fact.shape)


def _refuse_equal(columns: list[PackedColumn], where: str) -> None:
    """Others do not tell upper from lower case: the webdataset library, some file systems."""
    seen: dict[str, str] = {}
    for column in columns:
        if not column.base:
            continue
        key = column.base.lower()
        for one in (key, re.sub(r"\.[0-9]+$", "", key)):  # x.0 is the first file of a list x
            if one in seen and (one == key or _is_many(columns, seen[one])):
                raise CorpusError(
                    f"{where}: columns {seen[one]!r} and {column.name!r} would both be field"
                    f" {column.base!r}; rename one in the table, or leave one out with --fields"
                )
        seen[key] = column.name


def _is_many(columns: list[PackedColumn], name: str) -> bool:
    return any(column.many for column in columns if column.name == name)


def choose_column(columns: Columns, wanted: str | None, where: str) -> str:
    """The column to pack as text: ``wanted``; else ``text``; else the only one of strings.

    Raises:
        CorpusError: there is none, or several.
    """
    if wanted is not None:
        if is_text(columns.get(wanted, "")):
            return wanted
        what = f"is {columns[wanted]}, expected strings" if wanted in columns else "is not there"
        raise CorpusError(f"{where} has {listed(columns)}: column {wanted!r} {what}")
    strings = _strings(columns)
    if is_text(columns.get("text", "")):
        return "text"
    if len(strings) == 1:
        return strings[0]
    if strings:
        shown = ", ".join(map(repr, strings))
        raise CorpusError(f"{where} has several columns of strings: {shown}; pass --text-field")
    raise CorpusError(f"{where} has {listed(columns)}: none holds strings, so there is no text")
