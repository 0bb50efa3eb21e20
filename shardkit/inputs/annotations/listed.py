"""Files that an annotation file names: each one is a sample, with what the file holds of it."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from shardkit.errors import CorpusError
from shardkit.inputs.base import Run
from shardkit.inputs.file_parts import MAIN, FilePart, PartsCorpus, PartsEntry, Scalar, is_part
from shardkit.inputs.files import extension, join, stems, walk
from shardkit.inputs.folders import nothing_found, pass_over, split_of
from shardkit.inputs.guards import role_of
from shardkit.inputs.look import Look
from shardkit.system.paths import first_few, show_path

MAX_FOLDERS = 256
"""Looked into for annotation files, at most, of those at one place."""

_Found = dict[str, tuple[int, int]]
"""Path -> its size and stamp, as it was listed."""


class ListedRow(NamedTuple):
    """A sample, as annotation files hold it.

    Attributes:
        split: where it belongs. files: the annotation files that name it.
        parts: (view, path relative to the source) of its files, the main one first.
        record: what the corpus finds its values by.
    """

    split: str
    files: tuple[str, ...]
    parts: tuple[tuple[str, str], ...]
    record: Any


class ListedCorpus(PartsCorpus):
    """Files that annotation files name, which derived kinds read when they are made.

    Order is that of the folders, not of the annotation file. A named file that is not there is a
    reject, and a file that no row names is passed over, counted and reported.

    Attributes:
        files: path of an annotation file, relative to the source -> its stamp.
        rows: path of a sample's main file -> what is held of it.
        told: what there is to report of annotation files.
    """

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        self.files: dict[str, int] = {}
        self.rows: dict[str, ListedRow] = {}
        self.told: list[str] = []
        self._taken: set[str] = set()

    def add(self, row: ListedRow) -> None:
        """Add a sample. Raises CorpusError if one of its files is in another."""
        for _, path in row.parts:
            if path in self._taken:
                why = f"{show_path(path)} is named twice, and a file can belong to one sample only"
                raise CorpusError(f"{first_few(row.files)}: {why}; join the rows, or keep one")
            self._taken.add(path)
        self.rows[row.parts[0][1]] = row

    def values(self, row: ListedRow) -> dict[str, Scalar]:
        """Return field -> value of one sample."""
        raise NotImplementedError

    def label_of(self, row: ListedRow) -> int | None:
        """Return the class of a sample, where folders are classes."""
        return None

    def splits(self) -> list[str]:
        return sorted({row.split for row in self.rows.values()}) or ["train"]

    def runs(self, scratch: Path) -> Iterator[Run]:
        self.ignored.clear()
        if not self.rows:
            raise nothing_found(self.noun, self.source, self.ignored)
        found: _Found = {}
        keys: dict[str, str] = {}
        lost, unnamed = list[str](), list[str]()
        for folder in walk(self.source, "", None, self.ignored):
            lost += [join(folder.base, name) for name in folder.lost]
            paths = [join(folder.base, name) for name in folder.names]
            found |= zip(paths, zip(folder.sizes, folder.stamps, strict=True), strict=True)
            own = [path for path in paths if path in self.rows]
            plain = stems([path.rpartition("/")[2] for path in own])
            keys |= zip(own, [join(folder.base, name) for name in plain], strict=True)
            for path in paths:
                if path not in self._taken and path not in self.files:
                    pass_over(path.rpartition("/")[2], self.ignored)
                    unnamed += [path] if extension(path) in MAIN else []
        self.notes = [f"annotations of {', '.join(map(show_path, self.files))}", *self.told]
        if unnamed:
            self.notes.append(f"{len(unnamed):,} files that it does not name: {first_few(unnamed)}")
        for split in self.splits():
            yield from self.runs_of(split, self._entries(split, found, keys))
            yield from self.runs_of(split, map(self.lost, (p for p in lost if p not in self.rows)))
            lost = []

    def _entries(self, split: str, found: _Found, keys: dict[str, str]) -> Iterator[PartsEntry]:
        rows = {path: row for path, row in self.rows.items() if row.split == split}
        own = {path: key for path, key in keys.items() if path in rows}
        below = {path: below_split(split, key) for path, key in own.items()}
        if len({*below.values()}) < len(below):  # cat/0.jpg next to train-2012/cat/0.jpg
            below = own
        for path in [*own, *(path for path in rows if path not in own)]:
            row = rows[path]
            parts = [FilePart(v, p, *found.get(p, (-1, 0))) for v, p in row.parts]
            stamp = sum(self.files[file] for file in row.files)
            if gone := [p for _, p in row.parts if p not in found]:
                why = f"{show_path(gone[0])} is named in {first_few(row.files)}, and is not there"
                yield PartsEntry(path, parts, stamp=stamp, reason=why)
            else:
                yield PartsEntry(below[path], parts, self.values(row), self.label_of(row), stamp)


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


def folders_of(source: Path, names: Iterable[str]) -> dict[str, list[str]]:
    """Return the last part of each name -> the folders that hold a file called so."""
    wanted = {posixpath.basename(name.replace("\\", "/")) for name in names}
    found: dict[str, list[str]] = {}
    for folder in walk(source, measure=False) if wanted else ():
        for name in wanted.intersection(folder.names):
            found.setdefault(name, []).append(folder.base)
    return found


def place_names(
    names: Sequence[str], folders: dict[str, list[str]], file: str, split: str | None = None
) -> list[str]:
    """Return the paths, relative to the source, of the files that an annotation file names; none
    if none of them is there.

    Names are taken as they stand, below the file's folder or the one that has most of them; else
    by their last parts, if these differ and the folder that holds them is no other than the names
    say: ``camera1/1.jpg`` is not ``camera2/1.jpg``. Backslashes are slashes.

    Raises:
        CorpusError: less than half of the files are there, or they may lie in two folders.
    """
    way = [posixpath.normpath(name.replace("\\", "/")) for name in names]
    base, num_found = _base_of(way, folders, file, split)
    last = [posixpath.basename(name) for name in way]
    if 2 * num_found < len(names) and len({*last}) == len({*names}):
        parts = {"", *(part for name in way for part in name.split("/")[:-1])}
        its_base, its_num = _base_of(last, folders, file, split)
        if all(part in parts or role_of(part) == "pictures" for part in its_base.split("/")):
            way, base, num_found = last, its_base, its_num
    if 2 * num_found >= len(names):
        return [_clean_path(base, name, file) for name in way]
    if num_found:
        what = f"{len(names):,} files, of which only {num_found:,} are there"
        raise CorpusError(f"{show_path(file)} names {what}; fetch the others, or correct the names")
    return []


def _clean_path(base: str, name: str, file: str) -> str:
    path = posixpath.normpath(join(base, name))
    try:
        path.encode("utf-8", "surrogateescape")
        is_path = is_part(path) and "\0" not in path and path.partition("/")[0] not in ("..", "")
    except UnicodeEncodeError:  # half a surrogate pair
        is_path = False
    if not is_path:
        what = f"{name[:200]!r}, which is no path of a file in the source"
        raise CorpusError(f"{show_path(file)} names {what}; correct it, or remove the row")
    return path


def _base_of(
    names: Sequence[str], folders: dict[str, list[str]], file: str, split: str | None
) -> tuple[str, int]:
    """Return the folder that names are relative to, and how many files of those names it has.

    It is the one that the file lies in, or one called after the file's split, if half as many are
    there as anywhere; else that which has most. Folders of other splits do not count.
    """
    wanted = split and _alike(split)
    votes: Counter[str] = Counter()
    named = {posixpath.dirname(file)}
    for name in names:
        folder, slash, last = name.rpartition("/")
        for base in folders.get(last, ()):
            called = {_alike(part) for part in base.split("/")} - {None}
            if (not wanted or not called or wanted in called) and (
                not folder or f"/{base}".endswith(f"/{folder}")
            ):
                start = f"/{base}".removesuffix(slash + folder)[1:]
                votes[start] += 1
                if wanted and wanted in map(_alike, start.split("/")):
                    named.add(start)
    most = max(votes.values(), default=0)
    near = [base for base in named if 2 * votes[base] >= most > 0]
    best = sorted(near or [base for base in votes if votes[base] == most])
    if len(best) > 1:
        where = f"{show_path(best[0] or '.')} or those in {show_path(best[1])}"
        raise CorpusError(f"{show_path(file)} may name the files in {where}; move it to its own")
    return (best[0], most) if best else ("", 0)


@cache
def _alike(name: str) -> str | None:
    split = split_of(name)
    return "val" if split in ("valid", "validation", "dev") else split
