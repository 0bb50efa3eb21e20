"""A folder of text files, each of which is a sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from shardkit.inputs.base import Run
from shardkit.inputs.files import FolderListing
from shardkit.inputs.folders import (
    Root,
    batch_of,
    list_names,
    pass_names,
    run_of,
    split_folders,
)
from shardkit.inputs.names import DOCUMENTS, join, stem
from shardkit.inputs.text_folders import PlainClassCorpus, TextFolders, drop_documents, left_out
from shardkit.inputs.text_splits import TextSplits, find_text_splits
from shardkit.samples.sample import SampleBatch
from shardkit.system.paths import first_few, show_path

_ENDINGS = """
txt text md markdown rst adoc org tex html htm xhtml srt vtt
py pyi ipynb c h cc cpp cxx hh hpp cu cuh rs go java kt scala swift cs js mjs jsx ts tsx rb php pl
lua r jl m f f90 hs ml ex erl clj lisp el sh bash sql css scss asm s v sv vhd proto cmake
"""

TEXT_EXTENSIONS = frozenset("." + ending for ending in _ENDINGS.split())
"""Extensions, lower case with their dot, of files that are taken for text."""


class TextCorpus(PlainClassCorpus):
    """Field ``txt`` holds a file's bytes as they are, whatever their encoding.

    Names tell splits where they plainly do (:mod:`shardkit.inputs.text_splits`). Folders are
    classes where they plainly are (:mod:`shardkit.inputs.text_folders`), and what few texts lie
    above them are then passed over. Elsewhere folders are a part of keys alone, and so they are
    where the text is to be ``tokenized``. READMEs and the like are samples there, but for those
    beside splits.
    """

    kind = "text"
    has_text = True
    noun = "text"
    extensions = TEXT_EXTENSIONS
    options = frozenset({"tokenized"})

    def __init__(self, source: Path, tokenized: bool = False) -> None:
        self._is_tokenized = tokenized
        super().__init__(source)
        self._named = TextSplits()
        if self.classes is None:
            self._named = find_text_splits(source, TEXT_EXTENSIONS)

    def splits(self) -> list[str]:
        return self._named.names() or super().splits()

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        return batch_of(run, self.contents(run), "txt")

    def find_folders(self) -> TextFolders:
        found = super().find_folders()
        return left_out(found) if self._is_tokenized else found

    def pass_documents(self, folder: FolderListing, ignored: dict[str, int]) -> None:
        beside_splits = not folder.base and split_folders(folder.folders) is not None
        if beside_splits and all(map(_is_document, folder.names)):
            pass_names(folder, {*folder.names}, ignored)
        super().pass_documents(folder, ignored)

    def folder_runs(self, folder: FolderListing, root: Root) -> Iterator[Run]:
        if not self._named.of:
            return super().folder_runs(folder, root)
        drop_documents(folder, self.ignored)
        return (run_of(part, split) for split, part in self._named.parts(folder))

    def lost_run(self, folder: FolderListing, root: Root) -> Run:
        """Where names tell splits it is of the last one: all runs of a split follow one another."""
        last = self._named.names()[-1:]
        return super().lost_run(folder, Root(last[0], "") if last else root)

    def class_notes(self) -> list[str]:
        notes = [*super().class_notes(), *self._named.notes]
        if self.classes is not None or self._named.of:
            return notes
        tops = [list_names(self.source, root.base, TEXT_EXTENSIONS, {}) for root in self._roots]
        return [*notes, *_lost_splits(tops[0]), *_documents_among(tops)]


def _is_document(name: str) -> bool:
    return stem(name).lower() in DOCUMENTS


def _lost_splits(top: FolderListing) -> list[str]:
    """That folders are called as splits, and are none, since a text lies beside them."""
    if top.base or not top.names or split_folders(top.folders) is None:
        return []
    (other, *_) = [name for name in top.names if not _is_document(name)]
    return [
        f"one split, train: {first_few(top.folders)} are called as splits are, and"
        f" {show_path(other)} lies beside them; move it away to keep them apart"
    ]


def _documents_among(tops: Sequence[FolderListing]) -> list[str]:
    """Which samples say something of the others: a README at the top of the source, or of a
    split."""
    found = [join(top.base, name) for top in tops for name in top.names if _is_document(name)]
    if not found:
        return []
    are, them = ("is a sample", "it") if len(found) == 1 else ("are samples", "them")
    return [f"{first_few(found)} {are} as well; move {them} away to leave {them} out"]
