"""Pictures with companions in their own folder: ``x.jpg`` beside ``x_mask.png``, ``x.mask.png`` or
``x.png``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.images.sniff import IMAGE_EXTENSIONS
from shardkit.inputs.annotations.annotated import (
    AnnotatedCorpus,
    AnnotatedEntry,
    FilePart,
    lost_entry,
    runs_of,
)
from shardkit.inputs.annotations.companion_names import MASK, group_names
from shardkit.inputs.base import Run
from shardkit.inputs.class_folder_corpus import told
from shardkit.inputs.files import FolderListing, walk
from shardkit.inputs.folders import (
    Root,
    find_roots,
    nothing_found,
    pass_over,
)
from shardkit.inputs.images import picture_classes
from shardkit.inputs.names import join, stems
from shardkit.system.paths import show_path


class CompanionCorpus(AnnotatedCorpus):
    """A picture and its companions are one sample: ``x_mask.png`` and ``x.mask.png`` are its field
    ``mask.png``, and so is ``x.png`` beside ``x.jpg``; ``x.txt`` is ``txt``.

    Class folders and splits are those of :class:`shardkit.inputs.images.ImageCorpus`. What belongs
    to no picture is passed over.
    """

    kind = "companions"
    has_text = True
    noun = "pictures with companions"
    class_files = IMAGE_EXTENSIONS

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        self.classes = picture_classes(source)
        self._has_twins = False

    def splits(self) -> list[str]:
        return [root.split for root in find_roots(self.source, IMAGE_EXTENSIONS, {})]

    def runs(self, scratch: Path) -> Iterator[Run]:
        self.ignored.clear()
        self.notes = self._class_notes()
        self._has_twins = False
        has_any = False
        for root in find_roots(self.source, IMAGE_EXTENSIONS, self.ignored):
            for run in runs_of(root.split, self._entries(root)):
                has_any = True
                yield run
        if not has_any:
            raise nothing_found(self.noun, self.source, self.ignored)

    def _entries(self, root: Root) -> Iterator[AnnotatedEntry]:
        for folder in walk(self.source, root.base, None, self.ignored):
            yield from self._of_folder(folder, root)
            yield from (lost_entry(join(folder.base, name)) for name in folder.lost)

    def _of_folder(self, folder: FolderListing, root: Root) -> Iterator[AnnotatedEntry]:
        try:
            grouped = group_names(folder.names)
        except CorpusError as error:
            raise CorpusError(f"{show_path(self.source / folder.base)}: {error}") from error
        for name in grouped.passed:
            pass_over(name, self.ignored)
        if grouped.num_twins and not self._has_twins:
            self._has_twins = True
            self.notes.append(f"a picture beside a .jpg of one stem is its field {MASK}.<ending>")
        sizes = dict(zip(folder.names, zip(folder.sizes, folder.stamps, strict=True), strict=True))
        pictures = sorted(grouped.samples)
        label = self._label(folder.base, root)
        for name, stem in zip(pictures, stems(pictures), strict=True):
            files = [("", name), *grouped.samples[name]]
            parts = [FilePart(view, join(folder.base, own), *sizes[own]) for view, own in files]
            yield AnnotatedEntry(join(root.key_base(folder.base), stem), parts, label=label)

    def _class_notes(self) -> list[str]:
        if self.classes is None:
            return []
        return [told(self.classes, "the folders"), *filter(None, [self.odd])]

    def _label(self, base: str, root: Root) -> int | None:
        folder = root.key_base(base).partition("/")[0]
        if not folder or self.classes is None:
            return None
        if folder not in self.classes:
            raise CorpusError(f"class folder {show_path(folder)} came while listing; run it again")
        return self.classes.index(folder)
