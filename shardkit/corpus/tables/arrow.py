"""A folder that Hugging Face ``datasets`` wrote with ``save_to_disk``, read without that library.

``Dataset.save_to_disk`` writes ``state.json``, which names the ``.arrow`` files (Arrow IPC
streams) in order, and ``dataset_info.json``; ``DatasetDict.save_to_disk`` one such folder for each
split that its ``dataset_dict.json`` names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shardkit.corpus.folders import Root
from shardkit.corpus.names import join
from shardkit.corpus.tables.features import Features, in_info
from shardkit.corpus.tables.saved_files import DICT_NAME, INFO_NAME, STATE_NAME, is_saved
from shardkit.corpus.tables.table_files import ClosedFile, Table
from shardkit.corpus.tables.tabular import TableCorpus
from shardkit.errors import FormatError
from shardkit.index.manifest import is_field_name
from shardkit.memory.whole_files import read_file
from shardkit.system.paths import show_path

_MAX_JSON_BYTES = 64 << 20


class SavedCorpus(TableCorpus):
    """Each column is a field."""

    kind = "hf"
    noun = "saved datasets"

    def files(self, ignored: dict[str, int]) -> Iterator[tuple[Root, str]]:
        if not is_saved(self.source):
            return
        path = self.source / DICT_NAME
        if not path.is_file():
            split = _state(self.source).get("_split")
            name = str(split) if is_field_name(split) else "train"
            yield from _files(self.source, Root(name, ""))
            return
        splits = _load(path).get("splits")
        if not isinstance(splits, list) or not all(map(is_field_name, splits)):
            raise FormatError(f"{show_path(path)} names no splits, or one that cannot be a folder")
        for split in splits:
            yield from _files(self.source, Root(split, split))

    def open_table(self, path: Path) -> Table:
        return _ArrowTable(path)

    def described(self, base: str) -> Features:
        return in_info((self.source / base).parent / INFO_NAME)


def _files(source: Path, root: Root) -> Iterator[tuple[Root, str]]:
    folder = source / root.base
    held = _state(folder).get("_data_files")
    names = [file.get("filename") for file in held or [] if isinstance(file, dict)]
    for name in names:
        if not isinstance(name, str) or not name or "/" in name or "\0" in name or name == "..":
            raise FormatError(
                f"{show_path(folder / STATE_NAME)} names {name!r}, which is no file beside it"
            )
        yield root, join(root.base, name)


def _state(folder: Path) -> dict[str, Any]:
    path = folder / STATE_NAME
    state = _load(path)
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise FormatError(
            f"{show_path(path)}: an old datasets saved a selection of rows beside the table"
            " (_indices_data_files), which shardkit does not read; load it and save"
            " dataset.flatten_indices()"
        )
    return state


def _load(path: Path) -> dict[str, Any]:
    try:
        held = json.loads(read_file(path, _MAX_JSON_BYTES))
        if not isinstance(held, dict):
            raise ValueError("it holds no object")
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{show_path(path)} is damaged: {error}; save the dataset again"
        ) from error
    return held


class _ArrowTable:
    """One part: a stream can be read from its start alone."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self._arrow = pa
        self._path = path
        self.schema = pa.ipc.open_stream(ClosedFile(path)).schema
        self.starts = [0]

    def sizes(self, columns: Sequence[str]) -> list[tuple[int, int]]:
        with self._arrow.memory_map(os.fsencode(self._path)) as mapped:  # nothing is read
            return [(batch.num_rows, batch.nbytes) for batch in self._batches(mapped, columns)]

    def batches(self, columns: Sequence[str], part: int) -> Iterator[Any]:
        return self._batches(ClosedFile(self._path), columns)

    def paths(self, column: str, part: int) -> Iterator[Any]:
        with self._arrow.memory_map(os.fsencode(self._path)) as mapped:
            for batch in self._batches(mapped, [column]):
                yield batch.column(0)

    def _batches(self, source: Any, columns: Sequence[str]) -> Iterator[Any]:
        ipc = self._arrow.ipc
        wanted = sorted(self.schema.names.index(column) for column in columns)
        options = ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
        yield from ipc.open_stream(source, options=options)
