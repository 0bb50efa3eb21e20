"""Shards of another dataset become part of one: under new names, by links, or by moving them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Integers
from shardkit.commit.durable_files import atomic_write
from shardkit.index.manifest import REJECTED_NAME, DatasetInfo, read_rejected
from shardkit.index.rows import RowIndex
from shardkit.packing.destination import link_or_copy
from shardkit.packing.finish import with_signposts
from shardkit.packing.result import COMPLETE
from shardkit.remote.urls import refuse_overlap
from shardkit.shards.locate import Located, locate
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors
from shardkit.versions.own_rows import OwnRows, among
from shardkit.versions.reconcile import (
    CLS,
    joined_classes,
    joined_origin,
    refuse_unlike,
    renumbered,
    told_renumbered,
)
from shardkit.versions.revision import Revision, VersionResult

_SHARD = re.compile(r"(.+)-(\d{5,})\..*")
ROWS = 1 << 20
"""Compared at a time."""


def adopt(folder: Path, source: Path, started: float) -> VersionResult:
    """Add the samples of one dataset to another, as its next version; errors as of
    :func:`shardkit.append`."""
    with os_errors(f"appending to {show_path(folder)}"):
        refuse_overlap(folder.resolve(), source.resolve())
        there = locate(source)
        fingerprints = {name: split.fingerprint for name, split in there.info.splits.items()}
        recipe = {"do": "adopt", "source": str(source.absolute()), "fingerprints": fingerprints}
        with Revision(folder, recipe) as revision:
            if revision.finished is not None:
                return revision.finished
            if revision.was_last(recipe):  # its class numbers may be others here
                return _complete(revision, f"append {source.resolve().name}", started)
            what = f"append {source.resolve().name}"
            return adopt_into(revision, recipe, there, what, started)


def adopt_into(
    revision: Revision,
    recipe: dict[str, Any],
    there: Located,
    what: str,
    started: float,
    *,
    moved_from: str | None = None,
    notes: Sequence[str] = (),
) -> VersionResult:
    """Make the version that has the rows of both.

    Args:
        moved_from: the folder of the other dataset in the work folder, if its files may be moved.
        notes: what there is to say of it already.

    Raises:
        UsageError: they cannot become one. DataError: two samples have one key.
    """
    place, shown = revision.place, there.shown
    if _has_all(place, there):
        return _complete(revision, what, started)
    origin, told = joined_origin(place.info, there.info, shown)
    notes = [*notes, *refuse_unlike(place.info, there.info, shown), *told]
    classes = joined_classes(place.info, there.info.classes, shown)
    stems = new_stems(there.info, [path.name for path in revision.dest.iterdir()])
    fields = sorted({*place.info.fields, *there.info.fields})
    info = replace(
        place.info,
        fields=fields,
        classes=classes,
        provenance=origin,
        splits={},
    )
    for name, split in place.info.splits.items():
        shards = [among(shard, place.info, info) for shard in split.shards]
        info.splits[name] = replace(split, shards=shards)
    for name in dict.fromkeys([*there.info.splits, *place.info.splits]):
        parts = [OwnRows(place, name)] if name in place.info.splits else []
        if name in there.info.splits:
            added = OwnRows(there, name, stems=stems, labels=labels_among(there, name, classes))
            if added.labels is not None:
                notes.append(told_renumbered(name))
            parts.append(added)
        elif fields == place.info.fields:
            continue  # else its rows have a column more, too
        info.splits[name] = revision.write(name, parts, info)
    moves = _files(revision, there, stems, moved_from)
    num_added = sum(split.num_rows for split in there.info.splits.values())
    result = VersionResult.of(
        revision.dest, revision.number, what, info, num_added=num_added, notes=notes
    )
    info = with_signposts(revision.stage, info)
    result = replace(result, seconds=time.perf_counter() - started)
    return revision.publish(info, recipe, result, moves)


def new_stems(theirs: DatasetInfo, names: Sequence[str]) -> dict[str, str]:
    """Stem of each of their shards -> what it is called here: numbers go on after the largest of
    any version.

    Args:
        names: of the files that are here.
    """
    largest: dict[str, int] = {}
    for name in names:
        if found := _SHARD.fullmatch(name):
            split, number = found.group(1), int(found.group(2))
            largest[split] = max(largest.get(split, -1), number)
    stems: dict[str, str] = {}
    for name, split in theirs.splits.items():
        for shard in range(len(split.shards)):
            stem = split.stem(shard)
            if stem not in stems:
                largest[name] = largest.get(name, -1) + 1
                stems[stem] = f"{name}-{largest[name]:05d}"
    return stems


def _files(
    revision: Revision, there: Located, stems: dict[str, str], moved_from: str | None
) -> list[tuple[str, str]]:
    """Have the shards ready; (path in the work folder, name) of those to be moved from there."""
    moves = []
    for name, new, num_bytes in renamed_files(there.info, stems):
        if moved_from is not None:
            moves.append((f"{moved_from}/{name}", new))
        elif not (revision.stage / new).exists():
            link_or_copy(there.folder / name, revision.stage / new, num_bytes)
    if rejected := read_rejected(there.folder):
        atomic_write(revision.stage / REJECTED_NAME, [read_rejected(revision.dest), rejected])
    return sorted(set(moves))


def renamed_files(theirs: DatasetInfo, stems: dict[str, str]) -> Iterator[tuple[str, str, int]]:
    """Name of each file of their shards, what it is called here, and its bytes."""
    for split in theirs.splits.values():
        for number, shard in enumerate(split.shards):
            old = split.stem(number)
            for name, num_bytes in shard.file_bytes.items():
                yield name, stems[old] + name.removeprefix(old), num_bytes


def labels_among(there: Located, name: str, classes: Sequence[str] | None) -> Integers | None:
    """What labels of a split are among all classes; None if they stay as they are."""
    if CLS not in there.info.fields:
        return None
    index = RowIndex(there.storage, there.info, there.info.splits[name])
    return renumbered(index.table[:, index.column[CLS]], there.info.classes, classes)


def _has_all(ours: Located, theirs: Located) -> bool:
    """Whether each of their samples is here, by its key and checksum, in the same split."""
    return all(_has_split(ours, theirs, name) for name in theirs.info.splits)


def _has_split(ours: Located, theirs: Located, name: str) -> bool:
    if name not in ours.info.splits:
        return False
    wanted = _pairs(RowIndex(theirs.storage, theirs.info, theirs.info.splits[name]).table)
    index = RowIndex(ours.storage, ours.info, ours.info.splits[name])
    missing = np.ones(len(wanted), bool)
    for start in range(0, len(index.table), ROWS):
        left = np.flatnonzero(missing)
        missing[left] = ~np.isin(wanted[left], _pairs(index.table[start : start + ROWS]))
        if not missing.any():
            return True
    return not missing.any()


def _pairs(table: Integers) -> np.ndarray[Any, Any]:
    """(N,) of checksum and hash of key, as one value each."""
    return np.ascontiguousarray(table[:, :2]).view("V16")[:, 0]


def _complete(revision: Revision, what: str, started: float) -> VersionResult:
    info = revision.place.info
    return VersionResult.of(
        revision.dest,
        info.version,
        what,
        info,
        seconds=time.perf_counter() - started,
        notes=[*revision.notes, COMPLETE],
        was_complete=True,
    )
