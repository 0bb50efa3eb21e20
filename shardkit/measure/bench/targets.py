"""Targets of a bench: datasets of any format and plain folders, all sources of the same samples."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shardkit.arrays import Integers
from shardkit.batches.source import FullSource, Source
from shardkit.errors import DataError, UsageError
from shardkit.index.file_names import INDEX_NAME
from shardkit.inputs.corpus import Run
from shardkit.inputs.detection import open_corpus
from shardkit.inputs.records.containers import LmdbCorpus
from shardkit.reading.dataset import Dataset
from shardkit.remote.urls import Url
from shardkit.samples.encoding import parse_npy
from shardkit.samples.sample import unpack_paths
from shardkit.sequences.token_dataset import TokenDataset
from shardkit.shards.stored import container_of
from shardkit.shards.values import Column
from shardkit.storage.interface import Turn
from shardkit.system.file_systems import counter, is_in_memory
from shardkit.system.page_cache import Cache, cache_state, evict
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

SEQ_LEN = 2048
"""Tokens of a window."""


class Target(Protocol):
    """A place that samples are read from, in one way.

    Attributes:
        name: of its own. format: ``lmdb``, ``folder`` ... place: as given. path: the same; behind a
            URL, where it is kept. remote: the storage behind a URL. sample_bytes: of each sample as
            it is stored, if its values, as they are read, do not say.
    """

    name: str
    format: str
    place: Path | Url
    path: Path
    remote: Any = None
    sample_bytes: int | None = None

    def __len__(self) -> int: ...

    def open(self, rows: Integers) -> Source:
        """Return samples ``rows``, (N,) int64, as rows 0 to N - 1. Nothing of them is in memory
        yet, nor is a file kept open when the source is gone.
        """

    def keys(self, rows: Integers) -> list[str] | None:
        """Return the keys of these rows; None where samples have no keys."""
        return None

    def lookup(self) -> Callable[[str], int]:
        """Return what finds the row of a key, or raises KeyError."""

    def find(self, keys: Sequence[str]) -> Integers:
        """Return rows of samples by their keys. Raises DataError for one that is not there."""
        row_of, rows = self.lookup(), np.empty(len(keys), np.int64)
        for number, key in enumerate(keys):
            try:
                rows[number] = row_of(key)
            except KeyError as error:
                raise DataError(
                    f"{self.name} has no sample {key!r}, which is to be measured"
                ) from error
        return rows

    def files(self, rows: Integers) -> list[Path]:
        """Return all files that these rows, and what is needed to find them, are read from; not
        those that keys alone are kept in.
        """

    @property
    def is_in_memory(self) -> bool:
        """True if it never comes from further away than memory."""
        return self.remote is None and is_in_memory(self.path)

    def drop(self, rows: Integers) -> Cache:
        """Drop what these rows are read from out of memory; return whether it has gone."""
        if self.remote is None:
            return cache_state(evict(self.files(rows)))
        self.remote.forget()  # the whole dataset, for whoever reads it
        return "cold"

    def counter(self) -> Callable[[], int] | None:
        """Return what counts bytes that come from further away than memory; None if nothing
        does.
        """
        return counter(self.path) if self.remote is None else self.remote.fetched_bytes


class Chosen:
    """Some rows of a source, in a given order, perhaps several times."""

    def __init__(self, source: Source, rows: Integers) -> None:
        self.source, self.rows = FullSource(source), rows
        self.foresees, self.is_cold = self.source.foresees, self.source.is_cold
        self.reached = self.source.reached

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: Integers) -> dict[str, Column]:
        return self.source.read(self.rows[rows])

    def advise(self, rows: Integers, *turn: Turn) -> None:
        advise: Any = self.source.advise
        if advise is not None:
            advise(self.rows[rows], *turn)

    def where(self, row: int) -> str:
        return self.source.where(int(self.rows[row]))


class PackedTarget(Target):
    """A dataset of ours in any format, or third-party tars. Behind a URL it comes from the cache,
    or cold from where it lies.
    """

    def __init__(self, place: Path | Url) -> None:
        # A page that is mapped cannot be dropped from the cache: what is kept is a copy, which has
        # not opened its files.
        self._dataset = copy.copy(Dataset(str(place)))
        self.place = place
        located = self._dataset.located
        self.path = place if isinstance(place, Path) else located.folder
        self.remote = located.storage if isinstance(place, Url) else None
        self.name = self.format = self._dataset.info.container

    def __len__(self) -> int:
        return len(self._dataset)

    def open(self, rows: Integers) -> Source:
        return Chosen(copy.copy(self._dataset), rows)

    def keys(self, rows: Integers) -> list[str] | None:
        return copy.copy(self._dataset).keys(rows)

    def lookup(self) -> Callable[[str], int]:
        return copy.copy(self._dataset).find

    def files(self, rows: Integers) -> list[Path]:
        found = self._dataset.located
        split, container = found.info.splits[self._dataset.split], container_of(found.info)
        fields = set(found.info.fields) - {"cls"} or {"cls"}  # labels come from the index
        stems = map(split.stem, range(len(split.shards)))
        shards = {container.file_of(stem, field) for stem in stems for field in fields}
        names = [INDEX_NAME, split.index_file("rows"), *sorted(shards)]
        return [path for name in names if (path := found.folder / name).is_file()]


class PackedTokens(PackedTarget):
    """Windows of a dataset packed with a tokenizer, which have no keys."""

    def __init__(self, place: Path | Url) -> None:
        super().__init__(place)
        tokens = TokenDataset(str(place), seq_len=SEQ_LEN)
        self.sample_bytes = SEQ_LEN * tokens._store.dtype.itemsize
        self._tokens: Any = copy.copy(tokens)

    def __len__(self) -> int:
        return len(copy.copy(self._tokens))

    def open(self, rows: Integers) -> Source:
        return Chosen(copy.copy(self._tokens), rows)

    def keys(self, rows: Integers) -> None:
        return None


def name_apart(targets: Sequence[Target]) -> None:
    """Give each a name of its own: the format, or where several have one, what the paths end in,
    or the whole paths.
    """
    places = [target.place for target in targets]
    for labels in (
        [str(p if isinstance(p, Url) else p.resolve()).rpartition("/")[2] for p in places],
        [str(one) for one in places],
        [f"{one} ({number})" for number, one in enumerate(places, 1)],
    ):
        names = [target.name for target in targets]
        for target, label in zip(targets, labels, strict=True):
            if names.count(target.name) > 1:
                target.name = show_path(label)


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
        self._fields = sorted({name for entry in entries for name in entry.files})
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
        splits = list(dict.fromkeys(run.split for run in runs))
        # As a packed dataset is opened: the only split, or train.
        split = splits[0] if len(splits) == 1 else "train"
        if split not in splits:
            raise UsageError(
                f"{show_path(path)} has splits {', '.join(splits)}: name the folder of one of them"
            )
        self._runs = [run for run in runs if run.split == split]
        self._ends = np.cumsum([len(run) for run in self._runs])
        self.mean_bytes = sum(sum(run.sizes) for run in self._runs) / max(len(self), 1)
        self._entries: dict[int, Entry] = {}

    def __len__(self) -> int:
        return int(self._ends[-1])

    def open(self, rows: Integers) -> Source:
        return FolderSource([self._entry(row) for row in rows.tolist()])

    def keys(self, rows: Integers) -> list[str] | None:
        return [os.fsdecode(run.keys[at]) for run, at in map(self._at, rows.tolist())]

    def lookup(self) -> Callable[[str], int]:
        every = (key for run in self._runs for key in run.keys)
        return {os.fsdecode(key): row for row, key in enumerate(every)}.__getitem__

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
