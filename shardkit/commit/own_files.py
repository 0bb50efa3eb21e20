"""Files and folders that we write in, which somebody else may have made: never through a link.

A dataset comes from anywhere, with whatever lies in its folder: links that lead out of it under
the names of our own files, devices, FIFOs, forged records. So:

Law: a work folder holds files and folders, nothing else. :func:`refuse_others` looks through all of
it, under its lock and before anything in it is used. A new file is made by :func:`create`, and gets
its final name by a rename, which replaces a link and never follows one. Records are read by
:func:`read_own`. What is removed or moved is named by an open folder (:func:`opened`): who puts a
link in the folder's place meanwhile has nothing removed elsewhere.
"""

from __future__ import annotations

import errno
import os
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from shardkit.errors import DestinationError
from shardkit.system.paths import show_path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_WAIT = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Without O_NONBLOCK, opening a FIFO blocks for ever."""

_TARS = b"/scratch/tars/"

_TRIES = 10
_PAUSE_S = 0.2
"""A file that a machine has in hand may appear while its folder is emptied."""

MAX_OWN_BYTES = 1 << 30
"""Of a file that is read whole: a journal's of 10 million rows."""

MAX_LINE_BYTES = 64 << 10
"""The largest lock or lease that is read; they have some hundred bytes."""


def own_folder(folder: Path) -> None:
    """Make a folder unless it is there. Raises DestinationError for a link or no folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        if (mode := _mode(folder)) and not stat.S_ISDIR(mode):
            raise _other(folder) from None


def refuse_others(folder: Path) -> None:
    """Raise DestinationError unless a folder holds, however deep, files and folders only. Links to
    tars that convert reads are its own; it makes them anew before it reads them."""
    with opened(folder) as fd:
        for path, entry in entries_below(fd):
            if _TARS in b"/" + path and entry.is_symlink():
                continue
            is_ours = entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
            if not is_ours:
                raise _other(folder / os.fsdecode(path))


@contextmanager
def opened(folder: Path, *, within: int | None = None) -> Iterator[int]:
    """Give a folder's descriptor while the block lasts. Raises DestinationError for a link.

    ``folder`` is relative to the open folder ``within``, if that is given.
    """
    try:
        fd = os.open(folder, _FOLDER, dir_fd=within)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise _other(folder) from None
        raise
    try:
        yield fd
    finally:
        os.close(fd)


def remove_own(path: Path) -> None:
    """Remove a file or folder by its path. Raises DestinationError if its folder is a link."""
    with opened(path.parent) as fd:
        remove(path.name, fd)


def remove(name: str, fd: int) -> None:
    """Remove a file, or a folder and all that is in it, from an open folder.

    Folders are moved up to that one, under new names, before they are emptied: ``shutil.rmtree``
    recurses, and paths may be longer than the system takes. And another machine may still write
    into one, for an attempt at a job that nobody waits for any more: it can make nothing new under
    the path that it knows.
    """
    try:
        is_folder = stat.S_ISDIR(os.lstat(name, dir_fd=fd).st_mode)
    except FileNotFoundError:
        return
    if not is_folder:
        os.unlink(name, dir_fd=fd)
        return
    waiting = [_set_aside(name, fd, fd)]
    tries = _TRIES
    while waiting:
        gone = waiting.pop()
        try:
            with opened(Path(gone), within=fd) as inner:
                for entry in [*os.scandir(inner)]:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(_set_aside(entry.name, inner, fd))
                    else:
                        os.unlink(entry.name, dir_fd=inner)
            os.rmdir(gone, dir_fd=fd)
        except OSError:
            if not (tries := tries - 1):
                raise
            time.sleep(_PAUSE_S)
            waiting.append(gone)


def _set_aside(name: str, base: int, fd: int) -> str:
    gone = f"gone-{uuid.uuid4().hex}"
    os.rename(name, gone, src_dir_fd=base, dst_dir_fd=fd)
    return gone


def entries_below(fd: int) -> Iterator[tuple[bytes, os.DirEntry[str]]]:
    """Return every entry below an open folder, however deep, each with its path from there."""
    waiting = [b"."]
    while waiting:
        base = waiting.pop()
        try:
            folder = os.open(base, _FOLDER, dir_fd=fd)
        except FileNotFoundError:
            continue  # another machine's attempt at a job, which is over
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = os.fsencode(entry.name)
                    path = name if base == b"." else base + b"/" + name
                    yield path, entry
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(path)
        finally:
            os.close(folder)


def exists(path: str | bytes, fd: int) -> bool:
    """Return True if there is anything, a link too, at a path in an open folder."""
    try:
        os.lstat(path, dir_fd=fd)
    except FileNotFoundError:
        return False
    return True


def create(path: Path) -> IO[bytes]:
    """Open a new file to be written, in the place of any file or link of its name."""
    path.unlink(missing_ok=True)
    return path.open("xb")


def open_lock(path: Path) -> int:
    """Open a file to be locked, made if it is not there. Raises DestinationError if it is another
    file's name, too, or no file: what is written into it must not reach anything else."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | _NO_WAIT, 0o644)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise _other(path) from None
        raise
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(fd)
        raise _other(path)
    return fd


def read_own(path: Path, most: int = MAX_OWN_BYTES) -> bytes | None:
    """Return the contents of a file; None for a link, a device or the like, or far too large a one.

    Raises:
        FileNotFoundError: there is none.
    """
    try:
        fd = os.open(path, os.O_RDONLY | _NO_WAIT)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            return None
        raise
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size > most:
        os.close(fd)
        return None
    with open(fd, "rb", buffering=0) as file:
        return file.readall()


def _other(path: Path) -> DestinationError:
    mode = _mode(path)
    kinds = {
        "a symbolic link": stat.S_ISLNK,
        "a folder": stat.S_ISDIR,
        "a file with another name": stat.S_ISREG,
    }
    kind = next((kind for kind, is_it in kinds.items() if is_it(mode)), "a device or the like")
    return DestinationError(
        f"{show_path(path)} is {kind}, where shardkit writes and removes files of its own; remove"
        " it, or choose another destination"
    )


def _mode(path: Path) -> int:
    """Return what lies at a path, as ``st_mode`` has it; 0 for nothing, or too long a path."""
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0
