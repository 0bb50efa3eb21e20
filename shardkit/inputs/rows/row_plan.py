"""Decide which columns of a source are fields of which split, and which of them holds classes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from shardkit.errors import CorpusError, FormatError
from shardkit.inputs.endings import CONTAINER_EXTENSIONS, NPY
from shardkit.inputs.files import input_stamp
from shardkit.inputs.folders import Root, walk_named
from shardkit.inputs.look import Look
from shardkit.inputs.names import extension, join
from shardkit.inputs.rows.array_files import open_arrays
from shardkit.inputs.rows.row_columns import (
    PICKLED,
    RECIPES,
    ArrayColumn,
    ArrayFile,
    damage,
    is_idx_name,
)
from shardkit.samples.encoding import npy_layout
from shardkit.samples.split_names import mixed_names, split_word, splits_by_words
from shardkit.system.paths import first_few, show_path
from shardkit.system.refusals import os_errors

_ENDINGS = CONTAINER_EXTENSIONS | {NPY}

MOST_LEFT_OUT = 0.1
"""Share of a file's bytes that may be left out for another number of rows: means, names."""

MANY_GROUPS = 8
"""Groups of HDF5 that hold equal arrays are samples; fewer may be cameras or sensors."""

MOST_COLUMNS = 64
"""Most ``.npy`` files of a folder that are taken for columns."""

FEW = 16
"""Most ``.npy`` files of equal shape that may be columns as well as samples."""

CLASS_FILE = "classes.txt"
"""A file of names of classes, one per line, at the top of a source."""

_MOST_NAMES = 1 << 20
"""Characters of it that are read."""

Group = dict[str, ArrayColumn]
"""The columns of one split in one file, by their names without the split's word."""


@dataclass(frozen=True)
class RowSet:
    """Rows of one split in one file, or in the ``.npy`` files of one folder.

    Attributes:
        base: the file or folder, relative to the source.
        prefix: begins the keys of its rows.
    """

    split: str
    base: str
    prefix: str
    columns: Group

    @property
    def num_rows(self) -> int:
        return next((column.num_rows for column in self.columns.values()), 0)


@dataclass
class Layout:
    """What a source holds.

    Attributes:
        sets: those of one split follow one another. ignored: files passed over, by extension.
        in_splits: True if names told a split.
        ranges: smallest and largest number of each column that may hold classes.
        left_out: why arrays are packed in no field -> their names.
        notes: what else there is to report, a line each.
    """

    sets: list[RowSet] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    left_out: dict[str, dict[str, None]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    in_splits: bool = False

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        for name, why in reasons.items():
            self.left_out.setdefault(why, {})[name] = None


def read_layout(source: Path, fields: Sequence[str] | None, scratch: Path) -> Layout:
    """Read the headers of all files, and the columns of labels. ``fields``: columns to take, by
    their names with or without a split's word; None for all.

    Raises:
        CorpusError: files that cannot be packed together, or hold pickles. FormatError: a damaged
        file. StorageError: a folder cannot be listed.
    """
    layout = Layout()
    found = [*_files(source, layout)]
    bases = [base for _, base, _ in found]
    words = splits_by_words(bases) or [""] * len(bases)
    if not any(root.base for root, _, _ in found):
        layout.notes += mixed_names(bases)
    known: set[str] = set()
    for (root, base, names), word in zip(found, words, strict=True):
        told = root.split if root.base else word
        path = source / base if base else source
        prefix = root.key_base(base) if base or names else source.name
        where = show_path(path)
        with os_errors(f"opening {where}"), open_arrays(path, names or None, scratch) as file:
            columns, chosen = [*file.columns.values()], []
            for column in columns:
                called = {column.name, column.title, column.short}
                known |= called
                if fields is None or not called.isdisjoint(fields):
                    chosen.append(column)
            _refuse_pickles(file, fields, where)
            if fields is None:
                refuse_series(columns, where)
            layout.leave_out(file.left_out)
            layout.leave_out({c.name: "not in --fields" for c in columns if c not in chosen})
            groups, left_out = divide(chosen, where, told)
            layout.leave_out(left_out)
            for split, group in groups.items():
                layout.sets.append(RowSet(told or split or "train", base, prefix, group))
                layout.in_splits |= bool(told or split)
                for name, column in group.items():
                    if column.is_label and column.num_rows:
                        with damage():
                            numbers = file.array(column.name)[:]
                        ends = numbers.min(), numbers.max(), *layout.ranges.get(name, ())
                        layout.ranges[name] = int(min(ends)), int(max(ends))
    if unknown := sorted({*(fields or ())} - known):
        listed = first_few(sorted(known), 8)
        raise CorpusError(f"{show_path(source)} has no column {unknown[0]!r}, only {listed}")
    order = [*dict.fromkeys(each.split for each in layout.sets)]
    layout.sets.sort(key=lambda each: order.index(each.split))
    _require_equal(source, layout.sets)
    return layout


def _files(source: Path, layout: Layout) -> Iterator[tuple[Root, str, tuple[str, ...]]]:
    """Yield each file, or each folder of ``.npy`` or idx files with their names, and its root."""
    if not source.is_dir():
        yield Root("train", ""), "", ()
        return
    for root, folder in walk_named(source, is_array_name, layout.ignored):
        where = show_path(source / folder.base)
        for name in folder.lost:
            try:
                input_stamp(source / folder.base / name)
            except FormatError as error:
                raise CorpusError(f"{where}/{show_path(name)} {error}") from error
        packed = [name for name in folder.names if is_idx_name(name) and name[:-3] in folder.names]
        layout.leave_out(dict.fromkeys(packed, "the same lies next to it, not compressed"))
        names = [name for name in folder.names if name not in packed]
        arrays = [name for name in names if extension(name) not in CONTAINER_EXTENSIONS]
        if arrays and len(arrays) < len(names):
            raise CorpusError(
                f"{where} holds {show_path(arrays[0])} next to files of several arrays: put them"
                " into folders of their own"
            )
        if arrays:
            yield root, folder.base, tuple(arrays)
        for name in [] if arrays else names:
            yield root, join(folder.base, name), ()


def is_array_name(name: str) -> bool:
    """Return True for files that hold arrays of rows, by their names."""
    return extension(name) in _ENDINGS or is_idx_name(name)


def _refuse_pickles(file: ArrayFile, fields: Sequence[str] | None, where: str) -> None:
    for name, why in file.left_out.items():
        if why == PICKLED and (fields is None or {name, name.removesuffix(".npy")} & {*fields}):
            raise CorpusError(
                f"{where}: {name} holds pickled Python objects, which can run any code, so shardkit"
                " never reads them: choose other columns with --fields, or, if you trust whoever"
                f" made it, see {RECIPES}"
            )


# --- which columns go together ------------------------------------------------------------


def divide(
    columns: Sequence[ArrayColumn], where: str, told: str = ""
) -> tuple[dict[str, Group], dict[str, str]]:
    """Return split (``""`` if no name tells) -> columns of one length; and name -> why of those
    that are left out. ``told``: the split of the whole file, so that names need not repeat it.

    Raises:
        CorpusError: labels of another length, or no length that most of the file has.
    """
    words = {column.name: (split_word(column.title) or ("",))[0] for column in columns}
    lengths = {column.num_rows for column in columns}
    splits = {*words.values()} - {""}
    in_splits = "" not in words.values() or len(splits) > 1 < len(lengths)
    held: dict[str, list[ArrayColumn]] = {}
    left_out: dict[str, str] = {}
    for column in columns:
        split = words[column.name] if in_splits and not told else ""
        if in_splits and not told and not split:
            left_out[column.name] = "its name tells no split, as the names of the others do"
        else:
            held.setdefault(split, []).append(column)
    groups: dict[str, Group] = {}
    for split, own in held.items():
        short = [c.short if words[c.name] in {split, told} else c.title for c in own]
        titles = short if len({*short}) == len(own) else [column.title for column in own]
        if len({*titles}) < len(own):
            raise CorpusError(
                f"{where} holds two arrays of one name ({first_few([c.name for c in own])}): put"
                " the files of each dataset into a folder of its own"
            )
        bytes_of = Counter[int]()
        for column in own:
            bytes_of[column.num_rows] += 0 if column.is_label else column.num_bytes
        num_of = Counter(column.num_rows for column in own)
        num_rows = max(num_of, key=lambda n: (num_of[n], bytes_of[n]))
        groups[split] = {}
        for name, column in zip(titles, own, strict=True):
            if column.num_rows == num_rows:
                groups[split][name] = column
            elif column.is_label:
                raise CorpusError(
                    f"{where} holds {column.name} of {column.num_rows:,} rows next to arrays of"
                    f" {num_rows:,}: give each row its label, or choose with --fields"
                )
            else:
                left_out[column.name] = f"it has {column.num_rows:,} rows, others {num_rows:,}"
    lost = sum(column.num_bytes for column in columns if column.name in left_out)
    if lost > MOST_LEFT_OUT * sum(column.num_bytes for column in columns):
        listed = first_few([f"{c.name} {c.num_rows:,}" for c in columns], 8)
        raise CorpusError(
            f"{where} holds arrays of several numbers of rows ({listed}), so it is not clear which"
            f" rows are samples: choose with --fields, or see {RECIPES}"
        )
    return groups, left_out


def refuse_series(columns: Sequence[ArrayColumn], where: str) -> None:
    """Raise CorpusError if arrays are called alike but for a number, as samples or parts are:
    ``000/image``, ``001/image``; ``images_0.npy``, ``images_1.npy``. As columns all of them would
    be in one sample. They are columns if an array of another name has as many rows as each."""
    series: dict[tuple[object, ...], list[ArrayColumn]] = {}
    for column in columns:
        pattern = re.sub("[0-9]+", "#", column.title)
        if "#" in pattern:
            series.setdefault((2, pattern, "/" in pattern or column.row), []).append(column)
        *groups, last = column.title.split("/")
        for i in range(len(groups)):
            key = MANY_GROUPS, *groups[:i], None, *groups[i + 1 :], last
            series.setdefault(key, []).append(column)
    found = [own for (at_least, *_), own in series.items() if len(own) >= at_least]  # type: ignore[operator]
    inside = {column.name for own in found for column in own}
    others = {column.num_rows for column in columns if column.name not in inside}
    for own in found:
        rows = {column.num_rows for column in own}
        if len(rows) > 1 or rows.isdisjoint(others):
            raise CorpusError(
                f"{where} holds {len(own):,} arrays called alike"
                f" ({first_few([column.name for column in own], 2)}), as if each were a sample, or"
                f" a part of a column: see {RECIPES}, or choose columns with --fields"
            )


def _require_equal(source: Path, sets: Sequence[RowSet]) -> None:
    """Raise CorpusError unless all files of a split have the same columns."""
    first: dict[str, RowSet] = {}
    for each in sets:
        other = first.setdefault(each.split, each)
        mine, its = ({(c.name, c.row) for c in s.columns.values()} for s in (each, other))
        if mine != its:
            names = first_few(sorted({name for name, _ in mine ^ its}))
            raise CorpusError(
                f"{show_path(source / each.base)} and {show_path(source / other.base)} differ in"
                f" {names}: pack them apart, or join them first: {RECIPES}"
            )


# --- classes ------------------------------------------------------------------------------


def find_labels(source: Path, layout: Layout) -> tuple[str | None, list[str] | None]:
    """Return the column of class numbers, and the names of the classes; None for what there is not.
    Columns that look like labels and are none are noted."""
    held = [(name, column) for each in layout.sets for name, column in each.columns.items()]
    whole = layout.ranges.keys() - {name for name, column in held if not column.is_label}
    label, top = None, -1
    if len(whole) == 1:
        (name,) = whole
        low, top = layout.ranges[name]
        if low >= 0 and top < 2**63:
            label = name
            layout.notes.insert(0, f"cls is {name!r}, from {low} to {top}")
    others = sorted({name for name, column in held if column.looks_like_label} - {label})
    if others:
        layout.notes.append(
            f"{first_few(others)}: fields of their own, though called as labels are;"
            + (f" cls is {label!r}" if label else " cls needs one column of whole numbers from 0")
        )
    path = source / CLASS_FILE
    if not path.is_file():
        return label, None
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        names = [line.strip() for line in file.read(_MOST_NAMES).splitlines()]
    layout.ignored[".txt"] -= 1
    if label is None or not top < len(names) == len({*names} - {""}):
        layout.notes.append(f"left out: {len(names):,} names in {CLASS_FILE}: cls goes to {top}")
        return label, None
    layout.notes.append(f"names of classes are those of {CLASS_FILE}")
    return label, names


# --- detection ----------------------------------------------------------------------------

Reading = Literal["rows", "arrays", "either"]


def npy_reading(look: Look) -> Reading:
    """Return what ``.npy`` files are: columns of samples, or a sample each; by their headers."""
    held = {f.base: [n for n in f.names if extension(n) == NPY] for f in look.folders}
    folders = {base: names for base, names in held.items() if names}
    readings = set[Reading]()
    num_labelled = 0
    for base, names in folders.items():
        firsts = [*{re.sub("[0-9]+", "#", name): name for name in reversed(names)}.values()]
        columns = [_header(look, base, name) for name in names[: MOST_COLUMNS + 1]]
        reading = reading_of(columns)
        num_labelled += any(column is not None and column.is_label for column in columns)
        if reading == "arrays" and 1 < len(firsts) < len(names):
            some = [_header(look, base, name) for name in firsts[: MOST_COLUMNS + 1]]
            if reading_of(some) == "rows":  # img_0, mask_0, img_1, mask_1
                reading = "either"
        readings.add(reading)
    if len(folders) > 1 and splits_by_words([*folders]) is None and num_labelled < len(folders):
        return "either" if num_labelled else "arrays"
    if "arrays" in readings or not readings:
        return "arrays"
    return "either" if "either" in readings else "rows"


def _header(look: Look, base: str, name: str) -> ArrayColumn | None:
    """Return the column that a ``.npy`` is by its header; None if it is none."""
    file = ArrayFile()
    try:
        file.add(name, *npy_layout(look.head(join(base, name)))[:2])
    except FormatError:
        return None
    return file.columns.get(name)


def reading_of(headers: Sequence[ArrayColumn | None]) -> Reading:
    """Return what the ``.npy`` files of one folder are: rows if they have one length over 1, and
    labels are among them or they differ in kind; arrays if nothing speaks for rows; else either."""
    columns = [column for column in headers if column is not None and column.num_rows > 1]
    if not 0 < len(headers) == len(columns) <= MOST_COLUMNS:
        return "arrays"
    if len(columns) == 1:  # of labels, or numbers, it is one sample
        return "either" if len(columns[0].shape) > 1 else "arrays"
    num_labels = sum(column.is_label for column in columns)
    num_kinds = len({column.row for column in columns})
    try:
        refuse_series(columns, "")
        groups, left_out = divide(columns, "")
    except CorpusError:
        return "either" if 0 < num_labels < len(columns) else "arrays"
    are_columns = num_kinds > 1 or len(groups) > 1 < min(map(len, groups.values()))
    if (num_labels and num_kinds > 1) or (are_columns and not left_out):
        return "rows"
    return "arrays" if left_out or len(columns) > FEW else "either"
