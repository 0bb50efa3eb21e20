"""WebDataset tars made by others: scanned once, then read as if they were ours.

Their index is a folder of its own, named after a hash of the tars' names, sizes and times: so one
that exists is right, and one for changed tars is another folder. It holds what any dataset of
ours holds, with a link to each tar in place of a shard, and lies in ``.shardkit`` beside the tars,
or in the user's cache folder where theirs cannot be written.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import xxhash

from shardkit.commit.durable_files import fsync_path
from shardkit.errors import StorageError, UsageError
from shardkit.index.file_names import INDEX_NAME
from shardkit.index.manifest import VERSION
from shardkit.system.paths import show_path, user_cache
from shardkit.system.refusals import os_errors
from shardkit.tars.find import CACHE_NAME, find_tar_names, is_compressed
from shardkit.tars.members import compressed_message
from shardkit.tars.write_index import Tar, tar_as_found, write_tar_index

SCAN_VERSION = 4
"""Goes up when the same tars would be scanned to another index."""

_OLD_LINK = "tars"
"""In an index of version 1, a link to the folder of the tars: ``cp -rL`` followed it in circles."""

KEEP_S = 30 * 86_400
"""An index is removed when nobody has opened it for so long and another one is made beside it."""

_OURS = re.compile(r"[0-9a-f]{32}|tmp-[0-9a-f]+")


def index_tars(path: Path, names: Sequence[str] | None = None) -> Path:
    """The folder that holds the index of these tars, made on first sight. ``names``: of several in
    the folder of one.

    Processes that come at once take turns where the file system has locks, and else do the work
    twice: the first to finish gives the folder its name, the others throw theirs away.

    Raises:
        FormatError: a tar is damaged, or its members cannot be samples.
        UsageError: a tar is compressed, or there is none. StorageError: no folder to keep the index
        in.
    """
    with os_errors(f"indexing {show_path(path)}"):
        folder, tars = _find_tars(path, names)
        candidates = _candidates(folder, tars)
        ready = _ready(candidates)
        if ready is None:
            with _turn(folder / tars[0].name):
                ready = _ready(candidates) or _make(folder, tars, candidates)
        return ready


def is_index_of(index: Path, path: Path, names: Sequence[str] | None = None) -> bool:
    """Return True if this is the index that :func:`index_tars` finds for these tars as they are."""
    found = _find_tars(path, names)
    return index in [each.index.absolute() for each in _candidates(*found)]


# --- which tars, which splits -------------------------------------------------------------


def _find_tars(path: Path, names: Sequence[str] | None) -> tuple[Path, list[Tar]]:
    folder, names = find_tar_names(path, names)
    for name in names:
        if is_compressed(name):
            raise UsageError(compressed_message(show_path(folder / name)))
    return folder, [tar_as_found(folder, name) for name in names]


# --- where the index lies -----------------------------------------------------------------


@dataclass(frozen=True)
class _Candidate:
    """Where an index may lie, and how the folder of the tars reads from there."""

    index: Path
    target: str

    def is_ready(self) -> bool:
        return os.access(self.index / INDEX_NAME, os.R_OK)


def _candidates(folder: Path, tars: list[Tar]) -> list[_Candidate]:
    # Beside the tars links are relative: the folder may be moved, or mounted elsewhere.
    candidates = []
    if not (folder / CACHE_NAME).is_symlink():  # it may lead anywhere, and old indexes are removed
        candidates.append(_Candidate(folder / CACHE_NAME / _digest("", tars), "../.."))
    if cache := user_cache():
        candidates.append(_Candidate(cache / _digest(str(folder), tars), str(folder)))
    return candidates


def _digest(folder: str, tars: list[Tar]) -> str:
    stamps = [[tar.name, tar.num_bytes, tar.stamp] for tar in tars]
    return xxhash.xxh3_128_hexdigest(json.dumps([VERSION, SCAN_VERSION, folder, stamps]).encode())


def _ready(candidates: list[_Candidate]) -> Path | None:
    """The index, if it has been made; marked as used."""
    for candidate in candidates:
        if candidate.is_ready():
            try:
                os.utime(candidate.index, follow_symlinks=False)
            except OSError:
                pass  # another user's, or on a read-only disk: not ours to tidy either
            return candidate.index
    return None


@contextmanager
def _turn(tar: Path) -> Iterator[None]:
    """One process at a time, where possible: eight ranks need not scan the same tars."""
    fd = os.open(tar, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError:
            pass  # some network file systems have no locks
        yield
    finally:
        try:
            fcntl.flock(fd, fcntl.LOCK_UN)  # a process forked meanwhile would hold it else
        except OSError:
            pass
        os.close(fd)


def _make(folder: Path, tars: list[Tar], candidates: list[_Candidate]) -> Path:
    candidate, work = _work_folder(folder, candidates)
    try:
        write_tar_index(work, folder, tars, candidate.target)
        _publish(work, candidate)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    _tidy(candidate.index.parent)
    return candidate.index


_PROBE = "probe"


def _work_folder(folder: Path, candidates: list[_Candidate]) -> tuple[_Candidate, Path]:
    """A new folder in the first place that takes one, and takes links."""
    refusals = []
    for candidate in candidates:
        work = candidate.index.parent / f"tmp-{os.urandom(8).hex()}"
        try:
            work.mkdir(parents=True)
            (work / _PROBE).symlink_to(candidate.target)
            (work / _PROBE).unlink()
        except OSError as error:
            refusals.append(f"{show_path(work.parent)}: {error.strerror}")
            shutil.rmtree(work, ignore_errors=True)
        else:
            return candidate, work
    raise StorageError(
        f"no folder to keep the index of {show_path(folder)} in ({', '.join(refusals)});"
        " set XDG_CACHE_HOME to one that can be written"
    )


def _publish(work: Path, candidate: _Candidate) -> None:
    try:
        work.rename(candidate.index)
    except OSError:
        # Another process was first. Its index is as good as this one: they have one name.
        if not candidate.is_ready():
            raise
    fsync_path(candidate.index.parent)


def _tidy(cache: Path) -> None:
    """Remove indexes that nobody has used for long or that lead in circles, and what killed
    processes left."""
    with os.scandir(cache) as entries:
        for entry in entries:
            if not _OURS.fullmatch(entry.name):
                continue
            try:
                unused_s = time.time() - entry.stat(follow_symlinks=False).st_mtime
            except FileNotFoundError:
                continue
            if unused_s > KEEP_S or os.path.islink(os.path.join(entry.path, _OLD_LINK)):
                shutil.rmtree(entry.path, ignore_errors=True)
