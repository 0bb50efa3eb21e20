"""A folder of text files, each of which is a sample."""

from __future__ import annotations

from os.path import basename
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.inputs.base import Run
from shardkit.inputs.class_folders import PlainClassCorpus, drop_documents
from shardkit.inputs.files import DOCUMENTS, FolderListing, join, stem
from shardkit.inputs.folders import batch_of, list_names, pass_names, split_folders
from shardkit.inputs.look import Claim, Look, Strength
from shardkit.samples.sample import SampleBatch
from shardkit.samples.split_names import splits_by_words
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

    Folders are classes where they plainly are, but not if the text is to be ``tokenized``.
    """

    kind = "text"
    has_text = True
    noun = "text"
    extensions = TEXT_EXTENSIONS
    options = frozenset({"tokenized"})

    def __init__(self, source: Path, tokenized: bool = False) -> None:
        """Raises CorpusError if the texts at the top are named after splits."""
        self._is_tokenized = tokenized
        super().__init__(source)
        top = list_names(source, "", TEXT_EXTENSIONS)
        drop_documents(top, {})
        splits = splits_by_words(top.names) or []
        if len({*splits}) > 1 and split_folders(top.folders) is None:
            raise CorpusError(
                f"{show_path(source)} holds {first_few(top.names)}, which are named as splits: move"
                " the files of each into a folder of its name"
            )

    @classmethod
    def claim(cls, look: Look) -> Claim | None:
        num_texts = look.count(TEXT_EXTENSIONS)
        if look.is_file or not (num_texts or (not look.endings and look.has_documents)):
            return None
        return Claim(Strength.FILES, "each text a sample", max(num_texts, 1))

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        return batch_of(run, self.contents(run), "txt")

    def find_classes(self, top: FolderListing) -> list[str] | None:
        classes = super().find_classes(top)
        if not self._is_tokenized:
            return classes
        if classes is None:
            self.why = ""  # nobody asked for classes
            return None
        self.why = (
            f"cls is left out, as the text alone is packed: {len(classes):,} classes, the folders:"
            f" {first_few(classes)}"
        )
        self._above = set()
        return None

    def pass_documents(self, folder: FolderListing, ignored: dict[str, int]) -> None:
        beside_splits = not folder.base and split_folders(folder.folders) is not None
        if beside_splits and all(stem(name).lower() in DOCUMENTS for name in folder.names):
            pass_names(folder, {*folder.names}, ignored)
        super().pass_documents(folder, ignored)

    def class_notes(self) -> list[str]:
        notes = super().class_notes()
        if self.classes is not None:
            return notes
        tops = [list_names(self.source, root.base, TEXT_EXTENSIONS, {}) for root in self._roots]
        names = [join(top.base, name) for top in tops for name in top.names]
        if among := [name for name in names if stem(basename(name)).lower() in DOCUMENTS]:
            notes.append(f"among the samples: {first_few(among)}; move away what is none")
        others = [name for name in names if name not in among]
        if not tops[0].base and others and split_folders(tops[0].folders) is not None:
            notes.append(
                f"one split, train: {first_few(tops[0].folders)} are named as splits, and"
                f" {show_path(others[0])} lies beside them; move it away to keep them apart"
            )
        told = [name for name in others if splits_by_words([name]) not in (None, ["train"])]
        if told and not tops[0].base:
            notes.append(f"one split, train, though {first_few(told)} name another")
        return notes
