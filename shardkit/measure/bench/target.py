"""Targets of a bench: datasets of any format and plain folders, all sources of the same samples."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from shardkit.arrays import Integers
from shardkit.batches.source import Source
from shardkit.commit.work_folder import WORK_NAME
from shardkit.errors import DataError, UsageError
from shardkit.index.manifest import INDEX_NAME
from shardkit.inputs.base import Run
from shardkit.inputs.open import open_corpus
from shardkit.inputs.records.lmdb_files import LmdbCorpus
from shardkit.reading.dataset import Dataset
from shardkit.remote.urls import Url
from shardkit.samples.encoding import parse_npy
from shardkit.samples.sample import unpack_paths
from shardkit.sequences.dataset import TokenDataset
from shardkit.shards.stored import container_of
from shardkit.shards.values import Column
from shardkit.storage.base import Turn
from shardkit.system.disk_reads import counter
from shardkit.system.file_systems import is_in_memory
from shardkit.system.page_cache import Cache, cache_state, evict
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors
from shardkit.tars.find import is_tar_source

SEQ_LEN = 2048
"""Tokens of a window."""


class Target(Protocol):
    """A place that samples are read from, in one way.

    Attributes:
        name: of its own. format: ``lmdb``, ``folder`` ... place: as given. path: the same; behind a
            URL, where it is kept.
    """

    name: str
    format: str
    place: Path | Url
    path: Path

    def __len__(self) -> int: ...

    def open(self, rows: Integers) -> Source:
        """Return samples ``rows``, (N,) int64, as rows 0 to N - 1. Nothing of them is in memory
        yet, nor is a file kept open when the source is gone.
        """

    @property
    def sample_bytes(self) -> int | None:
        """Bytes of each sample as it is stored, if its values, as they are read, do not say."""
        return None

    def keys(self, rows: Integers) -> list[str] | None:
        """Return the keys of these rows; None where samples have no keys."""
        return None

    def find(self, keys: Sequence[str]) -> Integers:
        """Return rows of samples by their keys. Raises DataError for one that is not there."""

    def files(self, rows: Integers) -> list[Path]:
        """Return all files that these rows, and what is needed to find them, are read from; not
        those that keys alone are kept in.
        """

    @property
    def is_in_memory(self) -> bool:
        """True if it never comes from further away than memory."""
        return is_in_memory(self.path)

    def drop(self, rows: Integers) -> Cache:
        """Drop what these rows are read from out of memory; return whether it has gone."""
        return cache_state(evict(self.files(rows)))

    def counter(self) -> Callable[[], int] | None:
        """Return what counts bytes that come from further away than memory; None if nothing
        does.
        """
        return counter(self.path)


class Chosen:
    """Some rows of a source, in a given order, perhaps several times."""

    def __init__(self, source: Source, rows: Integers) -> None:
        self.source: Any = source
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: Integers) -> dict[str, Column]:
        return cast("dict[str, Column]", self.source.read(self.rows[rows]))

    @property
    def foresees(self) -> bool:
        return bool(getattr(self.source, "foresees", False))

    def is_cold(self) -> bool:
        return bool(self.source.is_cold())

    def reached(self, turn: Turn, *, is_resting: bool) -> bool:
        return bool(self.source.reached(turn, is_resting=is_resting))

    def advise(self, rows: Integers, *turn: Turn) -> None:
        advise: Any = getattr(self.source, "advise", None)
        if advise is not None:
            advise(self.rows[rows], *turn)

    def where(self, row: int) -> str:
        where: Any = getattr(self.source, "where", None)
        actual = int(self.rows[row])
        return f"row {actual}" if where is None else str(where(actual))


class PackedTarget(Target):
    """A dataset of ours in any format, or third-party tars. Behind a URL it comes from the cache,
    or cold from where it lies.
    """

    def __init__(self, place: Path | Url) -> None:
        # A page that is mapped cannot be dropped from the cache: what is kept is a copy, which has
        # not opened its files.
        self._dataset = copy.copy(Dataset(str(place)))
        self.place = place
        self.path = place if isinstance(place, Path) else self._dataset.located.folder
        self.name = self.format = self._dataset.info.container

    @property
    def _remote(self) -> Any:
        return self._dataset.located.storage if isinstance(self.place, Url) else None

    def __len__(self) -> int:
        return len(self._dataset)

    def open(self, rows: Integers) -> Source:
        return Chosen(copy.copy(self._dataset), rows)

    def keys(self, rows: Integers) -> list[str] | None:
        return copy.copy(self._dataset).keys(rows)

    def find(self, keys: Sequence[str]) -> Integers:
        dataset, rows = copy.copy(self._dataset), np.empty(len(keys), np.int64)
        for number, key in enumerate(keys):
            try:
                rows[number] = dataset.find(key)
            except KeyError as error:
                raise missing(self.name, key) from error
        return rows

    def files(self, rows: Integers) -> list[Path]:
        found = self._dataset.located
        split, container = found.info.splits[self._dataset.split], container_of(found.info)
        fields = set(found.info.fields) - {"cls"} or {"cls"}  # labels come from the index
        stems = map(split.stem, range(len(split.shards)))
        shards = {container.file_of(stem, field) for stem in stems for field in fields}
        names = [INDEX_NAME, split.index_file("rows"), *sorted(shards)]
        return [path for name in names if (path := found.folder / name).is_file()]

    @property
    def is_in_memory(self) -> bool:
        return self._remote is None and is_in_memory(self.path)

    def drop(self, rows: Integers) -> Cache:
        if self._remote is None:
            return super().drop(rows)
        self._remote.forget()  # the whole dataset, for whoever reads it
        return "cold"

    def counter(self) -> Callable[[], int] | None:
        if self._remote is None:
            return super().counter()
        return cast("Callable[[], int]", self._remote.fetched_bytes)


class PackedTokens(PackedTarget):
    """Windows of a dataset packed with a tokenizer, which have no keys."""

    def __init__(self, place: Path | Url) -> None:
        super().__init__(place)
        self._tokens = copy.copy(TokenDataset(str(place), seq_len=SEQ_LEN))

    def __len__(self) -> int:
        return len(copy.copy(self._tokens))

    def open(self, rows: Integers) -> Source:
        source: Any = copy.copy(self._tokens)
        return Chosen(source, rows)

    def keys(self, rows: Integers) -> None:
        return None

    @property
    def sample_bytes(self) -> int:
        return SEQ_LEN * copy.copy(self._tokens)._store.dtype.itemsize


def missing(name: str, key: str) -> DataError:
    """Return the error for a sample that a target lacks."""
    return DataError(f"{name} has no sample {key!r}, which is to be measured")


def name_apart(targets: Sequence[Target]) -> None:
    """Give each a name of its own: the format, or where several have one, what the paths end in,
    or the whole paths.
    """
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
    """Return True if it is, or is to be, a dataset, or is made of tars; else it is a plain
    folder.
    """
    return (
        not path.is_dir()
        or os.path.lexists(path / INDEX_NAME)
        or (path / WORK_NAME).is_dir()
        or is_tar_source(path)
    )


# --- a plain folder ------------------------------------------------------------------------


_PARTS_OF_FILES = {"jsonl": "a line", "rows": "a row", "tfrecord": "a record"}
_PARTS_OF_FILES[LmdbCorpus.kind] = "an entry"
"""Kinds of input -> the part of a file that is a sample."""

_NO_SCRATCH = Path(os.devnull)
"""Only lines of text are ever decompressed, and those are refused here."""


@dataclass(frozen=True)
class Entry:
    """Files of one sample: field -> path. ``label`` is None where folders do not give one."""

    files: dict[str, str]
    label: int | None


class FolderSource:
    """Samples of a folder, (B,) rows of which are read one file after another."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        names = dict.fromkeys(name for entry in entries for name in entry.files)
        self._fields = sorted(names)
        self._has_labels = any(entry.label is not None for entry in entries)

    def __len__(self) -> int:
        return len(self._entries)

    def read(self, rows: Integers) -> dict[str, Column]:
        entries = [self._entries[row] for row in rows.tolist()]
        columns: dict[str, Column] = {
            name: [_value(name, entry.files.get(name)) for entry in entries]
            for name in self._fields
        }
        if self._has_labels:
            columns["cls"] = np.array([entry.label for entry in entries], np.int64)
        return columns

    def where(self, row: int) -> str:
        return show_path(next(iter(self._entries[row].files.values())))


def _value(field: str, path: str | None) -> Any:
    """Return the value as a dataset gives it: text, JSON, arrays and class numbers decoded."""
    if path is None:
        return None
    with os_errors(f"reading {show_path(path)}"), open(path, "rb") as file:
        data = file.read()
    kind = field.rpartition(".")[2]
    if kind == "txt":
        return str(data, "utf-8")
    if kind == "json":
        return json.loads(data)
    if kind == "npy":
        return parse_npy(data)
    return int(data) if field == "cls" else data


class FolderTarget(Target):
    """A folder that has not been packed. Listed once; the files of a sample are looked up when it
    is measured.

    Attributes:
        corpus: packs the same samples. mean_bytes: of the files of a sample.
    """

    format = "folder"

    def __init__(self, path: Path) -> None:
        self.path = self.place = path
        self.name = self.format
        self.corpus = open_corpus(path)
        kind = self.corpus.kind
        if kind in _PARTS_OF_FILES:
            raise UsageError(
                f"{show_path(path)} is taken for {kind}, where a sample is"
                f" {_PARTS_OF_FILES[kind]}, not a file: pack it, and measure the dataset"
            )
        runs = list(self.corpus.runs(_NO_SCRATCH))
        split = _choose_split([run.split for run in runs], path)
        self._runs = [run for run in runs if run.split == split]
        self._ends = np.cumsum([len(run) for run in self._runs])
        self.mean_bytes = sum(sum(run.sizes) for run in self._runs) / max(len(self), 1)
        self._entries: dict[int, Entry] = {}
        self._row_of: dict[bytes, int] = {}

    def __len__(self) -> int:
        return int(self._ends[-1])

    def open(self, rows: Integers) -> Source:
        return FolderSource([self._entry(row) for row in rows.tolist()])

    def keys(self, rows: Integers) -> list[str] | None:
        found = map(self._at, rows.tolist())
        return [os.fsdecode(run.keys[at]) for run, at in found]

    def find(self, keys: Sequence[str]) -> Integers:
        if not self._row_of:
            every = (key for run in self._runs for key in run.keys)
            self._row_of = {key: row for row, key in enumerate(every)}
        rows = [self._row_of.get(os.fsencode(key), -1) for key in keys]
        if -1 in rows:
            raise missing(self.name, keys[rows.index(-1)])
        return np.array(rows, np.int64)

    def files(self, rows: Integers) -> list[Path]:
        entries = map(self._entry, np.unique(rows).tolist())
        return [Path(path) for entry in entries for path in entry.files.values()]

    def _at(self, row: int) -> tuple[Run, int]:
        """Return the run that holds a row, and which of its entries that is."""
        number = int(np.searchsorted(self._ends, row, side="right"))
        return self._runs[number], row - int(self._ends[number]) + len(self._runs[number])

    def _entry(self, row: int) -> Entry:
        if row not in self._entries:
            run, at = self._at(row)
            batch = self.corpus.read(run.slice(at, at + 1), _NO_SCRATCH)
            if batch.rejects:
                path = show_path(self.path / run.base / os.fsdecode(run.locators[at]))
                raise DataError(
                    f"{path} is no sample: move it away, or name a packed dataset, too, whose"
                    " samples are then looked up here"
                )
            named = unpack_paths(batch.keys[0], batch.paths[0], [*batch.fields(0)])
            root = os.fsencode(self.path)
            files = {name: os.fsdecode(os.path.join(root, path)) for name, path, _ in named}
            self._entries[row] = Entry(files, run.label)
        return self._entries[row]


def _choose_split(splits: Sequence[str], path: Path) -> str:
    """Return the split that a packed dataset would choose: the only one, or ``train``."""
    names = list(dict.fromkeys(splits))
    if len(names) == 1:
        return names[0]
    if "train" not in names:
        raise UsageError(
            f"{show_path(path)} has splits {', '.join(names)}: name the folder of one of them"
        )
    return "train"
