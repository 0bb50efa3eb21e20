"""Files of one folder that are one sample: ``1.jpg`` next to ``1.txt``, or to ``1_mask.png``."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError
from shardkit.images.sniff import IMAGE_EXTENSIONS
from shardkit.index.manifest import is_field_name
from shardkit.inputs.arrays import ARRAY_EXTENSIONS
from shardkit.inputs.base import Run
from shardkit.inputs.class_folders import told
from shardkit.inputs.file_parts import MAIN, STAMP_BITS, Decoded, PartsCorpus, view_of
from shardkit.inputs.files import (
    DOCUMENTS,
    FolderListing,
    cut_ending,
    encode,
    extension,
    join,
    stem,
    walk,
)
from shardkit.inputs.folders import Root, find_roots, nothing_found, pass_over
from shardkit.inputs.images import picture_classes
from shardkit.inputs.look import Claim, Look, Strength
from shardkit.system.paths import first_few, show_path

_PHOTOS = frozenset({".jpg", ".jpeg", ".jpe", ".jfif"})
"""Endings of photos. Next to ``x.jpg``, ``x.png`` is the mask: a mask is never a JPEG, since
classes of pixels would run into one another."""

_WORDS = (
    "masks? segm? segmentations? labels? gt groundtruth depth alpha matte trimap edges? normals?"
    " parts? instances? semantic annotations? superpixels"
)
_WORD = rf"(?:{'|'.join(_WORDS.split())})(?:[_-]?[0-9]{{1,4}})?"
_IS_WORD = re.compile(_WORD, re.IGNORECASE)
_COMPANION = re.compile(rf"(?<=.)[_.\- ]{_WORD}\Z", re.IGNORECASE | re.DOTALL)
"""The end of a companion's stem: what it shows of its image."""

MOST_VIEWS = 16
"""More names with dots under one stem are samples of their own: frames, not views."""

TENTH = 0.1
"""Share of images that must have a mask. With fewer, some images may just be called so."""

_KINDS = (IMAGE_EXTENSIONS, ARRAY_EXTENSIONS, MAIN)


def group(
    names: Sequence[str], needs_main: bool = False
) -> tuple[dict[str, list[str]], list[str], str]:
    """Return the files of each sample of one folder, those that are passed over, and a note on dots
    in names; ``names`` are sorted.

    Names are equal up to the first dot, or, where dots are a part of names, up to their endings;
    ``x_mask.png`` belongs to image ``x``. Passed over are files without a dot, a README or the
    like, and, if as many samples have a :data:`MAIN` file, or all need one, those that have none:
    lists, statistics.
    """
    passed = [name for name in names if "." not in name]
    endings = {name: extension(name) for name in names if "." in name}
    wholes = {name: _without_endings(name) for name in endings}
    images = {wholes[name] for name, ending in endings.items() if ending in IMAGE_EXTENSIONS}
    ends = ((whole, end.start()) for whole in wholes.values() if (end := _COMPANION.search(whole)))
    owners = {whole: whole[:start] for whole, start in ends if whole[:start] in images}
    owners = {whole: owner for whole, owner in owners.items() if owner not in owners}
    mains = {wholes[name] for name, ending in endings.items() if ending in MAIN}.difference(owners)
    is_cut, note = _cut_at_dot({*wholes.values()}.difference(owners), mains)
    samples: dict[str, list[str]] = {}
    for name, whole in wholes.items():
        one = owners.get(whole, whole)
        samples.setdefault(stem(one) if is_cut else one, []).append(name)
    bare = {one for one, own in samples.items() if MAIN.isdisjoint([endings[n] for n in own])}
    documents = {one for one in bare if one.lower() in DOCUMENTS}
    if len(bare) - len(documents) > len(samples) - len(bare) and not needs_main:
        bare = documents
    for one in sorted(bare):
        passed += samples.pop(one)
    return samples, passed, note


def _without_endings(name: str) -> str:
    """Return ``a.b`` for ``a.b.jpg`` and for ``a.b.jpg.json``."""
    if name.count(".") == 1:
        return name.partition(".")[0] or name
    start = cut_ending(name)[0]
    return cut_ending(start)[0] if extension(start) in MAIN else start


def _cut_at_dot(wholes: Collection[str], mains: Collection[str]) -> tuple[bool, str]:
    """Return True if names are cut at the first dot, and what there is to report of it.

    ``1.left`` is a view of sample ``1`` if samples share views, or sample ``1`` has a main file of
    its own. ``shot.0001`` is no view of ``shot``: each frame would be a field.
    """
    dotted = [whole for whole in wholes if "." in whole]
    views: dict[str, set[str]] = {stem(whole): set() for whole in dotted}
    for whole in dotted:
        views[stem(whole)].add(whole[len(stem(whole)) :])
    plain = views.keys() & wholes
    if all(len(own) < 2 - (one in plain) for one, own in views.items()):
        return not dotted, ""  # either way each name is one sample
    num_shared = len(set().union(*views.values()))
    has_mains = 2 * len(views.keys() & mains) >= len(views)
    most = max(len(own) + (one in plain) for one, own in views.items())
    shown = show_path(min(dotted))
    if most <= MOST_VIEWS and (has_mains or len(dotted) >= 2 * num_shared):
        note = f"names are cut at the first dot: {shown} is of sample {stem(shown)}"
        return True, "" if has_mains else note
    return False, f"names are not cut at the first dot: {shown} is a sample"


@lru_cache(maxsize=4096)  # mostly those of all samples are the same
def fields_of(rests: tuple[str, ...], are_masks: bool) -> tuple[str, ...]:
    """Return the fields of a sample's files, by what follows its key in their names; ``are_masks``:
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
    return tuple([(view + ending).lstrip(".") for view, ending in found])


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

    def splits(self) -> list[str]:
        return [root.split for root in find_roots(self.source, MAIN, {})]

    def runs(self, scratch: Path) -> Iterator[Run]:
        self.ignored.clear()
        self.notes = [] if self.classes is None else [told(self.classes, "the folders")]
        self.notes += filter(None, [self.odd])
        self._num, self._has_twins = 0, False
        self._folders, self._twins = set[str](), list[str]()
        self._dots, self._passed, self._bare = list[str](), list[str](), list[str]()
        for root in find_roots(self.source, MAIN, self.ignored):
            for folder in walk(self.source, root.base, None, self.ignored):
                run = self._run(folder, root)
                if run.keys:
                    yield run
        if not self._num:
            raise nothing_found(self.noun, self.source, self.ignored)
        self.notes += self._dots[:2]
        if self._passed:
            num = f"{len(self._passed):,} files about samples"
            self.notes.append(f"{num}, not of one, passed over: {first_few(self._passed)}")
        if 0 < 2 * len(self._bare) <= self._num:
            num = f"{len(self._bare):,} of {self._num:,}"
            self.notes.append(f"{num} samples have no image: {first_few(self._bare)}")
        if self.classes is None and len(self._folders) > 1:
            folders = first_few(sorted(self._folders))
            self.notes.append(f"no cls: folders are a part of keys ({folders})")
        if self._twins:
            self.notes.append(f"samples of several images, as {first_few(self._twins, 1)}")
        if self._has_twins:
            self.notes.append("an image next to a .jpg of one stem is its field mask.<ending>")

    def _run(self, folder: FolderListing, root: Root) -> Run:
        needs_main = bool(self.class_files)
        if folder.folders and not any(extension(name) in MAIN for name in folder.names):
            below = (walk(self.source, join(folder.base, f), measure=False) for f in folder.folders)
            found = (name for each in chain.from_iterable(below) for name in each.names)
            needs_main |= any(extension(name) in MAIN for name in found)
        samples, passed, note = group(folder.names, needs_main)
        if note:
            self._dots.append(f"{show_path(folder.base or '.')}: {note}")
        for name in passed:
            pass_over(name, self.ignored)
            if "." in name and stem(name).lower() not in DOCUMENTS:
                self._passed.append(join(folder.base, name))
        self._num += len(samples)
        run = Run(root.split, folder.base)
        base = root.key_base(folder.base)
        if samples and base:
            self._folders.add(base.partition("/")[0])
        if self.classes is not None and base:
            run.label = self.classes.index(base.partition("/")[0])
        sized = zip(encode(folder.names), folder.sizes, strict=True)
        rows = zip([b"%s/%d" % each for each in sized], folder.sizes, folder.stamps, strict=True)
        files = dict(zip(folder.names, rows, strict=True))
        has_image: dict[tuple[str, ...], bool] = {}
        for one, names in samples.items():
            rests = tuple([name[len(one) :] for name in names])
            if rests not in has_image:
                has_image[rests] = not IMAGE_EXTENSIONS.isdisjoint(map(extension, names))
                own = fields_of(rests, bool(self.class_files))
                if len([f for f in own if "." not in f and f".{f}" in IMAGE_EXTENSIONS]) > 1:
                    self._twins.append(join(folder.base, one))
                for field, name, rest in zip(own, names, rests, strict=True):
                    self._has_twins |= field == f"mask{rest.lower()}"
                    if not is_field_name(field):
                        where = show_path(join(folder.base, name))
                        raise CorpusError(f"{where}: {field!r} cannot name a field; rename it")
            if not has_image[rests]:
                self._bare.append(join(folder.base, one))
            locators, sizes, stamps = zip(*[files[name] for name in names], strict=True)
            run.locators.append(b"/".join(locators))
            run.sizes.append(sum(sizes))
            run.stamps.append(sum(stamps) & STAMP_BITS)
        run.locators += [b"%s/-1" % name for name in encode(folder.lost)]  # reading says why
        run.keys = encode([*samples, *folder.lost], base)
        run.sizes += [0] * len(folder.lost)
        run.stamps += [0] * len(folder.lost)
        return run

    def decode(self, locator: bytes, key: bytes) -> Decoded:
        held = locator.split(b"/")
        cut = len(key) - key.rfind(b"/") - 1
        rests = tuple([os.fsdecode(name[cut:]) for name in held[::2]])
        fields = fields_of(rests, bool(self.class_files))
        return Decoded(fields, held[::2], [*map(int, held[1::2])])

    def entry_name(self, run: Run, i: int) -> str:
        return join(run.base, os.fsdecode(run.locators[i].partition(b"/")[0]))

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
            own = {next((i for i, kind in enumerate(_KINDS) if e in kind), 3) for e in endings}
            num_samples += own != {3}
            num_paired += len(own) > 1 or (own == {2} and len({*endings}) > 1)
            rests = tuple([name[len(one) :] for name in names])
            found = zip(fields_of(rests, True), rests, endings, strict=True)
            images = [(field, rest) for field, rest, end in found if end in IMAGE_EXTENSIONS]
            masks = [rest for f, rest in images if _IS_WORD.fullmatch(f.rpartition(".")[0])]
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
