"""Which column of arrays holds classes, and what these are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.inputs.containers.column_names import LABEL_NAMES, last_word, title
from shardkit.inputs.containers.name_lists import NameList, read_names
from shardkit.inputs.containers.open_rows import open_rows
from shardkit.inputs.containers.row_columns import ArrayColumn, is_label, label_of
from shardkit.inputs.containers.row_files import BLOCK_BYTES
from shardkit.inputs.containers.row_layout import RowLayout, RowSet
from shardkit.system.paths import first_few, show_path
from shardkit.system.refusals import os_errors


@dataclass(frozen=True)
class RowLabels:
    """What is known of classes.

    Attributes:
        label: the column of their numbers, or None. said: what there is to say of it, in words.
        classes: their names in order of number, where there is one for each from 0 on.
        names: column -> number -> name, of all others that have names.
    """

    label: str | None
    said: str
    classes: list[str] | None
    names: dict[str, dict[int, str]]


def find_label(source: Path, layout: RowLayout) -> RowLabels:
    """The column of class numbers, and what enumerations of HDF5 and lists of names call numbers.
    Lists that fit nothing are left out of ``layout``, others named in its notes.

    Raises:
        FormatError: it is damaged. CorpusError: files give one number several names.
    """
    names = _names_of_numbers(layout.sets)
    label, said, most = _label(source, layout.sets)
    names |= _names_of_lists(source, layout, label, {*names})
    own = names.get(label or "", {})
    if not own or [*own] != [*range(len(own))] or most >= len(own):
        return RowLabels(label, said, None, names)
    others = {name: held for name, held in names.items() if name != label}
    return RowLabels(label, said, [*own.values()], others)


def _names_of_lists(
    source: Path, layout: RowLayout, label: str | None, known: set[str]
) -> dict[str, dict[int, str]]:
    """Column -> number -> its name. ``known``: columns whose numbers have names already."""
    found: dict[str, list[tuple[NameList, list[str]]]] = {}
    ranges: dict[str, tuple[int, int]] = {}
    columns = {name: held for each in layout.sets for name, held in each.columns.items()}
    for each in layout.lists:
        target = each.target(label, columns)
        if target is not None and target not in ranges:
            ranges[target] = _range(source, layout.sets, target)
        try:
            names = _fitting(source, each, target, known, ranges.get(target or "", (0, 0)))
        except CorpusError as error:
            layout.leave_out({each.name: str(error)}, _where(source, each))
        else:
            found.setdefault(target or "", []).append((each, names))
    made: dict[str, dict[int, str]] = {}
    for target, lists in found.items():
        first, names = lists[0]
        other = next((each for each, others in lists if others != names), None)
        if other is None:
            made[target] = dict(enumerate(names))
            if target == label:
                more = len(names) - 1 - ranges[target][1]
                rest = f"; no sample is of its last {more:,}" if more else ""
                layout.notes.append(f"names of classes are those of {title(first.name)}{rest}")
            continue
        why = f"{show_path(first.name)} and {show_path(other.name)} name {target!r} otherwise"
        for each, _ in lists:
            layout.leave_out({each.name: why}, _where(source, each))
    return made


def _fitting(
    source: Path,
    held: NameList,
    target: str | None,
    known: set[str],
    numbers: tuple[int, int],
) -> list[str]:
    """The names in a list, of numbers of column ``target``. Raises CorpusError: they do not fit."""
    if target is None:
        raise CorpusError("there is no column of numbers that it names")
    if target in known:
        raise CorpusError(f"the file itself names the numbers of {target!r}")
    names = read_names(source, held)
    if numbers[0] < 0 or numbers[1] >= len(names):
        told = f"{target!r} is from {numbers[0]} to {numbers[1]}"
        raise CorpusError(f"it has {len(names):,} name{'s' * (len(names) != 1)}, and {told}")
    return names


def _where(source: Path, held: NameList) -> str:
    base = held.base if held.column is not None else held.base.rpartition("/")[0]
    return show_path(source / base if base else source)


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
        called = sorted({n for each in sets for n in each.columns if last_word(n) in LABEL_NAMES})
        why = f"no cls: {first_few(called)} has no whole number for each row"
        return None, why if called else "", 0
    (name,) = labels
    held = [(each, column) for each in sets if (column := each.columns.get(str(name))) is not None]
    odd = next((each for each, column in held if not column.is_number), None)
    if odd is not None:
        where = show_path(odd.base) if odd.base else f"split {odd.split}"
        return None, f"no cls: {name!r} has no whole numbers in {where}; it is an array", 0
    smallest, largest = _range(source, sets, str(name))
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
    for each in [each for each in sets if label in each.columns]:
        path = source / each.base if each.base else source
        column: ArrayColumn = each.columns[label]
        step = BLOCK_BYTES // column.row_bytes
        with os_errors(f"reading {show_path(path)}"), open_rows(path, each.names) as file:
            for start in range(0, column.num_rows, step):
                block = file.block(column.name, start, min(start + step, column.num_rows))
                found += [int(block.min()), int(block.max())]
    return min(found, default=0), max(found, default=0)
