"""The folder that a pack writes into: who may, from which state, and what is published there."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from shardkit.commit.durable_files import atomic_write
from shardkit.commit.records import from_record, read_record, write_record
from shardkit.commit.work_folder import (
    CHANGE_NAME,
    SCRATCH_NAME,
    STAGE_NAME,
    WORK_NAME,
    Change,
    WorkFolder,
)
from shardkit.errors import DestinationError, ResumeError, ShardkitError
from shardkit.index.journal import Receipt, is_begun
from shardkit.index.manifest import INDEX_NAME, DatasetInfo, dump_info, is_dataset_file
from shardkit.packing.dataset_files import dataset_files, files_to_replace, refuse_blocked
from shardkit.remote.urls import refuse_overlap
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
        self._is_of_version = False
        refuse_overlap(self.dest, source.resolve())
        self._refuse_others()
        self._folder = WorkFolder(self.dest, is_shared=is_shared)
        self.work = self._folder.path
        self.stage = self._folder.stage
        self.scratch = self.work / SCRATCH_NAME
        try:
            self._end_change()
            self._refuse_taken()
        except BaseException:
            self._folder.close()
            raise

    @property
    def lock_fd(self) -> int:
        return self._folder.lock_fd

    def check_held(self) -> None:
        """Raise StorageError if another machine has taken over, since this one did not answer."""
        self._folder.check_held()

    @property
    def name(self) -> Path | str:
        """Return the name of the dataset when it is whole."""
        return self.dest

    def deliver(self, receipt: Receipt) -> None:
        """Take a finished shard: here it stays where it is until the end."""

    def size_of(self, name: str) -> int:
        """Return the bytes of a finished file; -1 if it is not there."""
        return file_size(self.stage / name)

    def _refuse_others(self) -> None:
        """Refuse, before anything is made here, what no packer of ours has left."""
        name = show_path(self.dest)
        if self.dest.exists() and not self.dest.is_dir():
            raise DestinationError(f"{name} exists and is no folder; choose another destination")
        if os.path.lexists(self.dest / WORK_NAME):
            return
        if (self.dest / INDEX_NAME).exists():
            if not self._overwrite:
                raise self.taken()
        elif self.dest.is_dir() and any(self.dest.iterdir()):
            raise DestinationError(
                f"{name} exists and is no shardkit dataset, so nothing in it will be replaced;"
                " choose another destination"
            )

    def taken(self) -> DestinationError:
        """Return the error for a destination that already holds a dataset."""
        return DestinationError(
            f"{show_path(self.dest)} already holds a dataset; pass --overwrite to replace it, or"
            " choose another destination"
        )

    def _end_change(self) -> None:
        """Put in its place what a killed pack had made ready. The change of a version is not ours
        to end: who asked for it may ask again."""
        try:
            change = self._folder.pending(INDEX_NAME, is_dataset_file)
        except ResumeError:
            if not self._overwrite:
                raise
            return
        if change is not None and is_recipe(change.recipe):
            self._folder.end(change)
            self._ended = change
        self._is_of_version = change is not None and self._ended is None

    def _refuse_taken(self) -> None:
        is_started = (self.work / OPTIONS_NAME).exists()
        allowed = self._overwrite or self._ended or (is_started and not self._is_of_other())
        if (self.dest / INDEX_NAME).exists() and not allowed:
            # The command that was killed there may still be asked to go on.
            if not is_started and not self._is_of_version:
                self._folder.clear()  # an --overwrite that came to nothing
            raise self.taken()

    def _is_of_other(self) -> bool:
        """Return True if what was started is to replace this dataset by another source's. Without
        ``overwrite`` that is not meant, and before all is listed nothing else would tell."""
        path = self.work / _SOURCE
        return path.exists() and read_record(path) not in (None, self._source)

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
        if is_recipe(was) and not (
            _changed_input(was["inputs"], recipe["inputs"]) or _change(was, recipe)
        ):
            with suppress(TypeError):  # damaged
                return from_record(kind, record.get("result"), dest=self.name)
        raise self.taken()

    def clear(self) -> None:
        """Forget a started pack. A dataset stays until the new one is whole."""
        self._folder.clear()

    def prepare(self, recipe: dict[str, Any]) -> None:
        """Record what is being packed and how, or check that it is what was recorded.

        Raises:
            ResumeError: a pack was started here with other options, or the record is damaged.
        """
        path = self.work / OPTIONS_NAME
        if not path.exists():
            self.clear()  # what was done with unknown options is worth nothing
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
        if changed := _changed_input(started["inputs"], recipe["inputs"]):
            raise ResumeError(
                f"input files changed since this pack was started: {changed}; restore them, or pass"
                " --overwrite to start afresh"
            )
        if change := _change(started, recipe):
            raise ResumeError(
                f"{show_path(self.name)} holds a pack started with other options: {change};"
                " use the same, or pass --overwrite to start afresh"
            )

    def forget_shards(self) -> None:
        """Forget all that was done, but not from what and how."""
        self._folder.clear(OPTIONS_NAME, _SOURCE)
        self.stage.mkdir()
        self.scratch.mkdir()

    def finish(self, info: DatasetInfo, recipe: dict[str, Any], result: dict[str, Any]) -> None:
        """Have what is in the stage take the place of the dataset that stands here, if any."""
        self.check_held()
        replaces = self._overwrite or (self.dest / INDEX_NAME).exists()
        old = files_to_replace(self.dest) if replaces else []
        new = [name for name in dataset_files(info) if (self.stage / name).exists()]
        refuse_blocked(self.dest, self.stage, new, old)
        atomic_write(self.stage / INDEX_NAME, [dump_info(info)])
        removes = [INDEX_NAME, *sorted({*old} - {*new})] if replaces else []
        moves = [(f"{STAGE_NAME}/{name}", name) for name in (*new, INDEX_NAME)]
        self._folder.commit(Change(recipe, result, removes, moves))

    def __enter__(self) -> Destination:
        return self

    def __exit__(self, *error: object) -> None:
        kind = error[0]
        failed = isinstance(kind, type) and not issubclass(kind, ResumeError)
        is_stopped = kind is KeyboardInterrupt and (self.work / TOKENIZER_RECORD).exists()
        try:
            if failed and self.work.is_dir() and not (is_stopped or self._is_worth_keeping()):
                self._folder.clear()
        except (OSError, ShardkitError):
            pass  # the error under way says more than that its traces could not be removed
        finally:
            self._folder.close()
        if self._goes_if_empty:
            with suppress(OSError):
                self.dest.rmdir()

    def _is_worth_keeping(self) -> bool:
        return (self.work / CHANGE_NAME).exists() or is_begun(self.work)


def is_recipe(record: object) -> TypeGuard[dict[str, dict[str, Any]]]:
    """Return True for what a record says of what is packed, and how."""
    groups = ("inputs", "corpus", "options")
    return isinstance(record, dict) and all(isinstance(record.get(g), dict) for g in groups)


def _changed_input(old: dict[str, list[int]], new: dict[str, list[int]]) -> str:
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            return f"{show_path(name)} was added"
        if name not in new:
            return f"{show_path(name)} is gone"
        if old[name] != new[name]:
            return f"{show_path(name)} is another file"
    return ""


def _change(old: dict[str, Any], new: dict[str, Any]) -> str:
    for group in ("corpus", "options"):
        for name in old[group].keys() | new[group].keys():
            then, now = old[group].get(name), json.loads(json.dumps(new[group].get(name)))
            if then != now:
                option = "shard_size" if name == "shard_bytes" else name
                return f"{option} was {then!r}, now {now!r}"
    return ""
