"""The next version of a dataset: who may make it, and how it takes the place of the last.

No file of an older version is ever written to or renamed: a version has new names for all that it
does not share with those before. So who has one open keeps it. Everything new is made ready in the
work folder, and a marker says so; then files get their names, and shardkit.json last, in one step.
Killed before the marker, the old version stays; after it, whoever comes next ends the change.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import xxhash

from shardkit.errors import DestinationError, ResumeError, UsageError
from shardkit.index.manifest import (
    CHANGE_NAME,
    INDEX_NAME,
    REJECTED_NAME,
    WORK_NAME,
    DatasetInfo,
    SplitInfo,
    dump_info,
    index_name,
    index_stem,
    is_dataset_file,
    read_index,
)
from shardkit.index.version_line import VersionLine
from shardkit.packing.publish import LOCK_NAME, clear_work, is_marked, remove_work
from shardkit.shards.locate import Located, locate
from shardkit.system.durable_files import atomic_write, fsync_path
from shardkit.system.locks import Lock
from shardkit.system.own_files import opened, refuse_others, remove_own
from shardkit.system.paths import show_path
from shardkit.system.records import from_record, read_record, write_record
from shardkit.versions.own_rows import OwnRows, write_rows


@dataclass(frozen=True)
class VersionResult:
    """The version that a change made.

    Attributes:
        dest: the dataset's folder. version: its number now.
        what: was done, in words, as the history has it.
        splits: samples of each split now. num_samples: of all.
        num_added, num_removed: samples that the version before had not, and that it had.
        num_bytes: of files that were removed from the disk.
        seconds: it took. notes: what else there is to know, a line each.
        was_complete: whether an earlier call had made it, and this one nothing.
    """

    dest: Path
    version: int
    what: str
    splits: dict[str, int]
    num_samples: int
    num_added: int = 0
    num_removed: int = 0
    num_bytes: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    was_complete: bool = False

    @classmethod
    def of(
        cls, dest: Path, version: int, what: str, info: DatasetInfo, **others: Any
    ) -> VersionResult:
        """Of what a version has, and the other attributes."""
        splits = {name: split.num_rows for name, split in info.splits.items()}
        return cls(dest, version, what, splits, sum(splits.values()), **others)


STAGE_NAME = "next"
ADDED_NAME = "added"
"""In the work folder: what is added, a dataset by itself until it is adopted."""

_STARTED = "started.json"
_OPTIONS = "options.json"


@dataclass(frozen=True)
class _Change:
    """The record of a version that is ready: what its call asked for and returns, and how its files
    take their places.

    Attributes:
        moves: (path in the work folder, name in the dataset). removes: names in the dataset.
    """

    recipe: dict[str, Any]
    result: dict[str, Any]
    moves: Sequence[tuple[str, str]] = ()
    removes: Sequence[str] = ()

    def refuse_others(self) -> None:
        """Raise TypeError for files that no change moves or removes: a dataset may be anybody's."""
        froms = [path.partition("/") for path, _ in self.moves]
        names = [name for _, _, name in froms] + [name for _, name in self.moves]
        if not all(map(is_dataset_file, [*names, *self.removes])) or not all(
            folder in (STAGE_NAME, ADDED_NAME) for folder, _, _ in froms
        ):
            raise TypeError("a file of something else")


class Revision:
    """Holds a dataset while its next version is made. A context manager.

    Args:
        folder: the dataset's. recipe: what is asked for, as plain values: who asks for the same
            again after a kill gets what was done.

    Attributes:
        place: the dataset as it is. number: of the version to make. stage: folder for new files.
        finished: what the same call made that was killed when only tidying up was left.
        notes: what became of other changes that were under way.

    Raises:
        DatasetMissingError: there is none. UsageError: it is tars of others.
        DestinationError: another process changes it, or a pack is to replace it.
    """

    def __init__(self, folder: Path, recipe: dict[str, Any]) -> None:
        locate(folder)  # before a work folder is made in what is no dataset
        self.dest = folder.resolve()
        self.work = self.dest / WORK_NAME
        self.stage = self.work / STAGE_NAME
        self.finished: VersionResult | None = None
        self.notes: list[str] = []
        self._lock = Lock(self.work / LOCK_NAME)
        recipe = json.loads(json.dumps(recipe))  # as it is read again, where no tuple is left
        try:
            self._refuse_pack()
            self._end_other(recipe)
            self.place = own_dataset(self.dest)
            self.number = self.place.info.version + 1
            self.is_resumed = self._is_same(recipe)
        except BaseException:
            self.close()
            raise

    def _refuse_pack(self) -> None:
        if is_marked(self.dest) or os.path.lexists(self.work / _OPTIONS):
            raise DestinationError(
                f"{show_path(self.dest)} is to be replaced by a pack that was interrupted; run that"
                " command again first, or remove the folder"
                f" {show_path(self.work)} to have the dataset stay"
            )

    def _end_other(self, recipe: dict[str, Any]) -> None:
        """Put in its place what a killed call had made ready."""
        try:
            record = read_record(self.work / CHANGE_NAME)
        except FileNotFoundError:
            return
        try:
            change = from_record(_Change, record)
            made = from_record(VersionResult, change.result, dest=self.dest)
            change.refuse_others()
        except TypeError:
            raise ResumeError(
                f"{show_path(self.work / CHANGE_NAME)}, the record of a change, is damaged; what"
                f" `shardkit verify` says of {show_path(self.dest)} now is all there is: if it is"
                f" whole, remove {show_path(self.work)}"
            ) from None
        self._put(change.moves, change.removes, made.version)
        if change.recipe == recipe:
            self.finished = replace(made, was_complete=True)
        else:
            self.notes.append(f"an interrupted change was ended first: {made.what}")

    def _is_same(self, recipe: dict[str, Any]) -> bool:
        """Whether a call like this was killed here before it was ready; else nothing is kept of
        what was begun."""
        asked = {"recipe": recipe, "version": self.number}
        path = self.work / _STARTED
        if path.exists() and read_record(path) == asked:
            return True
        if path.exists():
            self.notes.append("another change that was begun, and not ready, is given up")
        clear_work(self.dest, {LOCK_NAME})
        write_record(path, asked)
        return False

    def write(self, name: str, parts: Sequence[OwnRows], info: DatasetInfo) -> SplitInfo:
        """Write the index of one split, of these rows end to end, into the stage.

        Args:
            info: of the new version, as far as it is known.

        Raises:
            DataError: two samples have one key.
        """
        self.stage.mkdir(exist_ok=True)
        return write_rows(self.stage, index_stem(name, self.number), name, parts, info)

    def publish(
        self,
        info: DatasetInfo,
        recipe: dict[str, Any],
        result: VersionResult,
        moves: Sequence[tuple[str, str]] = (),
    ) -> VersionResult:
        """Have the version take its place.

        Args:
            info: what shardkit.json says of it, but for its history.
            moves: what else comes, as (path in the work folder, name in the dataset).
        """
        refuse_others(self.work)  # what is listed below is moved
        result = replace(result, notes=[*self.notes, *result.notes])
        atomic_write(self.stage / INDEX_NAME, [dump_info(self._with_line(info, result, recipe))])
        staged = [(f"{STAGE_NAME}/{path.name}", path.name) for path in sorted(self.stage.iterdir())]
        ahead = [*moves, *(move for move in staged if move[1] != INDEX_NAME)]
        self._refuse_lost(ahead)
        self._end(recipe, result, moves=ahead)
        return result

    def remove(self, recipe: dict[str, Any], result: VersionResult, names: Sequence[str]) -> None:
        """Remove these files, those of the index of a version before what only that needs."""
        self._end(recipe, result, removes=names)

    def _end(self, recipe: dict[str, Any], result: VersionResult, **steps: Any) -> None:
        change = _Change(recipe, {**asdict(result), "dest": ""}, **steps)
        refuse_others(self.work)
        write_record(self.work / CHANGE_NAME, vars(change))
        self._put(change.moves, change.removes, result.version)

    def was_last(self, recipe: dict[str, Any]) -> bool:
        """Whether a call like this made the version that is there."""
        history = self.place.info.history
        return bool(history) and history[-1].asked == _digest(recipe)

    def _with_line(
        self, info: DatasetInfo, result: VersionResult, recipe: dict[str, Any]
    ) -> DatasetInfo:
        before = self.place.info
        history = before.history or [_line(before, 1, None, "packed", None)]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        line = _line(info, self.number, now, result.what, _digest(recipe))
        return replace(info, history=[*history, line])

    def _refuse_lost(self, moves: Sequence[tuple[str, str]]) -> None:
        """Nothing but what is of the last version alone is ever replaced."""
        replaced = {REJECTED_NAME, *self.place.info.signposts}
        for _, name in moves:
            if name not in replaced and (self.dest / name).exists():
                raise DestinationError(
                    f"{show_path(self.dest / name)} is in the way: it is no file of the dataset's;"
                    " move it away and run the same command again"
                )

    def _put(self, moves: Sequence[tuple[str, str]], removes: Sequence[str], version: int) -> None:
        """Each step may be repeated; the last removes the marker."""
        for name in removes:
            (self.dest / name).unlink(missing_ok=True)
        index = self.stage / INDEX_NAME
        if index.exists():
            with opened(self.work) as work:
                for path, name in moves:
                    folder, _, held = path.partition("/")
                    with suppress(FileNotFoundError), opened(Path(folder), within=work) as at:
                        os.replace(held, self.dest / name, src_dir_fd=at)  # else it was moved
            old = self.dest / index_name(version - 1)
            if not old.exists():
                atomic_write(old, [read_index(self.dest)])
            fsync_path(self.dest)
            index.replace(self.dest / INDEX_NAME)
            fsync_path(self.dest)
        clear_work(self.dest, {LOCK_NAME, CHANGE_NAME})
        (self.work / CHANGE_NAME).unlink()
        fsync_path(self.work)

    def close(self) -> None:
        """Leave nothing but what a later call goes on from."""
        try:
            held = {path.name for path in self.work.iterdir()} - {LOCK_NAME, _STARTED, STAGE_NAME}
            if CHANGE_NAME not in held:
                remove_own(self.stage)
            if not held:
                clear_work(self.dest, {LOCK_NAME})
                remove_work(self.dest)
        finally:
            self._lock.close()

    def __enter__(self) -> Revision:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def own_dataset(folder: Path) -> Located:
    """The dataset of ours in a folder."""
    place = locate(folder)
    if place.tars or not all(split.has_checksums for split in place.info.splits.values()):
        raise UsageError(
            f"{place.shown} was not packed by shardkit; `shardkit convert` makes a dataset that can"
            " be changed"
        )
    return place


def _digest(recipe: dict[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(recipe, sort_keys=True).encode())


def _line(
    info: DatasetInfo, number: int, when: str | None, what: str, asked: str | None
) -> VersionLine:
    splits = info.splits.values()
    return VersionLine(
        number=number,
        when=when,
        what=what,
        num_rows={split.name: split.num_rows for split in splits},
        fingerprints={split.name: split.fingerprint for split in splits},
        asked=asked,
    )
