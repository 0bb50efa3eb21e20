"""Folders of files taken as they are: sound, film, or anything; in class folders or flat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.index.manifest import is_field_name
from shardkit.inputs.base import Run
from shardkit.inputs.class_folder_corpus import ClassFolderCorpus
from shardkit.inputs.files import FolderListing, walk
from shardkit.inputs.folders import Root, batch_of, pass_names
from shardkit.inputs.names import DOCUMENTS, extension, join, stem
from shardkit.samples.sample import SampleBatch
from shardkit.shards.sound_film import FILM_ENDINGS, SOUND_ENDINGS
from shardkit.system.paths import show_path

MEDIA_EXTENSIONS = frozenset("." + ending for ending in SOUND_ENDINGS | FILM_ENDINGS)
"""Extensions, lower case with their dot, of files that are taken for sound or film."""

NO_EXTENSION = "bin"
"""The field of a file whose name has no extension."""


class BinaryCorpus(ClassFolderCorpus):
    """Each file is a sample, of one field that is called by its extension, in lower case.

    Classes are as of pictures: first-level folders, numbered as ``sorted()`` orders their names, or
    what ``labels`` says. A README, a LICENSE and the like are passed over.
    """

    kind = "files"
    noun = "files"

    def folder_runs(self, folder: FolderListing, root: Root) -> Iterator[Run]:
        return self._checked(super().folder_runs(folder, root))

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        return batch_of(run, self.contents(run), [field_of(name) for name in run.locators])

    def pass_documents(self, folder: FolderListing, ignored: dict[str, int]) -> None:
        without_documents(folder, ignored)

    def _checked(self, runs: Iterator[Run]) -> Iterator[Run]:
        """The same; raises CorpusError where a file's extension cannot name its field."""
        for run in runs:
            fields = {field_of(name): name for name in run.locators}
            for field, name in fields.items():
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


class MediaCorpus(BinaryCorpus):
    """Sound and film by their extensions; other files are passed over."""

    kind = "media"
    noun = "sound or film"
    extensions = frozenset(MEDIA_EXTENSIONS)
    class_files = MEDIA_EXTENSIONS

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        values = [value or "empty file" for value in self.contents(run)]
        return batch_of(run, values, [field_of(name) for name in run.locators])


def field_of(name: bytes) -> str:
    """The field of a file: its extension, in lower case."""
    return extension(name.decode(errors="surrogateescape"))[1:] or NO_EXTENSION


def without_documents(folder: FolderListing, ignored: dict[str, int]) -> None:
    """Drop what says something of the folder, and is no part of it; it is counted."""
    pass_names(folder, {name for name in folder.names if _is_document(name)}, ignored)


def _is_document(name: str) -> bool:
    return stem(name).lower() in DOCUMENTS and extension(name) not in MEDIA_EXTENSIONS


# --- detection ----------------------------------------------------------------------------

_LOOK_FILES = 4_000
"""File names looked at for companions."""


def take_media(unknown: Counter[str]) -> Counter[str]:
    """Take sound and film out of what was counted by extension and belongs to no other kind."""
    found = Counter({end: unknown[end] for end in MEDIA_EXTENSIONS if unknown[end]})
    for ending in found:
        del unknown[ending]
    return found


def have_companions(source: Path) -> bool:
    """Whether at least half of the sound and film has a file of another extension under its stem:
    ``a.wav`` beside ``a.txt``."""
    num_media = num_paired = seen = 0
    for folder in walk(source, measure=False):
        endings: dict[str, set[str]] = {}
        for name in folder.names:
            if "." in name and not _is_document(name):
                endings.setdefault(stem(name), set()).add(extension(name))
        for own in endings.values():
            num_media += len(own & MEDIA_EXTENSIONS)
            num_paired += len(own & MEDIA_EXTENSIONS) if len(own) > 1 else 0
        seen += len(folder.names)
        if seen > _LOOK_FILES:
            break
    return 0 < num_media <= 2 * num_paired
