"""A folder of text files, each of which is a sample."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardkit.corpus.base import Run
from shardkit.corpus.class_folder_corpus import ClassFolderCorpus, told
from shardkit.corpus.files import FolderListing
from shardkit.corpus.folders import FolderCorpus, Root, batch_of, pass_names
from shardkit.corpus.text_folders import find_text_folders, left_out, passed_over
from shardkit.samples.sample import SampleBatch

_ENDINGS = """
txt text md markdown rst adoc org tex html htm xhtml srt vtt
py pyi ipynb c h cc cpp cxx hh hpp cu cuh rs go java kt scala swift cs js mjs jsx ts tsx rb php pl
lua r jl m f f90 hs ml ex erl clj lisp el sh bash sql css scss asm s v sv vhd proto cmake
"""

TEXT_EXTENSIONS = frozenset("." + ending for ending in _ENDINGS.split())
"""Extensions, lower case with their dot, of files that are taken for text."""


class TextCorpus(ClassFolderCorpus):
    """Field ``txt`` holds a file's bytes as they are, whatever their encoding.

    Folders are classes where they plainly are (:mod:`shardkit.corpus.text_folders`), and what few
    texts lie above them are then passed over. Elsewhere folders are a part of keys alone, and so
    they are where the text is to be ``tokenized``.
    """

    kind = "text"
    has_text = True
    noun = "text"
    extensions = TEXT_EXTENSIONS
    options = frozenset({"tokenized"})

    def __init__(self, source: Path, tokenized: bool = False) -> None:
        self._found = find_text_folders(source, TEXT_EXTENSIONS)
        if tokenized:
            self._found = left_out(self._found)
        super().__init__(source)

    def spec(self) -> dict[str, Any]:
        return {"kind": self.kind} if self.classes is None else super().spec()

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        return batch_of(run, self.contents(run), "txt")

    def pass_documents(self, folder: FolderListing, ignored: dict[str, int]) -> None:
        if self._found.are_above(folder.base):
            pass_names(folder, {*folder.names}, ignored)

    def find_classes(self, top: FolderListing) -> list[str] | None:
        return None if self._found.classes is None else [*self._found.classes]

    def folder_runs(self, folder: FolderListing, root: Root) -> Iterator[Run]:
        if self.classes is not None:
            return super().folder_runs(folder, root)
        return FolderCorpus.folder_runs(self, folder, root)

    def class_notes(self) -> list[str]:
        if self.classes is not None:
            return [told(self.classes, "the folders"), *passed_over(self._found)]
        return [self._found.why] if self._found.why else []
