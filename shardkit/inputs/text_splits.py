"""Splits of texts that lie side by side: ``ptb.train.txt``, ``ptb.valid.txt``, ``ptb.test.txt``.

They are splits where nothing else can be meant: every text of the source lies at its top, READMEs
and the like apart, the name of each tells one split, and together they tell two at least. However
many they are, that is no chance. An essay called ``test.txt`` among others is no split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.inputs.class_folders import any_holds
from shardkit.inputs.files import FolderListing
from shardkit.inputs.folders import Root, list_names, split_folders
from shardkit.inputs.names import join
from shardkit.inputs.text_folders import drop_documents
from shardkit.inputs.whole_sets import notes_on_splits
from shardkit.samples.split_names import mixed_names, splits_by_words
from shardkit.system.paths import show_path

CHANCE = 64
"""Where fewer than one name in so many tells a split, as one essay in hundreds may, and the others
tell none, nothing is said of it."""


@dataclass(frozen=True)
class TextSplits:
    """What the names of texts tell.

    Attributes:
        of: file -> its split; empty if names tell no splits.
        notes: what there is to say of it, a line each.
    """

    of: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def names(self) -> list[str]:
        """The splits, in order."""
        return sorted({*self.of.values()})

    def parts(self, folder: FolderListing) -> Iterator[tuple[Root, FolderListing]]:
        """The files of each split in a folder, one split after another.

        Raises:
            CorpusError: one has no split.
        """
        paths = [join(folder.base, name) for name in folder.names]
        if came := [path for path in paths if path not in self.of]:
            raise CorpusError(f"{show_path(came[0])} came while listing; run it again")
        for split in self.names():
            if rows := [i for i, path in enumerate(paths) if self.of[path] == split]:
                part = FolderListing(folder.base)
                part.names = [folder.names[i] for i in rows]
                part.sizes = [folder.sizes[i] for i in rows]
                part.stamps = [folder.stamps[i] for i in rows]
                yield Root(split, ""), part


def find_text_splits(source: Path, extensions: frozenset[str]) -> TextSplits:
    """What the names of the texts at ``source`` tell. Only names are looked at.

    Raises:
        StorageError: the source cannot be listed.
    """
    top = list_names(source, "", extensions)
    drop_documents(top, {})
    if not top.names or split_folders(top.folders) is not None:
        return TextSplits()
    told = splits_by_words(top.names)
    if told is None:
        return TextSplits(notes=_on_some(top.names))
    splits = {*told}
    if splits == {"train"}:
        return TextSplits()
    other = next(name for name, split in zip(top.names, told, strict=True) if split != "train")
    if len(splits) == 1:
        why = "no other name tells another split"
    elif beside := [name for name in top.folders if any_holds(source, [name], extensions)]:
        why = f"there are texts in {show_path(join(beside[0], ''))} as well"
    else:
        of = dict(zip(top.names, told, strict=True))
        return TextSplits(of, notes_on_splits(sorted(splits)))
    return TextSplits(notes=[f"all of split train, {show_path(other)} too, since {why}"])


def _on_some(names: Sequence[str]) -> list[str]:
    """The note that some names tell a split, and some none."""
    num_told = sum(splits_by_words([name]) is not None for name in names)
    return mixed_names(names) if CHANCE * num_told >= len(names) else []
