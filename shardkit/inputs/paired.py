"""Files of one folder that are one sample: ``1.jpg`` next to ``1.txt``, or to ``1_mask.png``."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError
from shardkit.images.sniff import IMAGE_EXTENSIONS
from shardkit.index.manifest import is_field_name
from shardkit.inputs.base import Run
from shardkit.inputs.class_folders import picture_classes, told
from shardkit.inputs.file_parts import MAIN, MAIN_KINDS, FilePart, PartsCorpus, PartsEntry, view_of
from shardkit.inputs.files import DOCUMENTS, FolderListing, cut_ending, extension, join, stem, walk
from shardkit.inputs.folders import find_roots, nothing_found, pass_over
from shardkit.inputs.guards import COMPANION, MASK_WORD
from shardkit.inputs.look import Claim, Look, Strength
from shardkit.system.paths import first_few, show_path

_PHOTOS = frozenset({".jpg", ".jpeg", ".jpe", ".jfif"})
"""Endings of photos. Next to ``x.jpg``, ``x.png`` is the mask: a mask is never a JPEG, since
classes of pixels would run into one another."""

_IS_WORD = re.compile(MASK_WORD, re.IGNORECASE)
MOST_VIEWS = 16
"""More names with dots under one stem are samples of their own: frames, not views."""

FEW = 16
"""Files of no sample that may be about them all: lists, statistics."""

TENTH = 0.1
"""Share of images that must have a mask. With fewer, some images may just be called so."""


def group(names: Sequence[str], needs_main: bool = True) -> tuple[dict[str, list[str]], list[str]]:
    """Return the files of each sample of one folder, and those that are of none; ``names`` are
    sorted.

    Names are equal up to the first dot, or, where dots are a part of names, up to their endings;
    ``x_mask.png`` belongs to image ``x``. Files without a dot, and those of no :data:`MAIN` file
    if ``needs_main``, are of no sample: lists, statistics, a README.
    """
    endings = {name: extension(name) for name in names if "." in name}
    wholes = {name: _without_endings(name) for name in endings}
    images = {wholes[name] for name, ending in endings.items() if ending in IMAGE_EXTENSIONS}
    ends = ((whole, end.start()) for whole in wholes.values() if (end := COMPANION.search(whole)))
    owners = {whole: whole[:start] for whole, start in ends if whole[:start] in images}
    owners = {whole: owner for whole, owner in owners.items() if owner not in owners}
    mains = {wholes[name] for name, ending in endings.items() if ending in MAIN}.difference(owners)
    is_cut = _is_cut_at_dot({*wholes.values()}.difference(owners), mains)
    samples: dict[str, list[str]] = {}
    for name, whole in wholes.items():
        one = owners.get(whole, whole)
        samples.setdefault(stem(one) if is_cut else one, []).append(name)
    passed = [name for name in names if "." not in name]
    if needs_main:
        bare = [k for k, own in samples.items() if MAIN.isdisjoint([endings[n] for n in own])]
        passed += [name for one in bare for name in samples.pop(one)]
    return samples, passed


def _without_endings(name: str) -> str:
    """Return ``a.b`` for ``a.b.jpg`` and for ``a.b.jpg.json``."""
    if name.count(".") == 1:
        return name.partition(".")[0] or name
    start = cut_ending(name)[0]
    return cut_ending(start)[0] if extension(start) in MAIN else start


def _is_cut_at_dot(wholes: Collection[str], mains: Collection[str]) -> bool:
    """Return True if names are cut at the first dot.

    ``1.left`` is a view of sample ``1`` if samples share views, or sample ``1`` has a main file of
    its own. ``shot.0001`` is no view of ``shot``: each frame would be a field.
    """
    dotted = [whole for whole in wholes if "." in whole]
    views: dict[str, set[str]] = {}
    for whole in dotted:
        views.setdefault(stem(whole), set()).add(whole[len(stem(whole)) :])
    most = max((len(own) + (one in wholes) for one, own in views.items()), default=0)
    has_mains = 2 * len(views.keys() & mains) >= len(views)
    is_shared = len(dotted) >= 2 * len(set().union(*views.values()))
    return 1 < most <= MOST_VIEWS and (has_mains or is_shared)


@lru_cache(maxsize=4096)  # mostly those of all samples are the same
def views_of(rests: tuple[str, ...], are_masks: bool) -> tuple[str, ...]:
    """Return the views of a sample's files, by what follows its key in their names; ``are_masks``:
    next to a JPEG another image of its stem is one."""
    found = []
    for rest in rests:
        start, ending = cut_ending("x" + rest)
        is_companion = rest[:1] not in ("", ".")
        view = view_of(_without_endings("x" + rest)[2:]) if is_companion else start[1:].lower()
        found.append((view.lstrip("."), ending))
    plain = [end for view, end in found if not view and end in IMAGE_EXTENSIONS]
    if are_masks and sum(end in _PHOTOS for end in plain) == 1:
        twins = {("", ending) for ending in plain if ending not in _PHOTOS}
        found = [("mask" if one in twins else one[0], one[1]) for one in found]
    return tuple([view for view, _ in found])


class PairedCorpus(PartsCorpus):
    """Files of one folder and one stem are one sample: see :func:`group`.

    The rest of a name, in lower case, names its field; an image's ending is by its content. Labels
    come from ``.cls`` files, as they are.
    """

    kind = "paired"
    has_text = True
    may_have_images = True
    noun = "paired files"

    def spec(self) -> dict[str, Any]:
        return super().spec() if self.class_files else {"kind": self.kind}

    def encode(self, entry: PartsEntry) -> bytes:
        return b"/".join([b"%s/%d" % (os.fsencode(part.path), part.size) for part in entry.parts])

    def decode(self, locator: bytes, key: bytes) -> PartsEntry:
        held = locator.split(b"/")
        names = [os.fsdecode(name) for name in held[::2]]
        one = os.fsdecode(key).rpartition("/")[2]
        rests = tuple([name[len(one) :] for name in names])
        views = views_of(rests, bool(self.class_files))
        sizes = map(int, held[1::2])
        files = [FilePart(*part, 0) for part in zip(views, names, sizes, strict=True)]
        return PartsEntry(one, files)

    def entry_name(self, run: Run, i: int) -> str:
        return join(run.base, os.fsdecode(run.locators[i].partition(b"/")[0]))

    def splits(self) -> list[str]:
        return [root.split for root in find_roots(self.source, MAIN, {})]

    def runs(self, scratch: Path) -> Iterator[Run]:
        self.ignored.clear()
        num, folders, passed = 0, set[str](), list[str]()
        names = (name for each in walk(self.source, measure=False) for name in each.names)
        needs_main = any(extension(name) in MAIN for name in names)
        for root in find_roots(self.source, MAIN, self.ignored):
            for folder in walk(self.source, root.base, None, self.ignored):
                samples, others = group(folder.names, needs_main)
                for name in others:
                    pass_over(name, self.ignored)
                    if "." in name and stem(name).lower() not in DOCUMENTS:
                        passed.append(join(folder.base, name))
                num += len(samples)
                base = root.key_base(folder.base)
                folders |= {base.partition("/")[0]} if samples else set()
                entries = self._entries(folder, samples, base)
                yield from self.runs_of(root.split, entries, folder.base)
        if not num:
            raise nothing_found(self.noun, self.source, self.ignored)
        if len(passed) > max(num, FEW):
            what = f"{len(passed):,} files ({first_few(passed)}) belong to none of {num:,} samples"
            raise CorpusError(f"{show_path(self.source)}: {what}; see docs/recipes/annotations.md")
        self.notes = [] if self.classes is None else [told(self.classes, "the folders")]
        self.notes += filter(None, [self.odd])
        if passed:
            what = f"{len(passed):,} files about samples"
            self.notes.append(f"{what}, not of one, passed over: {first_few(passed)}")
        if self.classes is None and len(folders - {""}) > 1:
            shown = first_few(sorted(folders - {""}))
            self.notes.append(f"no cls: folders are a part of keys ({shown})")

    def _entries(
        self, folder: FolderListing, samples: dict[str, list[str]], base: str
    ) -> Iterator[PartsEntry]:
        top = base.partition("/")[0]
        label = self.classes.index(top) if self.classes is not None and top else None
        listed = zip(folder.names, folder.sizes, folder.stamps, strict=True)
        files = {name: known for name, *known in listed}
        checked = set[tuple[str, ...]]()
        for one, names in samples.items():
            rests = tuple([name[len(one) :] for name in names])
            views = views_of(rests, bool(self.class_files))
            parts = [FilePart(v, n, *files[n]) for v, n in zip(views, names, strict=True)]
            for part in parts if rests not in checked else ():
                field = (part.view + cut_ending(part.path)[1]).lstrip(".")
                if not is_field_name(field):
                    where = show_path(join(folder.base, part.path))
                    raise CorpusError(f"{where}: {field!r} cannot name a field; rename it")
            checked.add(rests)
            yield PartsEntry(join(base, one), parts, label=label)
        for name in folder.lost:  # reading says why
            yield self.lost(name, join(base, name))

    @classmethod
    def claim(cls, look: Look) -> Claim | None:
        kind, strength = _judge(look)
        if kind != cls.kind:
            return None
        what = "each image with its mask (x_mask.png)" if cls.class_files else "files of one stem"
        return Claim(strength, what, look.count(cls.class_files or MAIN))


class CompanionCorpus(PairedCorpus):
    """Paired files of images and their masks, whose folders are classes, as those of images are.
    Next to a JPEG another image of its stem is ``mask``."""

    kind = "companions"
    noun = "images with companions"
    class_files = IMAGE_EXTENSIONS

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        self.classes = picture_classes(source)


@lru_cache(maxsize=1)  # two kinds ask
def _judge(look: Look) -> tuple[str, Strength]:
    """Return the kind that files of one folder make, ``""`` for none, and how sure that is."""
    num_samples = num_paired = num_named = num_masked = 0
    for folder in look.folders:
        for one, names in group(folder.names)[0].items():
            endings = [extension(name) for name in names]
            own = {next((i for i, kind in enumerate(MAIN_KINDS) if e in kind), 3) for e in endings}
            num_samples += 1
            num_paired += len(own) > 1 or (own == {2} and len({*endings}) > 1)
            rests = tuple([name[len(one) :] for name in names])
            found = zip(views_of(rests, True), rests, endings, strict=True)
            images = [(view, rest) for view, rest, end in found if end in IMAGE_EXTENSIONS]
            masks = [rest for view, rest in images if _IS_WORD.fullmatch(view)]
            num_masked += len(names) > 1 and bool(masks)
            num_named += any(rest[0] != "." for rest in masks)
    if num_named:
        is_sure = num_named >= TENTH * num_samples
        return "companions", Strength.LAYOUT if is_sure else Strength.FILES
    if 2 * num_paired >= num_samples > 0:
        return "" if look.count([".tar"]) else "paired", Strength.LAYOUT
    if 3 * num_masked >= num_samples > 0:  # numbered files of two kinds share some by chance
        return "companions", Strength.LAYOUT if 2 * num_masked > num_samples else Strength.FILES
    return "", Strength.FILES
