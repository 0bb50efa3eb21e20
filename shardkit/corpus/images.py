"""A folder of images: in class folders, in splits, or flat."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from shardkit.corpus.base import Run
from shardkit.corpus.files import FolderListing, Reason, walk
from shardkit.corpus.folders import FolderCorpus, Root, batch_of, list_names, run_of, split_roots
from shardkit.corpus.labels import Labels, read_labels
from shardkit.errors import CorpusError
from shardkit.images.sniff import HEAD_BYTES, IMAGE_EXTENSIONS, image_field
from shardkit.samples.sample import SampleBatch, Value
from shardkit.system.paths import show_path


class ImageCorpus(FolderCorpus):
    """Each image file is a sample; what it holds, not its extension, names its field.

    First-level folders are classes, numbered as Python's ``sorted()`` orders their names, empty
    ones too, exactly as torchvision's ImageFolder numbers them; with splits, the union over them.
    ``labels`` (a .csv or .json file) takes their place, in any layout.
    """

    kind = "images"
    has_pictures = True
    noun = "images"
    extensions = IMAGE_EXTENSIONS
    can_be_paired = True
    options = frozenset({"labels"})

    def __init__(self, source: Path, labels: Path | None = None) -> None:
        super().__init__(source)
        self._beside: dict[str, int] = {}
        top = list_names(source, "", IMAGE_EXTENSIONS, self._beside)
        self._roots = split_roots(top)
        self._labels = None if labels is None else read_labels(Path(labels), IMAGE_EXTENSIONS)
        if self._labels is None:
            self.classes = folder_classes(source, root_folders(source, top, self._roots))
        else:
            self.classes = self._labels.classes
        self._index = {name: i for i, name in enumerate(self.classes or ())}

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        """For reading only: neither folders nor labels are read again, so it cannot list."""
        made = cls.__new__(cls)
        made.source, made.classes, made.ignored = source, spec["classes"], {}
        made._beside, made._roots, made._labels, made._index = {}, [], None, {}
        return made

    def spec(self) -> dict[str, Any]:
        spec = {"kind": self.kind, "classes": self.classes}
        return spec if self._labels is None else {**spec, "labels": True}

    def roots(self, ignored: dict[str, int]) -> list[Root]:
        if self._roots and self._roots[0].base:  # files beside splits lie in no root
            ignored.update(self._beside)
        return self._roots

    def runs(self, scratch: Path) -> Iterator[Run]:
        if not self._roots:
            raise CorpusError("a corpus rebuilt from its spec can read runs, not list them")
        if self._labels is not None:
            self._labels.check(self._names())
        yield from super().runs(scratch)

    def _names(self) -> Iterator[tuple[str, list[str]]]:
        for root in self._roots:
            for folder in walk(self.source, root.base, IMAGE_EXTENSIONS, measure=False):
                yield folder.base, folder.names

    def folder_runs(self, folder: FolderListing, root: Root) -> Iterator[Run]:
        if not folder.names:
            return iter(())
        if self._labels is not None:
            return by_label(run_of(folder, root), folder, self._labels)
        class_name = root.key_base(folder.base).partition("/")[0]
        if not class_name:
            return iter((run_of(folder, root),))
        if class_name not in self._index:
            raise CorpusError(
                f"class folder {show_path(class_name)} came while listing; run it again"
            )
        return iter((run_of(folder, root, self._index[class_name]),))

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        values = self.contents(run)
        return batch_of(run, values, name_fields(values))


def root_folders(source: Path, top: FolderListing, roots: list[Root]) -> list[FolderListing]:
    """The folder of each root, where ``top`` is the source's own."""
    if not roots[0].base:
        return [top]
    return [list_names(source, root.base, IMAGE_EXTENSIONS) for root in roots]


def folder_classes(source: Path, tops: list[FolderListing]) -> list[str] | None:
    """Class names in index order, or None if no root has sub-folders.

    Raises:
        CorpusError: images lie beside class folders.
    """
    for top in tops:
        if top.folders and top.names:
            raise CorpusError(
                f"{show_path(source / top.base)} holds {len(top.names):,} images"
                f" ({show_path(top.names[0])}, ...) beside {len(top.folders):,} folders"
                f" ({show_path(top.folders[0])}, ...): move the images into class folders,"
                " or name every image's class with --labels"
            )
    return sorted({name for top in tops for name in top.folders}) or None


def by_label(run: Run, folder: FolderListing, labels: Labels) -> Iterator[Run]:
    """One run a label, in order of label."""
    groups: dict[int, Run] = {}
    for i, name in enumerate(folder.names):
        label = labels.of(folder.base, name)
        if label is None:
            raise CorpusError(
                f"{show_path(name)} came while listing and has no label; run it again"
            )
        group = groups.get(label)
        if group is None:
            group = groups[label] = Run(run.split, run.base, label)
        group.locators.append(run.locators[i])
        group.keys.append(run.keys[i])
        group.sizes.append(run.sizes[i])
        group.stamps.append(run.stamps[i])
    return (groups[label] for label in sorted(groups))


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
    """Why this content is refused."""
    return f"not an image: begins with {bytes(value[:12])!r}" if value else "empty file"
