"""Which samples an edit keeps: by key, by class, by what a function says, by their copies."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Mask
from shardkit.errors import DataError, UsageError
from shardkit.index.manifest import DatasetInfo
from shardkit.index.rows import RowIndex
from shardkit.operations.duplicates import contents_of
from shardkit.reading.dataset import Dataset
from shardkit.system.paths import as_path, first_few, show_path
from shardkit.system.progress import Progress
from shardkit.versions.reconcile import CLS


def first_of_copies(indexes: dict[str, RowIndex], among: Masks) -> Masks:
    """Those of ``among`` that no earlier one is equal to, in the order of splits and rows; but of
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
    """Raises UsageError for what is neither keys nor a file of them."""
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
    """The samples of these keys, in whatever split.

    Raises:
        UsageError: no split has one of them.
    """
    found = {name: np.zeros(index.split.num_rows, bool) for name, index in indexes.items()}
    for _, name, row in find_all(indexes, keys):
        found[name][row] = True
    return found


def find_all(indexes: Mapping[str, RowIndex], keys: Collection[str]) -> list[tuple[str, str, int]]:
    """(key, split, row) of the samples of these keys. Raises UsageError as :func:`having_keys`."""
    found, unknown = [], []
    for key in keys:
        rows = {name: _find(index, key) for name, index in indexes.items()}
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


def _find(index: RowIndex, key: str) -> int | None:
    """The row of a key, if it is there."""
    try:
        return index.find(key.encode(errors="surrogateescape"))
    except UnicodeEncodeError:  # no key has half a surrogate pair in it
        return None


def having_classes(indexes: dict[str, RowIndex], info: DatasetInfo, names: Sequence[str]) -> Masks:
    """The samples of these classes, by name; by number where classes have no names.

    Raises:
        UsageError: there is no such class, or there are no labels.
    """
    numbers = [_number_of(info, str(name)) for name in names]
    labels = {name: index.table[:, index.column[CLS]] for name, index in indexes.items()}
    return {name: np.isin(own, numbers) for name, own in labels.items()}


def _number_of(info: DatasetInfo, name: str) -> int:
    if CLS not in info.fields:
        raise UsageError("the dataset has no labels to choose by")
    if info.classes is None:
        if name.removeprefix("-").isdigit():
            return int(name)
        raise UsageError(f"class {name!r}: classes have no names here, only numbers")
    if name not in info.classes:
        raise UsageError(f"there is no class {name!r}, only {first_few(info.classes)}")
    return info.classes.index(name)


def passing(
    datasets: dict[str, Dataset], function: Callable[[dict[str, Any]], Any], progress: bool | None
) -> Masks:
    """The samples of which a function says True. Each is given as ``dataset[i]`` gives it.

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
                    found[name][row] = _said(function, sample, dataset, row)
                bar.add(len(rows), 0)
    return found


def _said(
    function: Callable[[dict[str, Any]], Any], sample: dict[str, Any], dataset: Dataset, row: int
) -> bool:
    try:
        said = function(sample)
    # Whatever a user's function raises, the sample is what they need to know.
    except Exception as error:
        raise DataError(
            f"{dataset.where(row)}: filter raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(said, bool | np.bool_):
        raise DataError(f"{dataset.where(row)}: filter said {said!r}, expected True or False")
    return bool(said)
