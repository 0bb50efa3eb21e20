"""Samples of several files and of values: what all kinds of images with annotations share; and
files of one folder that are one sample: ``1.jpg`` next to ``1.txt``, or to ``1_mask.png``.

A sample's *parts* are files, which may lie in different folders. Its *values* were taken from an
annotation file, of which they are a row or a record. Both travel in the locator, so what is read
depends on the run alone, and where an annotation changes, so does the listing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from shardkit.errors import CorpusError
from shardkit.images.sniff import HEAD_BYTES, IMAGE_EXTENSIONS, IMAGE_FIELDS, image_field
from shardkit.index.file_names import is_field_name
from shardkit.inputs.class_folders import ImageCorpus, not_image, told
from shardkit.inputs.corpus import Claim, Input, Look, Run, Strength
from shardkit.inputs.files import (
    DOCUMENTS,
    FolderListing,
    Reason,
    cut_ending,
    extension,
    join,
    pass_over,
    read_files,
    stem,
    walk,
)
from shardkit.inputs.folders import find_roots, nothing_found
from shardkit.inputs.guards import COMPANION, MASK_WORD
from shardkit.inputs.single_files import ARRAY_EXTENSIONS, MEDIA_EXTENSIONS
from shardkit.samples.encoding import PICKLED, holds_pickles, npy_header
from shardkit.samples.sample import SampleBatch, Value, pack_paths
from shardkit.system.paths import first_few, show_path

MAIN = IMAGE_EXTENSIONS | ARRAY_EXTENSIONS | MEDIA_EXTENSIONS
"""Endings of what samples are mostly about."""

MAIN_KINDS = (IMAGE_EXTENSIONS, ARRAY_EXTENSIONS, MAIN)
"""Endings of main files, the commonest first."""

RUN_ENTRIES = 4096
"""Entries per run at most: a locator holds its sample's annotations, which may be kilobytes."""

_END_OF_PATH = b"//"
"""Between the path of an entry's first file and the JSON that follows it; no path holds it."""

Scalar = str | int | float | bool
"""A value: text, or JSON as text, or a number, which becomes a ``.npy`` without axes."""


class FilePart(NamedTuple):
    """A file of a sample.

    Attributes:
        view: the name of its field before the ending: ``masks`` gives ``masks.png``, and ``""``
            the plain ``jpg``.
        path: relative to the run's base. size, stamp: as it was listed.
    """

    view: str
    path: str
    size: int
    stamp: int


class PartsEntry(NamedTuple):
    """An entry that becomes one sample or one reject.

    Attributes:
        key: the sample's. parts: its files, the one that it is named after first.
        values: field -> value. stamp: of the annotation files that these come from.
        label: class index, where folders are classes.
        reason: why it is a reject; ``""`` if it may be a sample.
    """

    key: str
    parts: Sequence[FilePart]
    values: Mapping[str, Scalar] = {}
    label: int | None = None
    stamp: int = 0
    reason: str = ""


class PartsCorpus(Input):
    """A reader of entries; kinds derived from it list them.

    A part's field is its view and its ending; an image's ending is by its content. A value has no
    file of its own: ``unpack`` writes it next to the sample's first file, with the field's name as
    ending.
    """

    has_pictures = True
    may_have_images: ClassVar[bool] = False
    """True if a sample may have a ``jpg`` and a ``png`` that no name tells apart."""

    kept = {"classes": "classes"}  # noqa: RUF012 (nobody changes it)

    def lost(self, path: str, key: str = "") -> PartsEntry:
        """Return the entry of a name that leads nowhere: reading it reports why."""
        return PartsEntry(key or path, [FilePart("", path, -1, 0)])

    def encode(self, entry: PartsEntry) -> bytes:
        """Return an entry's locator."""
        held = json.dumps([entry.reason, [part[:3] for part in entry.parts], entry.values])
        return os.fsencode(entry.parts[0].path) + _END_OF_PATH + held.encode()

    def decode(self, locator: bytes, key: bytes) -> PartsEntry:
        """Return the entry that a locator holds, without stamps."""
        reason, parts, values = json.loads(locator.partition(_END_OF_PATH)[2])
        files = [FilePart(view, path, size, 0) for view, path, size in parts]
        return PartsEntry("", files, values, reason=reason)

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        held = [*map(self.decode, run.locators, run.keys)]
        paths = [os.fsencode(part.path) for entry in held for part in entry.parts]
        sizes = [part.size for entry in held for part in entry.parts]
        contents = iter(read_files(self.source / run.base, paths, sizes))
        start = os.fsencode(join(run.base, ""))
        batch, rows = SampleBatch(), []
        for i, (key, entry) in enumerate(zip(run.keys, held, strict=True)):
            row: dict[str, Value] = {}
            found: dict[str, bytes] = {}
            bad, why = b"", entry.reason
            for part in entry.parts:
                value = next(contents)
                if not why:
                    bad = start + os.fsencode(part.path)
                    name, why = _field_of(part, value, found, self.may_have_images)
                    row[name], found[name] = value, bad  # type: ignore[assignment]  # no reason
            if why:
                batch.rejects.append((os.fsdecode(bad) or self.entry_name(run, i), why))
                continue
            if entry.values:
                folder, slash, _ = (start + os.fsencode(entry.parts[0].path)).rpartition(b"/")
                base = folder + slash + key.rpartition(b"/")[2]
                row |= {name: canonical(value) for name, value in entry.values.items()}
                found |= {name: base + f".{name}".encode() for name in entry.values}
            rows.append(row)
            batch.keys.append(key)
            batch.paths.append(pack_paths(key, [found[name] for name in sorted(found)]))
        for name in sorted({name for row in rows for name in row}):
            batch.columns[name] = [row.get(name) for row in rows]
        if run.label is not None and rows:
            given = batch.columns.get("cls", [None] * len(rows))
            batch.columns["cls"] = [b"%d" % run.label if v is None else v for v in given]
        return batch

    def runs_of(self, split: str, entries: Iterable[PartsEntry], base: str = "") -> Iterator[Run]:
        """Return runs of at most :data:`RUN_ENTRIES` entries of one label."""
        run = Run(split, base)
        for entry in entries:
            if len(run) >= RUN_ENTRIES or (len(run) and run.label != entry.label):
                yield run
                run = Run(split, base)
            run.label = entry.label
            run.locators.append(self.encode(entry))
            run.keys.append(os.fsencode(entry.key))
            texts = [len(value) for value in entry.values.values() if isinstance(value, str)]
            run.sizes.append(sum([max(part.size, 0) for part in entry.parts]) + sum(texts))
            stamps = sum([part.stamp for part in entry.parts]) + entry.stamp
            run.stamps.append(stamps & (2**63 - 1))
        if len(run):
            yield run


def _field_of(
    part: FilePart, value: Value | Reason, row: Mapping[str, bytes], may_have_images: bool
) -> tuple[str, Reason]:
    """Return the field of a file by its name and content, and why it cannot be one of a sample."""
    if isinstance(value, Reason):
        return "", value
    ending = cut_ending(part.path.rpartition("/")[2])[1]
    if ending in IMAGE_EXTENSIONS:
        held = image_field(bytes(value[:HEAD_BYTES]))
        if held is None:
            return "", not_image(value)
        ending = f".{held}"
    name = (part.view + ending).lstrip(".")
    if ending == ".npy" and holds_pickles(value):
        return name, PICKLED
    for own in row:
        if own == name or (not may_have_images and {own, name} <= IMAGE_FIELDS):
            why = f"is field {name!r} of its sample, and {show_path(row[own])} is {own!r}"
            return name, f"{why}; remove or rename one"
    return name, ""


def canonical(value: Scalar) -> bytes:
    """Return the canonical value of a text, or of a number: a ``.npy`` without axes."""
    if isinstance(value, str):
        return value.encode()
    dtype = "|b1" if isinstance(value, bool) else "<i8" if isinstance(value, int) else "<f8"
    return npy_header(dtype, ()) + np.array(value, dtype).tobytes()


def is_part(name: str) -> bool:
    """Return True if a file may be a part of a sample: it has an ending that can name a field, and
    is no README or the like."""
    ending = cut_ending(name)[1]
    is_document = extension(name) not in MAIN and stem(name).lower() in DOCUMENTS
    return bool(ending) and is_field_name("x" + ending) and not is_document


def view_of(name: str) -> str:
    """Return how fields of a folder, or of a word, are called before their ending."""
    view = re.sub(r"[^a-z0-9_.-]+", "_", name.lower()).lstrip(".-")[:40]
    return view if is_field_name(f"{view}.x") else f"_{view}"


# --- files of one folder and one stem ---------------------------------------------------------

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
        folders_there = walk(self.source, measure=False)
        needs_main = any(extension(name) in MAIN for each in folders_there for name in each.names)
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
        files = folder.files()
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
        self.classes = ImageCorpus(source).classes


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
