"""The folder that a pack writes into: who may, from which state, and what is published there."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from shardkit.errors import DestinationError, ResumeError
from shardkit.index.journal import Receipt, is_begun
from shardkit.index.manifest import (
    CHANGE_NAME,
    INDEX_NAME,
    WORK_NAME,
    DatasetInfo,
    dump_info,
)
from shardkit.packing.publish import (
    LOCK_NAME,
    SCRATCH_NAME,
    STAGE_NAME,
    Publication,
    clear_work,
    dataset_files,
    files_to_replace,
    forget_marker,
    is_marked,
    is_recipe,
    mark_ready,
    publish,
    read_marker,
    remove_work,
    tidy,
)
from shardkit.remote.urls import refuse_overlap
from shardkit.system.leases import Lease, refuse_leased
from shardkit.system.locks import Lock
from shardkit.system.paths import file_size, show_path
from shardkit.system.records import from_record, read_record, write_record

T = TypeVar("T")

TOKENIZER_RECORD = "tokenizer.record"
"""In the work folder once a tokenizer is trained and proved: worth going on from after Ctrl-C."""

_OPTIONS = "options.json"
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
        self.work = self.dest / WORK_NAME
        self.stage = self.work / STAGE_NAME
        self.scratch = self.work / SCRATCH_NAME
        self._source = {"path": str(source.absolute())}
        self._made = not self.dest.exists()
        self._overwrite = overwrite
        self._publication: Publication | None = None
        refuse_overlap(self.dest, source.resolve())
        self._refuse_others()
        self._lock = Lock(self.work / LOCK_NAME)
        self._lease: Lease | None = None
        try:
            # A lock may hold on this machine alone, a lease does wherever the folder is seen.
            if is_shared:
                self._lease = Lease(self.work)
            else:
                refuse_leased(self.work)
            self._publish()
            self._refuse_taken()
        except BaseException:
            self._let_go()
            raise

    note = ""
    """What there is to say of how it was made ready."""

    @property
    def lock_fd(self) -> int:
        return self._lock.fd

    def check_held(self) -> None:
        """Raises StorageError if another machine has taken over, since this one did not answer."""
        if self._lease is not None:
            self._lease.check()

    @property
    def name(self) -> Path | str:
        """What the dataset is called when it is whole."""
        return self.dest

    def deliver(self, receipt: Receipt) -> None:
        """Called with each finished shard: it stays where it is until the end."""

    def size_of(self, name: str) -> int:
        """Bytes of a finished file; -1 if it is not there."""
        return file_size(self.stage / name)

    def _refuse_others(self) -> None:
        """Refuse, before anything is made here, what no packer of ours has left."""
        name = show_path(self.dest)
        if self.dest.exists() and not self.dest.is_dir():
            raise DestinationError(f"{name} exists and is no folder; choose another destination")
        if os.path.lexists(self.work) or is_marked(self.dest):
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
        """The error for a destination that already holds a dataset."""
        return DestinationError(
            f"{show_path(self.dest)} already holds a dataset; pass --overwrite to replace it, or"
            " choose another destination"
        )

    def _publish(self) -> None:
        try:
            self._publication = read_marker(self.dest)
            if self._publication is not None:
                publish(self.dest, self._publication)
        except ResumeError:
            if not self._overwrite:
                raise

    def _refuse_taken(self) -> None:
        is_started = (self.work / _OPTIONS).exists()
        allowed = self._overwrite or self._publication or (is_started and not self._is_of_other())
        if (self.dest / INDEX_NAME).exists() and not allowed:
            # The command that was killed there may still be asked to go on.
            if is_started or (self.work / CHANGE_NAME).exists():
                raise self.taken()
            clear_work(self.dest, {LOCK_NAME})  # an --overwrite that came to nothing
            remove_work(self.dest)
            raise self.taken()

    def _is_of_other(self) -> bool:
        """Whether what was started is to replace this dataset by another source's: who did not say
        ``overwrite`` does not mean that, and before all is listed nothing else would tell."""
        path = self.work / _SOURCE
        return path.exists() and read_record(path) not in (None, self._source)

    def finished(self, recipe: dict[str, Any], kind: type[T]) -> T | None:
        """The result of a call that was killed when only tidying up was left, if it was this one.

        Raises:
            DestinationError: it was another one.
        """
        if self._publication is None or self._overwrite:
            return None
        tidy(self.dest)
        return self._result(vars(self._publication), recipe, kind)

    def _result(self, record: dict[str, Any], recipe: dict[str, Any], kind: type[T]) -> T:
        was = record.get("packed")
        if is_recipe(was) and not (
            _changed_input(was["inputs"], recipe["inputs"]) or _change(was, recipe)
        ):
            with suppress(TypeError):  # damaged
                return from_record(kind, record.get("result"), dest=self.name)
        raise self.taken()

    def clear(self) -> None:
        """Forget a started pack. A dataset stays until the new one is whole."""
        clear_work(self.dest, {LOCK_NAME})
        forget_marker(self.dest)

    def prepare(self, recipe: dict[str, Any]) -> None:
        """Record what is being packed and how, or check that it is what was recorded.

        Raises:
            ResumeError: a pack was started here with other options, or the record is damaged.
        """
        path = self.work / _OPTIONS
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
        """Forget all that was done, but not of what and how."""
        clear_work(self.dest, {LOCK_NAME, _OPTIONS, _SOURCE})
        self.stage.mkdir()
        self.scratch.mkdir()

    def finish(self, info: DatasetInfo, packed: dict[str, Any], result: dict[str, Any]) -> None:
        """Everything new is in the stage: publish it, then remove the work folder."""
        self.check_held()
        replaces = self._overwrite or (self.dest / INDEX_NAME).exists()
        old = files_to_replace(self.dest) if replaces else []
        new = [name for name in dataset_files(info) if (self.stage / name).exists()]
        publication = Publication(packed, result, old, new)
        mark_ready(self.dest, publication, dump_info(info))
        publish(self.dest, publication)
        tidy(self.dest)

    def __enter__(self) -> Destination:
        return self

    def __exit__(self, *error: object) -> None:
        kind = error[0]
        failed = isinstance(kind, type) and not issubclass(kind, ResumeError)
        is_stopped = kind is KeyboardInterrupt and (self.work / TOKENIZER_RECORD).exists()
        if failed and self.work.is_dir() and not (is_stopped or self._is_worth_keeping()):
            try:
                self._leave_nothing()
            except (OSError, RecursionError):
                pass  # the error under way says more than that its traces could not be removed
        self._let_go()

    def _let_go(self) -> None:
        if self._lease is not None:
            self._lease.close()
        self._lock.close()

    def _is_worth_keeping(self) -> bool:
        return is_marked(self.dest) or is_begun(self.work)

    def _leave_nothing(self) -> None:
        """Undo a pack that failed before anything worth going on from was done."""
        shutil.rmtree(self.work)
        if self._made and not any(self.dest.iterdir()):
            self.dest.rmdir()


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
