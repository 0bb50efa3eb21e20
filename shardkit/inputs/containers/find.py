"""Containers that others made: files that hold many samples each, told by their names, and folders
of a few ``.npy`` files, told by their headers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.inputs.containers.tfrecord_file import (
    has_record_ending,
    is_record_name,
    looks_like_records,
)
from shardkit.inputs.endings import LMDB_EXTENSIONS
from shardkit.inputs.names import DOCUMENTS, extension, is_hidden, stem
from shardkit.inputs.text import TextCorpus
from shardkit.samples.sample import SPLIT_NAMES
from shardkit.shards.locate import refuse_orphans
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

RECORDS = "tfrecord"
DATABASE = "lmdb"

MOST_OTHERS = 64
"""Files that are no container, beside which none is looked for: a folder of many small files."""


KindOf = Callable[[str], str]
"""The kind that a file of a name belongs to by itself, or ``""``."""


def container_kind(source: Path, kind_of: KindOf) -> str | None:
    """The kind of the containers at ``source``; None if there are none, or if files of other kinds
    lie beside them.

    Raises:
        CorpusError: ``.npy`` files that may be samples, or columns of samples; containers beside
            files of other kinds.
        DatasetMissingError: they are shards of ours.
        StorageError: a folder cannot be listed.
    """
    with os_errors(f"looking at {show_path(source)}"):
        if source.is_dir():
            refuse_orphans(source)  # else shards of .npy files would be packed as arrays
        kind = _of_folder(source, kind_of) if source.is_dir() else _of_file(source)
        if kind is not None and source.is_file():
            refuse_orphans(source)
        return kind


def _of_file(path: Path) -> str | None:
    if is_record_name(path.name) and not _holds_records(path):
        return None
    return container_of(path.name)


def _holds_records(path: Path) -> bool:
    """Whether a file of a name like those of records is one: some names say little."""
    if has_record_ending(path.name):
        return True
    return path.is_file() and looks_like_records(path)


def container_of(name: str) -> str | None:
    """The kind of container a file is by its name alone; ``.npy`` is none."""
    if is_record_name(name):
        return RECORDS
    if extension(name) in LMDB_EXTENSIONS:
        return DATABASE
    return None


@dataclass(frozen=True)
class _Folder:
    """The visible names of a folder, sorted."""

    path: Path
    files: list[str]
    folders: list[str]


def _of_folder(source: Path, kind_of: KindOf) -> str | None:
    top = _list(source)
    if top is None:
        return None
    if not top.folders or any(container_of(name) for name in top.files):
        return _judge([top], kind_of)
    if not SPLIT_NAMES.issuperset(top.folders):
        return None
    below = [_list(source / name) for name in top.folders]
    found = [folder for folder in below if folder is not None and not folder.folders]
    return _judge(found, kind_of) if len(found) == len(below) else None


def _list(path: Path) -> _Folder | None:
    """A folder's names; None if too many files of it are no container."""
    files: list[str] = []
    folders: list[str] = []
    others = 0
    with os.scandir(path) as entries:
        for entry in entries:
            is_folder = os.path.isdir(entry)
            is_special = not is_folder and os.path.exists(entry) and not os.path.isfile(entry)
            if is_hidden(entry.name) or is_special:  # opening a FIFO may wait for ever
                continue
            (folders if is_folder else files).append(entry.name)
            others += container_of(entry.name) is None
            if others > MOST_OTHERS:
                return None
    return _Folder(path, sorted(files), sorted(folders))


def _refuse_mixed(folder: _Folder, kind_of: KindOf) -> None:
    """Raise CorpusError where containers lie beside files of other kinds that are fewer bytes:
    one of the two would be passed over, and may be all there is."""
    inside = [name for name in folder.files if container_of(name) is not None]
    beside = {
        name: kind
        for name in folder.files
        if name not in inside and (kind := kind_of(name)) not in ("", TextCorpus.kind)
    }
    sizes = [sum(_size(folder.path / name) for name in names) for names in (inside, beside)]
    if inside and beside and sizes[0] > sizes[1]:
        first, kind = next(iter(beside.items()))
        raise CorpusError(
            f"{show_path(folder.path)} holds {show_path(inside[0])} beside {show_path(first)}, each"
            " of which may be what is meant; choose with --corpus"
            f" {container_of(inside[0])}|{kind}, or move one away"
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _judge(folders: Sequence[_Folder], kind_of: KindOf) -> str | None:
    kinds = {_kind(folder, kind_of) for folder in folders}
    if kinds == {RECORDS}:
        paths = [each.path / name for each in folders for name in each.files]
        if not all(_holds_records(path) for path in paths if is_record_name(path.name)):
            return None
    if kinds == {None}:
        for folder in folders:
            _refuse_mixed(folder, kind_of)
    return kinds.pop() if len(kinds) == 1 else None


def _kind(folder: _Folder, kind_of: KindOf) -> str | None:
    """The kind of the containers in a folder; None if there are
    none, or several kinds, or others that are worth as much."""
    found = {name: container_of(name) for name in folder.files}
    kinds = {kind for kind in found.values() if kind is not None}
    rest = [kind_of(name) for name, kind in found.items() if kind is None]
    texts = [n for n, k in found.items() if k is None and stem(n).lower() not in DOCUMENTS]
    num_texts = sum(kind_of(name) == TextCorpus.kind for name in texts)
    is_beside = {*rest} - {"", TextCorpus.kind} or num_texts > len(found) - len(rest)
    return kinds.pop() if len(kinds) == 1 and not is_beside else None
