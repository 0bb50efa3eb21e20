"""The work folder of an unpack, in its destination: what is done, and how to go on after a kill.

All files are written below ``new``; when all are whole, what lies at its top is renamed into the
destination, so that no file ever has its final name before it is whole. Every :data:`PIECES` pieces
of rows a record says how far that is, and every :data:`SYNC_S` seconds the disk is made to hold
what was written, beside the writing: one ``syncfs``, not thousands of ``fsync``. A process that was
killed is gone on from after its last record. A machine that was: from the last that the disk was
made to hold, since what is younger may be lost. The end is not waited for, as ``tar`` and ``cp`` do
not.

Law: files are written in the order of rows. What a killed call left beyond its record is files of
the rows that follow, without a gap; :meth:`UnpackWork.restore` removes them, and then counts.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from shardkit.errors import DestinationError
from shardkit.system.durable_files import fsync_path, sync_filesystem
from shardkit.system.locks import Lock
from shardkit.system.own_files import entries_below, opened, refuse_others, remove
from shardkit.system.paths import file_size, show_path
from shardkit.system.records import from_record, read_record, write_record

WORK_NAME = ".unpacking"
LAST_MARKER = ".unpacking.json"
"""What the record is called, in the destination, while the work folder itself is removed."""

PIECES = 8
"""Pieces of rows between two records: at most 8,192 rows or some 256 MB, which a kill can cost."""

SYNC_S = 10.0
"""A shorter unpack is not synced at all. The disk may be busy with what others write, too."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Another one after the machine began anew."""

_RECORD = "record.json"
_LOCK = "lock"


@dataclass(frozen=True)
class Done:
    """How far an unpack is, and what that has made.

    ``split`` and ``row`` are where to go on; ``log_bytes`` and ``paths_bytes`` what the two files
    about files in parts have by then. ``is_whole``: all is done but to give files their places.
    """

    split: int = 0
    row: int = 0
    num_files: int = 0
    num_bytes: int = 0
    log_bytes: int = 0
    paths_bytes: int = 0
    is_whole: bool = False


class UnpackWork:
    """Holds the lock of a destination, and the work folder in it. A context manager.

    Attributes:
        new: the folder of files that are written. parts: of the parts of files that come in parts.
        log, paths: the files that tell of those. fd: of ``new``, for paths relative to it, which
        may be as long as the system allows, wherever the destination is. done: what is recorded.

    Raises:
        DestinationError: the destination holds something, is of another dataset, or another
            process unpacks there.
    """

    def __init__(self, dest: Path, dataset: dict[str, Any]) -> None:
        self._dest = dest
        self._work = dest / WORK_NAME
        self._dataset = dataset
        self.new = self._work / "new"
        self.parts = self._work / "parts"
        self.log = self._work / "parts.log"
        self.paths = self._work / "parts.paths"
        refuse_taken(dest)
        dest.mkdir(parents=True, exist_ok=True)
        self._lock = Lock(self._work / _LOCK)
        self.fd = -1
        self._synced = Done()
        try:
            refuse_others(self._work, may_share=False)  # files are emptied and gone on with
            self.done = self._recorded() or self._begin()
            self._open()
        except BaseException:
            self._lock.close()
            raise
        self._began_sync = time.monotonic()
        self._syncing: Thread | None = None

    def _recorded(self) -> Done | None:
        """What an earlier call left. Raises DestinationError if it unpacked something else."""
        for path in (self._work / _RECORD, self._dest / LAST_MARKER):
            try:
                record = read_record(path)
            except FileNotFoundError:
                continue
            record = record or {}
            try:
                done, synced = (from_record(Done, record.get(name)) for name in ("done", "synced"))
            except TypeError:  # damaged: the machine was killed, too
                return None
            if record.get("dataset") != self._dataset:
                raise DestinationError(
                    f"{show_path(self._dest)} holds an unfinished unpack of another dataset; remove"
                    " it, or choose another"
                )
            self._synced = synced
            return done if record.get("boot") == _boot() else synced
        return None

    def _begin(self) -> Done:
        """Record of what dataset that will be which comes. What is there without a record is
        nothing to go on from, nor to write beside."""
        if set(os.listdir(self._dest)) != {WORK_NAME}:
            self.discard()  # killed when nothing was left to do but this
            raise _taken(self._dest)
        return self._forget()

    def _forget(self) -> Done:
        with opened(self._work) as work:
            for name in {*os.listdir(work)} - {_LOCK, _RECORD}:
                remove(name, work)
        self._synced = Done()
        self._write(Done())
        return Done()

    def _open(self) -> None:
        if not self.done.is_whole:
            self.new.mkdir(exist_ok=True)
            self.parts.mkdir(exist_ok=True)
        if self.new.exists():
            self.fd = os.open(self.new, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)

    def restart(self) -> None:
        """Forget all that was done, since what is there is not what was recorded."""
        os.close(self.fd)
        self.fd = -1
        self.done = self._forget()
        self._open()

    @property
    def has_logs(self) -> bool:
        """Whether ``log`` and ``paths`` have all that the record says."""
        sizes = file_size(self.log), file_size(self.paths)
        return sizes[0] >= self.done.log_bytes and sizes[1] >= self.done.paths_bytes

    def restore(self, known: dict[bytes, int], ahead: Iterable[list[bytes]], at_end: bool) -> bool:
        """Make the work folder again what it was when the record was written; False if it is not.

        Args:
            known: path -> bytes of all files in parts, by number. ahead: paths of the pieces of
                rows that follow the record. at_end: no row is left, so that files in parts may have
                been put together already.
        """
        for paths in ahead:
            removed = [_remove_file(path, self.fd) for path in paths if path not in known]
            if removed and not any(removed):
                break
        num_bytes = 0
        for number, (path, size) in enumerate(known.items()):
            part = self.parts / str(number)
            if file_size(part) >= size:
                os.truncate(part, size)
                _empty(path, self.fd)
                num_bytes += size
            elif not at_end:
                return False
        for name in os.listdir(self.parts):
            if not (name.isdigit() and int(name) < len(known)):
                (self.parts / name).unlink()
        files = [*_sizes(self.fd)]
        return (len(files), sum(files) + num_bytes) == (self.done.num_files, self.done.num_bytes)

    def checkpoint(self, done: Done) -> None:
        """Record ``done``, and now and then have the disk hold it."""
        self.done = done
        self._write(done)
        now = time.monotonic()
        if now - self._began_sync > SYNC_S and not (self._syncing and self._syncing.is_alive()):
            self._began_sync = now
            self._syncing = Thread(target=self._sync, args=[done])
            self._syncing.start()

    def _sync(self, done: Done) -> None:
        try:
            sync_filesystem(self.fd)
        except OSError:
            return  # then nothing is recorded as held: a machine that dies costs more
        self._synced = done

    def _write(self, done: Done) -> None:
        state = {"done": asdict(done), "synced": asdict(self._synced)}
        record = {"dataset": self._dataset, "boot": _boot(), **state}
        write_record(self._work / _RECORD, record, synced=False)

    def settle(self) -> None:
        """Everything is whole: give it its place, then remove the work folder."""
        for name in os.listdir(self.fd) if self.fd >= 0 else ():
            place = self._dest / name
            if os.path.lexists(place):
                raise DestinationError(
                    f"{show_path(place)} was not there when this unpack began; move it away and run"
                    " the same command again"
                )
            os.rename(name, place, src_dir_fd=self.fd)
        fsync_path(self._dest)
        if (self._work / _RECORD).exists():
            (self._work / _RECORD).replace(self._dest / LAST_MARKER)
        self.discard()
        (self._dest / LAST_MARKER).unlink(missing_ok=True)
        fsync_path(self._dest)

    def discard(self) -> None:
        """Remove the work folder and all that is in it."""
        _remove_work(self._work)

    def __enter__(self) -> UnpackWork:
        return self

    def __exit__(self, *error: object) -> None:
        if self._syncing is not None:
            self._syncing.join()
        if self.fd >= 0:
            os.close(self.fd)
        self._lock.close()


def refuse_taken(dest: Path) -> None:
    """Raise DestinationError for what is neither empty, nor made, nor left by an earlier call."""
    if not dest.exists():
        return
    if not dest.is_dir():
        raise _taken(dest)
    if (
        not os.path.lexists(dest / WORK_NAME)
        and not (dest / LAST_MARKER).is_file()
        and any(dest.iterdir())
    ):
        raise _taken(dest)


def _taken(dest: Path) -> DestinationError:
    return DestinationError(f"{show_path(dest)} exists and is not an empty folder; choose another")


def _remove_work(work: Path) -> None:
    """The record goes last but for the lock: without it, nothing is gone on from."""
    with opened(work) as fd:
        for name in sorted(os.listdir(fd), key=lambda name: (name == _LOCK, name == _RECORD)):
            remove(name, fd)
    work.rmdir()


def _remove_file(path: bytes, fd: int) -> bool:
    """Whether there was one."""
    try:
        os.unlink(path, dir_fd=fd)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            return False
        raise
    return True


def _boot() -> str:
    return _BOOT.read_text().strip() if _BOOT.exists() else ""


def _empty(path: bytes, fd: int) -> None:
    """Empty a file. It holds the place of one whose parts lie elsewhere."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644, dir_fd=fd))


def _sizes(fd: int) -> Iterator[int]:
    """Bytes of every file below an open folder, however deep."""
    for _, entry in entries_below(fd):
        if not entry.is_dir(follow_symlinks=False):
            yield entry.stat(follow_symlinks=False).st_size
