"""Publishing, the last step of a pack: the new dataset replaces whatever stood there.

Until then everything new lies in the work folder, and an old dataset stays as it is. A marker says
that the new one is ready. Whoever finds it, after a kill, does the rest: each step may be repeated,
and only the last of them removes the marker.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from filecmp import cmp
from pathlib import Path
from typing import Any, TypeGuard

from shardkit.errors import DestinationError, ResumeError, ShardkitError, StorageError
from shardkit.index.manifest import (
    DALI_INDEX,
    INDEX_KINDS,
    INDEX_NAME,
    REJECTED_NAME,
    SHARD_FILE,
    SIGNPOSTS,
    VERSION_INDEX,
    WORK_NAME,
    DatasetInfo,
    all_files,
    is_dataset_file,
    is_field_name,
    read_info,
    split_of_index,
)
from shardkit.system.durable_files import atomic_write, fsync_path
from shardkit.system.full_reads import pread
from shardkit.system.leases import is_lease
from shardkit.system.opening import open_file
from shardkit.system.own_files import create, opened, remove
from shardkit.system.paths import show_path
from shardkit.system.records import from_record, read_record, write_record

COPY_BYTES = 4 << 20


def link_or_copy(source: Path, dest: Path, num_bytes: int | None = None) -> None:
    """Give a file that nobody changes any more another name; or copy it, where it can have none.

    Raises:
        DataError: it is missing, no regular file, or not of ``num_bytes``, if that is known.
    """
    temp = dest.with_name(f".{dest.name}.link")  # which no other call writes to
    with closing(open_file(source, num_bytes)) as file:
        for old in (temp, dest):  # of a call that was killed: to write there could change a part
            old.unlink(missing_ok=True)
        try:
            os.link(os.path.realpath(source), temp)
            is_same = os.path.samestat(os.fstat(file.fd), os.lstat(temp))
        except OSError:  # another file system, or one without links
            is_same = False
        if not is_same:
            with create(temp) as copy:
                for start in range(0, file.num_bytes, COPY_BYTES):
                    copy.write(pread(file.fd, min(COPY_BYTES, file.num_bytes - start), start))
                if copy.tell() != file.num_bytes:
                    raise StorageError(f"{show_path(source)} was cut short while it was copied")
            fsync_path(temp)
    temp.replace(dest)


LOCK_NAME = "lock"
STAGE_NAME = "new"
SCRATCH_NAME = "scratch"
_MARKER = "whole.json"
_LAST_MARKER = ".packing.json"
"""What the marker is called, beside shardkit.json, while the work folder itself is removed."""

_SPLIT_OF_SHARD = re.compile(r"(.+)-[0-9]{5,}\..*")


@dataclass(frozen=True)
class Publication:
    """The marker: what is to be published, and what the call that packed it returns.

    Attributes:
        packed: what was packed and how. result: what the call returns, as JSON.
        old, new: names of files that go and that come, shardkit.json apart.
    """

    packed: dict[str, Any]
    result: dict[str, Any]
    old: list[str]
    new: list[str]


def dataset_files(info: DatasetInfo) -> list[str]:
    """Names of all files a dataset may have but shardkit.json itself."""
    return [REJECTED_NAME, *info.file_bytes]


def left_over(names: Collection[str], info: DatasetInfo) -> set[str]:
    """Of the names that lie beside a dataset, those of its splits' shards and index which it does
    not list: left over from something else that was written there."""
    own = {name for name in names if _is_file_of(name, info.splits)}
    return own - set(dataset_files(info))


def files_to_replace(dest: Path) -> list[str]:
    """Names of the files of the dataset that stands here, shardkit.json apart.

    Shards of its splits that it does not list are left over from something, and count as its own.
    Where shardkit.json is damaged, names alone decide.
    """
    names = {entry.name for entry in os.scandir(dest) if not entry.is_dir(follow_symlinks=False)}
    try:
        info = read_info(dest)
        listed, splits = {REJECTED_NAME, *all_files(dest, info)}, set(info.splits)
    except ShardkitError:
        listed, splits = {REJECTED_NAME}, _splits_seen(names)
    return sorted(name for name in names if name in listed or _is_file_of(name, splits))


def _splits_seen(names: Collection[str]) -> set[str]:
    shards = {split for name in names if (split := _split_of_shard(name))}
    stems = {name.removesuffix(".rows") for name in names if name.endswith(".rows")}
    indexed = {s for s in stems if all(f"{s}.{kind}" in names for kind in INDEX_KINDS)}
    return {split for split in shards | indexed if is_field_name(split)}


def _split_of_shard(name: str) -> str:
    found = _SPLIT_OF_SHARD.fullmatch(name) if SHARD_FILE.fullmatch(name) else None
    return found.group(1) if found else ""


def _is_file_of(name: str, splits: Collection[str]) -> bool:
    if found := DALI_INDEX.fullmatch(name):  # of an old tar, whoever made it: wrong for a new one
        return found.group(1) in splits
    if VERSION_INDEX.fullmatch(name):
        return True
    return _split_of_shard(name) in splits or split_of_index(name) in splits


def mark_ready(dest: Path, publication: Publication, info: bytes) -> None:
    """Everything new but shardkit.json is in the stage: write that, then say so."""
    for name in publication.new:
        if (dest / name).is_dir() and not (dest / name).is_symlink():
            raise DestinationError(
                f"{show_path(dest / name)} is a folder, where a file of the dataset must go; move"
                " it away and run the same command again"
            )
    work = dest / WORK_NAME
    for name in sorted(SIGNPOSTS & set(publication.new) - set(publication.old)):
        # Somebody's database may be called data.mdb, too.
        if (dest / name).exists() and not cmp(dest / name, work / STAGE_NAME / name, False):
            raise DestinationError(
                f"{show_path(dest / name)} is no file of the dataset's, and would be lost; move it"
                " away and run the same command again"
            )
    atomic_write(work / STAGE_NAME / INDEX_NAME, [info])
    write_record(work / _MARKER, asdict(publication))


def is_marked(dest: Path) -> bool:
    return any(map(os.path.lexists, (dest / WORK_NAME / _MARKER, dest / _LAST_MARKER)))


def read_marker(dest: Path) -> Publication | None:
    """The marker, if there is one. Raises ResumeError if it is damaged."""
    for path in (dest / WORK_NAME / _MARKER, dest / _LAST_MARKER):
        try:
            record = read_record(path)
        except FileNotFoundError:
            continue
        with suppress(TypeError):
            made = from_record(Publication, record)
            if is_recipe(made.packed) and all(map(is_dataset_file, (*made.old, *made.new))):
                return made
        raise ResumeError(
            f"{show_path(path)}, the record of a finished pack, is damaged; pass --overwrite to"
            " pack again"
        )
    return None


def is_recipe(record: object) -> TypeGuard[dict[str, dict[str, Any]]]:
    """Return True for what a record says of what is packed, and how."""
    groups = ("inputs", "corpus", "options")
    return isinstance(record, dict) and all(isinstance(record.get(g), dict) for g in groups)


def publish(dest: Path, publication: Publication) -> None:
    """Remove the old dataset, its index first, and move the new one to ``dest``, its index last.

    Does nothing if that has been done. Raises ResumeError if the new index is nowhere.
    """
    if not (dest / WORK_NAME / STAGE_NAME / INDEX_NAME).exists():
        if not (dest / INDEX_NAME).exists():
            raise ResumeError(
                f"{show_path(dest)} held a whole dataset, but its {INDEX_NAME} is gone; pass"
                " --overwrite to pack again"
            )
        return
    (dest / INDEX_NAME).unlink(missing_ok=True)
    fsync_path(dest)
    for name in sorted(set(publication.old) - set(publication.new)):
        (dest / name).unlink(missing_ok=True)
    with opened(dest / WORK_NAME) as work, opened(Path(STAGE_NAME), within=work) as stage:
        for name in publication.new:
            with suppress(FileNotFoundError):  # an earlier call moved it
                os.replace(name, dest / name, src_dir_fd=stage)
        fsync_path(dest)
        os.replace(INDEX_NAME, dest / INDEX_NAME, src_dir_fd=stage)
    fsync_path(dest)


def tidy(dest: Path) -> None:
    """Remove the work folder. The marker stays until nothing else is left."""
    work = dest / WORK_NAME
    clear_work(dest, {LOCK_NAME, _MARKER})
    if (work / _MARKER).exists():
        (work / _MARKER).replace(dest / _LAST_MARKER)
        fsync_path(dest)
    remove_work(dest)
    (dest / _LAST_MARKER).unlink(missing_ok=True)
    fsync_path(dest)


def clear_work(dest: Path, keep: Collection[str]) -> None:
    """Empty the work folder, but for what is named, and the lease."""
    with opened(dest / WORK_NAME) as work:
        for name in os.listdir(work):
            if name not in keep and not is_lease(name):
                remove(name, work)


def forget_marker(dest: Path) -> None:
    (dest / _LAST_MARKER).unlink(missing_ok=True)


def remove_work(dest: Path) -> None:
    """Remove a work folder that holds a lock and a lease at most."""
    with opened(dest / WORK_NAME) as work:
        for name in (*filter(is_lease, os.listdir(work)), LOCK_NAME):
            remove(name, work)
    try:
        (dest / WORK_NAME).rmdir()
    except OSError:
        pass  # the next packer has made its lock there meanwhile
