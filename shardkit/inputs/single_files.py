"""Other kinds of which each file is a sample: text, arrays, audio and video, or anything."""

from __future__ import annotations

from collections.abc import Iterator
from os.path import basename
from pathlib import Path

from shardkit.errors import CorpusError, FormatError
from shardkit.index.file_names import is_field_name
from shardkit.inputs.class_folders import ClassFolderCorpus, PlainClassCorpus, drop_documents
from shardkit.inputs.corpus import Run
from shardkit.inputs.files import DOCUMENTS, FolderListing, Reason, extension, join, stem
from shardkit.inputs.folders import Root, batch_of, list_names, split_folders
from shardkit.samples.encoding import parse_npy
from shardkit.samples.sample import SampleBatch
from shardkit.samples.split_names import splits_by_words
from shardkit.shards.sound_film import FILM_ENDINGS, SOUND_ENDINGS
from shardkit.system.paths import first_few, show_path

MEDIA_EXTENSIONS = frozenset("." + ending for ending in SOUND_ENDINGS | FILM_ENDINGS)
"""Extensions, lower case with their dot, of files that are taken for audio or video."""


class BinaryCorpus(ClassFolderCorpus):
    """Each file is a sample of one field, named by the file's extension in lower case, ``bin`` if
    it has none. A README, a LICENSE and the like are passed over."""

    kind = "files"
    noun = "files"

    def folder_runs(self, folder: FolderListing, root: Root) -> Iterator[Run]:
        for run in super().folder_runs(folder, root):
            for field, name in {field_of(name): name for name in run.locators}.items():
                where = show_path(join(run.base, name.decode(errors="surrogateescape")))
                if not is_field_name(field):
                    raise CorpusError(
                        f"{where}: its extension cannot name a field (a-z 0-9 _ -); rename it"
                    )
                if field == "cls" and run.label is not None:
                    raise CorpusError(
                        f"{where} would be the field cls, and so would its class; rename it"
                    )
            yield run

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        return batch_of(run, self.contents(run), [field_of(name) for name in run.locators])

    def pass_documents(self, folder: FolderListing, ignored: dict[str, int]) -> None:
        documents = [name for name in folder.names if stem(name).lower() in DOCUMENTS]
        folder.drop({n for n in documents if extension(n) not in MEDIA_EXTENSIONS}, ignored)


class MediaCorpus(BinaryCorpus):
    """Audio and video by their extensions; other files are passed over."""

    kind = "media"
    noun = "sound or film"
    extensions = frozenset(MEDIA_EXTENSIONS)
    class_files = MEDIA_EXTENSIONS
    reading = "each sound or film a sample"
    may_be_empty = False


def field_of(name: bytes) -> str:
    """Return the field of a file: its extension in lower case."""
    return extension(name.decode(errors="surrogateescape"))[1:] or "bin"


ARRAY_EXTENSIONS = frozenset({".npy", ".pt", ".pth"})
"""Endings of files of one array, which a sample of several files may be about."""


class ArrayCorpus(PlainClassCorpus):
    """Field ``npy`` holds the bytes as they are. Folders are classes where they plainly are."""

    kind = "arrays"
    noun = "arrays"
    extensions = frozenset({".npy"})
    reading = "each .npy file is a sample"
    may_be_empty = False

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        values = self.contents(run)
        for i, value in enumerate(values):
            if isinstance(value, Reason):
                continue
            try:
                parse_npy(value)
            except FormatError as error:
                values[i] = str(error)
        return batch_of(run, values, "npy")


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
    reading = "each text a sample"
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

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        return batch_of(run, self.contents(run), "txt")

    def find_classes(self) -> list[str] | None:
        classes = super().find_classes()
        if not self._is_tokenized:
            return classes
        self.why = ""  # nobody asked for classes
        if classes is not None:
            self._above = set()
            self.why = (
                f"cls is left out, as the text alone is packed: {len(classes):,} classes, the"
                f" folders: {first_few(classes)}"
            )
        return None

    def pass_documents(self, folder: FolderListing, ignored: dict[str, int]) -> None:
        beside_splits = not folder.base and split_folders(folder.folders) is not None
        if beside_splits and all(stem(name).lower() in DOCUMENTS for name in folder.names):
            folder.drop({*folder.names}, ignored)
        super().pass_documents(folder, ignored)

    def class_notes(self) -> list[str]:
        notes = super().class_notes()
        if self.classes is not None:
            return notes
        tops = [list_names(self.source, root.base, TEXT_EXTENSIONS) for root in self._roots]
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
