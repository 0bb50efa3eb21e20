"""Whether another file of a table has the columns that were found in the first."""

from __future__ import annotations

from shardkit.inputs.tables.arrow_types import MEDIA
from shardkit.inputs.tables.columns import (
    ALL_NULL,
    Fact,
    Facts,
    PackedColumn,
    TablePlan,
    inner_place,
    is_text,
    listed,
    types_of,
)


def misfit(
    plan: TablePlan,
    facts: Facts,
    lacking: frozenset[str] = frozenset(),
    *,
    all_chosen: bool,
) -> str | None:
    """Why a file's columns cannot be packed as those that the plan was made of; None if they can.

    ``lacking``: columns that its split is known not to have. ``all_chosen``: whether nobody chose
    columns, so that one that the plan does not know would be left out without a word.
    """
    types = types_of(facts)
    for column in plan.columns:
        fact = facts.get(column.name)
        if fact is None and column.name in lacking:
            continue
        if fact is None:
            return f"has {listed(types)}: column {column.name!r} is not there"
        if column.how == "text" and not column.base and not _may_be_text(fact):
            return f"has {listed(types)}: column {column.name!r} is {fact.type}, expected strings"
        if not _fits(column, fact):
            what = fact.why or f"is {fact.type[:80]}, and in the files before it it is not"
            return f"has a column {column.name!r} that {what}; leave it out with --fields"
        if problem := _other_names(plan, column, fact):
            return problem
    known = {column.name for column in plan.columns} | plan.left_out.keys()
    for name, fact in facts.items():
        if all_chosen and fact.how != "nothing" and _is_new(plan, known, name):
            return (
                f"has a column {name!r} ({fact.type[:80]}) with values, which the files before it"
                " have not; say which columns to pack with --fields"
            )
    return None


def _is_new(plan: TablePlan, known: set[str], name: str) -> bool:
    return name not in known or plan.left_out.get(name) == ALL_NULL


def _may_be_text(fact: Fact) -> bool:
    return is_text(fact.type) or fact.how == "nothing"


def _fits(column: PackedColumn, fact: Fact) -> bool:
    if fact.how == "nothing":
        return True
    if fact.how is None:
        return False
    if column.how == "json":
        return fact.how in ("json", "array") or fact.many
    if column.many != fact.many:
        return False
    if column.how in MEDIA | {"bytes"}:
        return fact.how in MEDIA | {"bytes"}
    if column.how in ("label", "index"):
        return fact.how == "integer"
    if column.how == "number":
        return fact.how in ("integer", "number")
    if column.how == "text":
        return fact.how in ("text", "bytes") or not column.base
    return fact.how == column.how


def _other_names(plan: TablePlan, column: PackedColumn, fact: Fact) -> str | None:
    """A number must mean the same class in every file."""
    own = {column.name: fact.names} if fact.names is not None else {}
    own |= {inner_place(column.name, path): names for path, names in fact.inner_names.items()}
    for path, names in own.items():
        known = plan.classes if column.how == "label" else plan.names.get(path)
        if names != known:
            return (
                f"has other names of classes in column {path!r} than the files before it; pack it"
                " apart"
            )
    return None
