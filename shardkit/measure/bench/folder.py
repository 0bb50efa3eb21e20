"""A plain folder as a source: its files opened and read one by one, as people do it."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Integers
from shardkit.batches.source import Source
from shardkit.errors import DataError, UsageError
from shardkit.inputs.base import Corpus, Run
from shardkit.inputs.open import open_corpus
from shardkit.inputs.records.lmdb_files import LmdbCorpus
from shardkit.measure.bench.target import Target, missing
from shardkit.operations.stage import refuse_little_space
from shardkit.samples.encoding import parse_npy
from shardkit.samples.sample import unpack_paths
from shardkit.shards.values import Column
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

_PARTS_OF_FILES = {"jsonl": "a line", "rows": "a row", "tfrecord": "a record"}
_PARTS_OF_FILES[LmdbCorpus.kind] = "an entry"
"""Kinds of input -> what a sample of theirs is."""

_NO_SCRATCH = Path(os.devnull)
"""Only lines of text are ever decompressed, and those are refused here."""


@dataclass(frozen=True)
class Entry:
    """The files of one sample: field -> path. ``label`` is None where folders do not give one."""

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
    """The value as a dataset gives it: text, JSON, arrays and class numbers decoded, else bytes."""
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
    """A folder that has not been packed. Listed once; what its files are is looked up by reading
    those that are measured.

    Attributes:
        corpus: what packs the same samples.
    """

    format = "folder"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = self.format
        corpus = open_corpus(path)
        if corpus.kind in _PARTS_OF_FILES:
            raise UsageError(
                f"{show_path(path)} is taken for {corpus.kind}, where a sample is"
                f" {_PARTS_OF_FILES[corpus.kind]}, not a file: pack it, and measure the dataset"
            )
        runs = list(corpus.runs(_NO_SCRATCH))
        split = _choose_split([run.split for run in runs], path)
        self._set(CorpusPart(corpus, [run for run in runs if run.split == split]))

    def _set(self, corpus: CorpusPart) -> None:
        self.corpus = corpus
        self._ends = np.cumsum([len(run) for run in corpus.listed])
        self._entries: dict[int, Entry] = {}
        self._row_of: dict[bytes, int] = {}

    def __len__(self) -> int:
        return int(self._ends[-1])

    def open(self, rows: Integers) -> Source:
        return FolderSource([self._entry(row) for row in rows.tolist()])

    def keys(self, rows: Integers) -> list[str] | None:
        return [os.fsdecode(run.keys[at]) for run, at in self._runs(rows)]

    def find(self, keys: Sequence[str]) -> Integers:
        if not self._row_of:
            every = (key for run in self.corpus.listed for key in run.keys)
            self._row_of = {key: row for row, key in enumerate(every)}
        rows = [self._row_of.get(os.fsencode(key), -1) for key in keys]
        if -1 in rows:
            raise missing(self.name, keys[rows.index(-1)])
        return np.array(rows, np.int64)

    def files(self, rows: Integers) -> list[Path]:
        entries = map(self._entry, np.unique(rows).tolist())
        return [Path(path) for entry in entries for path in entry.files.values()]

    def copied(self, rows: Integers, folder: Path, where: str) -> Target:
        """A copy of the files of these rows alone."""
        there = copy.copy(self)
        there.path, there.where, there._entries = folder, where, {}
        refuse_little_space(folder.parent, sum(path.stat().st_size for path in self.files(rows)))
        with os_errors(f"copying {show_path(self.path)} to {where}"):
            for row in rows.tolist():
                own, copies = self._entry(row), {}
                for field, path in own.files.items():
                    copies[field] = os.path.join(folder, os.path.relpath(path, self.path))
                    os.makedirs(os.path.dirname(copies[field]), exist_ok=True)
                    shutil.copyfile(path, copies[field])
                there._entries[row] = Entry(copies, own.label)
        return there

    # --- choosing -------------------------------------------------------------------------

    def sizes(self, rows: Integers) -> Integers:
        """(N,) int64: bytes of the files of each sample."""
        return np.array([run.sizes[at] for run, at in self._runs(rows)], np.int64)

    def usable(self, rows: Integers) -> Integers:
        """The rows that are samples: every file is read, and some hold no picture."""
        return np.array([row for row in rows.tolist() if self._try(row) is not None], np.int64)

    def part(self, rows: Integers) -> FolderTarget:
        """The same folder, of which nothing but these rows is seen."""
        chosen = copy.copy(self)
        runs = [run.slice(at, at + 1) for run, at in self._runs(rows)]
        chosen._set(CorpusPart(self.corpus.corpus, runs))
        return chosen

    # --- looking up -----------------------------------------------------------------------

    def _runs(self, rows: Integers) -> list[tuple[Run, int]]:
        """The run that holds each row, and which of its entries that is."""
        numbers = np.searchsorted(self._ends, rows, side="right")
        at = rows - np.concatenate([[0], self._ends])[numbers]
        runs = [self.corpus.listed[number] for number in numbers.tolist()]
        return [*zip(runs, at.tolist(), strict=True)]

    def _entry(self, row: int) -> Entry:
        found = self._try(row)
        if found is None:
            run, at = self._runs(np.array([row]))[0]
            path = show_path(self.path / run.base / os.fsdecode(run.locators[at]))
            raise DataError(
                f"{path} is no sample: move it away, or name a packed dataset first, whose samples"
                " are then looked up here"
            )
        return found

    def _try(self, row: int) -> Entry | None:
        if row not in self._entries:
            run, at = self._runs(np.array([row]))[0]
            batch = self.corpus.read(run.slice(at, at + 1), _NO_SCRATCH)
            if batch.rejects:
                return None
            named = unpack_paths(batch.keys[0], batch.paths[0], [*batch.fields(0)])
            root = os.fsencode(self.path)
            files = {name: os.fsdecode(os.path.join(root, path)) for name, path, _ in named}
            self._entries[row] = Entry(files, run.label)
        return self._entries[row]


class CorpusPart:
    """A corpus of which only some entries are listed."""

    def __init__(self, corpus: Corpus, listed: list[Run]) -> None:
        self.corpus = corpus
        self.listed = listed
        self.ignored: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.corpus, name)

    def splits(self) -> list[str]:
        return list(dict.fromkeys(run.split for run in self.listed))

    def runs(self, scratch: Path) -> Iterator[Run]:
        return iter(self.listed)


def _choose_split(splits: Sequence[str], path: Path) -> str:
    """The split that a packed dataset would choose: the only one, or ``train``."""
    names = list(dict.fromkeys(splits))
    if len(names) == 1:
        return names[0]
    if "train" not in names:
        raise UsageError(
            f"{show_path(path)} has splits {', '.join(names)}: name the folder of one of them"
        )
    return "train"
