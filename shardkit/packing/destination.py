"""The folder a pack writes into: who may, from which state, and when it is whole."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from shardkit.errors import DestinationError, ResumeError, ShardkitError
from shardkit.index import INDEX_KINDS, INDEX_NAME, WORK_NAME, DatasetInfo, read_info
from shardkit.storage import Lock, atomic_write, fsync_path, show_path, temp_name

REJECTED_NAME = "rejected.jsonl"
_OPTIONS = "options.json"
_LOCK = "lock"
_STEM = re.compile(r"[A-Za-z0-9_.-]+-[0-9]{5,}")
SHARD_ENDINGS = (".lmdb", ".h5", ".tar", ".npy")
TEMP_PREFIX = "tmp-"
"""Of the folder, in the work folder, of a shard that is not recorded as done yet."""


class Destination:
    """Holds the destination's lock. A context manager.

    States: nothing or an empty folder; a started pack (a work folder); a dataset
    (``shardkit.json``); something else, which is never touched.

    Raises:
        DestinationError: it is taken, overlaps the source, or another packer holds it.
    """

    def __init__(self, dest: Path, source: Path, overwrite: bool) -> None:
        self.dest = dest.resolve()
        self.work = self.dest / WORK_NAME
        self._made = not self.dest.exists()
        _refuse_overlap(self.dest, source.resolve())
        self._refuse_taken(overwrite)
        self._lock = Lock(self.work / _LOCK)
        try:
            self._refuse_taken(overwrite)  # it may have changed while we waited
        except BaseException:
            self._lock.close()
            raise

    @property
    def lock_fd(self) -> int:
        return self._lock.fd

    def _refuse_taken(self, overwrite: bool) -> None:
        name = show_path(self.dest)
        if self.dest.exists() and not self.dest.is_dir():
            raise DestinationError(f"{name} exists and is no folder; choose another destination")
        started = self.work.is_dir()
        if (self.dest / INDEX_NAME).exists():
            if not overwrite and not (self.work / _OPTIONS).exists():
                raise DestinationError(
                    f"{name} already holds a dataset; pass --overwrite to replace it,"
                    " or choose another destination"
                )
        elif not started and self.dest.is_dir() and any(self.dest.iterdir()):
            raise DestinationError(
                f"{name} exists and is no shardkit dataset, so nothing in it will be replaced;"
                " choose another destination"
            )

    def clear(self) -> None:
        """Remove the dataset or started pack, its index first, and nothing that is not ours."""
        mine = self._files()
        (self.dest / INDEX_NAME).unlink(missing_ok=True)
        fsync_path(self.dest)
        for path in mine:
            path.unlink(missing_ok=True)
        for path in self.work.iterdir():
            if path.name != _LOCK:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _files(self) -> list[Path]:
        """Everything a whole dataset or a started pack may have put here, index apart."""
        try:
            names = dataset_files(read_info(self.dest))
        except ShardkitError:
            names = [REJECTED_NAME]
        stems = {path.stem for path in self.work.glob("*.part")}
        stems |= {path.name.removeprefix(TEMP_PREFIX) for path in self.work.glob(f"{TEMP_PREFIX}*")}
        for stem in filter(_STEM.fullmatch, stems):
            names += shard_files(self.dest, stem)
        for split in {stem.rpartition("-")[0] for stem in stems if _STEM.fullmatch(stem)}:
            names += [f"{split}.{kind}" for kind in INDEX_KINDS]
        names += [temp_name(name) for name in (*names, INDEX_NAME)]
        return [self.dest / name for name in names]

    def prepare(self, lasting: dict[str, Any]) -> None:
        """Record what is being packed and how, or check that it is what was recorded.

        Raises:
            ResumeError: a pack was started here with other options.
        """
        path = self.work / _OPTIONS
        if not path.exists():
            atomic_write(path, [json.dumps(lasting, indent=1).encode()])
            return
        change = _change(json.loads(path.read_bytes()), lasting)
        if change:
            raise ResumeError(
                f"{show_path(self.dest)} holds a pack started with other options: {change};"
                " use the same, or pass --overwrite to start afresh"
            )

    def finish(self, info: bytes) -> None:
        """Everything else is in place: write shardkit.json, then remove the work folder."""
        atomic_write(self.dest / INDEX_NAME, [info])
        for path in self.work.iterdir():
            if path.name not in (_LOCK, _OPTIONS):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name in (_OPTIONS, _LOCK):
            (self.work / name).unlink()
        self.work.rmdir()
        fsync_path(self.dest)

    def __enter__(self) -> Destination:
        return self

    def __exit__(self, *error: object) -> None:
        kind = error[0]
        failed = isinstance(kind, type) and not issubclass(kind, ResumeError)
        if failed and self.work.is_dir() and not any(self.work.glob("*.part")):
            try:
                self._leave_nothing()
            except OSError:
                pass  # the error under way says more than that its traces could not be removed
        self._lock.close()

    def _leave_nothing(self) -> None:
        """Undo a pack that failed before anything worth going on from was done."""
        if not (self.dest / INDEX_NAME).exists():
            self.clear()
        shutil.rmtree(self.work)
        if self._made and not any(self.dest.iterdir()):
            self.dest.rmdir()


def shard_files(dest: Path, stem: str) -> list[str]:
    """Names of the files of one shard that stand in a folder, in whatever format."""
    names = (path.name for path in dest.glob(f"{stem}.*"))
    return [name for name in names if name.endswith(SHARD_ENDINGS)]


def dataset_files(info: DatasetInfo) -> list[str]:
    """Names of all files of a dataset but shardkit.json itself."""
    names = [REJECTED_NAME]
    for split in info.splits.values():
        names += split.files
        for shard in split.shards:
            names += shard.file_bytes
    return names


def _refuse_overlap(dest: Path, source: Path) -> None:
    if dest == source or source in dest.parents or dest in source.parents:
        raise DestinationError(
            f"the destination {show_path(dest)} and the source {show_path(source)} overlap;"
            " choose a destination outside the source"
        )


def _change(old: dict[str, Any], new: dict[str, Any]) -> str:
    for group in ("corpus", "options"):
        for name in old[group].keys() | new[group].keys():
            then, now = old[group].get(name), json.loads(json.dumps(new[group].get(name)))
            if then != now:
                option = "shard_size" if name == "shard_bytes" else name
                return f"{option} was {then!r}, now {now!r}"
    return ""
