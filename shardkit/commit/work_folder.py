"""The work folder of a destination, and the commit that puts what was made in it in its place.

Law: all that is new is made in the work folder, which one process holds by a lock. When it is there
and synced, a record, ``change.json``, says what goes and what comes. Until then a kill leaves what
was there before; from then on, whoever holds the folder next ends the change. Each step may be
repeated. The last file that comes names the others, so it is renamed when they are on the disk; and
of files that go, it goes first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardkit.commit.durable_files import fsync_path
from shardkit.commit.leases import Lease, is_lease, refuse_leased
from shardkit.commit.locks import Lock
from shardkit.commit.own_files import exists, opened, refuse_others, remove
from shardkit.commit.records import from_record, read_record, write_record
from shardkit.errors import ResumeError, ShardkitError
from shardkit.system.paths import show_path

WORK_NAME = ".packing"
CHANGE_NAME = "change.json"
LOCK_NAME = "lock"
STAGE_NAME = "new"
"""In the work folder: the folder of files that a commit moves."""
SCRATCH_NAME = "scratch"
"""In the work folder: the folder of files that nobody goes on from."""


@dataclass(frozen=True)
class Change:
    """The record of a change that is ready.

    Attributes:
        recipe: what was asked for. result: what its call returns. Both are JSON.
        removes: names in the destination that go, in this order.
        moves: (path in the work folder, name in the destination) of what comes, in this order.
    """

    recipe: dict[str, Any]
    result: dict[str, Any]
    removes: Sequence[str] = ()
    moves: Sequence[tuple[str, str]] = ()


class WorkFolder:
    """Holds a destination's work folder. A context manager; it removes the folder when nothing is
    in it any more.

    Attributes:
        path: the folder. stage: the one in it for new files.

    Raises:
        DestinationError: another process holds it, or it holds links, devices or the like.
    """

    def __init__(self, dest: Path, path: Path | None = None, *, is_shared: bool = False) -> None:
        """Lock the folder ``path``; default: the one in ``dest``.

        Args:
            is_shared: processes on other machines write into it, too. A lock may hold on this
                machine alone; a lease does wherever the folder is seen.
        """
        self.dest = dest
        self.path = path or dest / WORK_NAME
        self.stage = self.path / STAGE_NAME
        self._lease: Lease | None = None
        self._lock = Lock(self.path / LOCK_NAME, shown=dest)
        try:
            if is_shared:
                self._lease = Lease(self.path)
            else:
                refuse_leased(self.path)
        except BaseException:
            self._lock.close()  # another holds the folder: nothing of it is ours
            raise

    @property
    def lock_fd(self) -> int:
        return self._lock.fd

    def check_held(self) -> None:
        """Raise StorageError if another machine has taken over, since this one did not answer."""
        if self._lease is not None:
            self._lease.check()

    # --- commit ---------------------------------------------------------------------------

    def commit(self, change: Change) -> None:
        """Put in place what was made, all of it or nothing."""
        refuse_others(self.path)  # what is listed is moved
        write_record(self.path / CHANGE_NAME, vars(change))
        self.end(change)

    def pending(self, last: str, is_own: Callable[[str], bool]) -> Change | None:
        """Return the change that a killed call had made ready.

        Args:
            last: the file that comes last. is_own: tells a name of any other file that a change may
                move or remove; the folder may be anybody's.

        Raises:
            ResumeError: the record is damaged.
        """
        try:
            record = read_record(self.path / CHANGE_NAME)
        except FileNotFoundError:
            return None
        try:
            change = from_record(Change, record)
        except TypeError:
            raise self.damaged() from None
        *others, end = [name for _, name in change.moves] or [last]
        froms = [path.split("/") for path, _ in change.moves]
        is_good = (
            end == last
            and all(name == last or is_own(name) for name in change.removes)
            and all(map(is_own, others))
            and all(len(parts) == 2 and not {"", ".", ".."} & {*parts} for parts in froms)
        )
        if not is_good:
            raise self.damaged()
        return change

    def damaged(self) -> ResumeError:
        """Return the error for a record that nobody can rely on."""
        return ResumeError(
            f"{show_path(self.path / CHANGE_NAME)}, the record of a change, is damaged, or of"
            " another version of shardkit, which ends it by the same command; if `shardkit verify`"
            f" finds {show_path(self.dest)} whole, remove {show_path(self.path)}, else pack again"
            " with --overwrite"
        )

    def end(self, change: Change) -> None:
        """Do what is left of a change, and forget it."""
        with opened(self.path) as work:
            if not change.moves or exists(change.moves[-1][0], work):
                self._put(change, work)
            elif not (self.dest / change.moves[-1][1]).exists():
                raise ResumeError(
                    f"{show_path(self.dest)} held a whole dataset, but its {change.moves[-1][1]} is"
                    " gone; pass --overwrite to pack again"
                )
            self.clear(CHANGE_NAME)
            os.unlink(CHANGE_NAME, dir_fd=work)
            os.fsync(work)

    def _put(self, change: Change, work: int) -> None:
        for name in change.removes:
            (self.dest / name).unlink(missing_ok=True)
            if name.endswith(".json"):  # it may name others, which go after it
                fsync_path(self.dest)
        for path, name in change.moves[:-1]:
            with suppress(FileNotFoundError):  # an earlier call moved it
                self._move(path, name, work)
        fsync_path(self.dest)
        for path, name in change.moves[-1:]:
            self._move(path, name, work)
            fsync_path(self.dest)

    def _move(self, path: str, name: str, work: int) -> None:
        folder, _, held = path.partition("/")
        with opened(Path(folder), within=work) as at:
            os.replace(held, self.dest / name, src_dir_fd=at)

    # --- its end --------------------------------------------------------------------------

    def clear(self, *keep: str) -> None:
        """Remove all that is in the folder, but for these names, and who holds it."""
        with opened(self.path) as work:
            for name in os.listdir(work):
                if name not in keep and not _tells_holder(name):
                    remove(name, work)

    def close(self) -> None:
        try:
            if self.path.exists() and all(map(_tells_holder, os.listdir(self.path))):
                with opened(self.path) as work:
                    for name in os.listdir(work):
                        remove(name, work)
                self.path.rmdir()
        except (OSError, ShardkitError):
            pass  # the next one has made its lock there meanwhile
        finally:
            if self._lease is not None:
                self._lease.close()
            self._lock.close()

    def __enter__(self) -> WorkFolder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _tells_holder(name: str) -> bool:
    return name == LOCK_NAME or is_lease(name)


def is_under_way(dest: Path) -> bool:
    """Return True if something was begun in a destination, and not ended. What a call leaves that
    was killed at its very end is removed."""
    work = dest / WORK_NAME
    if not os.path.lexists(work):
        return False
    try:
        if work.is_symlink() or not all(map(_tells_holder, os.listdir(work))):
            return True
        WorkFolder(dest).close()
    except (OSError, ShardkitError):
        pass  # another has it
    return False
