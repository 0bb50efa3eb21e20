"""Pictures that an annotation file names: each one that it names is a sample, with what it says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError
from shardkit.images.sniff import IMAGE_EXTENSIONS
from shardkit.inputs.annotations.annotated import (
    AnnotatedCorpus,
    AnnotatedEntry,
    FilePart,
    Scalar,
    lost_entry,
    runs_of,
)
from shardkit.inputs.base import Run
from shardkit.inputs.class_folders import any_holds
from shardkit.inputs.files import walk
from shardkit.inputs.folders import (
    nothing_found,
    pass_over,
    peek,
    split_of,
    split_roots,
)
from shardkit.inputs.images import picture_classes
from shardkit.inputs.names import extension, join, stems
from shardkit.inputs.roles import role_of
from shardkit.system.paths import first_few, show_path

Values = dict[str, Scalar]
"""Field -> value, of one sample."""


@dataclass(frozen=True, slots=True)
class SheetRow:
    """What annotation files say of one picture.

    Attributes:
        split: where it belongs. files: those that name it.
        parts: (view, path relative to the source) of its files, the picture first.
        record: what the corpus finds its values by.
    """

    split: str
    files: tuple[str, ...]
    parts: tuple[tuple[str, str], ...]
    record: Any


@dataclass
class Sheet:
    """All that annotation files say.

    Attributes:
        files: path relative to the source -> its stamp.
        rows: path of a picture -> what is said of it.
        bad: (split, where, why) of rows that name no file.
        notes: what there is to say, a line each.
    """

    files: dict[str, int] = field(default_factory=dict)
    rows: dict[str, SheetRow] = field(default_factory=dict)
    bad: list[tuple[str, str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, path: str, row: SheetRow) -> None:
        """Raises CorpusError if another row has one of its files: it would be two samples'."""
        for number, (_, own) in enumerate(row.parts):
            other = self._taken.setdefault(own, row)
            if other is not row or own in (path for _, path in row.parts[:number]):
                files = " and ".join(map(show_path, dict.fromkeys(other.files + row.files)))
                raise CorpusError(
                    f"{files}: {show_path(own)} is named twice, and a file can belong to one sample"
                    " only; join the rows, or keep one"
                )
        self.rows[path] = row

    _taken: dict[str, SheetRow] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class _Found:
    """Size and stamp of a file, as it was listed."""

    size: int
    stamp: int


class ListedCorpus(AnnotatedCorpus):
    """Kinds derived from it read an annotation file when they are made, into ``sheet``.

    Order is that of the folders, not of the annotation file. A named file that is not there is a
    reject, and a picture that no row names is passed over, and counted.
    """

    sheet: Sheet

    def values(self, row: SheetRow) -> Values:
        """The values of one picture; called within :meth:`opened`."""
        raise NotImplementedError

    def opened(self) -> AbstractContextManager[object]:
        """What must be open while values are asked for."""
        return nullcontext()

    def splits(self) -> list[str]:
        bad = (split for split, _, _ in self.sheet.bad)
        return sorted({*(row.split for row in self.sheet.rows.values()), *bad}) or ["train"]

    def runs(self, scratch: Path) -> Iterator[Run]:
        self.ignored.clear()
        self.notes.clear()
        found, lost, unnamed = self._files()
        if not self.sheet.rows and not self.sheet.bad:
            raise nothing_found(self.noun, self.source, self.ignored)
        self.notes += self._notes(unnamed)
        keys = _keys(found, self.sheet.rows)
        with self.opened():
            for split in self.splits():
                yield from runs_of(split, self._entries(split, found, keys))
                yield from runs_of(split, self._rejects(split, found, lost))

    def _files(self) -> tuple[dict[str, _Found], set[str], list[str]]:
        """The files that rows name; what leads nowhere; and pictures that no row names."""
        wanted = {path for row in self.sheet.rows.values() for _, path in row.parts}
        found: dict[str, _Found] = {}
        lost: set[str] = set()
        unnamed: list[str] = []
        for folder in walk(self.source, "", None, self.ignored):
            lost.update(join(folder.base, name) for name in folder.lost)
            for name, size, stamp in zip(folder.names, folder.sizes, folder.stamps, strict=True):
                path = join(folder.base, name)
                if path in wanted:
                    found[path] = _Found(size, stamp)
                elif path not in self.sheet.files:
                    pass_over(name, self.ignored)
                    if extension(name) in IMAGE_EXTENSIONS:
                        unnamed.append(path)
        return found, lost, unnamed

    def _notes(self, unnamed: list[str]) -> list[str]:
        files = ", ".join(map(show_path, self.sheet.files))
        notes = [f"annotations of {files}", *self.sheet.notes]
        if unnamed:
            notes.append(f"{len(unnamed):,} pictures that it does not name: {first_few(unnamed)}")
        return notes + (lost_splits(self.sheet.rows) if self.splits() == ["train"] else [])

    def _entries(
        self, split: str, found: dict[str, _Found], keys: dict[str, str]
    ) -> Iterator[AnnotatedEntry]:
        rows = self.sheet.rows
        below = _keys_below(split, {p: key for p, key in keys.items() if rows[p].split == split})
        for path in found:
            row = rows.get(path)
            if row is None or row.split != split or any(own not in found for _, own in row.parts):
                continue
            parts = [FilePart(v, own, found[own].size, found[own].stamp) for v, own in row.parts]
            stamp = sum(self.sheet.files[file] for file in row.files)
            values = self.values(row)
            if taken := [name for name in values if f"{keys[path]}.{name}" in found]:
                why = f"{taken[0]} of it would be restored as a file that is there; rename that"
                yield AnnotatedEntry(path, parts, stamp=stamp, reason=why)
                continue
            yield AnnotatedEntry(below[path], parts, values, self.label_of(row), stamp)

    def _rejects(
        self, split: str, found: dict[str, _Found], lost: set[str]
    ) -> Iterator[AnnotatedEntry]:
        """Rows of which a file is not there, rows that name none, and, in the first split, names
        that lead nowhere: they may have been folders."""
        rows = self.sheet.rows
        if split == self.splits()[0]:
            yield from map(lost_entry, sorted(lost.difference(rows)))
        for path, row in rows.items():
            missing = [own for _, own in row.parts if own not in found]
            if row.split != split or not missing:
                continue
            if path in lost:
                yield lost_entry(path)
                continue
            stamp = sum(self.sheet.files[file] for file in row.files)
            files = ", ".join(map(show_path, row.files))
            why = f"is named in {files}, and is not there"
            if path in found:
                why = f"its row in {files} names {show_path(missing[0])}, which is not there"
            there = [(view, own) for view, own in row.parts if own in found]
            parts = [FilePart(v, own, found[own].size, found[own].stamp) for v, own in there]
            yield AnnotatedEntry(path, parts, stamp=stamp, reason=why)
        for its, where, why in self.sheet.bad:
            if its == split:
                yield AnnotatedEntry(where, reason=why)

    def take_folder_classes(self) -> None:
        """Class folders give ``cls``, where rows name pictures in them."""
        if not self.sheet.rows:
            return
        self.classes = class_folders(self.source)
        if self.classes is not None:
            self.sheet.notes.append(f"class numbers are those of the {len(self.classes):,} folders")

    def label_of(self, row: SheetRow) -> int | None:
        """The class of the folder that a picture lies in, where folders are classes."""
        if self.classes is None:
            return None
        folder = _below(row.split, row.parts[0][1]).partition("/")[0]
        return self.classes.index(folder) if folder in self.classes else None


def lost_splits(paths: Iterable[str]) -> list[str]:
    """What there is to say where pictures of one split lie in folders called as several are, below
    the first ones, which alone tell splits."""
    found: dict[str, str] = {}
    for base in sorted({path.rpartition("/")[0] for path in paths}):
        parts = base.split("/")
        for i, name in enumerate(parts, 1):
            if (split := split_of(name)) is not None:
                found.setdefault(split, "/".join(parts[:i]))
    if len(found) < 2:
        return []
    return [
        f"one split, train: {first_few([*found.values()])} are called as splits are, and only the"
        " first folders tell them: move the annotation file beside them, and pack the folder there"
    ]


def class_folders(source: Path) -> list[str] | None:
    """The class folders of a source, as of :class:`shardkit.inputs.images.ImageCorpus`, that hold
    pictures: two at least, none of them called as a split, or as a folder of pictures or of
    annotations."""
    top = peek(source, "", IMAGE_EXTENSIONS)
    bases = [root.base for root in split_roots(top)]
    try:
        names = picture_classes(source)
    except CorpusError:  # pictures lie beside folders
        return None
    places = {name: [join(base, name) for base in bases] for name in names or ()}
    held = [name for name, own in places.items() if any_holds(source, own, IMAGE_EXTENSIONS)]
    if len(held) < 2 or any(role_of(name) or split_of(name) for name in held):
        return None
    return held


def _keys(found: Iterable[str], rows: dict[str, SheetRow]) -> dict[str, str]:
    """Path -> key: a picture's path without its ending, unless another's is the same."""
    folders: dict[str, list[str]] = {}
    for path in found:
        if path in rows:
            base, _, name = path.rpartition("/")
            folders.setdefault(base, []).append(name)
    return {
        join(base, name): join(base, stem)
        for base, names in folders.items()
        for name, stem in zip(names, stems(names), strict=True)
    }


def _keys_below(split: str, keys: dict[str, str]) -> dict[str, str]:
    """Path -> key without the folder of the split; all keep it where two keys would be one, as of
    ``cat/0.jpg`` beside ``train-2012/cat/0.jpg``."""
    below = {path: _below(split, key) for path, key in keys.items()}
    return below if len({*below.values()}) == len(below) else keys


def _below(split: str, path: str) -> str:
    """A path without the folder of its split, if it begins with that."""
    first, slash, rest = path.partition("/")
    return rest if slash and split in (first, split_of(first)) else path
