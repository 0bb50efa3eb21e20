"""Parallel folders: ``images/1.jpg``, ``masks/1.png`` and ``boxes/1.json`` are one sample.

They lie at the top, or in every split (``train/images``, ``train/masks``), or have the splits
within (``images/train``, ``masks/train``).

Class folders whose files are numbered have equal names, too, and are far commoner than masks. So
equal names alone never make folders parallel: names of folders must say so, or one folder alone
holds images (or arrays, audio, video).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError
from shardkit.images.sniff import IMAGE_EXTENSIONS
from shardkit.inputs.corpus import MOST_FOLDERS, Claim, Look, Run, Strength
from shardkit.inputs.file_parts import (
    MAIN,
    MAIN_KINDS,
    FilePart,
    PartsCorpus,
    PartsEntry,
    is_part,
    view_of,
)
from shardkit.inputs.files import FolderListing, cut_ending, extension, join, pass_over, walk
from shardkit.inputs.folders import nothing_found, split_folders, split_of
from shardkit.inputs.guards import ANNOTATIONS, COMPANION, Role, role_of
from shardkit.memory.maps import read_file
from shardkit.system.paths import first_few, show_path

HALF = 0.5
"""Share of the smaller folder's names that the other must have. Masks are often of some images
only; folders that have nothing to do with one another share far less, or, numbered from 1, all."""

MAX_TRACKS = 16
"""More folders than this are classes."""

Tree = dict[str, dict[str, str]]
"""Split -> name of a folder -> where it lies. Split ``""`` has folders without splits within, where
others have some."""


def find_tree(look: Look) -> Tree:
    """Return the folders of a source that lie side by side, in each split."""
    tops = look.top.folders
    if (splits := split_folders(tops)) is not None:
        return {s: {n: f"{top}/{n}" for n in look.list(top).folders} for top, s in splits.items()}
    tree: Tree = {}
    for name in tops if len(tops) <= MAX_TRACKS else ():
        for folder, split in (split_folders(look.list(name).folders) or {}).items():
            tree.setdefault(split, {})[name] = f"{name}/{folder}"
    if not tree:
        return {"train": {name: name for name in tops}}
    held = {name for folders in tree.values() for name in folders}
    tree[""] = {name: name for name in tops if name not in held}
    return {split: tree[split] for split in sorted(tree)}


@dataclass(eq=False)
class Track:
    """A folder among those side by side, over all splits.

    Attributes:
        role: what its name says that it holds.
        folders: (split, place below it) -> the files there.
        stems: ``split//path`` without endings. endings: how many files of each.
    """

    name: str
    role: Role
    folders: dict[tuple[str, str], FolderListing] = field(default_factory=dict)
    stems: set[str] = field(default_factory=set)
    endings: Counter[str] = field(default_factory=Counter)

    def holds(self, endings: AbstractSet[str]) -> bool:
        """Return True if half of its files have one of these endings."""
        return 2 * sum(self.endings[end] for end in endings) >= self.endings.total() > 0


def collect(
    folders: Iterable[FolderListing], tree: Tree, used: AbstractSet[str] = frozenset()
) -> list[Track]:
    """Return the tracks that hold files, apart from those ``used``."""
    names = {name for own in tree.values() for name in own}
    tracks = {name: Track(name, role_of(name, names)) for name in sorted(names)}
    places = {base: (split, name) for split, own in tree.items() for name, base in own.items()}
    for folder in folders:
        parts = folder.base.split("/")
        starts = ("/".join(parts[:depth]) for depth in (2, 1))
        base = next((start for start in starts if start in places), None)
        if base is None:
            continue
        split, name = places[base]
        place, track = folder.base[len(base) + 1 :], tracks[name]
        track.folders[split, place] = folder
        for own in folder.names:
            if is_part(own) and join(folder.base, own) not in used:
                start, ending = cut_ending(own)
                track.stems.add(f"{split}//{join(place, start)}")
                track.endings[ending] += 1
    return [track for track in tracks.values() if track.stems]


# --- the rule -----------------------------------------------------------------------------


def fit(stems: AbstractSet[str], others: AbstractSet[str]) -> tuple[float, str, frozenset[str]]:
    """Return how well some stems are others, which end in nothing besides: the share of the smaller
    folder's names that are the other's, what names end in besides, as in ``0001_mask.png``, and
    names without it."""
    suffix = ""
    if stems.isdisjoint(others):  # else 1_mask, without an image, would be the mask of 1
        found = (COMPANION.search(one) for one in stems)
        ends = Counter(end[0] if end else "" for end in found)
        suffix = next((end for end, number in ends.items() if 2 * number > len(stems)), "")
    cut = frozenset(one.removesuffix(suffix) for one in stems)
    return len(cut & others) / min(len(cut), len(others)), suffix, cut


def find_main(tracks: Sequence[Track]) -> Track | None:
    """Return the folder of the images themselves; None if several might be."""
    held = next((h for e in MAIN_KINDS if (h := [t for t in tracks if t.holds(e)])), [])
    wanted = [
        [track for track in tracks if track.role == "pictures"],
        held,
        [track for track in held if track.role not in ANNOTATIONS],
        [track for track in held if track.role == "maybe pictures"],
    ]
    return next((found[0] for found in wanted if len(found) == 1), None)


def judge(tracks: Sequence[Track]) -> Strength | None:
    """Return LAYOUT if folders are parallel, FILES if they may be classes as well, else None."""
    main = find_main(tracks)
    if main is not None:
        found = [_judge_one(track, main) for track in tracks if track is not main]
        return min(filter(None, found), default=None)
    are_equal = all(track.stems == tracks[0].stems for track in tracks)
    is_odd = any(track.role for track in tracks) or not _end_alike(tracks)
    return Strength.FILES if are_equal and is_odd else None


def _judge_one(track: Track, main: Track) -> Strength | None:
    """Return LAYOUT if a folder holds parts of the main one's samples, FILES if it may be a class
    next to it as well. Folders that are neither are refused later, whatever the source is."""
    share, _, stems = fit(track.stems, main.stems)
    is_annotated = track.role in ANNOTATIONS and share >= HALF
    is_equal, differ = stems == main.stems, not _end_alike([track, main])
    if not any(track.holds(kind) and main.holds(kind) for kind in MAIN_KINDS):  # texts, boxes
        covers = len(stems & main.stems) >= HALF * max(len(stems), len(main.stems))
        return Strength.LAYOUT if covers or is_annotated else None
    is_named = is_annotated and track.role == "annotations"
    if (main.role == "pictures" and (is_annotated or is_equal)) or (is_named and differ):
        return Strength.LAYOUT
    is_odd = main.role != "pictures" and (is_equal or is_annotated) and (is_annotated or differ)
    return Strength.FILES if is_odd and (is_equal or is_named or differ) else None


def _end_alike(tracks: Sequence[Track]) -> bool:
    """Return True if all have an ending in common."""
    return not tracks or bool(set.intersection(*({*track.endings} for track in tracks)))


# --- fields -------------------------------------------------------------------------------


Views = dict[str, tuple[str, str]]
"""Folder -> view of its fields, and what its names end in besides."""


def plan_views(tracks: Sequence[Track], where: str) -> tuple[Views, list[str]]:
    """Return the views of all folders that are packed, the main one first, and notes.

    Raises:
        CorpusError: folders are no parts of samples, have no name in common, or would be one field.
    """
    splits = {t.name: {*map(split_of, re.split(r"[-_ ]", t.name))} - {None} for t in tracks}
    if any(splits.values()) and (
        len(set().union(*splits.values())) > 1 or not all(splits.values())
    ):
        called = first_few([name for name, own in splits.items() if own])
        raise CorpusError(
            f"{where}: folders {called} are called after splits, and are no parts of one sample;"
            " move the files of each to train/images or the like, or see"
            " docs/recipes/annotations.md"
        )
    main = find_main(tracks)
    first = main or max(tracks, key=lambda track: (len(track.stems), track.name))
    found = {track.name: fit(track.stems, first.stems) for track in tracks if track is not first}
    unlike = [track for track in tracks if track is not first and not found[track.name][0]]
    odd = [
        track for track in unlike if any(map(track.holds, MAIN_KINDS)) or len(unlike) == len(found)
    ]
    if odd:
        names = first_few([track.name for track in odd])
        why = f"no file in {names} is called as one in {show_path(first.name)}, but for the ending"
        raise CorpusError(f"{where}: {why}; rename them, or see docs/recipes/annotations.md")
    views: Views = {first.name: ("" if main else view_of(first.name), "")}
    notes = []
    for track in tracks:
        name = show_path(track.name)
        if track in unlike:
            notes.append(f"{name}/ is passed over: no file is called as one in {first.name}")
        elif track is not first:
            _, suffix, stems = found[track.name]
            views[track.name] = view_of(track.name), suffix
            if lacking := first.stems - stems:
                num = f"{len(lacking):,} of {len(first.stems):,}"
                notes.append(f"{name}: {num} have no file: {_shown(lacking)}")
            if more := stems - first.stems:
                notes.append(f"{name}: {len(more):,} are samples without an image: {_shown(more)}")
    if len({view for view, _ in views.values()}) < len(views):
        raise CorpusError(f"{where}: two folders would be one field: {first_few([*views])}")
    return views, notes


def _shown(stems: AbstractSet[str]) -> str:
    return first_few(sorted(one.replace("//", "/").removeprefix("train/") for one in stems))


class ParallelCorpus(PartsCorpus):
    """Files of one name but for the ending, in folders side by side, are one sample.

    The folder called ``images`` or the like, or the only one of images, gives the plain field
    (``jpg``), and each other one ``<folder>.<ending>`` (``masks.png``). What has no counterpart is
    a sample that lacks a field, which is reported: masks are often there for some images only, and
    a mask without its image is not to vanish. Next to texts in a folder of labels, ``data.yaml``
    or ``classes.txt`` names the classes, as YOLO has it; such texts are kept to the byte.
    """

    kind = "parallel"
    has_text = True
    noun = "parallel folders"

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        self._lists: list[str] = []
        self._texts = read_names(Look(source), self._lists)
        self.used = frozenset(self._texts)
        self.classes = next((names for _, names in self._texts.values()), None)

    def spec(self) -> dict[str, Any]:
        texts = {path: {"text": text} for path, (text, _) in self._texts.items()}
        return {**super().spec(), "annotations": texts} if texts else super().spec()

    def splits(self) -> list[str]:
        return [split for split in find_tree(Look(self.source)) if split]

    def runs(self, scratch: Path) -> Iterator[Run]:
        self.ignored.clear()
        tree = find_tree(Look(self.source))
        folders = [*walk(self.source, "", None, self.ignored)]
        lost = [join(folder.base, name) for folder in folders for name in folder.lost]
        tracks = {track.name: track for track in collect(folders, tree, self.used)}
        views: Views = {}
        if len(tracks) > 1:
            views, self.notes = plan_views([*tracks.values()], show_path(self.source))
        if views and (flat := [split for split, own in tree.items() if split and not own]):
            self.notes.append(f"nothing is packed of {first_few(flat)}: no folders lie in it")
        self._taken = {*self.used}
        for split in filter(None, tree if views else ()):
            entries = self._entries(split, [tracks[name] for name in views], views)
            yield from self.runs_of(split, entries)
            yield from self.runs_of(split, map(self.lost, lost))
            lost = []
        for folder in folders:
            for name in folder.names:
                if join(folder.base, name) not in self._taken:
                    pass_over(name, self.ignored)
        if not views:
            raise nothing_found(self.noun, self.source, self.ignored)
        if self._lists:
            lists = ", ".join(self._lists)
            self.notes.append(f"lists of splits ({lists}) are not read: folders alone are splits")

    def _entries(self, split: str, tracks: Sequence[Track], views: Views) -> Iterator[PartsEntry]:
        places = {place for track in tracks for its, place in track.folders if its == split}
        has_images = tracks[0].holds(IMAGE_EXTENSIONS) and not views[tracks[0].name][0]
        for place in sorted(places, key=lambda place: place.split("/")):
            files: dict[str, list[FilePart]] = {}
            for track in tracks:
                view, suffix = views[track.name]
                folder = track.folders.get((split, place), FolderListing(""))
                for name, known in folder.files().items():
                    path = join(folder.base, name)
                    if is_part(name) and path not in self.used:
                        one = cut_ending(name)[0]
                        one = one.removesuffix(suffix) or one
                        files.setdefault(one, []).append(FilePart(view, path, *known))
            for one, parts in sorted(files.items()):
                # Lists, and what other programs leave among images, are no samples.
                if not has_images or any(p.view or extension(p.path) in MAIN for p in parts):
                    self._taken.update(part.path for part in parts)
                    yield PartsEntry(join(place, one), parts)

    @classmethod
    def claim(cls, look: Look) -> Claim | None:
        tree = find_tree(look)
        names = {name for folders in tree.values() for name in folders}
        if look.is_file or not 2 <= len(names) <= MAX_TRACKS:
            return None
        roles = [role_of(name, names) for name in names]
        if 2 * sum(map(bool, roles)) < len(roles) and _end_alike(collect(look.folders, tree)):
            return None
        bases = [base for own in tree.values() for base in own.values()]
        below = (islice(walk(look.source, base, measure=False), MOST_FOLDERS) for base in bases)
        tracks = collect(chain.from_iterable(below), tree)
        strength = judge(tracks) if len(tracks) > 1 else None
        if strength is None:
            return None
        shown = first_few([track.name for track in tracks], 4)
        num_files = sum(track.endings.total() for track in tracks)
        return Claim(strength, f"files of one name in {shown}", num_files)


# --- names of classes, as YOLO has them -----------------------------------------------------

CLASS_LIST = "classes.txt"
"""A file of a class name a line."""

MAX_NAMES = 1 << 20
"""Bytes of a file of class names."""


def read_names(look: Look, lists: list[str]) -> dict[str, tuple[str, list[str]]]:
    """Return the text and the class names of each file that has some, at the top, or in or above
    folders of labels, if texts lie in those. ``lists`` gets the files that list splits.

    Raises:
        CorpusError: a file cannot be read, or two have other names.
    """
    found: dict[str, tuple[str, list[str]]] = {}
    folders = [item for own in find_tree(look).values() for item in own.items()]
    own = sorted(base for name, base in folders if name.lower() in ("label", "labels"))
    held = {name for base in own for name in look.list(base).names}
    if not any(name.endswith(".txt") for name in held - {CLASS_LIST}):
        return found
    paths = [name for name in look.top.names if name.endswith((".yaml", ".yml"))]
    bases = {"", *own, *(base.rpartition("/")[0] for base in own)}
    paths += [join(b, CLASS_LIST) for b in sorted(bases) if CLASS_LIST in look.list(b).names]
    for path in paths:
        try:
            text = read_file(look.source / path, MAX_NAMES).decode()
            names = _names_in(text, lists, is_yaml=not path.endswith(CLASS_LIST))
            if names:
                found[path] = text, names
            if any(names != others for _, others in found.values() if names):
                raise ValueError(f"{first_few([*found])} have other names of classes")
        except (ValueError, ImportError) as error:
            needs = " (pip install 'shardkit[yolo]')" * isinstance(error, ImportError)
            where = show_path(look.source / path)
            why = f"{error}{needs}; correct it, or move it away"
            raise CorpusError(f"{where} cannot be read for names of classes: {why}") from error
    return found


def _names_in(text: str, lists: list[str], *, is_yaml: bool) -> list[str]:
    """Return the names of classes in a text.

    Raises:
        ImportError: PyYAML is not installed. ValueError: it is no YAML, has aliases, or odd names.
    """
    names: Any = text.removeprefix("\ufeff").rstrip().splitlines()
    if is_yaml:
        import yaml

        try:
            # A kilobyte of aliases may stand for 10^9 entries.
            if any(isinstance(e, yaml.AliasEvent) for e in yaml.parse(text, yaml.SafeLoader)):
                raise ValueError("it has aliases (*), which are not followed")
            held = yaml.safe_load(text)
        except (yaml.YAMLError, RecursionError) as error:
            raise ValueError(" ".join(str(error).split())[:200]) from error
        held = held if isinstance(held, dict) else {}
        told = (str(held.get(split)) for split in ("train", "val", "test"))
        lists += [path for path in told if path.endswith(".txt")]
        names = held.get("names", [])
        if isinstance(names, dict):
            names = [names.get(i, "") for i in range(len(names))]
    if not isinstance(names, list):
        raise ValueError("'names' is no list")
    for number, name in enumerate(names):
        if isinstance(name, bool) or not isinstance(name, str | int) or not str(name).strip():
            raise ValueError(f"the name of class {number} is {name!r}, which is no text")
    return [str(name).strip() for name in names]
