"""Which classes the folders inside tars of others tell: ``n01440764/x.JPEG``.

They are classes as they are in a folder on disk, where a tar holds nothing but pictures, one a
sample, and no labels. What tars of webdataset hold beside pictures says what they are of. A README
or the like among the pictures changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from shardkit.arrays import Mask
from shardkit.errors import CorpusError
from shardkit.images.sniff import IMAGE_EXTENSIONS
from shardkit.index.manifest import DatasetInfo
from shardkit.index.rows import RowIndex
from shardkit.inputs.folders import split_of
from shardkit.inputs.names import DOCUMENTS, stem
from shardkit.inputs.roles import role_of
from shardkit.shards.locate import Located
from shardkit.system.paths import first_few, show_path

Folders = set[tuple[bytes, ...]]
"""The folders that samples lie in, by their parts."""

_TARS = frozenset({"tar", "tar.gz", "tgz", "tar.zst", "tzst", "tar.bz2", "tar.xz"})
"""Fields of members that are tars themselves."""


@dataclass(frozen=True)
class TarClasses:
    """Classes by the folders in tars: names in index order, below the folders that all share."""

    shared: tuple[bytes, ...]
    names: tuple[bytes, ...]

    def folder(self, key: bytes) -> bytes:
        """The name of the class of a sample."""
        return folders_of(key)[len(self.shared)]


def find_classes(located: Located) -> tuple[TarClasses | None, str]:
    """The classes that folders in tars made by others tell, None if they tell none; and why they
    tell none, in words, where one might expect some.

    Raises:
        CorpusError: the tars hold nothing but tars.
    """
    info = located.info
    if not located.tars:
        return None, ""
    folders: Folders = set()
    others: set[str] = set()
    splits: set[bytes] = set()
    for split in info.splits.values():
        index = RowIndex(located.storage, info, split)
        is_picture = are_pictures(index, info)
        keys = [index.name(row)[0] for row in range(split.num_rows)]
        unclear = [i for i in np.flatnonzero(~is_picture).tolist() if not is_document(keys[i])]
        own = {folders_of(keys[i]) for i in [*np.flatnonzero(is_picture).tolist(), *unclear]}
        folders |= own
        splits |= {*_splits(own)}
        others |= {name for name in info.fields if _holds(index, name)[unclear].any()}
    if others and others <= _TARS:
        raise _tars_in_tars(located)
    if others:
        return None, _mixed(folders, others, sorted(splits))
    return classes_of(folders), untold(folders, len(located.tars))


def are_pictures(index: RowIndex, info: DatasetInfo) -> Mask:
    """(num_rows,): whether a sample is one picture, and nothing else."""
    held = {name: _holds(index, name) for name in info.fields}
    num_fields = np.sum([*held.values()], axis=0)
    pictures = [own for name, own in held.items() if "." + name in IMAGE_EXTENSIONS]
    found: Mask = (num_fields == 1) & (np.sum(pictures, axis=0) == 1)
    return found


def _holds(index: RowIndex, field: str) -> Mask:
    held: Mask = index.table[:, index.column[f"{field}.size"]] >= 0
    return held


def is_document(key: bytes) -> bool:
    """Whether a sample that is no picture says something of the others: a README."""
    return stem(os.fsdecode(key.rpartition(b"/")[2])).lower() in DOCUMENTS


def folders_of(key: bytes) -> tuple[bytes, ...]:
    """The folders that a sample lies in."""
    return tuple(part for part in key.split(b"/")[:-1] if part not in (b"", b"."))


def classes_of(folders: Folders) -> TarClasses | None:
    """Of the folders that samples lie in: the first ones that differ, if every sample lies in one
    and they are no splits."""
    shared, names = _below(folders)
    if not names or any(len(each) == len(shared) for each in folders):
        return None
    if _parts(names) or _splits(folders):
        return None
    return TarClasses(shared, names)


def _parts(names: Sequence[bytes]) -> list[bytes]:
    """Folders called as what holds a part of every sample: ``images`` and ``masks``."""
    roles = {name: role_of(os.fsdecode(name)) for name in names}
    return [*names] if {"pictures", "annotations"} <= {*roles.values()} else []


def untold(folders: Folders, num_tars: int) -> str:
    """Why folders of pictures tell no classes; ``""`` if they do."""
    shared, names = _below(folders)
    if not names:
        each = "; if each tar is a class, unpack each into a folder of its name, and pack those"
        return f"no cls: the tars hold pictures in no class folders{each * (num_tars > 1)}"
    if splits := _splits(folders):
        return f"no cls: {_of_splits(splits, names)}"
    if parts := _parts(names):
        return (
            f"no cls: folders in the tars ({first_few(parts)}) are called as parts of samples;"
            " unpack them, and pack the folder"
        )
    if any(len(each) == len(shared) for each in folders):
        return f"no cls: some pictures lie in folders ({first_few(names)}), and some beside them"
    return ""


def _of_splits(splits: Sequence[bytes], names: Sequence[bytes]) -> str:
    which = "the" if len(splits) == len(names) else "some"
    return (
        f"{which} folders in the tars are splits ({first_few(splits)}), and a tar is of one split;"
        " unpack them, and pack the folder"
    )


def _mixed(folders: Folders, others: set[str], splits: Sequence[bytes]) -> str:
    """Return what to say where samples are more than a picture. ``splits``: folders of splits
    within one split."""
    names = _below(folders)[1]
    if splits:
        return _of_splits(splits, names)
    if len(names) < 2 or "cls" in others:
        return ""
    return (
        f"no cls: folders in the tars ({first_few(names)}) are a part of keys alone, as some"
        f" samples are no single picture ({', '.join(sorted(others)[:4])})"
    )


def _below(folders: Folders) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """The folders that all paths begin with, and the names, in order, of those that follow."""
    first, last = min(folders, default=()), max(folders, default=())
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    shared = tuple(name for name, _ in same)
    names = {each[len(shared)] for each in folders if len(each) > len(shared)}
    return shared, tuple(sorted(names, key=os.fsdecode))


def _splits(folders: Folders) -> list[bytes]:
    """Folders called as splits, in order; one alone among others is a class, unless it has folders
    of pictures itself."""
    shared, names = _below(folders)
    splits = [name for name in names if split_of(os.fsdecode(name)) is not None]
    depth = len(shared)
    has_inner = any(len(each) > depth + 1 and each[depth] in splits for each in folders)
    return splits if len(splits) > 1 or len(splits) == len(names) or has_inner else []


def told(classes: Sequence[str]) -> str:
    """What there is to say of classes."""
    return f"cls is of {len(classes):,} classes, the folders in the tars: {first_few(classes)}"


def _tars_in_tars(located: Located) -> CorpusError:
    tar = next(iter(located.tars.values()))
    name = show_path(tar)
    return CorpusError(
        f"{name} holds tars, not samples: unpack it, and each of these into a folder of its name,"
        f" and pack the folder: mkdir all; tar xf {name} -C all; cd all; for t in *.tar; do"
        ' mkdir "${t%.tar}"; tar xf "$t" -C "${t%.tar}"; rm "$t"; done; cd ..'
    )
