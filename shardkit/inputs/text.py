"""A folder of text files, each of which is a sample."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.inputs.base import Run
from shardkit.inputs.class_folders import PlainClassCorpus, drop_documents
from shardkit.inputs.files import DOCUMENTS, FolderListing, join, stem
from shardkit.inputs.folders import (
    Root,
    batch_of,
    list_names,
    pass_names,
    run_of,
    split_folders,
)
from shardkit.inputs.guards import any_file, notes_on_splits
from shardkit.inputs.look import Claim, Look, Strength
from shardkit.samples.sample import SampleBatch
from shardkit.samples.split_names import mixed_names, splits_by_words
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

    Folders are classes where they plainly are, but not if the text is to be ``tokenized``. Names
    give splits where all texts lie at the top, and the name of each holds one split's name:
    ``ptb.train.txt``, ``ptb.valid.txt``.
    """

    kind = "text"
    has_text = True
    noun = "text"
    extensions = TEXT_EXTENSIONS
    options = frozenset({"tokenized"})

    def __init__(self, source: Path, tokenized: bool = False) -> None:
        self._is_tokenized = tokenized
        self._split_of: dict[str, str] = {}
        self._notes_on_names: list[str] = []
        super().__init__(source)
        if self.classes is None:
            self._find_splits()

    @classmethod
    def claim(cls, look: Look) -> Claim | None:
        num_texts = look.count(TEXT_EXTENSIONS)
        if look.is_file or not (num_texts or (not look.endings and look.has_documents)):
            return None
        return Claim(Strength.FILES, "each text a sample", max(num_texts, 1))

    def _find_splits(self) -> None:
        """Note the split of each file at the top, if names tell them all, and at least two."""
        top = list_names(self.source, "", TEXT_EXTENSIONS)
        drop_documents(top, {})
        if not top.names or split_folders(top.folders) is not None:
            return
        found = splits_by_words(top.names)
        below = [f for f in top.folders if any_file(str(self.source / f), TEXT_EXTENSIONS)]
        if found is None or len({*found}) < 2 or below:
            self._notes_on_names = mixed_names(top.names) if found is None else []
            if found is not None and {*found} != {"train"}:
                other = next(n for n, s in zip(top.names, found, strict=True) if s != "train")
                self._notes_on_names = [f"all of split train, {show_path(other)} too"]
            return
        self._split_of = dict(zip(top.names, found, strict=True))
        self._notes_on_names = notes_on_splits(sorted({*found}))

    def splits(self) -> list[str]:
        return sorted({*self._split_of.values()}) or super().splits()

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

    def folder_runs(self, folder: FolderListing, root: Root) -> Iterator[Run]:
        if not self._split_of:
            yield from super().folder_runs(folder, root)
            return
        drop_documents(folder, self.ignored)
        whole = run_of(folder, root)
        for split in self.splits():
            try:
                found = [self._split_of[join(folder.base, name)] for name in folder.names]
            except KeyError as error:
                raise CorpusError(
                    f"{show_path(error.args[0])} came while listing; run it again"
                ) from error
            entries = [i for i, own in enumerate(found) if own == split]
            if entries:
                part = whole.take(entries)
                part.split = split
                yield part

    def lost_run(self, folder: FolderListing, root: Root) -> Run:
        """Where names tell splits it is of the last one: all runs of a split follow one another."""
        return super().lost_run(folder, Root(self.splits()[-1], "") if self._split_of else root)

    def class_notes(self) -> list[str]:
        notes = [*super().class_notes(), *self._notes_on_names]
        if self.classes is not None or self._split_of:
            return notes
        tops = [list_names(self.source, root.base, TEXT_EXTENSIONS, {}) for root in self._roots]
        among = [
            join(top.base, n) for top in tops for n in top.names if stem(n).lower() in DOCUMENTS
        ]
        if among:
            notes.append(f"among the samples: {first_few(among)}; move away what is none")
        others = [n for n in tops[0].names if stem(n).lower() not in DOCUMENTS]
        if not tops[0].base and others and split_folders(tops[0].folders) is not None:
            notes.append(
                f"one split, train: {first_few(tops[0].folders)} are named as splits, and"
                f" {show_path(others[0])} lies beside them; move it away to keep them apart"
            )
        return notes
