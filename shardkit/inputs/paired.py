"""Paired files: ``1.jpg`` beside ``1.txt`` and ``1.json`` is one sample of three fields."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.images.sniff import HEAD_BYTES, IMAGE_EXTENSIONS, image_field
from shardkit.index.manifest import is_field_name
from shardkit.inputs.arrays import ARRAY_EXTENSIONS
from shardkit.inputs.base import Run
from shardkit.inputs.files import FolderListing, Reason, read_files
from shardkit.inputs.folders import FolderCorpus, Root
from shardkit.inputs.images import not_image
from shardkit.inputs.names import DOCUMENTS, encode, extension, join, stem
from shardkit.samples.encoding import PICKLED, holds_pickles
from shardkit.samples.sample import SampleBatch, Value, pack_paths
from shardkit.system.paths import show_path

_STAMP_BITS = 2**63 - 1

SHOWN = 3
"""Names in a note."""

Row = dict[str, tuple[bytes, Value]]
"""A sample's fields: name -> (file name, contents)."""


class PairedCorpus(FolderCorpus):
    """Files of one folder whose names are equal up to the first dot are one sample.

    The rest of a name, in lower case, names its field; a picture's is named by what it holds
    (``a.JPEG`` is field ``jpg``; a PNG called ``a.jpg``, ``png``). A file without a dot belongs
    to no sample, nor does a README or the like, unless it is a picture or an array, or has one
    beside it. Labels come from ``.cls`` files alone, as they are. Where samples have no picture,
    though half of them have one, that is said in ``notes``: a list of classes beside pictures and
    texts is a sample, too.

    A locator is ``name/size/name/size...``: only a slash occurs in no file name.
    """

    kind = "paired"
    has_pictures = True
    has_text = True
    noun = "paired files"

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        self.notes: list[str] = []
        self._num_pictured = self._num_bare = 0
        self._bare: list[str] = []

    def runs(self, scratch: Path) -> Iterator[Run]:
        self.notes.clear()
        self._num_pictured = self._num_bare = 0
        self._bare.clear()
        yield from super().runs(scratch)
        if 0 < self._num_bare <= self._num_pictured:
            shown = ", ".join(map(show_path, self._bare)) + ", ..." * (self._num_bare > SHOWN)
            total = self._num_bare + self._num_pictured
            self.notes.append(f"{self._num_bare:,} of {total:,} samples have no picture: {shown}")

    def folder_runs(self, folder: FolderListing, root: Root) -> Iterator[Run]:
        run = paired_run(folder, root, self.ignored)
        pictured = {stem(name) for name in folder.names if extension(name) in IMAGE_EXTENSIONS}
        bare = [key for key in map(os.fsdecode, run.keys) if key.rpartition("/")[2] not in pictured]
        self._num_pictured += len(run) - len(bare)
        self._num_bare += len(bare)
        self._bare = [*self._bare, *bare[:SHOWN]][:SHOWN]
        return iter([run] if run.keys else [])

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
            row, problem = make_row([(name, next(values)) for name in parts[::2]])
            if problem is not None:
                batch.rejects.append((join(run.base, os.fsdecode(problem[0])), problem[1]))
                continue
            rows.append(row)
            batch.keys.append(key)
            batch.paths.append(pack_paths(key, [base + row[name][0] for name in sorted(row)]))
        batch.columns = columns_of(rows)
        return batch


def paired_run(folder: FolderListing, root: Root, ignored: dict[str, int]) -> Run:
    """A folder's samples; files without a dot, and documents, are counted in ``ignored``.

    Raises:
        CorpusError: a name's rest cannot name a field.
    """
    run = Run(root.split, folder.base)
    files = zip(encode(folder.names), folder.names, folder.sizes, folder.stamps, strict=True)
    stems = []
    known: set[str] = set()
    for one, group in groupby(files, key=lambda file: stem(file[1])):
        members = [*group]
        names = [file[1] for file in members]
        passed = names if _are_documents(one, names) else [n for n in names if "." not in n]
        for name in passed:
            ignored[extension(name)] = ignored.get(extension(name), 0) + 1
        if passed:
            members = [file for file in members if file[1] not in passed]
        for _, name, _, _ in members:
            _check_field(folder, name, known)
        if members:
            stems.append(one)
            run.locators.append(b"/".join(b"%s/%d" % (raw, size) for raw, _, size, _ in members))
            run.sizes.append(sum(size for _, _, size, _ in members))
            run.stamps.append(sum(stamp for _, _, _, stamp in members) & _STAMP_BITS)
    run.keys = encode(stems, root.key_base(folder.base))
    return run


def _are_documents(one: str, names: list[str]) -> bool:
    """Whether files of this stem say something of the corpus and belong to none of its samples."""
    if one.lower() not in DOCUMENTS:
        return False
    return not any(extension(name) in IMAGE_EXTENSIONS | ARRAY_EXTENSIONS for name in names)


def _check_field(folder: FolderListing, name: str, known: set[str]) -> None:
    field = name.partition(".")[2].lower()
    if field in known:
        return
    if not is_field_name(field):
        raise CorpusError(
            f"{show_path(join(folder.base, name))}: what follows its first dot, {field!r}, cannot"
            " name a field (A-Z a-z 0-9 _ . - and no reserved name); rename it"
        )
    known.add(field)


def make_row(
    files: list[tuple[bytes, Value | Reason]],
) -> tuple[Row, tuple[bytes, Reason] | None]:
    """One sample's fields, or the file that spoils it and why."""
    row: Row = {}
    for name, value in files:
        if isinstance(value, Reason):
            return row, (name, value)
        field = field_of(name, value)
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
    """The field a file holds; None for what is named as a picture and is none."""
    field = os.fsdecode(name).partition(".")[2].lower()
    view, dot, ending = field.rpartition(".")
    if "." + ending not in IMAGE_EXTENSIONS:
        return field
    held = image_field(bytes(value[:HEAD_BYTES]))
    return None if held is None else view + dot + held


def columns_of(rows: list[Row]) -> dict[str, list[Value | None]]:
    """Rows turned into columns; an absent field is None."""
    names = sorted({name for row in rows for name in row})
    return {name: [row[name][1] if name in row else None for row in rows] for name in names}
