"""A folder of text files, each of which is a sample."""

from __future__ import annotations

from pathlib import Path

from shardkit.corpus.base import Run
from shardkit.corpus.folders import FolderCorpus, batch_of
from shardkit.samples.sample import SampleBatch

_ENDINGS = """
txt text md markdown rst adoc org tex html htm xhtml srt vtt
py pyi ipynb c h cc cpp cxx hh hpp cu cuh rs go java kt scala swift cs js mjs jsx ts tsx rb php pl
lua r jl m f f90 hs ml ex erl clj lisp el sh bash sql css scss asm s v sv vhd proto cmake
"""

TEXT_EXTENSIONS = frozenset("." + ending for ending in _ENDINGS.split())
"""Extensions, lower case with their dot, of files that are taken for text."""


class TextCorpus(FolderCorpus):
    """Field ``txt`` holds a file's bytes as they are, whatever their encoding."""

    kind = "text"
    has_text = True
    noun = "text"
    extensions = TEXT_EXTENSIONS

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        return batch_of(run, self.contents(run), "txt")
