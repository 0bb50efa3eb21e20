"""Samples of several files and of values: what the corpora of pictures with annotations share.

A sample's *parts* are files, which may lie in different folders. Its *values* were taken from an
annotation file, of which they are a row or a record. They travel in the locator: so what is read
depends on the run alone, and where an annotation changes, so does the listing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from shardkit.images.sniff import HEAD_BYTES, IMAGE_EXTENSIONS, IMAGE_FIELDS, image_field
from shardkit.inputs.base import Input, Run
from shardkit.inputs.files import Reason, read_files
from shardkit.inputs.images import not_image
from shardkit.inputs.names import cut_ending, encode, join
from shardkit.inputs.paired import Row, columns_of
from shardkit.samples.encoding import PICKLED, holds_pickles, npy_header
from shardkit.samples.sample import SampleBatch, Value, pack_paths
from shardkit.system.paths import show_path

RUN_ENTRIES = 4096
"""Of one run: a locator holds its sample's annotations, which may be some kilobytes."""

_END_OF_PATH = b"//"
"""Between the path of an entry's first file and the JSON that follows it; no path holds it."""

_STAMP_BITS = 2**63 - 1

Scalar = str | int | float | bool
"""A value: text, or JSON as text, or a number, which becomes a ``.npy`` without axes."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file of a sample.

    Attributes:
        view: what its field is called before the file's ending: ``masks`` gives ``masks.png``, and
            ``""`` the plain ``jpg``.
        path: relative to the source. size, stamp: what it was listed with.
    """

    view: str
    path: str
    size: int
    stamp: int


@dataclass(frozen=True)
class AnnotatedEntry:
    """What becomes one sample, or one reject.

    Attributes:
        key: the sample's; of what is none, the path that the reject is called by.
        parts: its files, the one that it is named after first.
        values: field -> value.
        label: class index, where folders are classes.
        stamp: of the annotation files that the values come from.
        reason: why it is none; ``""`` if it may be one.
    """

    key: str
    parts: Sequence[FilePart] = ()
    values: Mapping[str, Scalar] = field(default_factory=dict)
    label: int | None = None
    stamp: int = 0
    reason: str = ""


class AnnotatedCorpus(Input):
    """Reads entries; kinds derived from it list them.

    A part's field is named by its view and its ending, a picture's by what it holds. A value has no
    file of its own: its path, which ``unpack`` writes it to, is that of the sample's first file
    with the field's name for an ending.

    Attributes:
        notes: filled by ``runs``, as ``ignored`` is.
    """

    has_pictures = True

    def __init__(self, source: Path) -> None:
        self.source = source
        self.classes: list[str] | None = None
        self.ignored: dict[str, int] = {}
        self.notes: list[str] = []

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        """For reading only: nothing of the input is looked at, so it cannot list."""
        made = cls.__new__(cls)
        AnnotatedCorpus.__init__(made, source)
        made.classes = spec["classes"]
        return made

    def spec(self) -> dict[str, Any]:
        return {"kind": self.kind, "classes": self.classes}

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        entries = [_decoded(locator) for locator in run.locators]
        parts = [part for held in entries for part in held.parts]
        names = [os.fsencode(part.path) for part in parts]
        contents = iter(read_files(self.source, names, [part.size for part in parts]))
        batch, rows = SampleBatch(), []
        for key, held in zip(run.keys, entries, strict=True):
            row, problem = _made_row(key, held, [next(contents) for _ in held.parts])
            if problem is not None:
                batch.rejects.append(problem)
                continue
            rows.append(row)
            batch.keys.append(key)
            batch.paths.append(pack_paths(key, [row[name][0] for name in sorted(row)]))
        batch.columns = columns_of(rows)
        if run.label is not None and rows:
            own = batch.columns.get("cls", [None] * len(rows))
            batch.columns["cls"] = [b"%d" % run.label if v is None else v for v in own]
        return batch


def runs_of(split: str, entries: Iterable[AnnotatedEntry]) -> Iterator[Run]:
    """Runs of at most :data:`RUN_ENTRIES` entries of one label."""
    run = Run(split, "")
    for entry in entries:
        if len(run) >= RUN_ENTRIES or (len(run) and run.label != entry.label):
            yield run
            run = Run(split, "")
        run.label = entry.label
        run.locators.append(_encoded(entry))
        run.keys.append(os.fsencode(entry.key))
        texts = (len(value) for value in entry.values.values() if isinstance(value, str))
        run.sizes.append(sum(part.size for part in entry.parts if part.size > 0) + sum(texts))
        run.stamps.append((sum(part.stamp for part in entry.parts) + entry.stamp) & _STAMP_BITS)
    if len(run):
        yield run


def lost_entry(path: str) -> AnnotatedEntry:
    """The entry of a name that leads nowhere: reading it says why, since no file has that size."""
    return AnnotatedEntry(path, [FilePart("", path, -1, 0)])


# --- locators -----------------------------------------------------------------------------


def _encoded(entry: AnnotatedEntry) -> bytes:
    path = entry.key if entry.reason or not entry.parts else entry.parts[0].path
    parts = [[part.view, part.path, part.size] for part in entry.parts]
    held = json.dumps([entry.reason, parts, dict(entry.values)])
    return os.fsencode(path) + _END_OF_PATH + held.encode()


def _decoded(locator: bytes) -> AnnotatedEntry:
    path, _, held = locator.partition(_END_OF_PATH)
    reason, parts, values = json.loads(held)
    found = [FilePart(view, name, size, 0) for view, name, size in parts]
    return AnnotatedEntry(os.fsdecode(path), found, values, reason=reason)


# --- rows ---------------------------------------------------------------------------------


def _made_row(
    key: bytes, entry: AnnotatedEntry, contents: list[Value | Reason]
) -> tuple[Row, tuple[str, Reason] | None]:
    """One sample's fields, or the file that spoils it and why."""
    row: Row = {}
    if entry.reason:
        return row, (entry.key, entry.reason)
    for part, value in zip(entry.parts, contents, strict=True):
        if isinstance(value, Reason):
            return row, (part.path, value)
        name = part_field(part, value)
        if name is None:
            return row, (part.path, not_image(value))
        if name.rpartition(".")[2] == "npy" and holds_pickles(value):
            return row, (part.path, PICKLED)
        if (other := _rival(row, name)) is not None:
            return row, (part.path, _taken(row, name, other))
        row[name] = (os.fsencode(part.path), value)
    base = encode([join(entry.parts[0].path.rpartition("/")[0], "")])[0]
    for name, held in entry.values.items():
        if name in row:
            return row, (entry.key, _taken(row, name, name))
        path = base + key.rpartition(b"/")[2] + b"." + name.encode()
        row[name] = (path, canonical(held))
    return row, None


def part_field(part: FilePart, value: Value) -> str | None:
    """The field that a file holds; None for what is named as a picture and is none."""
    ending: str | None = cut_ending(part.path.rpartition("/")[2])[1]
    if ending in IMAGE_EXTENSIONS:
        held = image_field(bytes(value[:HEAD_BYTES]))
        ending = None if held is None else "." + held
    return None if ending is None else (part.view + ending).lstrip(".")


def _rival(row: Row, name: str) -> str | None:
    """The field that a sample has in place of ``name``: the same, or another plain picture."""
    if name in row:
        return name
    if name in IMAGE_FIELDS:
        return next((other for other in row if other in IMAGE_FIELDS), None)
    return None


def _taken(row: Row, name: str, other: str) -> Reason:
    where = show_path(row[other][0])
    if name != other:
        return f"has the stem of {where}, which is a picture, too; rename one"
    return f"is field {name!r} of its sample, and so is {where}; remove one"


def canonical(held: Scalar) -> bytes:
    """The canonical value of a text, or of a number: a ``.npy`` without axes."""
    if isinstance(held, str):
        return held.encode()
    dtype = "|b1" if isinstance(held, bool) else "<i8" if isinstance(held, int) else "<f8"
    return npy_header(dtype, ()) + np.array(held, dtype).tobytes()
