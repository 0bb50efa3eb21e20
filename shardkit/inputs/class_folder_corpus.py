"""What the corpora of class folders share: classes by folder or by ``--labels``, and their runs."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, ClassVar, Self

from shardkit.errors import CorpusError
from shardkit.inputs.base import Run
from shardkit.inputs.class_folders import DeeperFolders
from shardkit.inputs.files import FolderListing, walk
from shardkit.inputs.folders import FolderCorpus, Root, list_names, run_of, split_roots
from shardkit.inputs.label_files import LABEL_ENDINGS, label_notes
from shardkit.inputs.label_names import Labels
from shardkit.inputs.labels import read_labels
from shardkit.system.paths import first_few, show_path


class ClassFolderCorpus(FolderCorpus):
    """Each file is a sample, and its class is its first-level folder.

    Folders are numbered as Python's ``sorted()`` orders their names, empty ones too, exactly as
    torchvision's ImageFolder numbers them; with splits, the union over them. ``labels``, a
    table that names files, takes their place, in any layout: :mod:`shardkit.inputs.labels`.
    """

    options = frozenset({"labels"})

    files_noun: ClassVar[str] = "files"
    """What its files are called where the layout is refused."""

    def __init__(self, source: Path, labels: str | Path | None = None) -> None:
        super().__init__(source)
        self._beside: dict[str, int] = {}
        self.notes: list[str] = []
        self._deeper = DeeperFolders()
        self._flat: list[str] = []
        self._no_common = ""
        top = self._names_in("", self._beside)
        self._roots = split_roots(top)
        self._labels = None
        if labels is not None:
            self._labels = read_labels(os.fspath(labels), self.all_names(), self.extensions)
        self.classes = self.find_classes(top)
        self._index = {name: i for i, name in enumerate(self.classes or ())}

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        """For reading only: neither folders nor labels are read again, so it cannot list."""
        made = cls.__new__(cls)
        made.source, made.classes, made.ignored = source, spec.get("classes"), {}
        made.notes = []
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
        self.notes = self.class_notes()
        self._deeper = DeeperFolders()
        yield from super().runs(scratch)
        self.notes += self._deeper.notes()

    def folder_runs(self, folder: FolderListing, root: Root) -> Iterator[Run]:
        self.pass_documents(folder, self.ignored)
        if not folder.names:
            return iter(())
        if self._labels is not None:
            run = run_of(folder, root)
            if root.split in self._labels.without:
                return iter((run,))
            return by_label(run, folder, self._labels)
        class_name = root.key_base(folder.base).partition("/")[0]
        if not class_name:
            return iter((run_of(folder, root),))
        if class_name not in self._index:
            raise CorpusError(
                f"class folder {show_path(class_name)} came while listing; run it again"
            )
        self._deeper.add(root.key_base(folder.base))
        return iter((run_of(folder, root, self._index[class_name]),))

    def class_notes(self) -> list[str]:
        """What there is to say of the classes, a line each."""
        source = "the folders" if self._labels is None else f"named by {self._labels.where}"
        notes = [told(self.classes, source)] if self.classes is not None else []
        if self.odd:
            notes.append(self.odd)
        if notes and self._flat:
            notes.append(f"no cls in {', '.join(self._flat)}: there are no class folders there")
        if self._no_common:
            notes.append(self._no_common)
        if self._labels is None:
            may_be_labels = self.extensions and not LABEL_ENDINGS.isdisjoint(self._beside)
            return notes + label_notes(self.source, self.extensions) if may_be_labels else notes
        return [*(notes or [self._labels.told_indices()]), *self._labels.notes]

    def pass_documents(self, folder: FolderListing, ignored: dict[str, int]) -> None:
        """Drop what is called as a sample and is none, and count it."""

    def all_names(self) -> Iterator[tuple[str, str, list[str]]]:
        """Each split's folders, and the names in them that are samples."""
        for root in self._roots:
            for folder in walk(self.source, root.base, self.extensions or None, {}, measure=False):
                self.pass_documents(folder, {})
                yield root.split, folder.base, folder.names

    def find_classes(self, top: FolderListing) -> list[str] | None:
        """Class names in index order; None where there are none."""
        if self._labels is not None:
            return self._labels.classes
        tops = [top]
        if self._roots[0].base:
            tops = [self._names_in(root.base, {}) for root in self._roots]
            flat = zip(self._roots, tops, strict=True)
            self._flat = [root.split for root, top in flat if top.names and not top.folders]
            self._no_common = _without_common(
                {root.split: {*top.folders} for root, top in zip(self._roots, tops, strict=True)}
            )
        return folder_classes(self.source, tops, self.files_noun)

    def _names_in(self, base: str, ignored: dict[str, int]) -> FolderListing:
        """One folder's sub-folders and files that are samples: names only."""
        folder = list_names(self.source, base, self.extensions or None, ignored)
        self.pass_documents(folder, ignored)
        return folder


def _without_common(classes: Mapping[str, Set[str]]) -> str:
    """What there is to say where no class of train is in another split, too: the folders may be
    patients, or songs."""
    train = classes.get("train", frozenset[str]())
    others = {split: own for split, own in classes.items() if split != "train" and own}
    if not train or not others or any(train & own for own in others.values()):
        return ""
    return (
        f"the folders may be no classes: none of train is in {first_few([*others])}; --labels takes"
        " classes from a table"
    )


def folder_classes(source: Path, tops: Sequence[FolderListing], noun: str) -> list[str] | None:
    """Class names in index order, or None if no root has sub-folders.

    Raises:
        CorpusError: files, called ``noun``, lie beside class folders.
    """
    for top in tops:
        if top.folders and top.names:
            raise CorpusError(
                f"{show_path(source / top.base)} holds {len(top.names):,} {noun}"
                f" ({show_path(top.names[0])}, ...) beside {len(top.folders):,} folders"
                f" ({show_path(top.folders[0])}, ...): move the {noun} into class folders,"
                f" or name every {noun.removesuffix('s')}'s class with --labels"
            )
    return sorted({name for top in tops for name in top.folders}) or None


def told(classes: Sequence[str], source: str) -> str:
    """What there is to say of classes, and where they come from."""
    number = f"{len(classes):,} class{'es' * (len(classes) != 1)}"
    return f"cls is of {number}, {source}: {first_few(classes)}{_alike(classes)}"


def _alike(classes: Sequence[str]) -> str:
    """Which two classes may have been meant as one; ``""`` if none."""
    first: dict[str, str] = {}
    for name in classes:
        other = first.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if other is not name:
            how = "case" if other.casefold() == name.casefold() else "how accents are written"
            return f"; {show_path(other)} and {show_path(name)} differ in {how} alone"
    return ""


def by_label(run: Run, folder: FolderListing, labels: Labels) -> Iterator[Run]:
    """One run a label, in order of label."""
    groups: dict[int, Run] = {}
    for i, label in enumerate(labels.of(folder.base, folder.names)):
        if label is None:
            raise CorpusError(
                f"{show_path(folder.names[i])} came while listing and has no label; run it again"
            )
        group = groups.get(label)
        if group is None:
            group = groups[label] = Run(run.split, run.base, label)
        group.locators.append(run.locators[i])
        group.keys.append(run.keys[i])
        group.sizes.append(run.sizes[i])
        group.stamps.append(run.stamps[i])
    return (groups[label] for label in sorted(groups))
