"""``.npy`` files of which several are one column: ``images_0.npy``, ``images_1.npy``, beside
``labels_0.npy``, ``labels_1.npy``. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardkit.inputs.containers.column_names import title
from shardkit.inputs.containers.row_columns import ArrayColumn
from shardkit.inputs.containers.row_series import is_series
from shardkit.samples.split_names import split_word

_DIGITS = re.compile("[0-9]+")
_GAP = "_-."


@dataclass(frozen=True)
class Numbered:
    """A file of a numbered column.

    Attributes:
        number: its digits, ``""`` if it has none. column: called without them. template: the file's
            name with ``/`` in their place, which no file's name holds.
    """

    file: str
    number: str
    column: ArrayColumn
    template: str

    @property
    def split(self) -> str:
        word = split_word(title(self.column.name))
        return word[0] if word else ""


@dataclass(frozen=True)
class Parts:
    """Numbered columns: (split, number) -> the files of that part, in order; and the names of files
    that only other parts have."""

    parts: dict[tuple[str, str], list[Numbered]]
    missing: list[str]

    @property
    def stems(self) -> set[str]:
        """What columns are called without their number."""
        return {title(each.column.name) for part in self.parts.values() for each in part}


def find_parts(columns: Sequence[ArrayColumn]) -> Parts | None:
    """The parts that ``.npy`` files of one folder are; None if each is a column of its own.

    They are parts if their names have a number, the last in each or else the first, and those that
    differ in it alone have rows of one kind. A split of a single part may have no number.
    """
    for which in (-1, 0):
        found = _sorted_by_part([_numbered(column, which) for column in columns])
        if found is not None:
            return found
    return None


def _numbered(column: ArrayColumn, which: int) -> Numbered:
    name = title(column.name)
    places = [*_DIGITS.finditer(name)]
    if not places:
        return Numbered(column.name, "", column, column.name)
    start, end = places[which].span()
    before, after = name[:start].rstrip(_GAP), name[end:].lstrip(_GAP)
    stem = "_".join(part for part in (before, after) if part)
    ending = column.name[len(name) :]
    renamed = replace(column, name=(stem or "data") + ending)
    template = f"{name[:start]}/{name[end:]}{ending}"
    return Numbered(column.name, name[start:end], renamed, template)


def _sorted_by_part(files: Sequence[Numbered]) -> Parts | None:
    by_split: dict[str, list[Numbered]] = {}
    for each in files:
        by_split.setdefault(each.split, []).append(each)
    splits = sorted(by_split.items())
    if "" in by_split and len(by_split) > 1:
        return None
    if not all(_are_parts(own) for _, own in splits):
        return None
    if len({each.column.name for each in files}) == len(files):
        return None
    parts: dict[tuple[str, str], list[Numbered]] = {}
    for split, own in splits:
        for each in sorted(own, key=lambda x: (int(x.number or 0), x.number, x.file)):
            parts.setdefault((split, each.number), []).append(each)
    return Parts(parts, [name for _, own in splits for name in _missing(own)])


def _are_parts(files: Sequence[Numbered]) -> bool:
    """Whether files of one split are, all of them."""
    rows: dict[str, set[object]] = {}
    for each in files:
        rows.setdefault(each.column.name, set()).add(each.column.row)
    numbers = {each.number for each in files}
    is_twice = len({(each.column.name, each.number) for each in files}) < len(files)
    if is_twice or is_series([*rows]) or any(len(kinds) > 1 for kinds in rows.values()):
        return False
    return "" not in numbers or len(numbers) == 1


def _missing(files: Sequence[Numbered]) -> list[str]:
    """Names of files that a part lacks and others have."""
    there = {each.file for each in files}
    templates = {each.template for each in files if each.number}
    numbers = {each.number for each in files if each.number}
    wanted = {template.replace("/", number) for template in templates for number in numbers}
    return sorted(wanted - there)
