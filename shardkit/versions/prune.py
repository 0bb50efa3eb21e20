"""``prune``: forget old versions of a dataset, and remove what only they need."""

from __future__ import annotations

import time
from pathlib import Path

from shardkit.arguments import integer
from shardkit.errors import IndexFileError
from shardkit.index.manifest import index_name, read_info, versions_at
from shardkit.system.paths import as_path, file_size, show_path
from shardkit.system.refusals import os_errors
from shardkit.versions.revision import Revision, VersionResult


def prune(dataset: str | Path, *, keep: int = 1) -> VersionResult:
    """Keep the last versions of a dataset, and remove the others from the disk: their indexes, and
    shards that none of those kept has. Nothing else ever removes anything of a dataset.

    Who has one open that goes may meet an error when it reads on.

    Args:
        dataset: its folder. keep: how many versions, the last included.

    Raises:
        UsageError: there is no dataset, or keep is no number from 1 on.
        DestinationError: another process changes it.
    """
    started = time.perf_counter()
    keep = integer("keep", keep, 1)
    folder = as_path(dataset, "the dataset")
    recipe = {"do": "prune", "keep": keep}
    with os_errors(f"pruning {show_path(folder)}"), Revision(folder, recipe) as revision:
        if revision.finished is not None:
            return revision.finished
        info = revision.place.info
        there = versions_at(revision.dest, info)
        old, kept = there[:-keep], there[-keep:]
        names, told = _files_only_of(revision.dest, old, kept)
        said = f"versions {', '.join(map(str, old))}" if old else "nothing"
        result = VersionResult.of(
            revision.dest,
            info.version,
            f"prune: {said}",
            info,
            num_bytes=sum(max(file_size(revision.dest / name), 0) for name in names),
            seconds=time.perf_counter() - started,
            notes=[*revision.notes, *told],
            was_complete=not old,
        )
        if old:
            revision.remove(recipe, result, names)
        return result


def _files_only_of(folder: Path, old: list[int], kept: list[int]) -> tuple[list[str], list[str]]:
    """Names of the files of old versions that none of those kept has, their indexes first; and what
    there is to say of them.

    Raises:
        IndexFileError: what a version that is kept says is damaged.
    """
    needed = {name for version in kept for name in read_info(folder, version=version).file_bytes}
    gone, told = set[str](), list[str]()
    for version in old:
        try:
            gone |= read_info(folder, version=version).file_bytes.keys()
        except IndexFileError:
            told.append(
                f"what version {version} had cannot be read any more: files that only it had stay,"
                " and `shardkit verify` names them"
            )
    return [*map(index_name, old), *sorted(gone - needed)], told
