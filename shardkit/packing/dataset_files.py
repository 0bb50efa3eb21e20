"""Files of a dataset: which it may have, which stand in its place, and one more name for one."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from contextlib import closing
from filecmp import cmp
from pathlib import Path

from shardkit.commit.durable_files import fsync_path
from shardkit.commit.own_files import create
from shardkit.errors import DestinationError, ShardkitError, StorageError
from shardkit.index.manifest import (
    DALI_INDEX,
    INDEX_KINDS,
    REJECTED_NAME,
    SHARD_FILE,
    SIGNPOSTS,
    VERSION_INDEX,
    DatasetInfo,
    index_name,
    is_field_name,
    read_info,
    split_of_index,
    stored_info,
    versions_at,
)
from shardkit.samples.sample import SPLIT_NAMES
from shardkit.storage.local_files import Folder
from shardkit.system.file_io import open_file, pread
from shardkit.system.paths import show_path

_SPLIT_OF_SHARD = re.compile(r"(.+)-[0-9]{5,}\..*")


def dataset_files(info: DatasetInfo) -> list[str]:
    """Return the names of all files a dataset may have but shardkit.json itself."""
    return [REJECTED_NAME, *info.file_bytes]


def left_over(names: Collection[str], info: DatasetInfo) -> set[str]:
    """Return the names beside a dataset that its splits' shards and index may have, and that it
    does not list: left over from something else that was written there."""
    own = {name for name in names if _is_file_of(name, info.splits)}
    return own - set(dataset_files(info))


def strays(listed: Collection[str], names: Iterable[str]) -> list[str]:
    """Return the names, sorted, that only files of a dataset have, and that it does not list.

    ``train-*.tar`` would take a stray shard for one of the dataset's.
    """
    return sorted(
        name
        for name in names
        if name not in listed
        and (split_of_index(name) in SPLIT_NAMES or SHARD_FILE.fullmatch(name) is not None)
    )


def all_files(folder: Path, info: DatasetInfo) -> set[str]:
    """Return the names of the files of all versions up to this one, but for shardkit.json.

    Raises:
        IndexFileError: what an older version says is damaged.
    """
    found = set(info.file_bytes)
    for version in versions_at(folder, info)[:-1]:
        name = index_name(version)
        found |= {name, *stored_info(Folder(folder), name).file_bytes}
    return found


def files_to_replace(dest: Path) -> list[str]:
    """Return the names of the files of the dataset that stands here, shardkit.json apart.

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


def refuse_blocked(dest: Path, stage: Path, new: Collection[str], old: Collection[str]) -> None:
    """Raise DestinationError if a new file would take the place of what is not the dataset's.

    Args:
        stage: the folder of the new files. new, old: names of files that come, and that go.
    """
    for name in new:
        if (dest / name).is_dir() and not (dest / name).is_symlink():
            raise DestinationError(
                f"{show_path(dest / name)} is a folder, where a file of the dataset must go; move"
                " it away and run the same command again"
            )
    for name in sorted(SIGNPOSTS & {*new} - {*old}):
        # Somebody's database may be called data.mdb, too.
        if (dest / name).exists() and not cmp(dest / name, stage / name, False):
            raise DestinationError(
                f"{show_path(dest / name)} is no file of the dataset's, and would be lost; move it"
                " away and run the same command again"
            )


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
