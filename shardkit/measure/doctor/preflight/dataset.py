"""What lies at a path that somebody wants to train from, found out in a second or two.

Nothing is written, so tars of others are not indexed, and of many small files only some are looked
at: on a network file system each look may cost a millisecond.
"""

from __future__ import annotations

import os
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shardkit.errors import DatasetMissingError
from shardkit.formats import FORMATS, TARS, Format
from shardkit.images.sniff import IMAGE_EXTENSIONS, IMAGE_FIELDS
from shardkit.index.manifest import INDEX_NAME, DatasetInfo, read_info
from shardkit.shards.locate import refuse_orphans
from shardkit.shards.stored import container_of
from shardkit.system.paths import as_path, show_path
from shardkit.system.refusals import os_errors
from shardkit.tars.find import find_tar_names, is_tar_source

NAMES = 200_000
"""Names listed at most: 0.4 s where they are in few folders, 2 s where a folder has ten."""

SIZED = 2_000
"""Files whose size is asked for, of those listed."""

MEMBERS = 200
"""Of the first tar, looked at to learn what a sample is."""


@dataclass(frozen=True)
class Found:
    """What :func:`find` found.

    Attributes:
        kind: a dataset of ours, tars that others made, or files as they are.
        container: the format of its shards; None for files as they are.
        num_shards: of the largest split. num_samples: None where only a scan would tell.
        num_bytes: of all files, estimated from some where there are many.
        value_bytes: mean size of a sample, or of a file. is_at_least: whether there are more files
            than were counted.
    """

    path: Path
    kind: Literal["dataset", "tars", "files"]
    container: Format | None
    num_files: int
    num_bytes: int
    num_shards: int = 0
    num_samples: int | None = None
    value_bytes: float = 0.0
    is_at_least: bool = False
    has_pictures: bool = False


def find(path: str | Path) -> Found:
    """Look at a path.

    Raises:
        DatasetMissingError: nothing is there, or an empty folder, or a dataset that is not whole.
        IndexFileError: a dataset of ours is damaged. StorageError: it may not be read.
    """
    path = as_path(path, "the dataset")
    with os_errors(f"looking at {show_path(path)}"):
        if not path.exists():
            raise DatasetMissingError(
                f"there is nothing at {show_path(path)}; give the folder that the script reads"
            )
        if (path / INDEX_NAME).exists():
            return _ours(path, read_info(path))
        refuse_orphans(path)
        return _tars(path) if is_tar_source(path) else _files(path)


# --- ours ---------------------------------------------------------------------------------


def _ours(path: Path, info: DatasetInfo) -> Found:
    splits = info.splits.values()
    largest = max(splits, key=lambda split: split.num_rows)
    sizes = {name: n for s in splits for shard in s.shards for name, n in shard.file_bytes.items()}
    num_samples = sum(split.num_rows for split in splits)
    index_bytes = sum(size for split in splits for size, _ in split.files.values())
    return Found(
        path=path,
        kind="dataset",
        container=container_of(info),
        num_files=len(sizes),
        num_bytes=sum(sizes.values()) + index_bytes,
        num_shards=len(largest.shards),
        num_samples=num_samples,
        value_bytes=sum(sizes.values()) / max(num_samples, 1),
        has_pictures=not IMAGE_FIELDS.isdisjoint(info.fields),
    )


# --- tars of others -----------------------------------------------------------------------


def _tars(path: Path) -> Found:
    folder, names = find_tar_names(path)
    tars = [folder / name for name in names if (folder / name).is_file()]
    num_bytes = sum(tar.stat().st_size for tar in tars)
    endings, sample_bytes = _members(tars[0])
    return Found(
        path=path,
        kind="tars",
        container=FORMATS[TARS],
        num_files=len(tars),
        num_bytes=num_bytes,
        num_shards=len(tars),
        value_bytes=sample_bytes,
        has_pictures=not IMAGE_EXTENSIONS.isdisjoint(endings),
    )


def _members(tar: Path) -> tuple[Counter[str], float]:
    """Endings of the first members, and the mean bytes of a sample; nothing of a tar that Python
    cannot read: what opens it says why."""
    endings: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    try:
        with tarfile.open(tar) as opened:
            for _ in range(MEMBERS):
                member = opened.next()
                if member is None:
                    break
                folder, _, name = member.name.rpartition("/")
                stem, dot, ending = name.partition(".")
                if member.isfile() and stem:
                    sizes[f"{folder}/{stem}"] += member.size
                    endings[(dot + ending.rpartition(".")[2]).lower()] += 1
    except (tarfile.TarError, EOFError):
        pass
    return endings, sum(sizes.values()) / max(len(sizes), 1)


# --- files as they are --------------------------------------------------------------------


def _files(path: Path) -> Found:
    endings: Counter[str] = Counter()
    sizes: list[int] = []
    num_files = 0
    for entry in _walk(path):
        if num_files == NAMES:
            break
        num_files += 1
        endings[os.path.splitext(entry)[1].lower()] += 1
        if len(sizes) < SIZED:
            sizes.append(os.stat(entry).st_size)
    if not sizes:
        raise DatasetMissingError(
            f"{show_path(path)} holds no files; give the folder that has them"
        )
    mean = sum(sizes) / len(sizes)
    return Found(
        path=path,
        kind="files",
        container=None,
        num_files=num_files,
        num_bytes=round(mean * num_files),
        value_bytes=mean,
        is_at_least=num_files == NAMES,
        has_pictures=not IMAGE_EXTENSIONS.isdisjoint(endings),
    )


def _walk(path: Path) -> Iterator[str]:
    """Files at and below a path, links followed, but no folder twice; hidden names, and links that
    lead nowhere, are passed over."""
    if not path.is_dir():
        yield str(path)
        return
    folders, seen = [str(path)], set()
    while folders:
        folder = folders.pop()
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(folder) as entries:
            for entry in entries:
                kind = "" if entry.name.startswith(".") else _kind(entry)
                if kind == "folder":
                    folders.append(entry.path)
                elif kind == "file":
                    yield entry.path


def _kind(entry: os.DirEntry[str]) -> Literal["folder", "file", ""]:
    try:
        if entry.is_dir():
            return "folder"
        return "file" if entry.is_file() else ""
    except OSError:  # a link to itself
        return ""
