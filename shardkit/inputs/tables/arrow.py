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

from shardkit.errors import FormatError
from shardkit.index.manifest import is_field_name
from shardkit.inputs.folders import Root, list_names, pass_over
from shardkit.inputs.names import join
from shardkit.inputs.tables.features import Features, in_info
from shardkit.inputs.tables.saved_files import DICT_NAME, INFO_NAME, STATE_NAME, is_saved
from shardkit.inputs.tables.table_files import ClosedFile, Table
from shardkit.inputs.tables.tabular import TableCorpus
from shardkit.inputs.whole_sets import count_files, refuse_missing
from shardkit.memory.whole_files import read_file
from shardkit.system.paths import first_few, show_path

_MAX_JSON_BYTES = 64 << 20
_ARROW = frozenset({".arrow"})


class SavedCorpus(TableCorpus):
    """Each column is a field."""

    kind = "hf"
    noun = "saved datasets"
    _said: list[str]

    def files(self, ignored: dict[str, int]) -> Iterator[tuple[Root, str]]:
        self._said = []
        if not is_saved(self.source):
            return
        for root in self._roots():
            folder = self.source / root.base
            names = _files(folder)
            there = {*list_names(folder, "", _ARROW).names}
            refuse_missing(there.intersection(names), folder)
            self._pass_over(root, sorted(there.difference(names)), ignored)
            yield from ((root, join(root.base, name)) for name in names)

    def _roots(self) -> list[Root]:
        path = self.source / DICT_NAME
        if not path.is_file():
            split = _state(self.source).get("_split")
            return [Root(str(split) if is_field_name(split) else "train", "")]
        splits = _load(path).get("splits")
        if not isinstance(splits, list) or not all(map(is_field_name, splits)):
            raise FormatError(f"{show_path(path)} names no splits, or one that cannot be a folder")
        return [Root(split, split) for split in splits]

    def _pass_over(self, root: Root, names: list[str], ignored: dict[str, int]) -> None:
        """Tables that are not of this dataset, but of an older one that was saved there."""
        for name in names:
            pass_over(name, ignored)
        if names:
            shown = first_few([join(root.base, name) for name in names])
            self._said.append(f"left out: {count_files(names)} not in {STATE_NAME}: {shown}")

    def notes_on_files(self) -> Sequence[str]:
        return self._said

    def open_table(self, path: Path) -> Table:
        return _ArrowTable(path)

    def described(self, base: str) -> Features:
        return in_info((self.source / base).parent / INFO_NAME)


def _files(folder: Path) -> list[str]:
    """The names of the tables of one saved dataset, in order."""
    held = _state(folder).get("_data_files")
    names: list[Any] = [file.get("filename") for file in held or [] if isinstance(file, dict)]
    for name in names:
        if not isinstance(name, str) or not name or "/" in name or "\0" in name or name == "..":
            raise FormatError(
                f"{show_path(folder / STATE_NAME)} names {name!r}, which is no file beside it"
            )
    return names


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
