"""From the names of other people's columns to names of fields."""

from __future__ import annotations

import re
from collections.abc import Iterable

from shardkit.errors import CorpusError
from shardkit.index.manifest import is_field_name

_ODD = re.compile(r"[^a-z0-9_.-]+")


def field_for(column: str, ending: str) -> str:
    """The field for a column: ``image/encoded`` and ``bin`` give ``image.encoded.bin``.

    Lower case, as in tars; what cannot stand in a field's name becomes ``_``.

    Raises:
        CorpusError: nothing of the name is left, or too much.
    """
    stem = _ODD.sub("_", column.lower().strip("/").replace("/", ".")).lstrip(".-")
    field = f"{stem}.{ending}"
    if not stem or not is_field_name(field):
        raise CorpusError(
            f"{column!r} cannot name a field ({field!r}: at most 64 of a-z 0-9 _ . -); rename it"
        )
    return field


def refuse_twins(fields: Iterable[tuple[str, str]], where: str) -> None:
    """Raise CorpusError if two of (column, field) have one field."""
    seen: dict[str, str] = {}
    for column, field in fields:
        if (other := seen.setdefault(field, column)) != column:
            raise CorpusError(
                f"{where}: {other!r} and {column!r} would both be the field {field}; rename one"
            )


def last_word(column: str) -> str:
    """What stands after the last slash or dot, in lower case: ``image/class/label`` is a label."""
    return re.split(r"[/.]", column.rstrip("/"))[-1].lower()


LABEL_NAMES = frozenset({"label", "labels", "y", "target", "targets", "cls", "class"})
"""Last words of columns that hold class numbers, if they hold integers."""
