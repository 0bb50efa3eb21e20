"""A folder of images: in class folders, in splits, or flat."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shardkit.images.sniff import HEAD_BYTES, IMAGE_EXTENSIONS, image_field
from shardkit.inputs.base import Run
from shardkit.inputs.class_folders import ClassFolderCorpus, folder_classes
from shardkit.inputs.files import FolderListing, Reason, join
from shardkit.inputs.folders import Root, batch_of, list_names, split_roots
from shardkit.inputs.guards import masks_in
from shardkit.samples.sample import SampleBatch, Value
from shardkit.system.paths import first_few


class ImageCorpus(ClassFolderCorpus):
    """Each image file is a sample; what it holds, not its extension, names its field."""

    kind = "images"
    has_pictures = True
    noun = "images"
    extensions = IMAGE_EXTENSIONS
    class_files = IMAGE_EXTENSIONS
    files_noun = "images"
    reading = "each image a sample"

    def runs(self, scratch: Path) -> Iterator[Run]:
        self._masks: list[str] = []
        yield from super().runs(scratch)
        if self._masks:
            self.notes.append(
                f"{len(self._masks):,} images are named as masks of others"
                f" ({first_few(self._masks)}), and are samples, too; --corpus companions makes a"
                " field of each"
            )

    def folder_runs(self, folder: FolderListing, root: Root) -> Iterator[Run]:
        self._masks += [join(folder.base, name) for name in masks_in(folder.names)]
        return super().folder_runs(folder, root)

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        values = self.contents(run)
        return batch_of(run, values, name_fields(values))


def picture_classes(source: Path) -> list[str] | None:
    """The class names of an :class:`ImageCorpus`, in index order, or None if it has none.

    Raises:
        CorpusError: pictures lie beside class folders.
    """
    top = list_names(source, "", IMAGE_EXTENSIONS)
    roots = split_roots(top)
    tops = [list_names(source, r.base, IMAGE_EXTENSIONS) for r in roots] if roots[0].base else [top]
    return folder_classes(source, tops, ImageCorpus.files_noun)


def name_fields(values: list[Value | Reason]) -> list[str] | str:
    """Each image's field name, or the one that all share; a non-image becomes a reason in place.

    Files of one kind mostly begin with the same bytes, so few heads need a look.
    """
    heads = {value[:HEAD_BYTES] for value in values}
    known = {head: head_field(head) for head in heads}
    names = set(known.values())
    if len(names) == 1 and None not in names:
        return str(names.pop())
    fields = []
    for i, value in enumerate(values):
        name = known[value[:HEAD_BYTES]]
        if name is None and not isinstance(value, Reason):
            values[i] = not_image(value)
        fields.append(name or "")
    return fields


def head_field(head: Value | Reason) -> str | None:
    return None if isinstance(head, Reason) else image_field(bytes(head))


def not_image(value: Value) -> Reason:
    """Return why this content is refused."""
    return f"not an image: begins with {bytes(value[:12])!r}" if value else "empty file"
