"""Files that an annotation file names: each one is a sample, with what the file holds of it."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from shardkit.errors import CorpusError
from shardkit.inputs.base import Run
from shardkit.inputs.file_parts import MAIN, FilePart, PartsCorpus, PartsEntry, Scalar, is_part
from shardkit.inputs.files import extension, join, pass_over, walk
from shardkit.inputs.folders import nothing_found, split_of
from shardkit.inputs.guards import role_of
from shardkit.inputs.look import Look
from shardkit.inputs.named_files import NamedFiles, parts_of
from shardkit.system.paths import first_few, show_path

MAX_FOLDERS = 256
"""Looked into for annotation files, at most, of those at one place."""

_Found = dict[str, tuple[int, int]]
"""Path -> its size and stamp, as it was listed."""


class ListedRow(NamedTuple):
    """A sample, as annotation files hold it.

    Attributes:
        split: where it belongs. files: the annotation files that name it.
        record: what the corpus finds its values by.
    """

    split: str
    files: tuple[str, ...]
    record: Any


class ListedCorpus(PartsCorpus):
    """Files that annotation files name, which derived kinds read when they are made.

    Order is that of the folders, not of the annotation file. A named file that is not there is a
    reject, and a file that no row names is passed over, counted and reported.

    Attributes:
        files: path of an annotation file, relative to the source -> its stamp.
        rows: path of a sample's file -> what is held of it.
        told: what there is to report of annotation files.
        names: all files of the source.
    """

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        self.files: dict[str, int] = {}
        self.rows: dict[str, ListedRow] = {}
        self.told: list[str] = []
        self.names = NamedFiles(
            join(folder.base, name)
            for folder in walk(source, measure=False)
            for name in folder.names
        )

    def add(self, path: str, row: ListedRow) -> None:
        """Add the sample of a file. Raises CorpusError if that is in another."""
        if not _may_be_part(path):
            what = f"{path[:200]!r}, which cannot be a part of a sample"
            raise CorpusError(f"{first_few(row.files)} names {what}; rename it")
        if path in self.rows:
            why = f"{show_path(path)} is named twice, and a file can belong to one sample only"
            raise CorpusError(f"{first_few(row.files)}: {why}; join the rows, or keep one")
        self.rows[path] = row

    def values(self, row: ListedRow) -> dict[str, Scalar]:
        """Return field -> value of one sample."""
        raise NotImplementedError

    def splits(self) -> list[str]:
        return sorted({row.split for row in self.rows.values()}) or ["train"]

    def runs(self, scratch: Path) -> Iterator[Run]:
        self.ignored.clear()
        if not self.rows:
            raise nothing_found(self.noun, self.source, self.ignored)
        found: _Found = {}
        lost, unnamed = list[str](), list[str]()
        for folder in walk(self.source, "", None, self.ignored):
            lost += [join(folder.base, name) for name in folder.lost]
            for name, known in folder.files().items():
                path = join(folder.base, name)
                found[path] = known
                if path not in self.rows and path not in self.files:
                    pass_over(name, self.ignored)
                    unnamed += [path] if extension(path) in MAIN else []
        self.notes = [f"annotations of {', '.join(map(show_path, self.files))}", *self.told]
        if unnamed:
            self.notes.append(f"{len(unnamed):,} files that it does not name: {first_few(unnamed)}")
        for split in self.splits():
            yield from self.runs_of(split, self._entries(split, found))
            yield from self.runs_of(split, map(self.lost, (p for p in lost if p not in self.rows)))
            lost = []

    def _entries(self, split: str, found: _Found) -> Iterator[PartsEntry]:
        rows = {path: row for path, row in self.rows.items() if row.split == split}
        order = [path for path in found if path in rows]
        order += [path for path in rows if path not in found]
        bare = {path: path.rpartition(".")[0] for path in rows}
        below = {path: below_split(split, one) for path, one in bare.items()}
        # cat/0.jpg may lie next to train-2012/cat/0.jpg, or to cat/0.png.
        unique = (keys for keys in (below, bare) if len({*keys.values()}) == len(keys))
        keys = next(unique, {path: path for path in rows})
        for path in order:
            row = rows[path]
            parts = [FilePart("", path, *found.get(path, (-1, 0)))]
            why = f"{show_path(path)} is named in {first_few(row.files)}, and is not there"
            stamp = sum(self.files[file] for file in row.files)
            held = self.values(row) if path in found else {}
            reason = why * (path not in found)
            yield PartsEntry(keys[path], parts, held, stamp=stamp, reason=reason)


def below_split(split: str, path: str) -> str:
    """Return a path without the folder of its split, if it begins with that."""
    first, slash, rest = path.partition("/")
    return rest if slash and split in (first, split_of(first)) else path


# --- where annotation files lie, and which file a name means -------------------------------


def annotation_folders(look: Look) -> list[str]:
    """Return the source, its folders, and theirs if those are called as splits, images or
    annotations: annotation files are looked for there."""
    if look.is_file:
        return []
    tops = look.top.folders[:MAX_FOLDERS]
    known = [n for n in tops if split_of(n) or role_of(n) or n.startswith(("annotation", "data"))]
    below = [f"{name}/{b}" for name in known for b in look.list(name).folders[:MAX_FOLDERS]]
    return ["", *tops, *below]


def place_names(
    names: Sequence[str], files: NamedFiles, table: str, split: str | None = None
) -> list[str]:
    """Return the paths, relative to the source, of the files that a table names; none if none of
    them is there.

    They lie in one folder, or below it as the names say. It is looked for in the table's own
    folder first, then in those above that; folders of other splits do not count.

    Raises:
        CorpusError: less than half of the files are there, or they may lie in two places.
    """
    where, base = show_path(table), posixpath.dirname(table)
    found = [files.find(name, base) for name in names]
    if split is not None:
        found = [[p for p in own if _may_be_of(posixpath.dirname(p), split)] for own in found]
    while base and not any(path.startswith(f"{base}/") for own in found for path in own):
        base = posixpath.dirname(base)
    found = [[path for path in own if path.startswith(join(base, ""))] for own in found]
    starts: dict[str, str] = {}
    for name, own in zip(names, found, strict=True):
        starts |= {"/".join(path.split("/")[: -len(parts_of(name))]): path for path in own}
    two = next((own[:2] for own in found if len(own) > 1), [*starts.values()][:2])
    if len(two) > 1:
        places = f"{show_path(two[0])} or {show_path(two[1])}"
        advice = "move it into the folder of its files, or write paths from the source on"
        raise CorpusError(f"{where} may name files in two places, as {places}; {advice}")
    num_found = sum(map(bool, found))
    if 0 < 2 * num_found < len(names):
        what = f"{len(names):,} files, of which only {num_found:,} are there"
        raise CorpusError(f"{where} names {what}; fetch the others, or correct the names")
    if not starts:
        return []
    start = next(iter(starts))
    return [
        own[0] if own else join(start, "/".join(parts_of(name)))
        for name, own in zip(names, found, strict=True)
    ]


def _may_be_part(path: str) -> bool:
    try:
        return b"\0" not in os.fsencode(path) and is_part(path)
    except UnicodeEncodeError:  # half a surrogate pair
        return False


@cache
def _may_be_of(folder: str, split: str) -> bool:
    """Return True unless a part of a folder's path is called after another split."""
    called = {*map(_alike, folder.split("/"))} - {None}
    return not called or _alike(split) in called


def _alike(name: str) -> str | None:
    split = split_of(name)
    return "val" if split in ("valid", "validation", "dev") else split
