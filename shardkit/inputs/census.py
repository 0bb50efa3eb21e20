"""What a folder holds, told by a bounded number of file names."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from shardkit.inputs.endings import KIND_OF, PAIRED_KINDS, TAR, kind_of
from shardkit.inputs.files import FolderListing, walk
from shardkit.inputs.kinds import CORPORA
from shardkit.inputs.names import DOCUMENTS, extension, stem
from shardkit.inputs.text import TextCorpus

SAMPLE_FILES = 4_000
"""File names looked at: 20,000 cost 0.3 us for each file of a pack of 60,000."""

FOLDER_FILES = 1_000
"""Of one folder, where there are others, so that the first does not speak for all."""

BLOCK_FILES = 100
"""Neighbours by name looked at together, so that companions meet."""


@dataclass
class Census:
    """What the names in a folder say.

    Attributes:
        kinds: kind (``""``: unknown) -> extension -> number of files.
        documents: the same for READMEs and the like, which are text if nothing else is there.
        num_paired: images and arrays that have a companion of another kind under their stem.
        num_folders: folders seen, the source itself included.
        is_sample: whether there may be more files than were counted.
        folders: those looked at, with the names that were counted.
        top: the source itself, with all of its names.
    """

    kinds: dict[str, Counter[str]] = field(default_factory=dict)
    documents: Counter[str] = field(default_factory=Counter)
    num_paired: int = 0
    num_folders: int = 0
    is_sample: bool = False
    folders: list[FolderListing] = field(default_factory=list)
    top: FolderListing = field(default_factory=lambda: FolderListing(""))

    def count(self, kind: str) -> int:
        return sum(self.kinds.get(kind, Counter()).values())

    def add(self, names: list[str]) -> None:
        """Count the files of one folder."""
        self.num_folders += 1
        endings = Counter([name[name.rfind(".") :] for name in names])
        kinds = {KIND_OF.get(ending.lower(), "") for ending in endings}
        if len(kinds) < 2 and kinds <= {*PAIRED_KINDS}:  # the common case, at a tenth of the cost
            for ending, count in endings.items():
                self._count(KIND_OF[ending.lower()], ending.lower(), count)
            return
        found = [(name, kind_of(name)) for name in names]
        for name, kind in found:
            if kind == TextCorpus.kind and stem(name).lower() in DOCUMENTS:
                self.documents[extension(name)] += 1
            else:
                self._count(kind, extension(name), 1)
        self.num_paired += _count_paired(found)

    def _count(self, kind: str, ending: str, count: int) -> None:
        self.kinds.setdefault(kind, Counter())[ending] += count


def _count_paired(found: list[tuple[str, str]]) -> int:
    kinds_of: dict[str, set[str]] = {}
    for name, kind in found:
        if "." in name:
            kinds_of.setdefault(stem(name), set()).add(kind)
    return sum(kind in PAIRED_KINDS and len(kinds_of[stem(name)]) > 1 for name, kind in found)


def take_census(source: Path) -> Census:
    """Count files by their names: all, or some :data:`SAMPLE_FILES` of the first few folders."""
    census = Census()
    listed: list[FolderListing] = []
    left = SAMPLE_FILES
    for folder in walk(source, measure=False):
        listed.append(folder)
        left -= min(len(folder.names), FOLDER_FILES)
        if left <= 0:
            census.is_sample = True
            break
    census.top = listed[0]
    num_held = sum(bool(folder.names) for folder in listed)
    most = max(SAMPLE_FILES // max(num_held, 1), FOLDER_FILES)
    for folder in listed:
        census.is_sample |= len(folder.names) > most
        names = spread(folder.names, most)
        census.add(names)
        census.folders.append(FolderListing(folder.base, names=names))
    return census


def spread(names: list[str], at_most: int) -> list[str]:
    """Some of sorted names: blocks of :data:`BLOCK_FILES`, as far apart as may be."""
    if len(names) <= at_most:
        return names
    size = min(BLOCK_FILES, at_most)
    count = at_most // size
    starts = [i * (len(names) - size) // max(count - 1, 1) for i in range(count)]
    return [name for start in starts for name in names[start : start + size]]


def is_paired(census: Census) -> bool:
    """Whether half of the pictures, or else of the arrays, have a file of another kind beside them
    under their stem."""
    pairable = next(
        (n for each in CORPORA if each in PAIRED_KINDS and (n := census.count(each))), 0
    )
    return 2 * census.num_paired >= pairable > 0 and not census.count(TAR)
