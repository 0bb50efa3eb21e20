"""Containers that others made: files that hold many samples each, told by their names, and folders
of a few ``.npy`` files, told by their headers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from shardkit.errors import CorpusError, FormatError
from shardkit.inputs.containers.idx_files import is_idx_name, looks_like_idx
from shardkit.inputs.containers.name_lists import set_aside
from shardkit.inputs.containers.npy_reading import (
    COLUMNS,
    Reading,
    first_parts,
    have_labels,
    reading_of,
    reading_of_many,
)
from shardkit.inputs.containers.row_columns import ArrayColumn, misfit, told_misfit
from shardkit.inputs.containers.row_files import column_of
from shardkit.inputs.containers.tfrecord_file import (
    has_record_ending,
    is_record_name,
    looks_like_records,
)
from shardkit.inputs.endings import CONTAINER_EXTENSIONS, LMDB_EXTENSIONS, NPY
from shardkit.inputs.files import walk
from shardkit.inputs.names import DOCUMENTS, extension, is_hidden, stem
from shardkit.inputs.text import TextCorpus
from shardkit.samples.encoding import MAX_NPY_HEADER, npy_layout
from shardkit.samples.sample import SPLIT_NAMES
from shardkit.shards.locate import refuse_orphans
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

ROWS = "rows"
RECORDS = "tfrecord"
DATABASE = "lmdb"

MOST_OTHERS = 64
"""Files that are no container, beside which none is looked for: a folder of many small files."""

MOST_NAMES = 20_000
"""``.npy`` files of one folder whose names are looked at: half a second."""

MOST_NPY = 4096
"""``.npy`` files of one folder that may be numbered parts of columns: their headers are read."""

MOST_FOLDERS = 64
"""Folders below a source that are looked into: the others are like them, or packing says so."""

MOST_IDX = 8
"""MNIST's files looked into, of one input."""

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
            return _of_folder(source, kind_of)
        kind = _of_file(source)
        if kind is not None:
            refuse_orphans(source)
        return kind


def _of_file(path: Path) -> str | None:
    if is_record_name(path.name) and not _holds_records(path):
        return None
    if is_idx_name(path.name) and not looks_like_idx(path):
        return None
    return ROWS if extension(path.name) == NPY else container_of(path.name)


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
    return ROWS if extension(name) in CONTAINER_EXTENSIONS or is_idx_name(name) else None


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
    if not top.folders:
        return _judge([top], kind_of)
    is_beside = any(extension(name) == NPY or container_of(name) for name in top.files)
    if is_beside:
        return None if _hold_samples(source, kind_of) else _judge([top], kind_of)
    if not SPLIT_NAMES.issuperset(top.folders):
        return _of_nested(source, kind_of)
    below = [_list(source / name) for name in top.folders]
    found = [folder for folder in below if folder is not None and not folder.folders]
    return _judge(found, kind_of) if len(found) == len(below) else None


def _hold_samples(source: Path, kind_of: KindOf) -> bool:
    """Whether folders below hold anything that may be a sample, or are too many to look into: logs
    and the like beside arrays say nothing of those."""
    seen = 0
    for folder in islice(walk(source, measure=False), MOST_FOLDERS):
        seen += 1
        if folder.base and any(kind_of(n) or container_of(n) for n in folder.names):
            return True
    return seen == MOST_FOLDERS


def _of_nested(source: Path, kind_of: KindOf) -> str | None:
    """Rows, if each folder below that holds ``.npy`` files holds columns, with labels among them;
    or if other containers of rows are all in one folder, as ``MNIST/raw``.

    Raises:
        CorpusError: only some do, or they hold containers of another kind, of which nobody knows
            whether they are one split.
    """
    held: list[_Folder] = []
    for listing in islice(walk(source, measure=False), MOST_FOLDERS):
        folder = _Folder(source / listing.base, listing.names, listing.folders)
        if all(stem(name).lower() in DOCUMENTS for name in folder.files):
            continue
        if len(folder.files) > MOST_NPY or _kind(folder, kind_of) is None:
            return None
        held.append(folder)
    kinds = {_kind(folder, kind_of) for folder in held}
    if kinds == {NPY}:
        return _nested_arrays(source, held)
    if kinds == {ROWS} and len(held) == 1:
        return _judge(held, kind_of)
    if len(kinds) == 1:
        raise CorpusError(
            f"{show_path(held[0].path / held[0].files[0])} and others lie in folders of"
            f" {show_path(source)} that are not called as splits are: pack each folder apart, or"
            f" choose --corpus {kinds.pop()}, which makes one dataset of all"
        )
    return None


def _nested_arrays(source: Path, folders: Sequence[_Folder]) -> str | None:
    columns = [_columns(folder, [*filter(_is_npy, folder.files)]) for folder in folders]
    if not any(map(have_labels, columns)):
        return None
    if all(have_labels(own) and reading_of(own) == "rows" for own in columns):
        return ROWS
    odd = next(
        i for i, own in enumerate(columns) if not have_labels(own) or reading_of(own) != "rows"
    )
    raise CorpusError(
        f"some folders of {show_path(source)} hold columns of .npy files with labels, and"
        f" {show_path(folders[odd].path)} does not: pack them apart, or choose with --corpus"
        " arrays, of which each file is a sample, or rows"
    )


def _is_npy(name: str) -> bool:
    return extension(name) == NPY


def _columns(folder: _Folder, names: Sequence[str]) -> list[ArrayColumn | None]:
    return [_header(folder.path / name, name) for name in names]


def _list(path: Path) -> _Folder | None:
    """A folder's names; None if too many files of it are no container."""
    files: list[str] = []
    folders: list[str] = []
    others = num_npy = 0
    with os.scandir(path) as entries:
        for entry in entries:
            is_folder = os.path.isdir(entry)
            is_special = not is_folder and os.path.exists(entry) and not os.path.isfile(entry)
            if is_hidden(entry.name) or is_special:  # opening a FIFO may wait for ever
                continue
            (folders if is_folder else files).append(entry.name)
            is_npy = _is_npy(entry.name)
            num_npy += is_npy
            others += not is_npy and container_of(entry.name) is None
            if others > MOST_OTHERS or num_npy > MOST_NAMES:
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
    if kinds == {NPY}:
        return _npy_kind(folders)
    if kinds == {RECORDS}:
        paths = [each.path / name for each in folders for name in each.files]
        if not all(_holds_records(path) for path in paths if is_record_name(path.name)):
            return None
    if kinds == {ROWS} and not _hold_rows(folders):
        return None
    if kinds == {None}:
        for folder in folders:
            _refuse_mixed(folder, kind_of)
    return kinds.pop() if len(kinds) == 1 else None


def _hold_rows(folders: Sequence[_Folder]) -> bool:
    """Whether files are containers by their endings, or one of the first begins as MNIST's do: if
    others do not, packing says so."""
    found = [each.path / name for each in folders for name in each.files]
    idx = [path for path in found if is_idx_name(path.name)]
    rest = any(extension(path.name) in CONTAINER_EXTENSIONS for path in found)
    return rest or any(path.is_file() and looks_like_idx(path) for path in idx[:MOST_IDX])


def _kind(folder: _Folder, kind_of: KindOf) -> str | None:
    """The kind of the containers in a folder, ``.npy`` for such files alone; None if there are
    none, or several kinds, or others that are worth as much."""
    found = {name: NPY if extension(name) == NPY else container_of(name) for name in folder.files}
    kinds = {kind for kind in found.values() if kind is not None}
    rest = [kind_of(name) for name, kind in found.items() if kind is None]
    texts = [n for n, k in found.items() if k is None and stem(n).lower() not in DOCUMENTS]
    num_texts = sum(kind_of(name) == TextCorpus.kind for name in texts)
    is_beside = {*rest} - {"", TextCorpus.kind} or num_texts > len(found) - len(rest)
    return kinds.pop() if len(kinds) == 1 and not is_beside else None


def _npy_kind(folders: Sequence[_Folder]) -> str | None:
    """Rows, if the ``.npy`` files of each folder are columns; None if each is a sample."""
    readings: list[Reading] = []
    for folder in folders:
        readings.append(_reading(folder))
    if "arrays" in readings:
        return None
    if "either" in readings:
        folder = folders[readings.index("either")]
        _refuse_misfit(folder)
        num = sum(map(_is_npy, folder.files))
        raise CorpusError(
            f"{show_path(folder.path)} holds {num:,} .npy files: each file may be a sample, or each"
            " row of all of them; choose with --corpus arrays|rows. If some files together are one"
            " sample, call them 0.a.npy, 0.b.npy and so on, and choose --corpus paired"
        )
    return ROWS


def _refuse_misfit(folder: _Folder) -> None:
    """Raise CorpusError if labels are of another length than what they seem to belong to."""
    names = [*filter(_is_npy, folder.files)]
    columns = [column for column in _columns(folder, names[:COLUMNS]) if column is not None]
    found = misfit(set_aside(columns, [])[0]) if len(columns) == len(names) else None
    if found is not None:
        raise CorpusError(
            f"{show_path(folder.path)} holds {told_misfit(*found)}; or, if each file is a sample,"
            " choose --corpus arrays"
        )


def _reading(folder: _Folder) -> Reading:
    names = [*filter(_is_npy, folder.files)]
    if len(names) <= COLUMNS:
        return reading_of(_columns(folder, names))
    first = first_parts(names)
    if first and len(names) <= MOST_NPY:
        return reading_of(_columns(folder, names))
    return reading_of_many(_columns(folder, first))


def _header(path: Path, name: str) -> ArrayColumn | None:
    """The column that a file is by its header; None if it has no rows, or is no ``.npy``."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(MAX_NPY_HEADER)
    try:
        dtype, shape, _ = npy_layout(head)
    except FormatError:
        return None
    return column_of(name, dtype, shape)
