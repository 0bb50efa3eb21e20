"""Folders that would be classes, and look as if they were not: refused unless asked for by name.

Class folders are the first-level folders of a source, or of each split. A folder too many around
them makes one class of all samples, and one of other files beside them a class that no sample has;
folders of splits of which not all are called so become classes as well. None of it can be seen
later in a batch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from shardkit.corpus.folders import Root, peek, split_folders, split_of, split_roots
from shardkit.corpus.names import DOCUMENTS, extension, join, stem
from shardkit.corpus.roles import role_of
from shardkit.errors import CorpusError
from shardkit.system.paths import first_few, show_path

MAX_WRAPPERS = 4
"""Folders that hold nothing but one folder are entered so often."""


def refuse_odd_classes(source: Path, kind: str, extensions: frozenset[str]) -> None:
    """Refuse a folder of which the first-level folders are hardly its classes.

    Args:
        kind: what it was taken for. extensions: those of its samples.

    Raises:
        CorpusError: all samples lie in one of several folders, or in folders within the only one;
            or a folder holds other files alone, or is called ``images`` beside classes; or some
            folders are called as splits, and some are not. It names both readings.
        StorageError: a folder cannot be listed.
    """
    if not peek(source, "").folders:
        return
    top = peek(source, "", extensions)
    roots = split_roots(top)
    if not roots[0].base:
        _refuse_some_splits(source, kind, top.folders, extensions)
        _refuse_parts_of_splits(source, kind, top.folders)
    tops = [top] if not roots[0].base else [peek(source, r.base, extensions) for r in roots]
    if any(each.names and each.folders for each in tops):
        return  # which the corpus itself refuses
    places = _places(roots, [each.folders for each in tops])
    holding = [name for name, own in places.items() if any_holds(source, own, extensions)]
    others = [name for name in places if name not in holding]
    others = [name for name in others if any_holds(source, places[name], None)]
    if len(holding) == 1 and (others or _fork(source, places[holding[0]], extensions)):
        name = places[holding[0]][0]
        where = f"all of it lies in {first_few(places[holding[0]])}"
        raise _unclear(source, kind, where, f"pack {show_path(source / name)}")
    if odd := [name for name in holding if role_of(name) == "pictures" and len(holding) > 1]:
        others = [name for name in holding if name not in odd]
        where = (
            f"{first_few(places[odd[0]])} would be a class, and is called as any folder of pictures"
        )
        advice = f"put what lies in it into folders of classes, as {show_path(others[0])} is one"
        raise _unclear(source, kind, where, advice)
    if others and (holding or any(each.names for each in tops)):
        where = (
            f"{first_few(places[others[0]])} holds files, and none of them is a sample of {kind}"
        )
        raise _unclear(source, kind, where, "move it away")


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


def _refuse_some_splits(
    source: Path, kind: str, names: Sequence[str], extensions: frozenset[str]
) -> None:
    """One that is called as a split may be a class, unless it has folders of samples itself."""
    splits = [name for name in names if split_of(name) is not None]
    others = [name for name in names if name not in splits]
    if not splits or not others:
        return
    if len(splits) > 1 or any(_holding_within(source, name, extensions) for name in splits):
        raise _unclear(
            source,
            kind,
            f"folders {first_few(splits)} are called as splits, and {first_few(others)} are not",
            "rename or move away what is no split",
        )


def _refuse_parts_of_splits(source: Path, kind: str, names: Sequence[str]) -> None:
    """LibriSpeech's ``train-clean-100`` and ``dev-clean`` are no classes."""
    splits = {split_of(re.split("[-_ ]", name)[0]) for name in names}
    if len(splits) > 1 and None not in splits:
        raise _unclear(
            source,
            kind,
            f"folders {first_few(names)} are called after splits, and more",
            "pack each apart, or rename them as splits are called",
        )


def _places(roots: Sequence[Root], names: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    """Class -> where its folders lie, in each split that has one."""
    places: dict[str, list[str]] = {}
    for root, own in zip(roots, names, strict=True):
        for name in own:
            places.setdefault(name, []).append(join(root.base, name))
    return places


def _fork(source: Path, bases: Sequence[str], extensions: frozenset[str]) -> bool:
    """Whether several folders of samples lie within these, as one, or in the only folder within."""
    while bases:
        names = {name for base in bases for name in _holding_within(source, base, extensions)}
        if len(names) > 1:
            return True
        bases = [join(base, name) for base in bases for name in names]
    return False


def _holding_within(source: Path, base: str, extensions: frozenset[str]) -> list[str]:
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
                if entry.name.startswith("."):
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


def _unclear(source: Path, kind: str, why: str, advice: str) -> CorpusError:
    return CorpusError(
        f"{show_path(source)} may be read in two ways: {why}; {advice}, or choose --corpus {kind}"
        " if its folders are classes all the same"
    )
