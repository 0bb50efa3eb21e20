"""Folders that would be classes, and look as if they were not: refused unless asked for by name.

Class folders are the first-level folders of a source, or of each split. A folder too many around
them makes one class of all samples, and one of other files beside them a class that no sample has;
folders of splits of which not all are called so become classes as well. None of it can be seen
later in a batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.inputs.files import FolderListing
from shardkit.inputs.folders import Root, peek, split_folders, split_of, split_roots
from shardkit.inputs.names import DOCUMENTS, extension, is_hidden, join, stem
from shardkit.inputs.odd_names import (
    OddClasses,
    called_as_parts,
    called_as_parts_within,
    called_as_splits,
)
from shardkit.inputs.roles import role_of
from shardkit.system.paths import first_few, show_path

MAX_WRAPPERS = 4
"""Folders that hold nothing but one folder are entered so often."""


MAX_LOOKS = 8
"""So many folders of classes are looked into for folders that are called as no class is."""


def refuse_odd_classes(
    source: Path, kind: str, extensions: frozenset[str], or_else: Callable[[Path], str]
) -> None:
    """Refuse a folder of which the first-level folders are hardly its classes.

    Args:
        kind: what it was taken for. extensions: those of its samples. or_else: what else to choose
            for a source, if anything.

    Raises:
        CorpusError: so it is. It names both readings.
        StorageError: a folder cannot be listed.
    """
    odd = find_odd_classes(source, kind, extensions)
    if odd is not None:
        raise CorpusError(
            f"{show_path(source)} may be read in two ways: {odd.why}; {odd.advice}, or choose"
            f" --corpus {kind} if its folders are classes all the same{or_else(source)}"
        )


def find_odd_classes(
    source: Path, kind: str, extensions: frozenset[str] | None
) -> OddClasses | None:
    """What speaks against the first-level folders of a source being its classes; None if nothing
    does: all samples lie in one of several folders, or in folders within the only one; or a folder
    holds other files alone, or is called ``images`` beside classes; or some folders are called as
    splits, and some are not; or they, or those within, are called as parts of samples.

    Args:
        kind: what it is taken for. extensions: those of its samples; None for all.

    Raises:
        StorageError: a folder cannot be listed.
    """
    if not peek(source, "").folders:
        return None
    top = _peek_samples(source, "", extensions)
    roots = split_roots(top)
    if not roots[0].base:
        odd = _some_splits(source, top.folders, extensions)
        odd = odd or called_as_splits(top.folders, show_path(source))
        if odd is not None:
            return odd
    if roots[0].base:
        tops = [_peek_samples(source, root.base, extensions) for root in roots]
    else:
        tops = [top]
    if any(each.names and each.folders for each in tops):
        return None  # which the corpus itself refuses
    places = _places(roots, [each.folders for each in tops])
    holding = [name for name, own in places.items() if any_holds(source, own, extensions)]
    others = [name for name in places if name not in holding]
    others = [name for name in others if any_holds(source, places[name], None)]
    if len(holding) == 1 and (others or _fork(source, places[holding[0]], extensions)):
        where = first_few(places[holding[0]])
        name = places[holding[0]][0]
        why = f"all of it lies in {where}"
        if others:
            beside = first_few([places[name][0] for name in others])
            why = f"all {kind} lie in {where}, and there are other files in {beside}"
        return OddClasses(why, f"pack {show_path(source / name)}")
    if odd_ones := [name for name in holding if role_of(name) == "pictures" and len(holding) > 1]:
        others = [f", as {show_path(name)} is one" for name in holding if name not in odd_ones]
        return OddClasses(
            f"{first_few(places[odd_ones[0]])} would be a class, and is called as any folder of"
            " pictures",
            f"put what lies in it into folders of classes{''.join(others[:1])}",
        )
    if others and (holding or any(each.names for each in tops)):
        where = first_few(places[others[0]])
        why = f"{where} holds files, and none of them is a sample of {kind}"
        return OddClasses(why, "move it away")
    return called_as_parts(holding) or _parts_within(source, places)


def _peek_samples(source: Path, base: str, extensions: frozenset[str] | None) -> FolderListing:
    """As :func:`shardkit.inputs.folders.peek`, without READMEs and the like."""
    found = peek(source, base, extensions)
    names = [name for name in found.names if stem(name).lower() not in DOCUMENTS]
    return FolderListing(base, found.folders, found.names if extensions else names)


def refuse_splits_below(source: Path) -> None:
    """Refuse a source that holds nothing but a folder with splits in it: they would be one.

    Raises:
        CorpusError: so it is; says which folder to pack.
    """
    base, folder = "", peek(source, "")
    for _ in range(MAX_WRAPPERS):
        names = [name for name in folder.names if stem(name).lower() not in DOCUMENTS]
        if names or len(folder.folders) != 1 or split_of(folder.folders[0]) is not None:
            return
        base = join(base, folder.folders[0])
        folder = peek(source, base)
        if len(folder.folders) > 1 and split_folders(folder.folders) is not None:
            raise CorpusError(
                f"{show_path(source)} holds nothing but {show_path(base)}, in which"
                f" {first_few(folder.folders)} are splits, which would be one: pack"
                f" {show_path(source / base)}"
            )


def _some_splits(
    source: Path, names: Sequence[str], extensions: frozenset[str] | None
) -> OddClasses | None:
    """One that is called as a split may be a class, unless it has folders of samples itself."""
    splits = [name for name in names if split_of(name) is not None]
    others = [name for name in names if name not in splits]
    if not splits or not others:
        return None
    if len(splits) > 1 or any(_holding_within(source, name, extensions) for name in splits):
        return OddClasses(
            f"folders {first_few(splits)} are called as splits, and {first_few(others)} are not",
            "rename or move away what is no split",
        )
    return None


def _parts_within(source: Path, places: dict[str, list[str]]) -> OddClasses | None:
    """Folders of pictures and of masks, or of splits, within the folders of classes."""
    bases = [base for own in list(places.values())[:MAX_LOOKS] for base in own]
    odd = called_as_parts_within([(base, peek(source, base).folders) for base in bases])
    return odd and OddClasses(odd.why, f"pack {show_path(source / odd.advice)} and the like apart")


def _places(roots: Sequence[Root], names: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    """Class -> where its folders lie, in each split that has one."""
    places: dict[str, list[str]] = {}
    for root, own in zip(roots, names, strict=True):
        for name in own:
            places.setdefault(name, []).append(join(root.base, name))
    return places


def _fork(source: Path, bases: Sequence[str], extensions: frozenset[str] | None) -> bool:
    """Whether several folders of samples lie within these, as one, or in the only folder within."""
    while bases:
        names = {name for base in bases for name in _holding_within(source, base, extensions)}
        if len(names) > 1:
            return True
        bases = [join(base, name) for base in bases for name in names]
    return False


def _holding_within(source: Path, base: str, extensions: frozenset[str] | None) -> list[str]:
    found = peek(source, base, frozenset()).folders
    return [name for name in found if any_holds(source, [join(base, name)], extensions)]


def any_holds(source: Path, bases: Iterable[str], extensions: frozenset[str] | None) -> bool:
    """Whether one of some folders holds a file of these extensions, at any depth."""
    return any(_holds(os.path.join(source, base), extensions, set()) for base in bases)


def _holds(path: str, extensions: frozenset[str] | None, seen: set[tuple[int, int]]) -> bool:
    """Whether a folder holds a file of these extensions, at any depth; one that cannot be listed is
    taken to hold some, and packing says so. Most looks end at the first name."""
    folders = []
    try:
        status = os.stat(path)
        if (status.st_dev, status.st_ino) in seen:
            return True  # a link that loops, which packing names
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(path) as entries:
            for entry in entries:
                if is_hidden(entry.name):
                    continue
                if entry.is_dir():
                    folders.append(entry.path)
                elif extensions is None or extension(entry.name) in extensions:
                    return True
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return any(_holds(folder, extensions, seen) for folder in folders)


class DeeperFolders:
    """Folders of samples within those of classes, which say nothing but keys."""

    def __init__(self) -> None:
        self._num = 0
        self._first: list[str] = []
        self._are_splits = True

    def add(self, base: str) -> None:
        """Note one folder, by its path below its split."""
        _, _, below = base.partition("/")
        if not below or role_of(below) == "pictures":
            return
        self._num += 1
        self._are_splits &= split_of(below) is not None
        if len(self._first) <= 3:
            self._first.append(base)

    def notes(self) -> list[str]:
        if not self._num:
            return []
        number = "1 folder lies" if self._num == 1 else f"{self._num:,} folders lie"
        called = ", though called as splits" if self._are_splits else ""
        return [
            f"{number} within those of classes, and say nothing but keys{called}:"
            f" {first_few(self._first)}"
        ]
