"""What is known of the columns of a table: from their types, from what Hugging Face says of them,
and, where nobody says what bytes are, from the first of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from shardkit.errors import FormatError
from shardkit.inputs.tables.arrow_types import (
    MEDIA,
    are_files,
    declared_shape,
    how_of,
    is_file,
    plain_type,
    type_name,
)
from shardkit.inputs.tables.cells import kind_of_bytes
from shardkit.inputs.tables.columns import Fact, Facts
from shardkit.inputs.tables.features import Features, class_names, type_of
from shardkit.inputs.tables.media import FILE
from shardkit.inputs.tables.table_files import Table, arrow_errors

PEEK_VALUES = 16
"""Values of a column of bytes that are looked at, to tell what they are."""


def facts_of(schema: Any, features: Features) -> Facts:
    """What types, and Hugging Face, say of the columns of a schema.

    Raises:
        FormatError: what Hugging Face says is damaged.
    """
    names = schema.names
    return {
        name: _fact(schema.field(i).type, features.get(name), names.count(name))
        for i, name in enumerate(names)
    }


def _fact(held: Any, feature: Any, count: int) -> Fact:
    """What the type of a column says; ``count`` columns have its name."""
    name = type_name(held)
    if count > 1:
        return Fact(name, None, "is there twice")
    try:
        how = how_of(held, feature)
    except ValueError as error:
        return Fact(name, None, str(error))
    names = class_names(feature)
    own = names.pop("", None)
    is_label = how == "integer" and type_of(feature) == "ClassLabel"
    if own is not None and not is_label:
        names[""] = own  # of lists of labels
    return Fact(
        type=name,
        how=how,
        many=how in MEDIA | {"bytes"} and are_files(held),
        names=own if is_label else None,
        inner_names=names,
        shape=declared_shape(held, feature) if how == "array" else None,
    )


def refined(facts: Facts, table: Table, path: Path) -> Facts:
    """The same facts, and where nobody says what is in a column of bytes, what its first values
    are."""
    made = dict(facts)
    for i, name in enumerate(table.schema.names):
        fact = facts[name]
        if fact.how == "bytes" or (fact.how == FILE and _is_unnamed(table.schema.field(i).type)):
            kind = _first_kind(table, name, path)
            known: Any = kind or ("bytes" if fact.how == "bytes" else FILE)
            made[name] = replace(fact, how=known)
            if fact.many and known == "bytes":
                made[name] = replace(fact, how="json", many=False)
    return made


def _is_unnamed(held: Any) -> bool:
    """Whether a type is that of files of any kind."""
    held = plain_type(held)
    return is_file(held) or are_files(held)


def _first_kind(table: Table, name: str, path: Path) -> str | None:
    """Of the first part that has values, and is not damaged."""
    for part in range(len(table.starts)):
        try:
            with arrow_errors(path):
                for batch in table.batches([name], part):
                    array = batch.column(batch.schema.get_field_index(name))
                    if (kind := kind_of_bytes(array, PEEK_VALUES)) is not None:
                        return kind
        except FormatError:
            continue
    return None
