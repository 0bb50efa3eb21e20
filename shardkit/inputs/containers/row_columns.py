"""Arrays of which each row belongs to a sample: which go together, and what a row becomes. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from shardkit.errors import CorpusError
from shardkit.inputs.containers.column_names import LABEL_NAMES, last_word, title
from shardkit.samples.split_names import split_word
from shardkit.system.paths import first_few

How = Literal["npy", "txt", "ragged", "picture"]
"""What a row is: an array of one shape, a text, an array of one axis, or a picture's file."""

MOST_LEFT_OUT = 0.1
"""Share of a file's bytes that may be left out for another length: means, names of classes."""

ANY_LENGTH_BYTES = 4096
"""What a text, a picture or a ragged row of HDF5 counts as: nothing says how long they are."""


@dataclass(frozen=True)
class ArrayColumn:
    """An array as its file has it; ``shape`` has one axis at least, the rows. ``names``: (number,
    name) of each that HDF5 gives a name to, in order."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    how: How = "npy"
    names: tuple[tuple[int, str], ...] = ()

    @property
    def num_rows(self) -> int:
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        """Of rows of any length, a guess."""
        size = self.dtype.itemsize * math.prod(self.shape[1:])
        return size + ANY_LENGTH_BYTES if self.dtype.hasobject else size

    @property
    def is_number(self) -> bool:
        """Whether each row is one integer."""
        is_integer = self.how == "npy" and self.dtype.kind in "iu"
        return is_integer and math.prod(self.shape[1:]) == 1

    @property
    def num_bytes(self) -> int:
        return self.num_rows * self.row_bytes

    @property
    def row(self) -> tuple[Any, ...]:
        """What must be the same in all files of a split."""
        return self.how, self.shape[1:], self.dtype if self.how == "npy" else None


Group = dict[str, ArrayColumn]
"""The columns of one split in one file, by their names without the split's."""


@dataclass(frozen=True)
class Division:
    """What a file's columns are: split (``""`` if no name tells) -> columns of one length each; and
    the names of those that are left out -> why."""

    groups: dict[str, Group]
    left_out: dict[str, str]


def divide(columns: Sequence[ArrayColumn], where: str, split: str = "") -> Division:
    """Sort the columns of one file by the splits in their names, and leave out small ones of other
    lengths. ``split``: what all of the file is of, so that names need not tell it once more:
    ``train_set_x`` in ``train.h5`` is ``set_x``, as ``test_set_x`` in ``test.h5`` is.

    Raises:
        CorpusError: columns of several lengths, of which no one is most of the file.
    """
    groups, left_out = _by_name([] if split else columns)
    if not groups and columns:
        groups = {"": _titled(columns, split)}
    kept: dict[str, Group] = {}
    for name, group in groups.items():
        main = _main(group, where)
        kept[name] = {n: c for n, c in group.items() if c.num_rows == main.num_rows}
        left_out |= {
            c.name: f"it has {_rows(c.num_rows)} where {main.name!r} has {main.num_rows:,}"
            for c in group.values()
            if c.num_rows != main.num_rows
        }
    lost = sum(column.num_bytes for column in columns if column.name in left_out)
    if lost > MOST_LEFT_OUT * sum(column.num_bytes for column in columns):
        raise _several_lengths(columns, where)
    return Division(kept, left_out)


def _by_name(columns: Sequence[ArrayColumn]) -> tuple[dict[str, Group], dict[str, str]]:
    """Groups by the splits that names tell of; none unless all names do, or lengths differ and
    those that do make up equal groups, each of one length."""
    groups: dict[str, Group] = {}
    unnamed = []
    for column in columns:
        found = split_word(title(column.name))
        if found is None:
            unnamed.append(column.name)
        else:
            group = groups.setdefault(found[0], {})
            group[title(column.name) if found[1] in group else found[1]] = column
    if unnamed and (len({column.num_rows for column in columns}) == 1 or not _are_equal(groups)):
        return {}, {}
    return groups, dict.fromkeys(unnamed, "its name says no split, as those of the others do")


def _titled(columns: Sequence[ArrayColumn], split: str = "") -> Group:
    for titles in (
        {_without(title(column.name), split): column for column in columns},
        {title(column.name): column for column in columns},
    ):
        if len(titles) == len(columns):
            return titles
    return {column.name: column for column in columns}


def _without(name: str, split: str) -> str:
    """A name without the word of its split, if it tells that one."""
    found = split_word(name)
    return found[1] if found is not None and found[0] == split else name


def _are_equal(groups: Mapping[str, Group]) -> bool:
    names = {frozenset(group) for group in groups.values()}
    lengths = [{column.num_rows for column in group.values()} for group in groups.values()]
    return len(groups) > 1 and len(names) == 1 and all(len(each) == 1 for each in lengths)


def _main(group: Group, where: str) -> ArrayColumn:
    """The column whose rows are samples: the largest, if no other length has more columns, and
    those of labels have its length. Raises CorpusError."""
    columns = list(group.values())
    main = max(columns, key=lambda column: (column.num_bytes, column.num_rows))
    lengths = Counter(column.num_rows for column in columns)
    labels = {column.num_rows for name, column in group.items() if is_label(name, column)}
    if lengths[main.num_rows] < max(lengths.values()) or labels - {main.num_rows}:
        raise _several_lengths(columns, where)
    return main


def misfit(columns: Sequence[ArrayColumn]) -> tuple[ArrayColumn, ArrayColumn] | None:
    """The largest array of a split, and labels that no array has the length of; None if all fit."""
    for group in (_by_name(columns)[0] or {"": _titled(columns)}).values():
        others = [column for name, column in group.items() if not is_label(name, column)]
        lengths = {column.num_rows for column in others}
        for name, column in group.items():
            if lengths and is_label(name, column) and column.num_rows not in lengths:
                return max(others, key=lambda other: other.num_bytes), column
    return None


def _several_lengths(columns: Sequence[ArrayColumn], where: str) -> CorpusError:
    found = misfit(columns)
    if found is not None:
        return CorpusError(f"{where} holds {told_misfit(*found)}, or choose with --fields")
    listed = first_few([f"{c.name} {_rows(c.num_rows)}" for c in columns], 8)
    return CorpusError(
        f"{where} holds arrays of several lengths ({listed}): which rows are samples is not"
        " clear; choose with --fields, or keep in one file what has one row a sample"
    )


def told_misfit(main: ArrayColumn, labels: ArrayColumn) -> str:
    """What is wrong with two columns of several lengths, and what to do."""
    return (
        f"{main.name} of {_rows(main.num_rows)} and {labels.name} of {_rows(labels.num_rows)},"
        " which do not fit each other: give each row its label"
    )


def _rows(number: int) -> str:
    return f"{number:,} row{'s' * (number != 1)}"


def label_of(group: Group) -> str | None:
    """The column of class numbers, by its name and what it holds: integers, one a row. None if
    there is none, or if there are several."""
    found = [name for name, column in group.items() if is_label(name, column)]
    return found[0] if len(found) == 1 else None


def is_label(name: str, column: ArrayColumn) -> bool:
    """Whether a column may hold class numbers; Keras has them as (N, 1), too, Caffe as
    (N, 1, 1, 1)."""
    return column.is_number and last_word(name) in LABEL_NAMES


def is_label_column(column: ArrayColumn) -> bool:
    """As :func:`is_label`, also of a name with its split's word, ``train_labels``."""
    name = title(column.name)
    found = split_word(name)
    return is_label(found[1] if found is not None else name, column)


def require_equal(groups: Iterable[tuple[str, Group]]) -> None:
    """Raise CorpusError unless all files of a split, each with its columns, are built alike."""
    first: tuple[str, Group] | None = None
    for where, group in groups:
        if first is None:
            first = where, group
            continue
        for name in sorted(first[1].keys() | group.keys()):
            mine, other = group.get(name), first[1].get(name)
            if mine is None or other is None or (mine.name, *mine.row) != (other.name, *other.row):
                raise CorpusError(
                    f"{where} is built otherwise than {first[0]}: {name!r} {_told(mine)} here and"
                    f" {_told(other)} there; pack them apart"
                )


def _told(column: ArrayColumn | None) -> str:
    if column is None:
        return "is not"
    rows = f"{column.dtype}{list(column.shape[1:])} as {column.how}"
    return f"has rows of {rows} in {column.name!r}"
