"""What is measured: packed datasets of any format, each a source of the same samples."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from shardkit.errors import DataError
from shardkit.index import INDEX_NAME, WORK_NAME
from shardkit.indexing.foreign import is_tar_source
from shardkit.indexing.locate import locate
from shardkit.packing.settle import dataset_files
from shardkit.reading.dataset import Dataset
from shardkit.reading.permute import Positions
from shardkit.reading.source import Source
from shardkit.reading.values import Column
from shardkit.storage import show_path

Read = Literal["raw", "decode", "train", "tokens"]


class Target(Protocol):
    """A place that samples are read from, in one way.

    Attributes:
        name: in the table. format: ``lmdb``, ``folder`` ... path: as given.
        where: the other medium that it was copied to, or None.
    """

    name: str
    format: str
    path: Path
    where: str | None

    def __len__(self) -> int: ...

    def open(self, rows: Positions) -> Source:
        """Samples ``rows``, (N,) int64, as rows 0 to N - 1. Nothing of them is in memory yet, nor
        is a file kept open when the source is gone."""

    def keys(self, rows: Positions) -> list[str] | None:
        """Of these rows; None where samples have no keys."""

    def find(self, keys: Sequence[str]) -> Positions:
        """Rows of samples by their keys. Raises DataError for one that is not there."""

    def files(self, rows: Positions) -> list[Path]:
        """All files that these rows, and what is needed to find them, are read from."""


class Chosen:
    """Some rows of a source, in a given order, perhaps several times."""

    def __init__(self, source: Source, rows: Positions) -> None:
        self.source = source
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: Positions) -> dict[str, Column]:
        return self.source.read(self.rows[rows])

    def advise(self, rows: Positions) -> None:
        advise: Any = getattr(self.source, "advise", None)
        if advise is not None:
            advise(self.rows[rows])

    def where(self, row: int) -> str:
        where: Any = getattr(self.source, "where", None)
        actual = int(self.rows[row])
        return f"row {actual}" if where is None else str(where(actual))


class PackedTarget:
    """A dataset of ours in any format, or tars made by others."""

    def __init__(self, path: Path, name: str = "", where: str | None = None) -> None:
        self.path = path
        self.where = where
        dataset = Dataset(path)
        # A page that is mapped cannot be dropped from the cache: only this copy, which has not
        # opened its files, is kept.
        self._unopened = copy.copy(dataset)
        self.format = dataset.info.container
        self.name = name or self.format
        self._length = len(dataset)

    def __len__(self) -> int:
        return self._length

    def open(self, rows: Positions) -> Source:
        return Chosen(copy.copy(self._unopened), rows)

    def keys(self, rows: Positions) -> list[str] | None:
        return copy.copy(self._unopened).keys(rows)

    def find(self, keys: Sequence[str]) -> Positions:
        dataset = copy.copy(self._unopened)
        return np.array([_find(self.name, dataset.find, key) for key in keys], np.int64)

    def files(self, rows: Positions) -> list[Path]:
        place = locate(self.path)
        names = [INDEX_NAME, *dataset_files(place.info)]
        return [path for name in names if (path := place.folder / name).is_file()]


def _find(name: str, find: Any, key: str) -> int:
    try:
        return int(find(key))
    except KeyError as error:
        raise DataError(
            f"{name} has no sample {show_path(key)}, which is to be measured"
        ) from error


def is_packed(path: Path) -> bool:
    """Whether it is, or is to be, a dataset, or is made of tars; else it is a plain folder."""
    return (
        not path.is_dir()
        or os.path.lexists(path / INDEX_NAME)
        or (path / WORK_NAME).is_dir()
        or is_tar_source(path)
    )
