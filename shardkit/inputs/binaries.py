"""Folders of files taken as they are: audio, video, or anything; in class folders or flat."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.index.manifest import is_field_name
from shardkit.inputs.base import Run
from shardkit.inputs.class_folders import ClassFolderCorpus
from shardkit.inputs.files import DOCUMENTS, FolderListing, extension, join, stem
from shardkit.inputs.folders import Root, batch_of, pass_names
from shardkit.samples.sample import SampleBatch
from shardkit.shards.sound_film import FILM_ENDINGS, SOUND_ENDINGS
from shardkit.system.paths import show_path

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
        passed = {
            name
            for name in folder.names
            if stem(name).lower() in DOCUMENTS and extension(name) not in MEDIA_EXTENSIONS
        }
        pass_names(folder, passed, ignored)


class MediaCorpus(BinaryCorpus):
    """Audio and video by their extensions; other files are passed over."""

    kind = "media"
    noun = "sound or film"
    extensions = frozenset(MEDIA_EXTENSIONS)
    class_files = MEDIA_EXTENSIONS
    reading = "each sound or film a sample"

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        values = [value or "empty file" for value in self.contents(run)]
        return batch_of(run, values, [field_of(name) for name in run.locators])


def field_of(name: bytes) -> str:
    """Return the field of a file: its extension in lower case."""
    return extension(name.decode(errors="surrogateescape"))[1:] or "bin"
