"""YOLO's files: where labels and the names of classes are, and how they are told."""

from __future__ import annotations

import re
from os.path import isfile
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.inputs.annotations.class_names import LISTS, ClassNames, find_class_names
from shardkit.inputs.annotations.tracks import Tree
from shardkit.inputs.folders import peek
from shardkit.inputs.names import join
from shardkit.system.paths import show_path

LABELS = frozenset({"labels", "label"})
"""What the folder of labels is called, in lower case."""

LOOKED_AT = 16
"""Files of labels that are read to tell whether they are YOLO's."""

HEAD_BYTES = 4096

_LIST = re.compile(r"^(?:train|val|test)[ \t]*:[ \t]*['\"]?([^\s'\"]+\.txt)\b", re.MULTILINE)

_LINE = re.compile(rb"\s*[0-9]+(\.0*)?(\s+[-+.0-9eE]+){4,}\s*")


def class_names_of(source: Path, tree: Tree) -> ClassNames:
    """The names of classes in files at the top, in the folders of labels, or beside those."""
    own = label_folders(tree)
    beside = {base.rpartition("/")[0] for base in own} - {""}
    return find_class_names(source, sorted({*own} | beside))


def lists_of_splits(text: str) -> list[str]:
    """The lists of files that a ``data.yaml`` names in place of folders, in order."""
    return _LIST.findall(text)


def label_folders(tree: Tree) -> list[str]:
    """The folders of labels, in every split."""
    return sorted(
        base
        for folders in tree.values()
        for name, base in folders.items()
        if name.lower() in LABELS
    )


def holds_yolo(source: Path, folders: list[str]) -> bool:
    """Whether the first files of labels in some folders are YOLO's: lines of a class and four
    numbers, or of an outline; not all of them empty."""
    has_line = False
    for base in folders:
        names = peek(source, base, frozenset({".txt"})).names
        for name in [name for name in names if name not in LISTS][:LOOKED_AT]:
            lines = _head(source / join(base, name))
            if not all(_LINE.fullmatch(line) for line in lines):
                return False
            has_line = has_line or bool(lines)
    return has_line


def _head(path: Path) -> list[bytes]:
    """The first lines that are not blank, less one that may be cut short."""
    if not isfile(path):
        return []
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise CorpusError(f"{show_path(path)} cannot be read: {error.strerror}") from error
    lines = head.split(b"\n") if len(head) < HEAD_BYTES else head.split(b"\n")[:-1]
    return [line for line in lines if line.strip()]
