"""The folder that a pack writes into: who may, from which state, and what is published there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable
from contextlib import closing, suppress
from filecmp import cmp
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from shardkit.commit.durable_files import atomic_write, fsync_path
from shardkit.commit.own_files import create
from shardkit.commit.records import from_record, read_record, write_record
from shardkit.commit.work_folder import (
    CHANGE_NAME,
    SCRATCH_NAME,
    STAGE_NAME,
    WORK_NAME,
    Change,
    WorkFolder,
)
from shardkit.errors import DestinationError, ResumeError, ShardkitError, StorageError
from shardkit.index import file_names, manifest
from shardkit.index.file_names import INDEX_NAME, REJECTED_NAME
from shardkit.index.journal import Receipt, is_begun
from shardkit.index.manifest import DatasetInfo
from shardkit.remote.urls import refuse_overlap
from shardkit.samples.sample import SPLIT_NAMES
from shardkit.storage.local_files import Folder
from shardkit.system.file_io import open_file, pread
from shardkit.system.paths import file_size, show_path

T = TypeVar("T")

TOKENIZER_RECORD = "tokenizer.record"
"""In the work folder once a tokenizer is trained and proved: worth going on from after Ctrl-C."""

OPTIONS_NAME = "options.json"
"""In the work folder: the record of what is being packed and how."""

_SOURCE = "source.json"
"""In the work folder of a pack that is to replace a dataset."""


class Destination:
    """Holds the destination's lock, and where jobs are done on several machines, its lease, too. A
    context manager.

    States: nothing or an empty folder; a started pack (a work folder); a dataset
    (``shardkit.json``), perhaps with a started pack that is to replace it; something else, which
    is never touched. What a killed packer had made ready is published first.

    Raises:
        DestinationError: it is taken, overlaps the source, or another packer holds it.
    """

    def __init__(self, dest: Path, source: Path, overwrite: bool, is_shared: bool = False) -> None:
        self.dest = dest.resolve()
        self._source = {"path": str(source.absolute())}
        self._goes_if_empty = not self.dest.exists()
        self._overwrite = overwrite
        self._ended: Change | None = None
        refuse_overlap(self.dest, source.resolve())
        # Refused before anything is made here: what no packer of ours has left.
        shown = show_path(self.dest)
        if self.dest.exists() and not self.dest.is_dir():
            raise DestinationError(f"{shown} exists and is no folder; choose another destination")
        if not os.path.lexists(self.dest / WORK_NAME):
            if (self.dest / INDEX_NAME).exists():
                if not overwrite:
                    raise self.taken()
            elif self.dest.is_dir() and any(self.dest.iterdir()):
                raise DestinationError(
                    f"{shown} exists and is no shardkit dataset, so nothing in it will be replaced;"
                    " choose another destination"
                )
        self.folder = WorkFolder(self.dest, is_shared=is_shared)
        self.work = self.folder.path
        self.stage = self.folder.stage
        self.scratch = self.work / SCRATCH_NAME
        try:
            self._settle()
        except BaseException:
            self.folder.close()
            raise

    @property
    def name(self) -> Path | str:
        """Return the name of the dataset when it is whole."""
        return self.dest

    def deliver(self, receipt: Receipt) -> None:
        """Take a finished shard: here it stays where it is until the end."""

    def size_of(self, name: str) -> int:
        """Return the bytes of a finished file; -1 if it is not there."""
        return file_size(self.stage / name)

    def taken(self) -> DestinationError:
        """Return the error for a destination that already holds a dataset."""
        return DestinationError(
            f"{show_path(self.name)} already holds a dataset; pass --overwrite to replace it, or"
            " choose another destination"
        )

    def _settle(self) -> None:
        """Publish what a killed pack had made ready, and refuse a dataset that nobody asked to
        replace."""
        change = None
        try:
            change = self.folder.pending(INDEX_NAME, file_names.is_dataset_file)
        except ResumeError:
            if not self._overwrite:
                raise
        # The change of a version is not ours to end: who asked for it may ask again.
        is_ours = change is not None and is_recipe(change.recipe)
        if change is not None and is_ours:
            self.folder.end(change)
            self._ended = change
        if self._overwrite or is_ours or not (self.dest / INDEX_NAME).exists():
            return
        is_started = (self.work / OPTIONS_NAME).exists()
        if not is_started and change is None:
            self.folder.clear()  # an --overwrite that came to nothing
        # What was started may be to replace this dataset by another source's. Without overwrite
        # that is not meant, and before all is listed nothing else would tell. The command that was
        # killed there may still be asked to go on.
        source = self.work / _SOURCE
        is_of_other = source.exists() and read_record(source) not in (None, self._source)
        if not is_started or is_of_other:
            raise self.taken()

    def finished(self, recipe: dict[str, Any], kind: type[T]) -> T | None:
        """Return the result of a call that was killed while it tidied up, if it was this one.

        Raises:
            DestinationError: it was another one.
        """
        if self._ended is None or self._overwrite:
            return None
        return self._result(vars(self._ended), recipe, kind)

    def _result(self, record: dict[str, Any], recipe: dict[str, Any], kind: type[T]) -> T:
        was = record.get("recipe")
        if is_recipe(was) and not self._change(was, recipe):
            with suppress(TypeError):  # damaged
                return from_record(kind, record.get("result"), dest=self.name)
        raise self.taken()

    def prepare(self, recipe: dict[str, Any]) -> None:
        """Record what is being packed and how, or check that it is what was recorded. With
        ``overwrite``, forget a started pack; a dataset stays until the new one is complete.

        Raises:
            ResumeError: a pack was started here with other options, or the record is damaged.
        """
        path = self.work / OPTIONS_NAME
        if self._overwrite or not path.exists():
            self.folder.clear()  # what was done with unknown options is worth nothing
            if (self.dest / INDEX_NAME).exists():
                write_record(self.work / _SOURCE, self._source)
            write_record(path, recipe)
        started = read_record(path)
        if not is_recipe(started):
            raise ResumeError(
                f"{show_path(path)}, the record of a started pack, is damaged; pass --overwrite to"
                " start afresh"
            )
        self.stage.mkdir(exist_ok=True)
        if change := self._change(started, recipe):
            raise ResumeError(f"{change}, or pass --overwrite to start afresh")

    def _change(self, old: dict[str, Any], new: dict[str, Any]) -> str:
        """Return in which way a recipe is not the one that was recorded, and what to do; or ""."""
        new = json.loads(json.dumps(new))
        for group in ("inputs", "corpus", "options"):
            for name in sorted(old[group].keys() | new[group].keys()):
                then, now = old[group].get(name), new[group].get(name)
                if then != now and group == "inputs":
                    how = "is gone" if now is None else "is another file"
                    how = "was added" if then is None else how
                    return (
                        "input files changed since this pack was started:"
                        f" {show_path(name)} {how}; restore them"
                    )
                if then != now:
                    option = "shard_size" if name == "shard_bytes" else name
                    return (
                        f"{show_path(self.name)} holds a pack started with other options: {option}"
                        f" was {then!r}, now {now!r}; use the same"
                    )
        return ""

    def forget_shards(self) -> None:
        """Forget all that was done, but not from what and how."""
        self.folder.clear(OPTIONS_NAME, _SOURCE)
        self.stage.mkdir()
        self.scratch.mkdir()

    def finish(self, info: DatasetInfo, recipe: dict[str, Any], result: dict[str, Any]) -> None:
        """Have what is in the stage take the place of the dataset that stands here, if any."""
        self.folder.check_held()
        replaces = self._overwrite or (self.dest / INDEX_NAME).exists()
        old = files_to_replace(self.dest) if replaces else []
        new = [name for name in dataset_files(info) if (self.stage / name).exists()]
        for name in new:
            if (self.dest / name).is_dir() and not (self.dest / name).is_symlink():
                raise DestinationError(
                    f"{show_path(self.dest / name)} is a folder, where a file of the dataset must"
                    " go; move it away and run the same command again"
                )
        for name in sorted(file_names.SIGNPOSTS & {*new} - {*old}):
            # Somebody's database may be called data.mdb, too.
            theirs = self.dest / name
            if theirs.exists() and not cmp(theirs, self.stage / name, False):
                raise DestinationError(
                    f"{show_path(theirs)} is no file of the dataset's, and would be lost; move it"
                    " away and run the same command again"
                )
        atomic_write(self.stage / INDEX_NAME, [manifest.dump_info(info)])
        removes = [INDEX_NAME, *sorted({*old} - {*new})] if replaces else []
        moves = [(f"{STAGE_NAME}/{name}", name) for name in (*new, INDEX_NAME)]
        self.folder.commit(Change(recipe, result, removes, moves))

    def __enter__(self) -> Destination:
        return self

    def __exit__(self, *error: object) -> None:
        kind = error[0]
        failed = isinstance(kind, type) and not issubclass(kind, ResumeError)
        is_stopped = kind is KeyboardInterrupt and (self.work / TOKENIZER_RECORD).exists()
        try:
            if failed and self.work.is_dir() and not (is_stopped or self._is_worth_keeping()):
                self.folder.clear()
        except (OSError, ShardkitError):
            pass  # the error under way says more than that its traces could not be removed
        finally:
            self.folder.close()
        if self._goes_if_empty:
            with suppress(OSError):
                self.dest.rmdir()

    def _is_worth_keeping(self) -> bool:
        return (self.work / CHANGE_NAME).exists() or is_begun(self.work)


def is_recipe(record: object) -> TypeGuard[dict[str, dict[str, Any]]]:
    """Return True for what a record says of what is packed, and how."""
    groups = ("inputs", "corpus", "options")
    return isinstance(record, dict) and all(isinstance(record.get(g), dict) for g in groups)


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
        and (
            file_names.split_of_index(name) in SPLIT_NAMES
            or file_names.SHARD_FILE.fullmatch(name) is not None
        )
    )


def files_to_replace(dest: Path) -> list[str]:
    """Return the names of the files of the dataset that stands here, of all its versions,
    shardkit.json apart.

    Shards of its splits that it does not list are left over from something, and count as its own.
    Where shardkit.json is damaged, names alone decide.
    """
    names = {entry.name for entry in os.scandir(dest) if not entry.is_dir(follow_symlinks=False)}
    listed = {REJECTED_NAME}
    try:
        info = manifest.read_info(dest)
        splits = set(info.splits)
        listed |= info.file_bytes.keys()
        for version in manifest.versions_at(dest, info)[:-1]:
            older = file_names.index_name(version)
            listed |= {older, *manifest.stored_info(Folder(dest), older).file_bytes}
    except ShardkitError:
        listed = {REJECTED_NAME}
        shards = {split for name in names if (split := _split_of_shard(name))}
        stems = {name.removesuffix(".rows") for name in names if name.endswith(".rows")}
        indexed = {
            s for s in stems if all(f"{s}.{kind}" in names for kind in file_names.INDEX_KINDS)
        }
        splits = {split for split in shards | indexed if file_names.is_field_name(split)}
    return sorted(name for name in names if name in listed or _is_file_of(name, splits))


def _split_of_shard(name: str) -> str:
    found = _SPLIT_OF_SHARD.fullmatch(name) if file_names.SHARD_FILE.fullmatch(name) else None
    return found.group(1) if found else ""


def _is_file_of(name: str, splits: Collection[str]) -> bool:
    # One of DALI is of an old tar, whoever made it: wrong for a new one.
    if found := file_names.DALI_INDEX.fullmatch(name):
        return found.group(1) in splits
    if file_names.VERSION_INDEX.fullmatch(name):
        return True
    return _split_of_shard(name) in splits or file_names.split_of_index(name) in splits


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
