"""Names of files: what a key is made of, and how names become bytes."""

from __future__ import annotations

import os
from collections import Counter


def extension(name: str) -> str:
    """Lower case, with its dot; ``""`` if there is none."""
    stem, dot, ending = name.rpartition(".")
    return dot + ending.lower() if stem else ""


DOCUMENTS = frozenset(
    {"readme", "license", "licence", "copying", "notice", "changelog", "citation", "authors"}
)
"""Stems, in lower case, of what lies in any folder and says nothing of it."""


SYSTEM_NAMES = frozenset(
    {"@eaDir", "#recycle", "#snapshot", "@Recycle", "@Recently-Snapshot", "__MACOSX", "lost+found"}
    | {"$RECYCLE.BIN", "System Volume Information", "Thumbs.db", "desktop.ini"}
)
"""Names that file servers and desktops put into folders: thumbnails, trash, folder views."""


def is_hidden(name: str) -> bool:
    """Return True for names that are passed over wherever they lie."""
    return name.startswith(".") or name in SYSTEM_NAMES


def stem(name: str) -> str:
    """Up to the first dot."""
    return name.partition(".")[0]


def join(base: str, name: str) -> str:
    """A path relative to the source."""
    return f"{base}/{name}" if base else name


def stems(names: list[str]) -> list[str]:
    """A key for each file of one folder: its name up to the last dot.

    A name stays whole where its stem is another file's stem, or another file's whole name; so
    keys never repeat.
    """
    cut = [name.rpartition(".")[0] or name for name in names]
    if len(set(cut)) == len(cut) and set(cut).isdisjoint(names):
        return cut
    count = Counter(cut)
    whole = set(names)
    return [
        stem if count[stem] == 1 and stem not in whole else name
        for stem, name in zip(cut, names, strict=True)
    ]


def encode(names: list[str], base: str = "") -> list[bytes]:
    """Names as the file system has them, behind ``base/``. One call for all: names hold no NUL."""
    if not names:
        return []
    prefix = join(base, "")
    return os.fsencode(prefix + ("\0" + prefix).join(names)).split(b"\0")


_PACKED = (".gz", ".zst", ".bz2", ".xz")


def cut_ending(name: str) -> tuple[str, str]:
    """What stands before a file's ending, and the ending, lower case with its dot; ``""`` if there
    is none.

    A compressed file's ending is that of both: ``a.nii.gz`` is ``a`` and ``.nii.gz``.
    """
    ending = extension(name)
    if ending == ".":
        return name, ""
    start = name[: len(name) - len(ending)]
    if ending in _PACKED:
        inner = extension(start)
        if inner[1:].isalnum() and not inner[1:].isdigit():
            return start[: len(start) - len(inner)], inner + ending
    return start, ending
