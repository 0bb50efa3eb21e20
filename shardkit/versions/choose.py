"""Which samples an edit keeps: by key, by class, by what a function says, by their copies; and the
labels that it gives them, from a table of keys and classes."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Integers, Mask
from shardkit.errors import DataError, UsageError
from shardkit.index.manifest import DatasetInfo
from shardkit.index.rows import RowIndex
from shardkit.operations.duplicates import contents_of, labels_of, plain_labels
from shardkit.reading.dataset import Dataset
from shardkit.system.paths import as_path, first_few, show_path
from shardkit.system.progress import Progress
from shardkit.versions.reconcile import CLS


def first_of_copies(indexes: dict[str, RowIndex], among: Masks) -> Masks:
    """Choose those of ``among`` that equal no earlier one, in the order of splits and rows. Of
    copies in several splits those outside ``train`` stay, so that what is tested stays the same.

    Compared are the 64-bit checksums of contents that the index has: see
    :func:`shardkit.operations.duplicates.find_duplicates`.
    """
    names = sorted(indexes, key=lambda name: name == "train")
    contents = [contents_of(indexes[name]) for name in names]
    kept = np.concatenate([among[name] for name in names])
    every = np.concatenate(contents)
    rows = np.flatnonzero(kept)
    _, first = np.unique(every[rows], return_index=True)
    is_first = np.zeros(len(every), bool)
    is_first[rows[first]] = True
    cuts = np.cumsum([len(each) for each in contents])[:-1]
    return dict(zip(names, np.split(is_first, cuts), strict=True))


STEP_ROWS = 256
"""Samples read at a time, to be looked at."""

Keys = str | Path | Iterable[str]
"""Keys, or a file with one on each line."""

Masks = dict[str, Mask]
"""Split -> (num_rows,) bool."""


@dataclass(frozen=True)
class ListedKeys:
    """Keys, each once, and what to call them. A pipe or a generator gives its keys once only, so
    whoever needs them takes them from here."""

    keys: list[str]
    words: str


def read_keys(given: Keys) -> ListedKeys:
    """Read keys, or a file of them. Raises UsageError for what is neither."""
    if isinstance(given, str | os.PathLike):
        path = as_path(given, "the file of keys")
        try:
            # Files made on Windows may begin with a mark, and end lines with two characters.
            text = path.read_bytes().decode("utf-8-sig", errors="surrogateescape")
        except OSError as error:
            raise UsageError(f"{show_path(path)} cannot be read: {error.strerror}") from error
        lines = (line.removesuffix("\r") for line in text.split("\n"))
        return ListedKeys(list(dict.fromkeys(filter(None, lines))), f"keys of {path.name}")
    keys = list(given) if isinstance(given, Iterable) else [given]
    if not all(isinstance(key, str) for key in keys):
        raise UsageError("keys are str, as Dataset.keys() gives them")
    listed = list(dict.fromkeys(map(str, keys)))
    return ListedKeys(listed, f"{len(listed):,} key{'s' * (len(listed) != 1)}")


def having_keys(indexes: dict[str, RowIndex], keys: Sequence[str]) -> Masks:
    """Choose the samples of these keys, in whatever split.

    Raises:
        UsageError: no split has one of them.
    """
    found = {name: np.zeros(index.split.num_rows, bool) for name, index in indexes.items()}
    for _, name, row in find_all(indexes, keys):
        found[name][row] = True
    return found


def find_all(indexes: Mapping[str, RowIndex], keys: Collection[str]) -> list[tuple[str, str, int]]:
    """Return (key, split, row) of samples of these keys. Raises as :func:`having_keys`."""
    found, unknown = [], []
    for key in keys:
        rows: dict[str, int | None] = {}
        with suppress(UnicodeEncodeError):  # no key has half a surrogate pair in it
            name_bytes = key.encode(errors="surrogateescape")
            rows = {name: index.find(name_bytes) for name, index in indexes.items()}
        there = [(key, name, row) for name, row in rows.items() if row is not None]
        found += there
        if not there:
            unknown.append(key)
    if unknown:
        raise UsageError(
            f"{len(unknown):,} of {len(keys):,} keys are of no sample here: {first_few(unknown)};"
            " `shardkit show` and Dataset.keys() tell what they look like"
        )
    return found


def having_classes(indexes: dict[str, RowIndex], info: DatasetInfo, names: Sequence[str]) -> Masks:
    """Choose the samples of these classes, by name; by number where classes have no names.

    Raises:
        UsageError: there is no such class, or there are no labels.
    """
    if CLS not in info.fields:
        raise UsageError("the dataset has no labels to choose by")
    numbers = []
    for name in map(str, names):
        if info.classes is None and not name.removeprefix("-").isdigit():
            raise UsageError(f"class {name!r}: classes have no names here, only numbers")
        if info.classes is not None and name not in info.classes:
            raise UsageError(f"there is no class {name!r}, only {first_few(info.classes)}")
        numbers.append(int(name) if info.classes is None else info.classes.index(name))
    return {name: np.isin(labels_of(index), numbers) for name, index in indexes.items()}


def passing(
    datasets: dict[str, Dataset], function: Callable[[dict[str, Any]], Any], progress: bool | None
) -> Masks:
    """Choose the samples of which a function says True. Each is given as ``dataset[i]`` gives it.

    Raises:
        DataError: the function raised, or said neither True nor False; names the sample.
    """
    found = {}
    with Progress("looking", progress) as bar:
        bar.expect(sum(map(len, datasets.values())))
        for name, dataset in datasets.items():
            found[name] = np.zeros(len(dataset), bool)
            for start in range(0, len(dataset), STEP_ROWS):
                rows = range(start, min(start + STEP_ROWS, len(dataset)))
                for row, sample in zip(rows, dataset.__getitems__(list(rows)), strict=True):
                    try:
                        said = function(sample)
                    # Whatever a user's function raises, the sample is what they need to know.
                    except Exception as error:
                        raise DataError(
                            f"{dataset.where(row)}: filter raised {type(error).__name__}: {error}"
                        ) from error
                    if not isinstance(said, bool | np.bool_):
                        where = dataset.where(row)
                        raise DataError(f"{where}: filter said {said!r}, expected True or False")
                    found[name][row] = said
                bar.add(len(rows), 0)
    return found


# --- labels -------------------------------------------------------------------------------

_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")

Table = str | Path | Mapping[str, str | int]
"""Key -> class, or a .csv file of both."""


@dataclass(frozen=True)
class LabelTable:
    """Key -> class, and what to call the table, which a pipe gives once only."""

    labels: dict[str, str]
    words: str


def read_table(given: Table) -> LabelTable:
    """Read a mapping, or a file without its head, if it has one that says ``key``.

    Raises:
        UsageError: it cannot be read, is neither, holds nothing, or gives a key two classes.
    """
    if isinstance(given, Mapping):
        for key, label in given.items():
            is_label = isinstance(label, str | int | np.integer) and not isinstance(label, bool)
            if not (isinstance(key, str) and is_label):
                raise UsageError(f"labels map keys to classes, got {key!r}: {label!r}")
        rows = [[str(key), str(label)] for key, label in given.items()]
        shown, words = "the mapping", f"{len(rows):,} keys"
    else:
        path = as_path(given, "the file of labels")
        rows, shown, words = _rows_of(path), show_path(path), path.name
    if not rows:
        raise UsageError(f"{shown} holds no labels")
    found: dict[str, str] = {}
    for number, row in enumerate(rows, 1):
        if len(row) != 2:
            raise UsageError(f"{shown}: line {number} has {len(row)} columns, expected key,class")
        key, label = row
        if found.setdefault(key, label) != label:
            raise UsageError(f"{shown} gives {key!r} two classes; keep one")
        if not label.strip():
            raise UsageError(f"{shown} gives {key!r} a class without a name")
    return LabelTable(found, words)


def _rows_of(path: Path) -> list[list[str]]:
    try:
        # A spreadsheet may have put a mark before the first column's name.
        with open(path, newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, csv.Error) as error:
        raise UsageError(f"{show_path(path)} cannot be read: {error}") from error
    has_head = bool(rows) and rows[0][0].strip().lower() in ("key", "__key__")
    return rows[1:] if has_head else rows


def class_names(info: DatasetInfo, labels: Sequence[str]) -> list[str] | None:
    """Return the names of all classes: known ones keep their numbers, new ones follow, sorted; None
    where classes have no names, and need none.

    Raises:
        UsageError: the dataset's classes are numbers, and these are not.
    """
    words = [label for label in labels if not _NUMBER.fullmatch(label)]
    if info.classes is not None:
        return list(dict.fromkeys([*info.classes, *sorted(set(labels))]))
    if not words:
        return None
    if CLS in info.fields:
        raise UsageError(f"classes have no names here, only numbers: got {first_few(words)}")
    return sorted(set(labels))


def relabelled(
    indexes: Mapping[str, RowIndex], table: Mapping[str, str], classes: Sequence[str] | None
) -> dict[str, Integers]:
    """Return the labels of all samples, split by split: new ones, and of the others the old.

    Raises:
        UsageError: a key is of no sample; or an old label is no plain number, so that it cannot
            stand in the row index alone.
    """
    found = {name: np.array(labels_of(index)) for name, index in indexes.items()}
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
