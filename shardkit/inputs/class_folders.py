"""Folders of which each file is a sample, images first: classes by folder or by ``--labels``."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from shardkit.errors import CorpusError
from shardkit.images.sniff import HEAD_BYTES, IMAGE_EXTENSIONS, image_field
from shardkit.inputs.corpus import Input, Run
from shardkit.inputs.files import (
    DOCUMENTS,
    FolderListing,
    Reason,
    encode,
    join,
    read_files,
    stem,
    walk,
)
from shardkit.inputs.folders import (
    Root,
    batch_of,
    list_names,
    nothing_found,
    run_of,
    split_of,
    split_roots,
)
from shardkit.inputs.guards import masks_in, notes_on_splits, role_of
from shardkit.inputs.named_files import Labels, label_notes, read_labels
from shardkit.samples.sample import SampleBatch, Value
from shardkit.system.paths import first_few, show_path

FEW = 100
"""Texts above class folders are no samples if the folders hold this many times as many."""


class ClassFolderCorpus(Input):
    """Each file of a folder, nested at will, is a sample, and its class is its first-level folder.

    Folders are numbered as Python's ``sorted()`` orders their names, empty ones too, exactly as
    torchvision's ImageFolder numbers them; with splits, the union over them. ``labels``, a
    table that names files, takes their place, in any layout: :mod:`shardkit.inputs.named_files`.
    Without ``extensions`` all files count.
    """

    options = frozenset({"labels"})
    kept = {"classes": "classes"}  # noqa: RUF012 (nobody changes it)
    _labels: Labels | None = None

    may_be_empty: ClassVar[bool] = True

    are_folders_keys = False
    """True if folders are a part of keys alone."""

    files_noun: ClassVar[str] = "files"
    """The word for its files in errors about the layout."""

    def __init__(self, source: Path, labels: str | Path | None = None) -> None:
        super().__init__(source)
        self._beside: dict[str, int] = {}
        self._tables: list[str] = []
        top = self._names_in("", self._beside)
        self._roots = split_roots(top)
        self._tops = [self._names_in(r.base, {}) if r.base else top for r in self._roots]
        if labels is not None:
            named = ((r.split, f.base, f.names) for r, f in self.folders({}, measure=False))
            self._labels = read_labels(os.fspath(labels), named)
        self.classes = self.find_classes()
        self._index = {name: i for i, name in enumerate(self.classes or ())}
        if self._beside and "labels" in self.options and self.extensions and labels is None:
            names = list_names(source, "", None).names
            self._tables = label_notes(name for name in names if name not in top.names)

    def spec(self) -> dict[str, Any]:
        return super().spec() if self._labels is None else {**super().spec(), "labels": True}

    def splits(self) -> list[str]:
        return [root.split for root in self._roots]

    def runs(self, scratch: Path) -> Iterator[Run]:
        self.notes = [*self.class_notes(), *self._tables, *notes_on_splits(self.splits())]
        self._deeper = list[str]()
        self.ignored.clear()
        if self._roots[0].base:  # files next to splits lie in no root
            self.ignored.update(self._beside)
        is_empty = True
        for root, folder in self.folders(self.ignored):
            for run in self.folder_runs(folder, root) if folder.names else ():
                is_empty = False
                yield run
            if folder.lost:  # each name becomes a reject when it is read
                nothing = [0] * len(folder.lost)
                keys = encode(folder.lost, root.key_base(folder.base))
                yield Run(
                    root.split, folder.base, None, encode(folder.lost), keys, nothing, nothing
                )
        if is_empty:
            raise nothing_found(self.noun, self.source, self.ignored)
        if self._deeper:
            are = "folder lies" if len(self._deeper) == 1 else "folders lie"
            self.notes.append(
                f"{len(self._deeper):,} {are} within those of classes, and are a part of keys"
                f" alone: {first_few(self._deeper)}"
            )

    def folder_runs(self, folder: FolderListing, root: Root) -> Iterator[Run]:
        """Return the runs of one folder's own files."""
        if self._labels is not None and root.split not in self._labels.without:
            labels = self._labels.of(folder.base, folder.names)
            return by_label(run_of(folder, root), folder, labels)
        class_name, _, below = root.key_base(folder.base).partition("/")
        if not class_name or self._labels is not None or self.are_folders_keys:
            return iter((run_of(folder, root),))
        if class_name not in self._index:
            raise CorpusError(
                f"class folder {show_path(class_name)} came while listing; run it again"
            )
        if below and role_of(below) != "pictures":
            self._deeper.append(folder.base)
        return iter((run_of(folder, root, self._index[class_name]),))

    def contents(self, run: Run) -> list[Value | Reason]:
        """Return each file's bytes, or why there are none."""
        values = read_files(self.source / run.base, run.locators, run.sizes)
        return values if self.may_be_empty else [value or "empty file" for value in values]

    def class_notes(self) -> list[str]:
        """Return what there is to say of the classes, a line each."""
        if self._labels is not None:
            own = [told(self.classes, f"named by {self._labels.where}")] * bool(self.classes)
            return [*own, *self._labels.notes]
        if self.classes is None:
            return []
        notes = [told(self.classes, "the folders"), *filter(None, [self.odd])]
        if not self._roots[0].base:
            return notes
        held = dict(zip(self.splits(), self._tops, strict=True))
        if flat := [split for split, top in held.items() if top.names and not top.folders]:
            notes.append(f"no cls in {', '.join(flat)}: there are no class folders there")
        train = {*held["train"].folders} if "train" in held else set()
        others = {
            name: top.folders for name, top in held.items() if name != "train" and top.folders
        }
        if train and others and all(map(train.isdisjoint, others.values())):
            notes.append(  # they may be patients, or songs
                f"the folders may be no classes: none of train is in {first_few([*others])};"
                " --labels takes classes from a table"
            )
        return notes

    def pass_documents(self, folder: FolderListing, ignored: dict[str, int]) -> None:
        """Drop what has the name of a sample and is none, and count it."""

    def folders(
        self, ignored: dict[str, int], measure: bool = True
    ) -> Iterator[tuple[Root, FolderListing]]:
        """Yield each split's folders, with the files in them that are samples."""
        for root in self._roots:
            for folder in walk(self.source, root.base, self.extensions or None, ignored, measure):
                self.pass_documents(folder, ignored)
                yield root, folder

    def find_classes(self) -> list[str] | None:
        """Return class names in index order; None if there are none.

        Raises:
            CorpusError: files lie next to class folders.
        """
        if self._labels is not None:
            return self._labels.classes
        noun = self.files_noun
        for top in self._tops:
            if top.folders and top.names:
                raise CorpusError(
                    f"{show_path(self.source / top.base)} holds {len(top.names):,} {noun}"
                    f" ({show_path(top.names[0])}, ...) beside {len(top.folders):,} folders"
                    f" ({show_path(top.folders[0])}, ...): move the {noun} into class folders,"
                    f" or name every {noun.removesuffix('s')}'s class with --labels"
                )
        return sorted({name for top in self._tops for name in top.folders}) or None

    def _names_in(self, base: str, ignored: dict[str, int]) -> FolderListing:
        folder = list_names(self.source, base, self.extensions or None, ignored)
        self.pass_documents(folder, ignored)
        return folder


def told(classes: Sequence[str] | None, source: str) -> str:
    """Return one line on classes, and where they come from."""
    classes = classes or []
    number, alike = f"{len(classes):,} class{'es' * (len(classes) != 1)}", ""
    first: dict[str, str] = {}
    for name in classes:
        other = first.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if other is not name and not alike:
            how = "case" if other.casefold() == name.casefold() else "how accents are written"
            alike = f"; {show_path(other)} and {show_path(name)} differ in {how} alone"
    return f"cls is of {number}, {source}: {first_few(classes)}{alike}"


def by_label(run: Run, folder: FolderListing, labels: Sequence[int | None]) -> Iterator[Run]:
    """Return one run per label, in order of label."""
    entries: dict[int, list[int]] = {}
    for i, label in enumerate(labels):
        if label is None:
            raise CorpusError(
                f"{show_path(folder.names[i])} came while listing and has no label; run it again"
            )
        entries.setdefault(label, []).append(i)
    for label in sorted(entries):
        part = run.take(entries[label])
        part.label = label
        yield part


# --- folders that are classes only where they plainly are ---------------------------------


class PlainClassCorpus(ClassFolderCorpus):
    """Folders are classes where nothing else can be meant, and a part of keys elsewhere.

    Each file lies in a folder directly below the source, or below the folder of its split, and
    there are two such folders at least: ``pos/1.txt`` and ``neg/1.txt``. Source trees, dumps and
    pages of a manual have files further up or further down. Lists of addresses and the like above
    the folders, as aclImdb has them, do not count if they are one file in a hundred at most.
    """

    options = frozenset()

    def __init__(self, source: Path) -> None:
        self.source = source
        self._above: set[str] = set()
        top = list_names(source, "", self.extensions)
        drop_documents(top, {})
        above, top.names = top.names, []
        roots = split_roots(top)
        self.strays = above if roots[0].base else []
        self._classes, self.why = self._judge_folders(roots)
        if self._classes is not None:
            self._above = {"", *(root.base for root in roots)}
        super().__init__(source)
        self.are_folders_keys = self.classes is None

    def _judge_folders(self, roots: Sequence[Root]) -> tuple[list[str] | None, str]:
        """Return class names in index order; or None if folders are no classes, and why."""
        names, num_files, why = set[str](), 0, ""
        folders = (
            (root, folder)
            for root in roots
            for folder in walk(self.source, root.base, self.extensions, {}, measure=False)
        )
        for root, folder in folders:
            below = root.key_base(folder.base)
            if not below:
                drop_documents(folder, {})
                self.strays += [join(folder.base, name) for name in folder.names]
            elif folder.names and "/" in below:
                why = f"{show_path(join(folder.base, folder.names[0]))} lies further down"
                break
            elif folder.names:
                names.add(below)
                num_files += len(folder.names)
        odd = sorted(name for name in names if role_of(name) or split_of(name))
        if not why and not names:
            return None, ""
        if not why and FEW * len(self.strays) > num_files:
            why = f"{show_path(self.strays[0])} lies beside them"
        elif not why and len(names) < 2:
            why = "there is one alone"
        elif not why and odd:
            why = f"{show_path(odd[0])} is not named as a class is"
        if why:
            return None, f"no cls: folders are a part of keys, since {why}"
        return sorted(names), ""

    def spec(self) -> dict[str, Any]:
        return {"kind": self.kind} if self.classes is None else super().spec()

    def find_classes(self) -> list[str] | None:
        return self._classes

    def pass_documents(self, folder: FolderListing, ignored: dict[str, int]) -> None:
        if folder.base in self._above:
            folder.drop({*folder.names}, ignored)

    def class_notes(self) -> list[str]:
        if self.classes is None:
            return [*filter(None, [self.why])]
        notes = [told(self.classes, "the folders")]
        if self.strays:
            above = first_few(self.strays)
            notes.append(f"files above the folders of classes are passed over: {above}")
        return notes


def drop_documents(folder: FolderListing, ignored: dict[str, int]) -> None:
    """Pass over READMEs and the like, and count them."""
    folder.drop({name for name in folder.names if stem(name).lower() in DOCUMENTS}, ignored)


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


def name_fields(values: list[Value | Reason]) -> list[str] | str:
    """Return each image's field, or the one that all share; a non-image becomes a reason in place.

    Files of one kind mostly begin with the same bytes, so few heads need a look.
    """
    heads = {value[:HEAD_BYTES] for value in values}
    known = {h: None if isinstance(h, Reason) else image_field(bytes(h)) for h in heads}
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


def not_image(value: Value) -> Reason:
    """Return why this content is refused."""
    return f"not an image: begins with {bytes(value[:12])!r}" if value else "empty file"
