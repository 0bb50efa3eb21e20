"""``append``: more samples for a dataset, in shards of their own; no old one is touched.

They are packed as a dataset by themselves, in the work folder, or are one already. Its shards
become part of the other under new names, by moving them, or by links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shardkit.arrays import Integers
from shardkit.commit.durable_files import atomic_write
from shardkit.commit.own_files import remove_own
from shardkit.errors import DestinationError, ResumeError, UsageError
from shardkit.index.file_names import INDEX_NAME, REJECTED_NAME
from shardkit.index.manifest import DatasetInfo, read_info, read_rejected
from shardkit.inputs.corpus import Input
from shardkit.inputs.detection import open_corpus
from shardkit.packing.destination import link_or_copy
from shardkit.packing.options import PackOptions, parse_fields, parse_options
from shardkit.packing.result import COMPLETE
from shardkit.packing.run import run_pack
from shardkit.packing.tokenize import refuse_without_text
from shardkit.remote.urls import Url, as_place, refuse_overlap
from shardkit.shards.locate import Located, locate
from shardkit.system.paths import as_path, show_path
from shardkit.system.refusals import os_errors
from shardkit.tokens.load import open_tokenizer
from shardkit.versions.own_rows import OwnRows, among, new_stems, renamed_files, rows_among
from shardkit.versions.reconcile import joined, joined_classes, told_renumbered
from shardkit.versions.revision import ADDED_NAME, Revision, VersionResult

ROWS = 1 << 20
"""Compared at a time."""


@os_errors("appending")
def append(
    dataset: str | Path,
    source: str | Path,
    *,
    corpus: str | None = None,
    labels: str | Path | None = None,
    text_field: str | None = None,
    fields: str | Sequence[str] | None = None,
    workers: int | None = None,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    shard_size: str | int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    val_fraction: float = 0.0,
    on_error: Literal["fail", "skip"] = "fail",
    max_rejects: float = 0.01,
    check_images: bool = False,
    compression: int | None = None,
    limit: int | None = None,
    progress: bool | None = None,
) -> VersionResult:
    """Add the samples of ``source`` to a dataset, as its next version.

    What was packed stays as it is, and so does what others have open. Format, what becomes of
    pictures, and the tokenizer are the dataset's; known classes keep their numbers, and new ones
    follow. Call it again after an interruption, even a kill -9, and it goes on.

    Args:
        dataset: its folder. source: as of :func:`shardkit.pack`, on this machine; or another
            dataset, whose shards are linked, or else copied.
        corpus, labels, text_field, fields, shard_size: as of :func:`shardkit.pack`; default of the
            fields: what the dataset was packed with. The others as of
            :class:`shardkit.packing.options.PackOptions`.

    Raises:
        UsageError: the call is wrong, the source has other fields or no classes, or was appended
            before; nothing was written.
        DestinationError: another process changes the dataset.
        DataError: an input is bad, a key is there already, or the disk refused.
    """
    options = {
        "workers": workers,
        "engine": engine,
        "address": address,
        "shuffle": shuffle,
        "seed": seed,
        "val_fraction": val_fraction,
        "on_error": on_error,
        "max_rejects": max_rejects,
        "check_images": check_images,
        "compression": compression,
        "limit": limit,
        "progress": progress,
    }
    folder, place = as_path(dataset, "the dataset"), as_place(source, "the source")
    if isinstance(place, Url):
        raise UsageError(f"append adds what is on this machine, and {place} is not: fetch it first")
    what = f"append {place.resolve().name}"
    columns = parse_fields(fields)
    of_files = {"kind": corpus, "labels": labels, "text_field": text_field, "fields": columns}
    with os_errors(f"appending to {show_path(folder)}"):
        refuse_overlap(folder.resolve(), place.resolve())
        if (place / INDEX_NAME).is_file():
            for name, value in of_files.items():
                if value is not None:
                    name = "corpus" if name == "kind" else name
                    raise UsageError(f"append: {name} is for files, and the source is a dataset")
            return _adopt(folder, place, what)
        info = read_info(folder)
        made = _options(info, folder, shard_size, options)
        return _append(folder, place, what, _open(place, info, of_files, made), made)


def _open(source: Path, info: DatasetInfo, given: dict[str, Any], made: PackOptions) -> Input:
    """Open what is appended, by default with the fields that the dataset was packed with.

    Raises:
        UsageError: it has no pictures or texts, as the dataset has.
    """
    opened, own = open_corpus(source, **given, tokenized=made.makes_tokens), info.provenance
    chosen = {"text_field": own.text_field, "fields": own.fields}
    is_free = given["text_field"] is None and given["fields"] is None
    if is_free and own.kind == opened.kind and any(chosen.values()):
        opened = open_corpus(source, **(given | chosen), tokenized=made.makes_tokens)
    if made.images and not opened.has_pictures:
        raise UsageError(
            f"{show_path(source)} is taken for {opened.kind}, and has no pictures, which the"
            " dataset has"
        )
    if made.makes_tokens:
        refuse_without_text(opened, source)
    return opened


def _options(
    info: DatasetInfo, folder: Path, shard_size: str | int | None, given: dict[str, Any]
) -> PackOptions:
    """Return what the dataset was packed with, and what is asked for besides.

    Raises:
        UsageError: that makes no sense; or pictures of it were written anew more than once.
    """
    choices = info.provenance.images
    if len(choices) > 1:
        raise UsageError(
            f"pictures of {show_path(folder)} were written anew {len(choices)} times, and what is"
            " appended would be once: convert what you append likewise, and append that dataset"
        )
    own: dict[str, Any] = {**choices[0]} if choices else {}
    if any(name.endswith(".idx") for name in info.file_bytes):
        own["dali_index"] = True
    spec = info.tokenizer
    if spec is not None:
        if spec.file is None:
            raise UsageError(
                f"{show_path(folder)} holds ids of a tokenizer that is not known: nothing can be"
                " tokenized alike"
            )
        own |= {"tokenizer": str(folder / spec.file), "invalid_utf8": spec.invalid_utf8}
    return parse_options(info.container, shard_size, own | given)


def _append(
    folder: Path, source: Path, what: str, opened: Input, options: PackOptions
) -> VersionResult:
    """Add what is packed of files to a dataset, as its next version."""
    recipe = {
        "do": "append",
        "source": str(source.absolute()),
        "corpus": opened.spec(),
        "options": options.lasting(),
    }
    with Revision(folder, recipe, what) as revision:
        if revision.finished is not None:
            return revision.finished
        return _pack_into(revision, source, opened, options)


def _pack_into(
    revision: Revision, source: Path, opened: Input, options: PackOptions
) -> VersionResult:
    info = revision.place.info
    classes = joined_classes(info, opened.classes, show_path(source))
    added, spec = revision.work / ADDED_NAME, info.tokenizer
    tokenizer = None if spec is None else open_tokenizer(revision.dest, spec)
    given = source, opened, added, options, revision.started
    try:  # and go on, if an earlier call was interrupted
        packed = run_pack(*given, classes=classes, tokenizer=tokenizer)
    except (DestinationError, ResumeError):
        if not added.exists():
            raise
        remove_own(added)
        revision.notes.append("the source changed since an interrupted call: it is packed anew")
        packed = run_pack(*given, classes=classes, tokenizer=tokenizer)
    notes = [] if packed.was_complete else packed.notes
    if packed.num_rejects:
        notes = [*notes, f"inputs rejected, see {REJECTED_NAME}: {packed.num_rejects:,}"]
    if packed.ignored:
        endings = sorted(packed.ignored.items())
        listed = ", ".join(f"{n:,} {show_path(e) or 'without extension'}" for e, n in endings)
        notes = [*notes, f"files passed over: {listed}"]
    made = _adopt_into(revision, locate(added), moved_from=ADDED_NAME, notes=notes)
    if made.was_complete:
        remove_own(added)
    return made


# --- another dataset ----------------------------------------------------------------------


def _adopt(folder: Path, source: Path, what: str) -> VersionResult:
    """Add the samples of one dataset to another, as its next version."""
    there = locate(source)
    recipe = {
        "do": "adopt",
        "source": str(source.absolute()),
        "fingerprints": there.info.fingerprints,
    }
    with Revision(folder, recipe, what) as revision:
        if revision.finished is not None:
            return revision.finished
        if revision.was_last():  # its class numbers may be others here
            return revision.unchanged(COMPLETE)
        return _adopt_into(revision, there)


def _adopt_into(
    revision: Revision, there: Located, *, moved_from: str | None = None, notes: Sequence[str] = ()
) -> VersionResult:
    """Make the version that has the rows of both.

    Args:
        moved_from: the folder of the other dataset in the work folder, if its files may be moved.
        notes: what there is to say of it already.

    Raises:
        UsageError: they cannot become one. DataError: two samples have one key.
    """
    place = revision.place
    if all(_has_split(place, there, name) for name in there.info.splits):
        return revision.unchanged(COMPLETE)
    info, told = joined(place.info, there.info, there.shown)
    notes = [*notes, *told]
    stems = new_stems(there.info, [path.name for path in revision.dest.iterdir()])
    for name, split in place.info.splits.items():
        shards = [among(shard, place.info, info) for shard in split.shards]
        info.splits[name] = replace(split, shards=shards)
    for name in dict.fromkeys([*there.info.splits, *place.info.splits]):
        parts = [OwnRows(place, name)] if name in place.info.splits else []
        if name in there.info.splits:
            added = rows_among(there, name, stems, info.classes)
            if added.labels is not None:
                notes.append(told_renumbered(name))
            parts.append(added)
        elif info.fields == place.info.fields:
            continue  # else its rows have a column more, too
        info.splits[name] = revision.write(name, parts, info)
    moves = set()
    for name, new, num_bytes in renamed_files(there.info, stems):
        if moved_from is not None:
            moves.add((f"{moved_from}/{name}", new))
        elif not (revision.stage / new).exists():
            link_or_copy(there.folder / name, revision.stage / new, num_bytes)
    if rejected := read_rejected(there.folder):
        atomic_write(revision.stage / REJECTED_NAME, [read_rejected(revision.dest), rejected])
    num_added = sum(there.info.num_rows.values())
    return revision.publish(info, notes, sorted(moves), num_added=num_added)


def _has_split(ours: Located, theirs: Located, name: str) -> bool:
    """Return True if each of their samples is here, by its key and checksum, in the same split."""
    if name not in ours.info.splits:
        return False
    wanted = _pairs(theirs.row_index(name).table)
    index = ours.row_index(name)
    missing = np.ones(len(wanted), bool)
    for start in range(0, len(index.table), ROWS):
        left = np.flatnonzero(missing)
        missing[left] = ~np.isin(wanted[left], _pairs(index.table[start : start + ROWS]))
    return not missing.any()


def _pairs(table: Integers) -> np.ndarray[Any, Any]:
    """Return (N,) of checksum and hash of key, as one value each."""
    return np.ascontiguousarray(table[:, :2]).view("V16")[:, 0]
