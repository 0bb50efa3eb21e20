"""Which column of arrays holds classes, and what these are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shardkit.corpus.containers.open_rows import open_rows
from shardkit.corpus.containers.row_columns import ArrayColumn, is_label, label_of
from shardkit.corpus.containers.row_files import BLOCK_BYTES
from shardkit.corpus.containers.row_layout import RowSet
from shardkit.errors import CorpusError
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors


@dataclass(frozen=True)
class RowLabels:
    """What is known of classes.

    Attributes:
        label: the column of their numbers, or None. said: what there is to say of it, in words.
        classes: their names in order of number, where the file has one for each from 0 on.
        names: column -> number -> name, of all others that the files name.
    """

    label: str | None
    said: str
    classes: list[str] | None
    names: dict[str, dict[int, str]]


def find_label(source: Path, sets: Sequence[RowSet]) -> RowLabels:
    """The column of class numbers, and what names HDF5's enumerations give to numbers.

    Raises:
        FormatError: it is damaged. CorpusError: files give one number several names.
    """
    names = _names_of_numbers(sets)
    label, said, most = _label(source, sets)
    own = names.get(label or "", {})
    if not own or [*own] != [*range(len(own))] or most >= len(own):
        return RowLabels(label, said, None, names)
    others = {name: held for name, held in names.items() if name != label}
    return RowLabels(label, said, [*own.values()], others)


def _names_of_numbers(sets: Sequence[RowSet]) -> dict[str, dict[int, str]]:
    """Column -> number -> its name, numbers in order."""
    found: dict[str, dict[int, str]] = {}
    for each in sets:
        for name, column in each.columns.items():
            own = dict(column.names)
            if found.setdefault(name, own) != own:
                raise CorpusError(
                    f"{show_path(each.base)} gives numbers of {name!r} other names than the files"
                    " before it: pack them apart, or write one enumeration into all"
                )
    return {name: own for name, own in found.items() if own}


def _label(source: Path, sets: Sequence[RowSet]) -> tuple[str | None, str, int]:
    """The column, or None; what there is to say of it, in words; and its largest number."""
    labels = {label_of(each.columns) for each in sets} - {None}
    several = {name for each in sets for name, held in each.columns.items() if is_label(name, held)}
    if len(several) > 1:
        listed = ", ".join(map(repr, sorted(several)))
        return None, f"no cls: {listed} could be the classes; they are arrays like the others", 0
    if len(labels) != 1:
        return None, "", 0
    (name,) = labels
    smallest, largest = _range(source, [each for each in sets if name in each.columns], str(name))
    if smallest < 0 or largest >= 2**63:
        return (
            None,
            f"no cls: {name!r} holds numbers from {smallest} to {largest}; it is an array",
            0,
        )
    return name, f"cls is {name!r}, from {smallest} to {largest}", largest


def _range(source: Path, sets: Sequence[RowSet], label: str) -> tuple[int, int]:
    """The smallest and the largest of a column of integers."""
    found = []
    for each in sets:
        path = source / each.base if each.base else source
        column: ArrayColumn = each.columns[label]
        step = BLOCK_BYTES // column.row_bytes
        with os_errors(f"reading {show_path(path)}"), open_rows(path, each.names) as file:
            for start in range(0, column.num_rows, step):
                block = file.block(column.name, start, min(start + step, column.num_rows))
                found += [int(block.min()), int(block.max())]
    return min(found, default=0), max(found, default=0)
