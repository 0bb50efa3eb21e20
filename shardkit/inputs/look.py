"""A bounded look at a source: names in a few folders and the first bytes of a few files.

Kinds of input decide by it whether a source is theirs. It opens nothing but regular files, so FIFOs
and devices cannot block it, and it lists each folder once, however many kinds ask.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import islice
from pathlib import Path

from shardkit.errors import StorageError
from shardkit.inputs.files import (
    DOCUMENTS,
    FolderListing,
    cut_ending,
    list_folder,
    stem,
    walk,
)

MOST_NAMES = 4_000
"""File names looked at: 20,000 cost 0.3 us for each file of a pack of 60,000."""

MOST_OF_A_FOLDER = 1_000
"""Names of one folder among several, so that the first does not speak for all."""

MOST_FOLDERS = 256
"""Folders looked into; the others are like them, or packing reports it."""

BLOCK = 100
"""Neighbours by name looked at together, so that files of one stem meet."""

HEAD_BYTES = 4_096


class Strength(IntEnum):
    """The certainty of a kind that a source is its own; the strongest claim wins."""

    FILES = 1
    """Files have its endings. Of several kinds, one with 100 times the files of the others wins."""
    LAYOUT = 2
    """Names of files or folders fit together: pairs of one stem, images/ next to masks/."""
    MARKED = 3
    """A file's content says so: a table with a column file_name, COCO's annotations."""


@dataclass(frozen=True)
class Claim:
    """A kind's reading of a source.

    Attributes:
        strength: how sure the kind is.
        reading: what one sample would be, in a few words, for messages.
        num_files: how many files among those looked at it would take.
    """

    strength: Strength
    reading: str
    num_files: int = 0


class Look:
    """The view of a source that kinds of input have before one of them is chosen.

    Attributes:
        source: a folder, or one file.
        is_file: True if it is one file.
        top: its top folder, all names; for a file, a listing with its name alone.
    """

    def __init__(self, source: Path) -> None:
        self.source = source
        self.is_file = source.is_file()
        self._listed: dict[str, FolderListing] = {}
        self._heads: dict[tuple[str, int], bytes] = {}
        self.top = FolderListing("", names=[source.name]) if self.is_file else self.list("")

    def list(self, base: str) -> FolderListing:
        """Return all names in one folder, relative to the source; none if it cannot be listed."""
        if base not in self._listed:
            try:
                self._listed[base] = list_folder(self.source, base, measure=False)[0]
            except StorageError:
                self._listed[base] = FolderListing(base)
        return self._listed[base]

    @cached_property
    def folders(self) -> tuple[FolderListing, ...]:
        """The first folders, depth first, each with all or some of its names; the top comes first.

        Raises:
            StorageError: the source cannot be listed, or a link leads back.
        """
        if self.is_file:
            return (self.top,)
        found: list[FolderListing] = []
        left = MOST_NAMES
        for folder in islice(walk(self.source, measure=False), MOST_FOLDERS):
            found.append(folder)
            self._listed.setdefault(folder.base, folder)  # one that was lost repeats its parent
            left -= min(len(folder.names), MOST_OF_A_FOLDER)
            if left <= 0:
                break
        num_held = sum(bool(folder.names) for folder in found)
        most = max(MOST_NAMES // max(num_held, 1), MOST_OF_A_FOLDER)
        size = min(BLOCK, most)
        count = most // size
        some = []
        for each in found:
            names, room = each.names, len(each.names) - size
            if len(names) > most:  # blocks as far apart as possible
                starts = [i * room // max(count - 1, 1) for i in range(count)]
                names = [name for start in starts for name in names[start : start + size]]
            some.append(FolderListing(each.base, each.folders, names))
        return tuple(some)

    @cached_property
    def endings(self) -> Counter[str]:
        """Files by ending, lower case with its dot, ``.jsonl.gz`` as one; READMEs and the like are
        not counted."""
        found: Counter[str] = Counter()
        for folder in self.folders:
            raw = Counter([name[name.rfind(".") :] for name in folder.names])
            if len(raw) == 1 and not DOCUMENTS & {stem(n).lower() for n in folder.names[:1]}:
                found[cut_ending(folder.names[0])[1]] += len(folder.names)
                continue
            found.update(cut_ending(n)[1] for n in folder.names if stem(n).lower() not in DOCUMENTS)
        return found

    def count(self, endings: Collection[str]) -> int:
        """Return how many of the files looked at have one of these endings."""
        return sum(self.endings[ending] for ending in endings)

    def path(self, relative: str) -> Path:
        """Return where a file lies that was looked at."""
        return self.source if self.is_file else self.source / relative

    def head(self, relative: str, num_bytes: int = HEAD_BYTES) -> bytes:
        """Return a file's first bytes; none of what is no regular file or cannot be read."""
        key = (relative, num_bytes)
        if key not in self._heads:
            self._heads[key] = _head(self.path(relative), num_bytes)
        return self._heads[key]


def _head(path: Path, num_bytes: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return b""
    try:
        return os.read(fd, num_bytes) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(fd)
