"""The next version of a dataset: who may make it, and how it takes the place of the last; and
``prune``, which forgets old versions, and removes what only they need.

No file of an older version is ever written to or renamed: a version has new names for all that it
does not share with those before. So who has one open keeps it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import xxhash

from shardkit.arguments import integer
from shardkit.commit.durable_files import atomic_write
from shardkit.commit.own_files import refuse_others, remove_own
from shardkit.commit.records import from_record, read_record, write_record
from shardkit.commit.work_folder import CHANGE_NAME, LOCK_NAME, STAGE_NAME, Change, WorkFolder
from shardkit.errors import DestinationError, IndexFileError, UsageError
from shardkit.index import file_names, manifest
from shardkit.index.file_names import INDEX_NAME, REJECTED_NAME
from shardkit.index.manifest import DatasetInfo, SplitInfo
from shardkit.index.version_line import VersionLine
from shardkit.packing.destination import OPTIONS_NAME, is_recipe
from shardkit.packing.finish import with_signposts
from shardkit.shards.locate import Located, locate
from shardkit.system.paths import as_path, file_size, show_path
from shardkit.system.refusals import os_errors
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


ADDED_NAME = "added"
"""In the work folder: what is added, a dataset by itself until it is adopted."""

_STARTED = "started.json"


class Revision:
    """Holds a dataset while its next version is made. A context manager.

    Args:
        folder: the dataset's. recipe: what is asked for, as plain values: who asks for the same
            again after a kill gets what was done. what: the same in words, for the history.

    Attributes:
        place: the dataset as it is. number: of the version to make. stage: folder for new files.
        started: when the clock of the result began.
        finished: what the same call made that was killed when only tidying up was left.
        notes: what became of other changes that were under way.

    Raises:
        DatasetMissingError: there is none. UsageError: it is tars of others.
        DestinationError: another process changes it, or a pack is to replace it.
    """

    def __init__(self, folder: Path, recipe: dict[str, Any], what: str) -> None:
        self.started = time.perf_counter()
        locate(folder)  # before a work folder is made in what is no dataset
        self.dest = folder.resolve()
        self.finished: VersionResult | None = None
        self.notes: list[str] = []
        self._folder = WorkFolder(self.dest)
        self.work, self.stage = self._folder.path, self._folder.stage
        self.what = what
        self._recipe = json.loads(json.dumps(recipe))  # as it is read again: no tuple is left
        self._digest = xxhash.xxh3_64_hexdigest(json.dumps(recipe, sort_keys=True).encode())
        try:
            self._end_change()
            self.place = own_dataset(self.dest)
            self.number = self.place.info.version + 1
            self._begin()
        except BaseException:
            self.close()
            raise

    def _end_change(self) -> None:
        """Put in its place what a killed call had made ready."""
        change = self._folder.pending(INDEX_NAME, file_names.is_dataset_file)
        if (self.work / OPTIONS_NAME).exists() or (change and is_recipe(change.recipe)):
            raise DestinationError(
                f"{show_path(self.dest)} is to be replaced by a pack that was interrupted; run that"
                " command again first, or remove the folder"
                f" {show_path(self.work)} to have the dataset stay"
            )
        if change is None:
            return
        try:
            made = from_record(VersionResult, change.result, dest=self.dest)
        except TypeError:
            raise self._folder.damaged() from None
        self._folder.end(change)
        if change.recipe == self._recipe:
            self.finished = replace(made, was_complete=True)
        else:
            self.notes.append(f"an interrupted change was ended first: {made.what}")

    def _begin(self) -> None:
        """Keep what a call like this had begun, which was killed before it was ready; nothing of
        another."""
        asked = {"recipe": self._recipe, "version": self.number}
        path = self.work / _STARTED
        if path.exists():
            if read_record(path) == asked:
                return
            self.notes.append("another change that was begun, and not ready, is given up")
        self._folder.clear()
        write_record(path, asked)

    def write(self, name: str, parts: Sequence[OwnRows], info: DatasetInfo) -> SplitInfo:
        """Write the index of one split, of these rows end to end, into the stage.

        Args:
            info: of the new version, as far as it is known.

        Raises:
            DataError: two samples have one key.
        """
        self.stage.mkdir(exist_ok=True)
        return write_rows(self.stage, file_names.index_stem(name, self.number), name, parts, info)

    def publish(
        self,
        info: DatasetInfo,
        notes: Sequence[str] = (),
        moves: Sequence[tuple[str, str]] = (),
        **counts: int,
    ) -> VersionResult:
        """Have the version take its place.

        Args:
            info: what shardkit.json says of it, but for its history.
            notes, counts: for the result.
            moves: what else comes, as (path in the work folder, name in the dataset).

        Raises:
            DestinationError: a file is in the way that is not of the last version alone.
        """
        refuse_others(self.work)  # what is listed below is moved
        self.stage.mkdir(exist_ok=True)
        info = with_signposts(self.stage, info)
        result = self._result(info, notes=[*self.notes, *notes], **counts)
        staged = [path.name for path in sorted(self.stage.iterdir()) if path.name != INDEX_NAME]
        may_go = {REJECTED_NAME, *self.place.info.signposts}
        for name in (*(name for _, name in moves), *staged):
            if name not in may_go and (self.dest / name).exists():
                raise DestinationError(
                    f"{show_path(self.dest / name)} is in the way: it is no file of the dataset's;"
                    " move it away and run the same command again"
                )
        before, index = self.place.info, file_names.index_name(self.number - 1)
        if not (self.dest / index).exists():
            atomic_write(self.stage / index, [manifest.read_index(self.dest)])
            staged.append(index)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        line = _line(info, self.number, now, self.what, self._digest)
        history = [*(before.history or [_line(before, 1, None, "packed", None)]), line]
        atomic_write(self.stage / INDEX_NAME, [manifest.dump_info(replace(info, history=history))])
        own = [(f"{STAGE_NAME}/{name}", name) for name in (*staged, INDEX_NAME)]
        self._commit(result, (), [*moves, *own])
        return result

    def remove(self, names: Sequence[str], notes: Sequence[str]) -> VersionResult:
        """Remove these files, those of the index of a version before what only that needs."""
        sizes = [max(file_size(self.dest / name), 0) for name in names]
        result = replace(self.unchanged(*notes), num_bytes=sum(sizes), was_complete=not names)
        if names:
            self._commit(result, names, ())
        return result

    def _commit(
        self, result: VersionResult, removes: Sequence[str], moves: Sequence[tuple[str, str]]
    ) -> None:
        self._folder.commit(Change(self._recipe, {**asdict(result), "dest": ""}, removes, moves))

    def unchanged(self, *notes: str) -> VersionResult:
        """Return the result of a call that leaves the version that is there."""
        info = self.place.info
        made = self._result(info, notes=[*self.notes, *notes], was_complete=True)
        return replace(made, version=info.version)

    def _result(self, info: DatasetInfo, **others: Any) -> VersionResult:
        splits, seconds = info.num_rows, time.perf_counter() - self.started
        others |= {"num_samples": sum(splits.values()), "seconds": seconds}
        return VersionResult(self.dest, self.number, self.what, splits, **others)

    def was_last(self) -> bool:
        """Return True if a call like this made the version that is there."""
        history = self.place.info.history
        return bool(history) and history[-1].asked == self._digest

    def close(self) -> None:
        """Leave nothing but what a later call goes on from."""
        try:
            held = {path.name for path in self.work.iterdir()} - {LOCK_NAME, _STARTED, STAGE_NAME}
            if CHANGE_NAME not in held:
                remove_own(self.stage)
            if not held:
                self._folder.clear()
        finally:
            self._folder.close()

    def __enter__(self) -> Revision:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def own_dataset(folder: Path) -> Located:
    """Return the dataset of ours in a folder. Raises UsageError if it is of others."""
    place = locate(folder)
    if place.tars or not all(split.has_checksums for split in place.info.splits.values()):
        raise UsageError(
            f"{place.shown} was not packed by shardkit; `shardkit convert` makes a dataset that can"
            " be changed"
        )
    return place


def _line(
    info: DatasetInfo, number: int, when: str | None, what: str, asked: str | None
) -> VersionLine:
    return VersionLine(number, when, what, info.num_rows, info.fingerprints, asked)


def prune(dataset: str | Path, *, keep: int = 1) -> VersionResult:
    """Keep the last versions of a dataset, and remove the others from the disk: their indexes, and
    shards that none of those kept has. Nothing else ever removes anything of a dataset.

    Who has one open that goes may meet an error when it reads on.

    Args:
        dataset: its folder. keep: how many versions, the last included.

    Raises:
        UsageError: there is no dataset, or keep is no number from 1 on.
        DestinationError: another process changes it.
        IndexFileError: what a version that is kept says is damaged.
    """
    keep = integer("keep", keep, 1)
    folder = as_path(dataset, "the dataset")
    recipe = {"do": "prune", "keep": keep}
    with os_errors(f"pruning {show_path(folder)}"), Revision(folder, recipe, "prune") as revision:
        if revision.finished is not None:
            return revision.finished
        there = manifest.versions_at(revision.dest, revision.place.info)
        old, kept = there[:-keep], there[-keep:]
        revision.what = f"prune: versions {', '.join(map(str, old))}" if old else "prune: nothing"
        needed = {
            name
            for each in kept
            for name in manifest.read_info(revision.dest, version=each).file_bytes
        }
        gone, notes = set[str](), []
        for version in old:
            try:
                gone |= manifest.read_info(revision.dest, version=version).file_bytes.keys()
            except IndexFileError:
                notes.append(
                    f"what version {version} had cannot be read any more: files that only it had"
                    " stay, and `shardkit verify` names them"
                )
        return revision.remove([*map(file_names.index_name, old), *sorted(gone - needed)], notes)
