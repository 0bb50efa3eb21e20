"""Folders side by side, each of which may hold a part of every sample: found, and looked at.

They lie at the top, or in every split (``train/images``, ``train/masks``), or have the splits
within (``images/train``, ``masks/train``), or in their names (``train``, ``train_masks``). All
that is looked at is names.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shardkit.errors import StorageError
from shardkit.images.sniff import IMAGE_EXTENSIONS
from shardkit.index.manifest import is_field_name
from shardkit.inputs.arrays import ARRAY_EXTENSIONS
from shardkit.inputs.files import GONE, FolderListing, walk
from shardkit.inputs.folders import peek, split_folders
from shardkit.inputs.names import DOCUMENTS, cut_ending, extension, join, stem
from shardkit.inputs.roles import split_tracks

MAX_TRACKS = 16
"""More folders than this are not looked into: they are classes."""

STRAYS = 4
"""Files that may lie beside the splits within a folder: caches, names of classes."""

Tree = dict[str, dict[str, str]]
"""Split -> name of a folder -> where it lies, relative to the source. Split ``""`` has the folders
without splits within, where others have some."""


def find_tree(source: Path) -> Tree:
    """The folders of a source that lie side by side, in each split.

    What cannot be listed has nothing in it: packing says so.
    """
    tops = _folders(source, "")
    by_name = split_tracks(tops)
    if by_name is not None:
        return by_name
    splits = split_folders(tops)
    if splits is not None:
        return {
            split: {name: f"{folder}/{name}" for name in _folders(source, folder)}
            for folder, split in splits.items()
        }
    inner = {name: _splits_within(source, name) for name in tops} if len(tops) <= MAX_TRACKS else {}
    if not any(inner.values()):
        return {"train": {name: name for name in tops}}
    tree: Tree = {}
    for name, found in inner.items():
        for folder, split in found.items():
            tree.setdefault(split, {})[name] = f"{name}/{folder}"
        if not found:
            tree.setdefault("", {})[name] = name
    return {split: tree[split] for split in sorted(tree)}


def _folders(source: Path, base: str) -> list[str]:
    return peek(source, base, frozenset()).folders


def _splits_within(source: Path, base: str) -> dict[str, str]:
    """Folder -> split, of a folder that holds splits and a few strays; else nothing."""
    found = peek(source, base)
    return (split_folders(found.folders) or {}) if len(found.names) <= STRAYS else {}


@dataclass(eq=False)
class TrackLook:
    """What the names in one such folder say, over all splits.

    Attributes:
        name: the folder's; one of two names if it lies in another that holds none of the stems.
        stems: ``split//path``: paths relative to the folder, without endings.
        pictured: those of pictures.
        endings: how many files of each. below: the same of each folder within.
    """

    name: str
    stems: set[str] = field(default_factory=set)
    pictured: set[str] = field(default_factory=set)
    endings: Counter[str] = field(default_factory=Counter)
    below: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, split: str, base: str, names: Iterable[str]) -> None:
        """Count the files of one folder, at ``base`` below this one."""
        for name in names:
            start, ending = cut_ending(name)
            if not is_part(name):
                continue
            self.stems.add(f"{split}//{join(base, start)}")
            if ending in IMAGE_EXTENSIONS:
                self.pictured.add(f"{split}//{join(base, start)}")
            self.endings[ending] += 1
            if base:
                self.below.setdefault(base.partition("/")[0], Counter())[ending] += 1

    @property
    def holds_pictures(self) -> bool:
        """Whether half of its files are called so, at least."""
        return self._holds(IMAGE_EXTENSIONS)

    @property
    def has_pictures(self) -> bool:
        """Whether any of its files is called so."""
        return not IMAGE_EXTENSIONS.isdisjoint(self.endings)

    @property
    def holds_arrays(self) -> bool:
        return self._holds(ARRAY_EXTENSIONS)

    def _holds(self, extensions: frozenset[str]) -> bool:
        wanted = sum(count for ending, count in self.endings.items() if ending in extensions)
        return 2 * wanted >= self.endings.total() > 0

    def within(self) -> list[TrackLook]:
        """The folders in it, each for itself."""
        found = _by_folder(self.stems)
        pictured = _by_folder(self.pictured)
        return [
            TrackLook(
                f"{self.name}/{name}", found[name], pictured.get(name, set()), self.below[name]
            )
            for name in sorted(found)
        ]


def _by_folder(stems: set[str]) -> dict[str, set[str]]:
    """Folder -> the stems in it, relative to it."""
    found: dict[str, set[str]] = {}
    for each in stems:
        split, _, path = each.partition("//")
        folder, slash, rest = path.partition("/")
        if slash:
            found.setdefault(folder, set()).add(f"{split}//{rest}")
    return found


def is_part(name: str) -> bool:
    """Whether a file may be a part of a sample: it has an ending that can name a field, and is no
    README or the like."""
    ending = cut_ending(name)[1]
    if not ending or not is_field_name("x" + ending):
        return False
    is_medium = extension(name) in IMAGE_EXTENSIONS | ARRAY_EXTENSIONS
    return is_medium or stem(name).lower() not in DOCUMENTS


def look_at(source: Path, tree: Tree, used: frozenset[str] = frozenset()) -> list[TrackLook]:
    """A look at every folder of a tree; files among ``used``, relative to the source, do not count.

    Raises:
        StorageError: as of :func:`shardkit.inputs.files.walk`.
    """
    looks: dict[str, TrackLook] = {}
    for split, folders in tree.items():
        for name, base in folders.items():
            look = looks.setdefault(name, TrackLook(name))
            for folder in walk_track(source, base, []):
                own = [n for n in folder.names if join(folder.base, n) not in used]
                look.add(split, folder.base[len(base) + 1 :], own)
    return [looks[name] for name in sorted(looks)]


def walk_track(
    source: Path,
    base: str,
    lost: list[str],
    ignored: dict[str, int] | None = None,
    measure: bool = False,
) -> Iterator[FolderListing]:
    """As :func:`shardkit.inputs.files.walk`; if ``base`` itself cannot be listed, it is among the
    ``lost``, as folders within are."""
    folders = walk(source, base, None, ignored, measure)
    try:
        first = next(folders)
    except StorageError as error:
        cause = error.__cause__
        if not isinstance(cause, OSError) or cause.errno not in _UNLISTED:
            raise
        lost.append(base)
        return
    yield first
    yield from folders


_UNLISTED = GONE | {errno.EACCES, errno.EPERM, errno.ENOTDIR}


def place_of(tree: Tree, split: str, name: str) -> str | None:
    """Where a folder called as a :class:`TrackLook` lies in a split; None if it has none."""
    first, slash, rest = name.partition("/")
    base = tree[split].get(first)
    return None if base is None else base + slash + rest
