"""What a folder of ``.npy`` files is: columns of samples, or a sample each. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from shardkit.errors import CorpusError
from shardkit.inputs.containers.column_names import LABEL_NAMES, title
from shardkit.inputs.containers.name_lists import set_aside
from shardkit.inputs.containers.row_columns import (
    ArrayColumn,
    divide,
    is_label_column,
    label_of,
)
from shardkit.inputs.containers.row_parts import Parts, find_parts
from shardkit.inputs.containers.row_series import is_series

COLUMNS = 64
"""Most ``.npy`` files of a folder that are taken for columns, and not for samples."""

FEW = 16
"""Most ``.npy`` files of equal shape that might be columns as well as samples."""

Reading = Literal["rows", "arrays", "either"]


def reading_of(columns: Sequence[ArrayColumn | None]) -> Reading:
    """What a folder of ``.npy`` files is: one array a sample, or columns of samples.

    None stands for a file that has no rows, or is damaged.

    Rows: at most 64 files of one first axis over 1 that differ in dtype or in their other axes, and
    are not numbered as in a series or have one of labels among them; or several a split, where all
    names tell of splits; or numbered parts of such columns, with labels in each. Small ones of
    another length may lie beside labels, and so may names of classes. A few that are equal in all
    this, or one a split, may be either, and so may what has labels and is neither of these: labels
    of many are no sample.
    """
    lists = set_aside([column for column in columns if column is not None], [])[1]
    columns = [column for column in columns if column not in lists]
    known = [column for column in columns if column is not None]
    parts = find_parts(known) if len(known) == len(columns) else None
    if parts is not None and _all_have_labels(parts):
        return "rows"
    reading = _reading(known) if len(known) == len(columns) <= COLUMNS else "arrays"
    if parts is not None and len(parts.stems) > 1 and (reading == "rows" or len(known) > COLUMNS):
        return reading_of_many(known)
    if reading == "arrays" and 1 < len(columns) <= COLUMNS:
        return "either" if have_labels(known) or _name_labels(known) else "arrays"
    return reading


def _name_labels(columns: Sequence[ArrayColumn]) -> bool:
    """Whether some files of many rows are called as labels, numbered ones too, others not."""
    labels = [
        column
        for column in columns
        if not LABEL_NAMES.isdisjoint(re.split("[^a-z]+", title(column.name).lower()))
    ]
    return len(labels) < len(columns) and any(column.num_rows > 1 for column in labels)


def _all_have_labels(parts: Parts) -> bool:
    """Whether each part has labels beside rows of another kind."""
    for part in parts.parts.values():
        labels = {title(each.column.name) for each in part if is_label_column(each.column)}
        if not labels or len({each.column.row for each in part}) < 2:
            return False
    return True


def have_labels(columns: Sequence[ArrayColumn | None]) -> bool:
    """Whether labels of many rows are among columns."""
    known = [column for column in columns if column is not None]
    return any(is_label_column(column) and column.num_rows > 1 for column in known)


def _reading(known: Sequence[ArrayColumn]) -> Reading:
    if len(known) < 2:
        return "arrays"
    try:
        division = divide(known, "")
    except CorpusError:
        return "arrays"
    groups = division.groups.values()
    if any(column.num_rows < 2 for group in groups for column in group.values()):
        return "arrays"
    has_label = any(label_of(group) for group in groups)
    if len({column.row for column in known}) > 1 and has_label:
        return "rows"
    if "" not in division.groups and len(groups) > 1:
        return "rows" if min(map(len, groups)) > 1 else "either"
    names = [title(column.name) for column in known]
    if division.left_out or is_series(names) or min(map(len, groups)) < 2:
        return "arrays"
    if len({column.row for column in known}) > 1:
        return "rows"
    return "either" if len(known) <= FEW else "arrays"


def first_parts(names: Sequence[str]) -> list[str]:
    """Of files that are too many for columns: those of the first number, if each number has files
    of several names, as ``img_0.npy`` and ``mask_0.npy``; else none."""
    patterns: set[str] = set()
    for name in names:
        patterns.add(re.sub("[0-9]+", "0", name))
        if len(patterns) > COLUMNS:
            return []  # names of their own
    if len(patterns) < 2:
        return []
    found = find_parts([ArrayColumn(name, (0,), _ANY) for name in names])
    if found is None or found.missing:
        return []
    first = next(iter(found.parts.values()))
    return [each.file for each in first] if 1 < len(first) <= COLUMNS else []


_ANY = np.dtype("u1")


def reading_of_many(columns: Sequence[ArrayColumn | None]) -> Reading:
    """What numbered files of several names are, without labels, by all or those of one number:
    samples, if all are of one kind; else columns, or fields of samples, and nobody knows which."""
    known = [column for column in columns if column is not None]
    return "either" if len({column.row for column in known}) > 1 else "arrays"
