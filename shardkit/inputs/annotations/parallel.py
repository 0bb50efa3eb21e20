"""Parallel folders: ``images/1.jpg``, ``masks/1.png`` and ``boxes/1.json`` are one sample."""

from __future__ import annotations

import os
from collections.abc import Iterator
from heapq import merge
from itertools import groupby
from pathlib import Path

from shardkit.images.sniff import IMAGE_EXTENSIONS
from shardkit.inputs.annotations.annotated import (
    AnnotatedCorpus,
    AnnotatedEntry,
    FilePart,
    lost_entry,
    runs_of,
)
from shardkit.inputs.annotations.stem_fit import cut_suffix
from shardkit.inputs.annotations.track_plan import TrackPlan, plan_tracks
from shardkit.inputs.annotations.tracks import (
    Tree,
    find_tree,
    is_part,
    look_at,
    place_of,
    walk_track,
)
from shardkit.inputs.base import Run
from shardkit.inputs.files import FolderListing
from shardkit.inputs.folders import nothing_found, pass_over, peek
from shardkit.inputs.names import cut_ending, extension, join
from shardkit.system.paths import show_path

_Step = tuple[tuple[str, ...], dict[str, str], FolderListing]
"""Where below its track a folder lies, by its parts; the track's views by suffix; the folder."""


class ParallelCorpus(AnnotatedCorpus):
    """Files of one name but for the ending, in folders side by side, are one sample.

    The folder called ``images`` or the like, or the only one of pictures, gives the plain field
    (``jpg``), and each other one ``<folder>.<ending>`` (``masks.png``). What has no counterpart in
    some folder is a sample that lacks its field, which is said in ``notes``: masks are often there
    for some pictures only, and a mask without its picture is not to vanish.

    Attributes:
        used: files, relative to the source, that say something of all samples, and are none.
    """

    kind = "parallel"
    has_text = True
    noun = "parallel folders"

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        self.used: frozenset[str] = frozenset()

    def splits(self) -> list[str]:
        return [split for split in find_tree(self.source) if split]

    def runs(self, scratch: Path) -> Iterator[Run]:
        self.ignored.clear()
        self.notes.clear()
        tree = find_tree(self.source)
        plan = plan_tracks(look_at(self.source, tree, self.used), show_path(self.source))
        if plan is None:
            self._count("", set())
            raise nothing_found(self.noun, self.source, self.ignored)
        tree.pop("", None)
        self.notes += plan.notes
        bases = {split: self._bases(tree, split, plan) for split in tree}
        lost = self._count("", {base for own in bases.values() for base in own.values()})
        for split in tree:
            yield from runs_of(split, self._entries(bases[split], plan, lost))
            lost = []

    def _bases(self, tree: Tree, split: str, plan: TrackPlan) -> dict[str, str]:
        """Where the folders of a split lie, by their names; a split may lack some."""
        found = {name: place_of(tree, split, name) for name in plan.views}
        return {n: base for n, base in found.items() if base and (self.source / base).is_dir()}

    def _entries(
        self, bases: dict[str, str], plan: TrackPlan, lost: list[str]
    ) -> Iterator[AnnotatedEntry]:
        """The samples of a split, a folder at a time, so that no more than that is held; then what
        leads nowhere, with those names that are ``lost`` already."""
        steps = [self._steps(base, plan.views[name], lost) for name, base in bases.items()]
        for place, group in groupby(merge(*steps, key=_where), key=_where):
            files: dict[str, list[FilePart]] = {}
            for _, views, folder in group:
                self._add(files, folder, views)
            for stem in sorted(files):
                if plan.main and _is_beside(files[stem]):
                    for part in files[stem]:
                        pass_over(part.path.rpartition("/")[2], self.ignored)
                else:
                    yield AnnotatedEntry("/".join([*place, stem]), files[stem])
        yield from map(lost_entry, lost)

    def _steps(self, base: str, views: dict[str, str], lost: list[str]) -> Iterator[_Step]:
        """The folders of a track, in the order of their paths' parts; what leads nowhere is added
        to ``lost``."""
        for folder in walk_track(self.source, base, lost, self.ignored, measure=True):
            lost += [join(folder.base, name) for name in folder.lost]
            # A folder that cannot be listed comes as its parent once more, out of order.
            if folder.names:
                below = folder.base[len(base) + 1 :]
                yield tuple(below.split("/")) if below else (), views, folder

    def _add(
        self, files: dict[str, list[FilePart]], folder: FolderListing, views: dict[str, str]
    ) -> None:
        for name, size, stamp in zip(folder.names, folder.sizes, folder.stamps, strict=True):
            path = join(folder.base, name)
            if path in self.used:
                continue
            if not is_part(name):
                pass_over(name, self.ignored)
                continue
            stem, suffix = cut_suffix(cut_ending(name)[0], [*views])
            files.setdefault(stem, []).append(FilePart(views[suffix], path, size, stamp))

    def _count(self, base: str, kept: set[str]) -> list[str]:
        """Count as passed over what lies neither in the folders ``kept`` nor is ``used``; returns
        names that lead nowhere, which may have been folders.
        """
        folder = peek(self.source, base)
        lost: list[str] = []
        folder.keep(None, self.ignored)
        for name in folder.names:
            path = join(base, name)
            if not os.path.exists(self.source / path):
                lost.append(path)
            elif path not in self.used:
                pass_over(name, self.ignored)
        for below in (join(base, name) for name in folder.folders):
            if below in kept:
                continue
            if any(each.startswith(f"{below}/") for each in kept):
                lost += self._count(below, kept)
            else:
                self._count_all(below, lost)
        return lost

    def _count_all(self, base: str, lost: list[str]) -> None:
        for folder in walk_track(self.source, base, lost, self.ignored):
            for name in [*folder.names, *folder.lost]:
                if join(folder.base, name) not in self.used:
                    pass_over(name, self.ignored)


def _is_beside(parts: list[FilePart]) -> bool:
    """Whether files of one stem lie among the pictures alone, and none of them is one: lists, and
    what other programs leave there, are no samples."""
    return not any(part.view or extension(part.path) in IMAGE_EXTENSIONS for part in parts)


def _where(step: _Step) -> tuple[str, ...]:
    return step[0]
