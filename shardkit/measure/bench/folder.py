"""A plain folder as a source: its files opened and read one by one, as people do it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Integers
from shardkit.batches.source import Source
from shardkit.errors import DataError, UsageError
from shardkit.inputs.base import Run
from shardkit.inputs.open import open_corpus
from shardkit.inputs.records.lmdb_files import LmdbCorpus
from shardkit.measure.bench.target import Target, missing
from shardkit.samples.encoding import parse_npy
from shardkit.samples.sample import unpack_paths
from shardkit.shards.values import Column
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

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
        self.path = path
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
