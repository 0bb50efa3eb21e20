"""A plain folder as a source: its files opened and read one by one, as people do it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.corpus import Corpus, Run, open_corpus
from shardkit.encoding import parse_npy
from shardkit.errors import DataError, UsageError
from shardkit.measure.target import missing
from shardkit.reading.permute import Positions
from shardkit.reading.source import Source
from shardkit.reading.values import Column
from shardkit.sample import unpack_paths
from shardkit.storage import os_errors, show_path

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

    def read(self, rows: Positions) -> dict[str, Column]:
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
    """As a dataset gives it: text, JSON, arrays and class numbers decoded, all else bytes."""
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


class FolderTarget:
    """A folder that has not been packed. Listed once; what its files are is looked up by reading
    those that are measured."""

    format = "folder"

    def __init__(self, path: Path, name: str = "", where: str | None = None) -> None:
        self.path = path
        self.name = name or self.format
        self.where = where
        self._corpus: Corpus = open_corpus(path)
        if self._corpus.kind == "jsonl":
            raise UsageError(
                f"{show_path(path)} is taken for jsonl, where a sample is a line, not a file: pack"
                " it, and measure the dataset"
            )
        runs = list(self._corpus.runs(_NO_SCRATCH))
        split = _choose_split([run.split for run in runs], path)
        self._runs = [run for run in runs if run.split == split]
        self._ends = np.cumsum([len(run) for run in self._runs])
        self._entries: dict[int, Entry] = {}
        self._row_of: dict[bytes, int] = {}

    def __len__(self) -> int:
        return int(self._ends[-1])

    def open(self, rows: Positions) -> Source:
        return FolderSource([self._entry(row) for row in rows.tolist()])

    def keys(self, rows: Positions) -> list[str] | None:
        places = map(self._place, rows.tolist())
        return [os.fsdecode(run.keys[at]) for run, at in places]

    def find(self, keys: Sequence[str]) -> Positions:
        if not self._row_of:
            every = (key for run in self._runs for key in run.keys)
            self._row_of = {key: row for row, key in enumerate(every)}
        rows = [self._row_of.get(os.fsencode(key), -1) for key in keys]
        if -1 in rows:
            raise missing(self.name, keys[rows.index(-1)])
        return np.array(rows, np.int64)

    def files(self, rows: Positions) -> list[Path]:
        entries = map(self._entry, np.unique(rows).tolist())
        return [Path(path) for entry in entries for path in entry.files.values()]

    def _place(self, row: int) -> tuple[Run, int]:
        """The run that holds a row, and which of its entries that is."""
        number = int(np.searchsorted(self._ends, row, side="right"))
        run = self._runs[number]
        return run, row - int(self._ends[number]) + len(run)

    def _entry(self, row: int) -> Entry:
        found = self._entries.get(row)
        if found is None:
            found = self._entries[row] = self._look_up(*self._place(row))
        return found

    def _look_up(self, run: Run, at: int) -> Entry:
        batch = self._corpus.read(run.slice(at, at + 1), _NO_SCRATCH)
        if batch.rejects:
            raise DataError(f"{self.name}: {': '.join(batch.rejects[0])}; it is no sample")
        files = {
            field: os.fsdecode(os.path.join(os.fsencode(self.path), path))
            for field, path, _ in unpack_paths(batch.keys[0], batch.paths[0], [*batch.fields(0)])
        }
        return Entry(files, run.label)


def _choose_split(splits: Sequence[str], path: Path) -> str:
    """As a packed dataset chooses: the only one, or ``train``."""
    names = list(dict.fromkeys(splits))
    if len(names) == 1:
        return names[0]
    if "train" not in names:
        raise UsageError(
            f"{show_path(path)} has splits {', '.join(names)}: name the folder of one of them"
        )
    return "train"
