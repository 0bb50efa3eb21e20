"""What is measured: packed datasets of any format, each a source of the same samples."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shardkit.arrays import Integers
from shardkit.batches.source import Source
from shardkit.corpus.containers.token_files import is_token_file
from shardkit.errors import DataError
from shardkit.index.manifest import INDEX_NAME, WORK_NAME
from shardkit.operations.stage import copy_files, stage
from shardkit.reading.dataset import Dataset
from shardkit.sequences.dataset import TokenDataset
from shardkit.shards.locate import locate
from shardkit.shards.stored import container_of
from shardkit.shards.values import Column
from shardkit.system.paths import show_path
from shardkit.tars.find import is_tar_source

SEQ_LEN = 2048
"""Tokens of a window."""


class Target(Protocol):
    """What samples are read from, in one way.

    Attributes:
        name: of its own, but for copies. format: ``lmdb``, ``folder`` ... path: as given.
        where: the other medium that it was copied to, or None.
    """

    name: str
    format: str
    path: Path
    where: str | None = None

    @property
    def label(self) -> str:
        """The name, and where the copy lies."""
        return self.name if self.where is None else f"{self.name} on {self.where}"

    def __len__(self) -> int: ...

    def open(self, rows: Integers) -> Source:
        """Samples ``rows``, (N,) int64, as rows 0 to N - 1. Nothing of them is in memory yet, nor
        is a file kept open when the source is gone."""

    @property
    def sample_bytes(self) -> int | None:
        """Bytes of each sample as it is stored, where its values, as they are read, do not say."""
        return None

    def keys(self, rows: Integers) -> list[str] | None:
        """The keys of these rows; None where samples have no keys."""
        return None

    def find(self, keys: Sequence[str]) -> Integers:
        """Rows of samples by their keys. Raises DataError for one that is not there."""

    def files(self, rows: Integers) -> list[Path]:
        """All files that these rows, and what is needed to find them, are read from; not those
        that keys alone are kept in."""

    def copied(self, rows: Integers, folder: Path, where: str) -> Target:
        """A copy of these rows, or of all, in an empty folder."""


class Chosen:
    """Some rows of a source, in a given order, perhaps several times."""

    def __init__(self, source: Source, rows: Integers) -> None:
        self.source = source
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: Integers) -> dict[str, Column]:
        return self.source.read(self.rows[rows])

    def advise(self, rows: Integers) -> None:
        advise: Any = getattr(self.source, "advise", None)
        if advise is not None:
            advise(self.rows[rows])

    def where(self, row: int) -> str:
        where: Any = getattr(self.source, "where", None)
        actual = int(self.rows[row])
        return f"row {actual}" if where is None else str(where(actual))


class PackedTarget(Target):
    """A dataset of ours in any format, or tars made by others."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # A page that is mapped cannot be dropped from the cache: what is kept is a copy, which has
        # not opened its files.
        self._unopened = copy.copy(Dataset(path))
        self.name = self.format = self._unopened.info.container

    def __len__(self) -> int:
        return len(self._unopened)

    def open(self, rows: Integers) -> Source:
        return Chosen(copy.copy(self._unopened), rows)

    def keys(self, rows: Integers) -> list[str] | None:
        return copy.copy(self._unopened).keys(rows)

    def find(self, keys: Sequence[str]) -> Integers:
        dataset, rows = copy.copy(self._unopened), np.empty(len(keys), np.int64)
        for number, key in enumerate(keys):
            try:
                rows[number] = dataset.find(key)
            except KeyError as error:
                raise missing(self.name, key) from error
        return rows

    def files(self, rows: Integers) -> list[Path]:
        found = locate(self.path)
        split, container = found.info.splits[self._unopened.split], container_of(found.info)
        fields = set(found.info.fields) - {"cls"} or {"cls"}  # labels come from the index
        stems = map(split.stem, range(len(split.shards)))
        shards = {container.file_of(stem, field) for stem in stems for field in fields}
        names = [INDEX_NAME, f"{split.name}.rows", *sorted(shards)]
        return [path for name in names if (path := found.folder / name).is_file()]

    def copied(self, rows: Integers, folder: Path, where: str) -> PackedTarget:
        """The whole dataset."""
        there = copy.copy(self)
        stage(self.path, folder, progress=False)
        there.path, there.where = folder, where
        there._unopened = copy.copy(Dataset(folder, self._unopened.split))
        return there


class TokenTarget(Target):
    """A dataset packed with a tokenizer, or a file of token ids: its windows have no keys."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._packed = None if is_token_file(path) else PackedTarget(path)
        self.name = self.format = "token file" if self._packed is None else self._packed.format
        self._unopened = copy.copy(TokenDataset(path, seq_len=SEQ_LEN))

    def __len__(self) -> int:
        return len(copy.copy(self._unopened))

    def open(self, rows: Integers) -> Source:
        source: Any = copy.copy(self._unopened)
        return Chosen(source, rows)

    def find(self, keys: Sequence[str]) -> Integers:
        raise NotImplementedError("windows of tokens have no keys")

    @property
    def sample_bytes(self) -> int:
        return SEQ_LEN * copy.copy(self._unopened)._store.dtype.itemsize

    def files(self, rows: Integers) -> list[Path]:
        if self._packed is not None:
            return self._packed.files(rows)
        return [path for path in (self.path, self.path.with_suffix(".idx")) if path.is_file()]

    def copied(self, rows: Integers, folder: Path, where: str) -> Target:
        """The whole dataset, or the files."""
        there = copy.copy(self)
        there.where = where
        if self._packed is None:
            there.path = copy_files(self.files(rows), folder)[0]
        else:
            there._packed = self._packed.copied(rows, folder, where)
            there.path = folder
        there._unopened = copy.copy(TokenDataset(there.path, seq_len=SEQ_LEN))
        return there


def missing(name: str, key: str) -> DataError:
    """The error for a sample that a target lacks."""
    return DataError(f"{name} has no sample {key!r}, which is to be measured")


def name_apart(targets: Sequence[Target]) -> None:
    """Give each a name of its own: the format, or where several have one, what the paths end in,
    or the whole paths."""
    for labels in (
        [target.path.resolve().name for target in targets],
        [str(target.path) for target in targets],
        [f"{target.path} ({number})" for number, target in enumerate(targets, 1)],
    ):
        names = [target.name for target in targets]
        for target, label in zip(targets, labels, strict=True):
            if names.count(target.name) > 1:
                target.name = show_path(label)


def is_packed(path: Path) -> bool:
    """Whether it is, or is to be, a dataset, or is made of tars; else it is a plain folder."""
    return (
        not path.is_dir()
        or os.path.lexists(path / INDEX_NAME)
        or (path / WORK_NAME).is_dir()
        or is_tar_source(path)
    )
