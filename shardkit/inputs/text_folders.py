"""Whether the folders that texts or arrays lie in are classes: ``pos/1.txt`` and ``neg/1.txt``.

They are where nothing else can be meant: each text lies in a folder directly below the source, or
below the folder of its split, and there are two such folders at least. Source trees, dumps and
pages of a manual have texts further up or further down; there folders are a part of keys alone.
Lists of addresses and the like above the folders, as aclImdb has them, do not count if they are one
text in a hundred at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardkit.inputs.base import Run
from shardkit.inputs.class_folder_corpus import ClassFolderCorpus, told
from shardkit.inputs.files import FolderListing, walk
from shardkit.inputs.folders import (
    FolderCorpus,
    Root,
    list_names,
    pass_names,
    split_of,
    split_roots,
)
from shardkit.inputs.names import DOCUMENTS, join, stem
from shardkit.inputs.roles import role_of
from shardkit.system.paths import first_few, show_path

FEW = 100
"""Texts above the folders are no samples where there are so many times as many in them."""


@dataclass(frozen=True)
class TextFolders:
    """What the folders of texts are.

    Attributes:
        roots: the splits, where what lies above the classes does not count.
        classes: the names of the folders, in index order; None if they are no classes.
        strays: texts above the classes, READMEs and the like apart.
        why: why they are none, in words; ``""`` if they are, or if there are no folders.
    """

    roots: Sequence[Root] = ()
    classes: Sequence[str] | None = None
    strays: Sequence[str] = ()
    why: str = ""

    def are_above(self, base: str) -> bool:
        """Whether what lies in this folder itself lies above the classes."""
        return self.classes is not None and base in {"", *(root.base for root in self.roots)}


def find_text_folders(source: Path, extensions: frozenset[str]) -> TextFolders:
    """What the folders of the texts at ``source`` are. Only names are looked at.

    Raises:
        StorageError: as of :func:`shardkit.inputs.files.walk`.
    """
    top = list_names(source, "", extensions)
    drop_documents(top, {})
    above, top.names = top.names, []
    roots = split_roots(top)
    if not roots[0].base:
        above = []  # they are met in that root
    return judge_text_folders(roots, _texts(source, roots, extensions), above)


def _texts(
    source: Path, roots: Sequence[Root], extensions: frozenset[str]
) -> Iterator[tuple[Root, FolderListing]]:
    for root in roots:
        for folder in walk(source, root.base, extensions, {}, measure=False):
            if folder.base == root.base:
                drop_documents(folder, {})
            if folder.names:
                yield root, folder


def judge_text_folders(
    roots: Sequence[Root], texts: Iterable[tuple[Root, FolderListing]], above: Sequence[str] = ()
) -> TextFolders:
    """The same of folders that hold texts, in order, each with its root, and of texts ``above`` all
    roots. It stops looking once it knows."""
    strays = [*above]
    names: set[str] = set()
    num_texts = 0
    for root, folder in texts:
        below = root.key_base(folder.base)
        if not below:
            strays += [join(folder.base, name) for name in folder.names]
        elif "/" in below:
            return _none(f"{show_path(join(folder.base, folder.names[0]))} lies further down")
        else:
            names.add(below)
            num_texts += len(folder.names)
    if not names:
        return TextFolders()
    if FEW * len(strays) > num_texts:
        return _none(f"{show_path(strays[0])} lies beside them")
    if len(names) < 2:
        return _none("there is one alone")
    if odd := sorted(name for name in names if role_of(name) or split_of(name)):
        return _none(f"{show_path(odd[0])} is not called as a class is")
    return TextFolders(roots, sorted(names), strays)


def _none(why: str) -> TextFolders:
    return TextFolders(why=f"no cls: folders are a part of keys, since {why}")


def left_out(found: TextFolders) -> TextFolders:
    """What folders are where the text alone is taken: no classes."""
    if found.classes is None:
        return TextFolders()
    return TextFolders(
        why=f"cls is left out, as the text alone is packed: {len(found.classes):,} classes, the"
        f" folders: {first_few(found.classes)}"
    )


class PlainClassCorpus(ClassFolderCorpus):
    """Folders are classes where they plainly are, and a part of keys alone elsewhere."""

    options = frozenset()

    def __init__(self, source: Path) -> None:
        self.source = source
        self._found = self.find_folders()
        super().__init__(source)

    def spec(self) -> dict[str, Any]:
        return {"kind": self.kind} if self.classes is None else super().spec()

    def find_folders(self) -> TextFolders:
        """Return what the folders are."""
        return find_text_folders(self.source, self.extensions)

    def find_classes(self, top: FolderListing) -> list[str] | None:
        return None if self._found.classes is None else [*self._found.classes]

    def pass_documents(self, folder: FolderListing, ignored: dict[str, int]) -> None:
        if self._found.are_above(folder.base):
            pass_names(folder, {*folder.names}, ignored)

    def folder_runs(self, folder: FolderListing, root: Root) -> Iterator[Run]:
        if self.classes is not None:
            return super().folder_runs(folder, root)
        return FolderCorpus.folder_runs(self, folder, root)

    def class_notes(self) -> list[str]:
        if self.classes is None:
            return [*filter(None, [self._found.why])]
        notes = [told(self.classes, "the folders")]
        if self._found.strays:
            above = first_few(self._found.strays)
            notes.append(f"files above the folders of classes are passed over: {above}")
        return notes


def drop_documents(folder: FolderListing, ignored: dict[str, int]) -> None:
    """Pass over READMEs and the like, and count them."""
    passed = {name for name in folder.names if stem(name).lower() in DOCUMENTS}
    pass_names(folder, passed, ignored)
