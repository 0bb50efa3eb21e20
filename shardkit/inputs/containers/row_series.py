"""Arrays called in a series, ``a1``, ``a2``: told from columns by their names. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from shardkit.inputs.containers.column_names import title
from shardkit.inputs.containers.row_columns import ArrayColumn
from shardkit.system.paths import first_few


def is_series(names: Sequence[str]) -> bool:
    """Whether names differ in their numbers alone: ``a1``, ``a2``."""
    patterns = {re.sub(r"[0-9]+", "0", name) for name in names}
    return len(names) > 1 and len(patterns) == 1 and "0" in patterns.pop()


MANY = 8
"""Columns in a series of which it is said that they are columns: fewer may be cameras or layers."""


LONG = 4096
"""Rows of a file from which on it is hardly one sample."""


def files_note(files: Mapping[str, int]) -> list[str]:
    """What there is to say of files called in a series, name -> rows, of which each may have been
    meant as a sample: slices of a volume, episodes, vectors."""
    if not is_series([*files]) or max(files.values()) > LONG:
        return []
    rows = {*files.values()}
    of = f"{rows.pop():,}" if len(rows) == 1 else f"{min(rows):,} to {max(rows):,}"
    return [
        f"each row of {len(files):,} files of {of} rows is a sample ({first_few([*files])}); if"
        " each file is one, save its arrays as 0.image.npy, 0.label.npy and so on, for --corpus"
        " paired"
    ]


def series_notes(columns: Sequence[ArrayColumn]) -> list[str]:
    """A line for each series of many columns, of which each may have been meant as a sample."""
    series: dict[str, list[str]] = {}
    for column in columns:
        if len(column.shape) > 1:
            series.setdefault(re.sub("[0-9]+", "0", title(column.name)), []).append(column.name)
    return [
        f"{len(names):,} arrays called in a series ({names[0]}, {names[1]}, ...) are columns: each"
        " sample has a row of each; if each is a sample, write them as one array, along a new first"
        " axis"
        for names in series.values()
        if len(names) >= MANY
    ]
