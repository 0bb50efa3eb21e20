"""Samples of several files and of values: what all kinds of images with annotations share.

A sample's *parts* are files, which may lie in different folders. Its *values* were taken from an
annotation file, of which they are a row or a record. Both travel in the locator, so what is read
depends on the run alone, and where an annotation changes, so does the listing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from shardkit.images.sniff import HEAD_BYTES, IMAGE_EXTENSIONS, IMAGE_FIELDS, image_field
from shardkit.index.manifest import is_field_name
from shardkit.inputs.base import Input, Run
from shardkit.inputs.class_folders import not_image
from shardkit.inputs.files import DOCUMENTS, Reason, cut_ending, extension, join, read_files, stem
from shardkit.inputs.single_files import ARRAY_EXTENSIONS, MEDIA_EXTENSIONS
from shardkit.samples.encoding import PICKLED, holds_pickles, npy_header
from shardkit.samples.sample import SampleBatch, Value, pack_paths
from shardkit.system.paths import show_path

MAIN = IMAGE_EXTENSIONS | ARRAY_EXTENSIONS | MEDIA_EXTENSIONS
"""Endings of what samples are mostly about."""

MAIN_KINDS = (IMAGE_EXTENSIONS, ARRAY_EXTENSIONS, MAIN)
"""Endings of main files, the commonest first."""

RUN_ENTRIES = 4096
"""Entries per run at most: a locator holds its sample's annotations, which may be kilobytes."""

STAMP_BITS = 2**63 - 1

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
            run.stamps.append(stamps & STAMP_BITS)
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
