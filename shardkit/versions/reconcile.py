"""What two datasets must share to become one, and the numbers of their classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shardkit.errors import UsageError
from shardkit.images.choice import describe
from shardkit.images.naming import RAW_FIELD
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.index.manifest import DatasetInfo
from shardkit.index.provenance import Provenance
from shardkit.operations.export_table import names_by_field
from shardkit.system.paths import first_few

CLS = "cls"


def joined_classes(ours: DatasetInfo, theirs: Sequence[str] | None, what: str) -> list[str] | None:
    """Return the names of all classes: known ones keep their numbers, and new ones follow.

    Raises:
        UsageError: only one of both has names for its class numbers.
    """
    if ours.classes is None:
        if theirs and CLS in ours.fields:
            raise UsageError(
                f"{what} has classes with names ({first_few(theirs)}), and those of the dataset"
                " have none, so nobody knows which are equal"
            )
        if theirs:
            raise UsageError(
                f"{what} has classes ({first_few(theirs)}), and the dataset has none; pack it by"
                " itself, or label the dataset first: `shardkit edit --labels`"
            )
        return None
    if theirs is None:
        raise UsageError(
            f"the dataset has classes ({first_few(ours.classes)}), and {what} has none: sort its"
            " files into folders of classes, or name a table of them with --labels"
        )
    return list(dict.fromkeys([*ours.classes, *theirs]))


def joined(ours: DatasetInfo, theirs: DatasetInfo, what: str) -> tuple[DatasetInfo, list[str]]:
    """Return what the dataset of both says, but for splits, and what there is to say of fields that
    only one has, and of pictures that were not made alike. What one had done to pictures is done to
    some: ``unpack`` must know of restart markers.

    Raises:
        UsageError: formats, tokenizers or classes differ, or one number means two things.
    """
    own, other = ours.provenance, theirs.provenance
    if ours.container != theirs.container:
        raise UsageError(
            f"{what} is in {theirs.container}, and the dataset in {ours.container}: `shardkit"
            f" convert --to {ours.container}` makes one of that format"
        )
    if own.tokens != other.tokens:
        raise UsageError(f"{what} and the dataset have tokens of different tokenizers")
    notes, images = [], own.images
    if new := sorted(set(theirs.fields) - set(ours.fields)):
        notes.append(f"only what is new has {', '.join(new)}")
    if missing := sorted(set(ours.fields) - set(theirs.fields)):
        notes.append(f"what is new has no {', '.join(missing)}")
    spec, told = _joined_spec(ours, theirs, what)
    notes += told
    if images != other.images and not {*IMAGE_FIELDS, RAW_FIELD}.isdisjoint(theirs.fields):
        images = (*images, *(choice for choice in other.images if choice not in images))
        had, has = (
            " then ".join(map(describe, each)) or "keep" for each in (own.images, other.images)
        )
        notes.append(f"pictures of {what} were packed with {has}, others: {had}")
    classes = joined_classes(ours, theirs.classes, what)
    fields = sorted({*ours.fields, *theirs.fields})
    origin = replace(own, spec=spec, images=images)
    made = replace(ours, fields=fields, classes=classes, provenance=origin, splits={})
    return made, notes


def _joined_spec(
    ours: DatasetInfo, theirs: DatasetInfo, what: str
) -> tuple[dict[str, Any], list[str]]:
    """Return what both say of files and columns by name, and notes. The rest is for listing an
    input again, and stays that of the first. Raises UsageError: one number means two things."""
    other, made = theirs.provenance, dict(ours.provenance.spec)
    before, named = names_by_field(made), names_by_field(other.spec)
    differ = [f for f in ours.fields if f in theirs.fields and before.get(f) != named.get(f)]
    classes = theirs.classes or []
    joined = [*dict.fromkeys([*(ours.classes or ()), *classes])]
    if other.kept_texts and joined[: len(classes)] != classes:
        differ.append("files of labels")
    if differ:
        raise UsageError(
            f"numbers in {', '.join(differ)} of {what} have other names than in the dataset, and"
            " they stay as they are: give both the same names in the same order, and pack again"
        )
    for entry in ("annotations", "columns", "names"):
        held, more = made.get(entry, {}), other.spec.get(entry)
        if isinstance(held, dict) and isinstance(more, dict):
            made[entry] = more | held
    texts, kept = Provenance(made).kept_texts, names_by_field(made)
    lost = [path for path, text in other.kept_texts.items() if texts.get(path) != text]
    lost += [f"names of the numbers in {field}" for field in named if field not in kept]
    return made, [f"only the dataset's own is kept, not {what}'s: {one}" for one in lost]


def told_renumbered(what: str) -> str:
    """Return what there is to say where labels became others."""
    return (
        f"labels of {what} are other numbers now, in the row index alone: tools that read shards by"
        " themselves see those of before; `shardkit convert` writes them anew"
    )
