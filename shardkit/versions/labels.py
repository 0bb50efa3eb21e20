"""New labels for an edit: from a table of keys and classes."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardkit.arrays import Integers
from shardkit.errors import UsageError
from shardkit.index.manifest import DatasetInfo
from shardkit.index.rows import NO_INT, RowIndex
from shardkit.operations.duplicates import plain_labels
from shardkit.system.paths import as_path, first_few, show_path
from shardkit.versions.choose import find_all
from shardkit.versions.reconcile import CLS

_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")

Table = str | Path | Mapping[str, str | int]
"""Key -> class, or a .csv file of both."""


@dataclass(frozen=True)
class LabelTable:
    """Key -> class, and what to call the table, which a pipe gives once only."""

    labels: dict[str, str]
    words: str


def read_table(given: Table) -> LabelTable:
    """A mapping, or a file without its head, if it has one that says ``key``.

    Raises:
        UsageError: it cannot be read, is neither, holds nothing, or gives a key two classes.
    """
    if isinstance(given, Mapping):
        for key, label in given.items():
            is_label = isinstance(label, str | int | np.integer) and not isinstance(label, bool)
            if not (isinstance(key, str) and is_label):
                raise UsageError(f"labels map keys to classes, got {key!r}: {label!r}")
        found = {str(key): str(label) for key, label in given.items()}
        return LabelTable(_told(found, "the mapping"), f"{len(found):,} keys")
    path = as_path(given, "the file of labels")
    return LabelTable(_told(_rows_of(path), show_path(path)), path.name)


def _told(labels: dict[str, str], shown: str) -> dict[str, str]:
    """The same. Raises UsageError where there is none, or a class without a name."""
    if not labels:
        raise UsageError(f"{shown} holds no labels")
    for key, label in labels.items():
        if not label.strip():
            raise UsageError(f"{shown} gives {key!r} a class without a name")
    return labels


def _rows_of(path: Path) -> dict[str, str]:
    try:
        # A spreadsheet may have put a mark before the first column's name.
        with open(path, newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, csv.Error) as error:
        raise UsageError(f"{show_path(path)} cannot be read: {error}") from error
    if rows and rows[0][0].strip().lower() in ("key", "__key__"):
        rows = rows[1:]
    found: dict[str, str] = {}
    for number, row in enumerate(rows, 1):
        if len(row) != 2:
            raise UsageError(
                f"{show_path(path)}: line {number} has {len(row)} columns, expected key,class"
            )
        if found.setdefault(row[0], row[1]) != row[1]:
            raise UsageError(f"{show_path(path)} gives {row[0]!r} two classes; keep one")
    return found


def class_names(info: DatasetInfo, labels: Sequence[str]) -> list[str] | None:
    """Names of all classes: known ones keep their numbers, new ones follow, sorted; None where
    classes have no names, and need none.

    Raises:
        UsageError: the dataset's classes are numbers, and these are not.
    """
    are_numbers = all(map(_NUMBER.fullmatch, labels))
    if info.classes is not None:
        return list(dict.fromkeys([*info.classes, *sorted(set(labels))]))
    if are_numbers:
        return None
    if CLS in info.fields:
        words = [label for label in labels if not _NUMBER.fullmatch(label)]
        raise UsageError(f"classes have no names here, only numbers: got {first_few(words)}")
    return sorted(set(labels))


def relabelled(
    indexes: Mapping[str, RowIndex], table: Mapping[str, str], classes: Sequence[str] | None
) -> dict[str, Integers]:
    """The labels of all samples, split by split: new ones, and of the others the old.

    Raises:
        UsageError: a key is of no sample; or an old label is no plain number, so that it cannot
            stand in the row index alone.
    """
    found = {name: _labels(index) for name, index in indexes.items()}
    odd = {name: ~plain_labels(index) for name, index in indexes.items()}
    numbers = None if classes is None else {name: at for at, name in enumerate(classes)}
    for key, name, row in find_all(indexes, table):
        label = table[key]
        found[name][row] = int(label) if numbers is None else numbers[label]
        odd[name][row] = False
    for name, rows_left in odd.items():
        if rows_left.any():
            first, _ = indexes[name].name(int(np.argmax(rows_left)))
            raise UsageError(
                f"{int(rows_left.sum()):,} samples of {name} have labels that are no plain numbers,"
                f" the first {first.decode(errors='backslashreplace')!r}: these would be lost; give"
                " labels for all of them, or drop them before"
            )
    return found


def _labels(index: RowIndex) -> Integers:
    if CLS in index.column:
        return np.array(index.table[:, index.column[CLS]])
    return np.full(index.split.num_rows, NO_INT)
