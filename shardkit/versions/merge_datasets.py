"""``merge``: the dataset of all parts of a pack; or one of the samples of several datasets."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import xxhash

from shardkit.commit.durable_files import atomic_write, fsync_path
from shardkit.commit.work_folder import is_under_way
from shardkit.errors import PartError, ShardkitError, UsageError
from shardkit.index.file_names import INDEX_NAME, REJECTED_NAME
from shardkit.index.manifest import DatasetInfo, read_info, read_rejected
from shardkit.packing.destination import Destination, link_or_copy
from shardkit.packing.finish import with_signposts
from shardkit.packing.parts import merge_parts
from shardkit.packing.remote_destination import open_destination
from shardkit.packing.result import COMPLETE, PackResult
from shardkit.remote.urls import Url, as_place, refuse_overlap
from shardkit.shards.locate import Located
from shardkit.system.paths import as_path, show_path
from shardkit.system.refusals import os_errors
from shardkit.versions.own_rows import OwnRows, new_stems, renamed_files, rows_among, write_rows
from shardkit.versions.reconcile import joined, told_renumbered
from shardkit.versions.revision import own_dataset


@os_errors("merging")
def merge(
    parts: Sequence[str | Path],
    dest: str | Path,
    *,
    overwrite: bool = False,
    progress: bool | None = None,
    staging: str | Path | None = None,
    staging_bytes: str | int | None = None,
) -> PackResult:
    """Make one dataset of all parts that ``pack`` made with ``part=``: byte for byte what one pack
    makes. Or make one of several datasets: the samples of each after those of the one before.

    The input is not needed. Shards are hard links to those of the parts, where both lie on one file
    system, else copies; the parts stay, and may be deleted. Call it again after an interruption,
    even a kill -9, and it goes on.

    Datasets must be of one format, and of one tokenizer. Classes go by name: those of the first
    keep their numbers, and new ones follow. Keys must differ.

    Args:
        parts: their folders; parts of a pack in any order.
        dest: folder to make, or, of parts of a pack, the URL of one in a bucket.
        overwrite, progress, staging, staging_bytes: as of
            :class:`shardkit.packing.options.PackOptions`.

    Raises:
        PartError: a part is missing, given twice, not finished, or of another pack.
        UsageError: the destination is wrong, or datasets cannot become one; nothing was written.
        DataError: a part is damaged, two samples have one key, too many inputs were rejected, or
            the disk refused.
    """
    if isinstance(parts, str | os.PathLike):
        parts = [parts]
    if not isinstance(parts, Sequence):
        raise UsageError(f"parts must be a list of folders, got {parts!r}")
    folders = [as_path(part, "a part") for part in parts]
    whole = [folder for folder in folders if (folder / INDEX_NAME).is_file()]
    if not whole:
        return merge_parts(
            folders,
            dest,
            overwrite=overwrite,
            progress=progress,
            staging=staging,
            staging_bytes=staging_bytes,
        )
    if len(whole) < len(folders):
        other = next(folder for folder in folders if folder not in whole)
        raise PartError(
            f"{show_path(whole[0])} is a dataset, and {show_path(other)} is none: merge either the"
            " parts of a pack, or datasets"
        )
    place = as_place(dest, "the destination")
    if isinstance(place, Url):
        raise UsageError(
            f"datasets are merged into a folder, and {place} is a URL; `shardkit stage` copies it"
            " there"
        )
    for folder in folders:
        refuse_overlap(place, folder)
    with os_errors(f"merging into {show_path(place)}"):
        return _merge_datasets([own_dataset(folder) for folder in folders], place, overwrite)


def _merge_datasets(places: list[Located], dest: Path, overwrite: bool) -> PackResult:
    started = time.perf_counter()
    info, notes = places[0].info, list[str]()
    for place in places[1:]:
        info, told = joined(info, place.info, place.shown)
        notes += told
    inputs = {
        str(place.folder): [
            int(split.fingerprint.removeprefix("scan:"), 16) for split in place.info.splits.values()
        ]
        for place in places
    }
    order = {"of": [str(place.folder) for place in places]}
    recipe = {"inputs": inputs, "corpus": {}, "options": order}
    digest = xxhash.xxh3_64_hexdigest(json.dumps(recipe, sort_keys=True).encode())
    if not overwrite and (made := _merged_before(dest, digest)) is not None:
        return replace(
            _result(places, made, dest.resolve(), [COMPLETE], started), was_complete=True
        )
    spec = {**info.provenance.spec, "datasets": len(places)}
    origin = replace(info.provenance, spec=spec, packed=digest)
    with open_destination(dest, places[0].folder, overwrite) as destination:
        if before := destination.finished(recipe, PackResult):
            return replace(before, was_complete=True)
        destination.prepare(recipe)
        info = DatasetInfo(info.container, info.fields, info.classes, origin)
        info, told = _assemble(places, info, destination)
        result = _result(places, info, destination.dest, [*notes, *told], started)
        destination.finish(info, recipe, {**vars(result), "dest": ""})
        return result


def _merged_before(dest: Path, digest: str) -> DatasetInfo | None:
    """Return what the same call has made there, if it is as it was made."""
    if is_under_way(dest) or not (dest / INDEX_NAME).is_file():
        return None
    try:
        info = read_info(dest)
    except ShardkitError:
        return None
    return info if info.provenance.packed == digest and not info.history else None


def _assemble(
    places: list[Located], info: DatasetInfo, destination: Destination
) -> tuple[DatasetInfo, list[str]]:
    """Put shards and index into the stage. Return the dataset, and what there is to say of it."""
    stage, names = destination.stage, list[str]()
    parts: dict[str, list[OwnRows]] = {}
    renumbered = set()
    for place in places:
        stems = new_stems(place.info, names)
        names += [f"{stem}." for stem in stems.values()]
        for name, new, num_bytes in renamed_files(place.info, stems):
            link_or_copy(place.folder / name, stage / new, num_bytes)
        for name in place.info.splits:
            own = rows_among(place, name, stems, info.classes)
            if own.labels is not None:
                renumbered.add(place.shown)
            parts.setdefault(name, []).append(own)
    for name in sorted(parts, key=lambda name: (name != "train", name)):
        info.splits[name] = write_rows(stage, name, name, parts[name], info)
    rejected = [read_rejected(place.folder) for place in places]
    if any(rejected):
        atomic_write(stage / REJECTED_NAME, rejected)
    if (tokenizer := info.provenance.tokenizer_file) is not None:
        num_bytes = info.provenance.tokenizer_bytes
        atomic_write(stage / tokenizer, [places[0].storage.contents(tokenizer, num_bytes)])
    info = with_signposts(stage, info)
    fsync_path(stage)
    return info, [told_renumbered(name) for name in sorted(renumbered)]


def _result(
    places: list[Located], info: DatasetInfo, dest: Path, notes: list[str], started: float
) -> PackResult:
    return PackResult(
        dest=dest,
        container=info.container,
        kind="datasets",
        splits=info.num_rows,
        num_samples=sum(info.num_rows.values()),
        num_shards=sum(len(split.shards) for split in info.splits.values()),
        input_bytes=sum(sum(place.info.file_bytes.values()) for place in places),
        dataset_bytes=sum(info.file_bytes.values()),
        seconds=time.perf_counter() - started,
        notes=notes,
    )
