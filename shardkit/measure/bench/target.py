"""What is measured: packed datasets of any format, each a source of the same samples."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from shardkit.arrays import Integers
from shardkit.batches.source import Source
from shardkit.errors import DataError
from shardkit.index.manifest import INDEX_NAME, WORK_NAME
from shardkit.operations.stage import copy_files, stage
from shardkit.reading.dataset import Dataset
from shardkit.remote.urls import Url
from shardkit.sequences.dataset import TokenDataset
from shardkit.shards.stored import container_of
from shardkit.shards.values import Column
from shardkit.storage.base import Turn
from shardkit.system.disk_reads import counter
from shardkit.system.file_systems import is_in_memory
from shardkit.system.page_cache import Cache, cache_state, evict
from shardkit.system.paths import show_path
from shardkit.tars.find import is_tar_source
from shardkit.tokens.id_files import is_token_file

if TYPE_CHECKING:
    from shardkit.remote.storage import Remote

SEQ_LEN = 2048
"""Tokens of a window."""


class Target(Protocol):
    """What samples are read from, in one way.

    Attributes:
        name: of its own, but for copies. format: ``lmdb``, ``folder`` ... path: as given; behind a
            URL, where it is kept. where: the other medium that it was copied to, or None.
    """

    name: str
    format: str
    path: Path
    where: str | None = None

    @property
    def place(self) -> Path | Url:
        """As given."""
        return self.path

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

    @property
    def is_in_memory(self) -> bool:
        """Whether it never comes from further away."""
        return is_in_memory(self.path)

    def drop(self, rows: Integers) -> Cache:
        """Drop what these rows are read from out of memory; whether it has gone."""
        return cache_state(evict(self.files(rows)))

    def counter(self) -> Callable[[], int] | None:
        """What counts bytes that come from further away than memory; None if nothing does."""
        return counter(self.path)


class Chosen:
    """Some rows of a source, in a given order, perhaps several times."""

    def __init__(self, source: Source, rows: Integers) -> None:
        self.source = source
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: Integers) -> dict[str, Column]:
        return self.source.read(self.rows[rows])

    @property
    def foresees(self) -> bool:
        return bool(getattr(self.source, "foresees", False))

    def is_cold(self) -> bool:
        return bool(cast(Any, self.source).is_cold())

    def reached(self, turn: Turn, *, is_resting: bool) -> bool:
        return bool(cast(Any, self.source).reached(turn, is_resting=is_resting))

    def advise(self, rows: Integers, *turn: Turn) -> None:
        advise: Any = getattr(self.source, "advise", None)
        if advise is not None:
            advise(self.rows[rows], *turn)

    def where(self, row: int) -> str:
        where: Any = getattr(self.source, "where", None)
        actual = int(self.rows[row])
        return f"row {actual}" if where is None else str(where(actual))


class PackedTarget(Target):
    """A dataset of ours in any format, or tars made by others."""

    def __init__(self, place: Path | Url) -> None:
        given = str(place) if isinstance(place, Url) else place
        # A page that is mapped cannot be dropped from the cache: what is kept is a copy, which has
        # not opened its files.
        self._unopened = copy.copy(Dataset(given))
        self.path = place if isinstance(place, Path) else self._unopened.located.folder
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
        found = self._unopened.located
        split, container = found.info.splits[self._unopened.split], container_of(found.info)
        fields = set(found.info.fields) - {"cls"} or {"cls"}  # labels come from the index
        stems = map(split.stem, range(len(split.shards)))
        shards = {container.file_of(stem, field) for stem in stems for field in fields}
        names = [INDEX_NAME, split.index_file("rows"), *sorted(shards)]
        return [path for name in names if (path := found.folder / name).is_file()]

    def copied(self, rows: Integers, folder: Path, where: str) -> PackedTarget:
        """The whole dataset."""
        stage(str(self.place), folder, progress=False)
        there = PackedTarget(folder)
        there.name, there.where = self.name, where
        there._unopened = copy.copy(Dataset(folder, self._unopened.split))
        return there


class UrlTarget(PackedTarget):
    """A dataset behind a URL: warm, it comes from the cache; cold, from where it lies."""

    @property
    def place(self) -> Path | Url:
        return self._remote.url

    @property
    def _remote(self) -> Remote:
        return cast("Remote", self._unopened.located.storage)

    @property
    def is_in_memory(self) -> bool:
        return False

    def drop(self, rows: Integers) -> Cache:
        """Of the whole dataset, for whoever reads it."""
        self._remote.forget()
        return "cold"

    def counter(self) -> Callable[[], int] | None:
        return self._remote.fetched_bytes


class TokenTarget(Target):
    """A dataset packed with a tokenizer, or a file of token ids: its windows have no keys."""

    def __init__(self, place: Path | Url) -> None:
        is_file = isinstance(place, Path) and is_token_file(place)
        self._packed = None if is_file else packed_target(place)
        self.path = cast(Path, place) if self._packed is None else self._packed.path
        self.name = self.format = "token file" if self._packed is None else self._packed.format
        given = str(place) if isinstance(place, Url) else place
        self._unopened = copy.copy(TokenDataset(given, seq_len=SEQ_LEN))

    @property
    def place(self) -> Path | Url:
        return self.path if self._packed is None else self._packed.place

    @property
    def is_in_memory(self) -> bool:
        return super().is_in_memory if self._packed is None else self._packed.is_in_memory

    def drop(self, rows: Integers) -> Cache:
        return super().drop(rows) if self._packed is None else self._packed.drop(rows)

    def counter(self) -> Callable[[], int] | None:
        return super().counter() if self._packed is None else self._packed.counter()

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


def packed_target(place: Path | Url) -> PackedTarget:
    """The dataset at a place."""
    return UrlTarget(place) if isinstance(place, Url) else PackedTarget(place)


def missing(name: str, key: str) -> DataError:
    """The error for a sample that a target lacks."""
    return DataError(f"{name} has no sample {key!r}, which is to be measured")


def name_apart(targets: Sequence[Target]) -> None:
    """Give each a name of its own: the format, or where several have one, what the paths end in,
    or the whole paths."""
    for labels in (
        [_last_name(target.place) for target in targets],
        [str(target.place) for target in targets],
        [f"{target.place} ({number})" for number, target in enumerate(targets, 1)],
    ):
        names = [target.name for target in targets]
        for target, label in zip(targets, labels, strict=True):
            if names.count(target.name) > 1:
                target.name = show_path(label)


def _last_name(place: Path | Url) -> str:
    return str(place).rpartition("/")[2] if isinstance(place, Url) else place.resolve().name


def is_packed(path: Path) -> bool:
    """Whether it is, or is to be, a dataset, or is made of tars; else it is a plain folder."""
    return (
        not path.is_dir()
        or os.path.lexists(path / INDEX_NAME)
        or (path / WORK_NAME).is_dir()
        or is_tar_source(path)
    )
