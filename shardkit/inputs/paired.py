"""Paired files: ``1.jpg`` beside ``1.txt`` and ``1.json`` is one sample of three fields."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.images.sniff import HEAD_BYTES, IMAGE_EXTENSIONS, image_field
from shardkit.index.manifest import is_field_name
from shardkit.inputs.arrays import ARRAY_EXTENSIONS
from shardkit.inputs.base import Run
from shardkit.inputs.binaries import MEDIA_EXTENSIONS
from shardkit.inputs.class_folders import any_holds
from shardkit.inputs.files import FolderListing, Reason, read_files
from shardkit.inputs.folders import FolderCorpus, Root, find_roots, pass_over
from shardkit.inputs.images import not_image
from shardkit.inputs.names import DOCUMENTS, cut_ending, encode, extension, join, stem
from shardkit.inputs.whole_sets import count_files
from shardkit.samples.encoding import PICKLED, holds_pickles
from shardkit.samples.sample import SampleBatch, Value, pack_paths
from shardkit.system.paths import first_few, show_path

_STAMP_BITS = 2**63 - 1

MAIN = IMAGE_EXTENSIONS | ARRAY_EXTENSIONS | MEDIA_EXTENSIONS
"""Endings of what samples are mostly about."""

MOST_VIEWS = 8
"""So many names within the only stem of a folder may be views of one sample."""

Row = dict[str, tuple[bytes, Value]]
"""A sample's fields: name -> (file name, contents)."""


class PairedCorpus(FolderCorpus):
    """Files of one folder whose names are equal up to the first dot are one sample.

    The rest of a name, in lower case, names its field; a picture's is named by what it holds
    (``a.JPEG`` is field ``jpg``; a PNG called ``a.jpg``, ``png``). Where dots are a part of names,
    as in ``shot.0001.jpg``, they are equal up to their endings: :func:`sample_stems`.

    Passed over are files without a dot, a README or the like, unless it is a picture or an array,
    or has one beside it, and what is about the samples: names of classes, lists of a split. Labels
    come from ``.cls`` files alone, as they are. Where samples have no picture, though half of them
    have one, that is said in ``notes``.
    """

    kind = "paired"
    has_pictures = True
    has_text = True
    noun = "paired files"

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        self.notes: list[str] = []

    def runs(self, scratch: Path) -> Iterator[Run]:
        self.notes.clear()
        self._num_pictured = self._num_bare = 0
        self._bare: list[str] = []
        self._sidecars: list[str] = []
        yield from super().runs(scratch)
        if self._sidecars:
            self.notes.append(
                f"{count_files(self._sidecars)} without a picture, array, sound or film of that"
                f" name passed over: {first_few(self._sidecars)}"
            )
        if 0 < self._num_bare <= self._num_pictured:
            total = self._num_bare + self._num_pictured
            shown = first_few(self._bare)
            self.notes.append(f"{self._num_bare:,} of {total:,} samples have no picture: {shown}")

    def roots(self, ignored: dict[str, int]) -> list[Root]:
        """Return the splits, which lists of their files may lie beside."""
        return find_roots(self.source, MAIN, ignored)

    def folder_runs(self, folder: FolderListing, root: Root) -> Iterator[Run]:
        groups: dict[str, list[int]] = {}
        stems, why = sample_stems(folder.names)
        for i, one in enumerate(stems):
            groups.setdefault(one, []).append(i)
        if why and len(self.notes) < 3:  # it is mostly so in all folders, or in none
            self.notes.append(f"{show_path(folder.base or '.')}: {why}")
        self._pass_over(folder, groups)
        run, known = Run(root.split, folder.base), set[str]()
        for one, places in groups.items():
            names = [folder.names[i] for i in places]
            for name in names:
                _check_field(folder, name, name[len(one) + 1 :].lower(), known)
            sizes = [folder.sizes[i] for i in places]
            parts = zip(encode(names), sizes, strict=True)
            run.locators.append(b"/".join(b"%s/%d" % part for part in parts))
            run.sizes.append(sum(sizes))
            run.stamps.append(sum(folder.stamps[i] for i in places) & _STAMP_BITS)
            if any(extension(name) in IMAGE_EXTENSIONS for name in names):
                self._num_pictured += 1
                continue
            self._num_bare += 1
            self._bare = [*self._bare, join(folder.base, one)][:4]  # those that are shown
        run.keys = encode([*groups], root.key_base(folder.base))
        return iter([run] if run.keys else [])

    def _pass_over(self, folder: FolderListing, groups: dict[str, list[int]]) -> None:
        """Drop files without a dot, documents, and files that tell of samples: those that have no
        :data:`MAIN` file of their name, where at least as many names have one; and all in a folder
        without any, if folders in it hold some.

        Args:
            groups: what samples are called -> the places of their files.
        """
        names = folder.names
        for one, places in [*groups.items()]:
            groups[one] = [i for i in places if "." in names[i]]
            for i in {*places}.difference(groups[one]):
                pass_over(names[i], self.ignored)
            if not groups[one]:
                del groups[one]
        others = {
            one for one, own in groups.items() if all(extension(names[i]) not in MAIN for i in own)
        }
        documents = {one for one in others if one.lower() in DOCUMENTS}
        sidecars, num_main = others - documents, len(groups) - len(others)
        below = (join(folder.base, name) for name in folder.folders)
        if len(sidecars) > num_main and (num_main or not any_holds(self.source, below, MAIN)):
            sidecars = set()
        for one in sorted(documents | sidecars):
            passed = [names[i] for i in groups.pop(one)]
            self._sidecars += [join(folder.base, name) for name in passed if one in sidecars]
            for name in passed:
                pass_over(name, self.ignored)

    def entry_name(self, run: Run, i: int) -> str:
        return join(run.base, os.fsdecode(run.locators[i].partition(b"/")[0]))

    def lost_run(self, folder: FolderListing, root: Root) -> Run:
        lost = super().lost_run(folder, root)
        lost.locators = [name + b"/0" for name in lost.locators]
        return lost

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        files = [locator.split(b"/") for locator in run.locators]
        names = [name for parts in files for name in parts[::2]]
        sizes = [int(size) for parts in files for size in parts[1::2]]
        values = iter(read_files(self.source / run.base, names, sizes))
        base = encode([join(run.base, "")])[0]
        batch, rows = SampleBatch(), []
        for key, parts in zip(run.keys, files, strict=True):
            start = len(key.rpartition(b"/")[2]) + 1
            row, problem = make_row([(name, next(values)) for name in parts[::2]], start)
            if problem is not None:
                batch.rejects.append((join(run.base, os.fsdecode(problem[0])), problem[1]))
                continue
            rows.append(row)
            batch.keys.append(key)
            batch.paths.append(pack_paths(key, [base + row[name][0] for name in sorted(row)]))
        batch.columns = columns_of(rows)
        return batch


def sample_stems(names: list[str]) -> tuple[list[str], str]:
    """Return what each file's sample is called, and what there is to say of it.

    That is its name up to the first dot: ``1.left.jpg`` is a view of sample ``1``. Views are
    shared by samples, though. Where what stands between the first dot and the ending mostly occurs
    under one name alone, and files that have it are pairs, the dots are a part of the name.
    """
    first = [stem(name) for name in names]
    whole = [_without_endings(name) for name in names]
    count = Counter(whole)
    views: dict[str, set[str]] = {}
    longer: list[str] = []
    plain: set[str] = set()
    for name, one, other in zip(names, first, whole, strict=True):
        if one != other:
            views.setdefault(other[len(one) :], set()).add(one)
            longer.append(other)
        elif extension(name) in MAIN:
            plain.add(one)
    dotted = {one for own in views.values() for one in own}
    if 2 * sum(count[other] > 1 for other in longer) <= len(longer) or dotted & plain:
        return first, ""
    are_shared = sum(map(len, views.values())) >= 2 * len(views)
    if are_shared or (len(dotted) == 1 and len(views) <= MOST_VIEWS):
        return first, f"names are cut at the first dot: {longer[0]} is of sample {stem(longer[0])}"
    return whole, f"names are not cut at the first dot: {longer[0]} is a sample"


def _without_endings(name: str) -> str:
    """Return ``a.b`` for ``a.b.jpg`` and for ``a.b.jpg.json``."""
    start = cut_ending(name)[0]
    return cut_ending(start)[0] if extension(start) in MAIN else start


def _check_field(folder: FolderListing, name: str, field: str, known: set[str]) -> None:
    if field in known:
        return
    if not is_field_name(field):
        raise CorpusError(
            f"{show_path(join(folder.base, name))}: what follows its first dot, {field!r}, cannot"
            " name a field (A-Z a-z 0-9 _ . - and no reserved name); rename it"
        )
    known.add(field)


def make_row(
    files: list[tuple[bytes, Value | Reason]], start: int
) -> tuple[Row, tuple[bytes, Reason] | None]:
    """Return one sample's fields, or the file that spoils it and why. ``start``: where the name of
    a field begins in that of a file."""
    row: Row = {}
    for name, value in files:
        if isinstance(value, Reason):
            return row, (name, value)
        field = field_of(name[start:], value)
        if field is None:
            return row, (name, not_image(value))
        if field.rpartition(".")[2] == "npy" and holds_pickles(value):
            return row, (name, PICKLED)
        if field in row:
            other = show_path(row[field][0])
            return row, (name, f"is field {field!r} of its sample, and so is {other}; remove one")
        row[field] = (name, value)
    return row, None


def field_of(name: bytes, value: Value) -> str | None:
    """Return the field of a file by what follows its stem; None if it is named as a picture and
    is none."""
    field = os.fsdecode(name).lower()
    view, dot, ending = field.rpartition(".")
    if "." + ending not in IMAGE_EXTENSIONS:
        return field
    held = image_field(bytes(value[:HEAD_BYTES]))
    return None if held is None else view + dot + held


def columns_of(rows: list[Row]) -> dict[str, list[Value | None]]:
    """Rows turned into columns; an absent field is None."""
    names = sorted({name for row in rows for name in row})
    return {name: [row[name][1] if name in row else None for row in rows] for name in names}
