"""Folders and files of a cache: opened only where nobody but this user can have made them.

Somebody else who may write to a cache could put a link in place of a file, and what is fetched
would overwrite the file that the link names. So a folder must belong to this user and be writable
by nobody else, and no link is followed below it.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from pathlib import Path

from shardkit.errors import StorageError
from shardkit.system.file_io import pread
from shardkit.system.paths import show_path

ELSEWHERE = (
    "choose another folder with cache_dir, --cache-dir or SHARDKIT_CACHE_DIR; where files wait to"
    " be sent, with staging or --staging"
)

_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC


def make_own(path: Path) -> Path:
    """Make a cache unless it is there, and return its path without links.

    Raises:
        StorageError: another user may write to it, or made a link on the way there; or it cannot
            be made.
    """
    path = path.absolute()
    for place in [*reversed(path.parents), path]:
        if place.is_symlink() and (owner := place.lstat().st_uid) not in (0, os.geteuid()):
            raise StorageError(
                f"the cache {show_path(path)}: {show_path(place)} is a link that {_user(owner)}"
                f" made, not {_user(os.geteuid())}; {ELSEWHERE}"
            )
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"the cache {show_path(path)} cannot be made: {error}") from error
    path = path.resolve(strict=True)
    os.close(open_own(path))
    return path


def open_own(path: str | Path, at: int | None = None) -> int:
    """Open a folder, in the open folder ``at`` or by its path.

    Raises:
        StorageError: it is a link or a file, belongs to another user, or others may write to it.
        OSError.
    """
    try:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | _NO_LINK, dir_fd=at)
    except NotADirectoryError as error:
        raise StorageError(
            f"the cache {_shown(path, at)} is a link or a file; remove it, or {ELSEWHERE}"
        ) from error
    status, user = os.fstat(fd), os.geteuid()
    mode = stat.S_IMODE(status.st_mode)
    wrong = ""
    if status.st_uid != user:
        wrong = f"belongs to {_user(status.st_uid)}, not to {_user(user)}; {ELSEWHERE}"
    elif mode & (stat.S_IWGRP | stat.S_IWOTH):
        wrong = (
            f"may be written to by other users (mode {mode:04o}); {ELSEWHERE}, or, if nobody else"
            f" put anything there, run `chmod go-w {_shown(path, at)}`"
        )
    if wrong:
        os.close(fd)
        raise StorageError(f"the cache {_shown(path, at)} {wrong}")
    return fd


def open_plain(name: str, flags: int, at: int) -> int:
    """Open a regular file in an open folder; one that is made is readable by this user alone.

    Raises:
        StorageError: it is a link, or no regular file. OSError.
    """
    try:
        fd = os.open(name, flags | os.O_NONBLOCK | _NO_LINK, 0o600, dir_fd=at)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise
    else:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
    raise StorageError(
        f"{_shown(name, at)} in the cache is a link, or no regular file; remove it, or {ELSEWHERE}"
    )


def read_whole(name: str, at: int) -> bytes:
    """Return the bytes of a file. Raises as :func:`open_plain`."""
    with open(open_plain(name, os.O_RDONLY, at), "rb", buffering=0) as file:
        return pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)


def write_whole(name: str, at: int, data: bytes) -> None:
    """Write a file that appears under its name with all its bytes: readers may look. Raises as
    :func:`open_plain`."""
    part = f"{name}.part"
    with open(open_plain(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, at), "wb") as file:
        file.write(data)
    os.replace(part, name, src_dir_fd=at, dst_dir_fd=at)


def _shown(path: str | Path, at: int | None) -> str:
    folder = "" if at is None else os.readlink(f"/proc/self/fd/{at}")
    return show_path(os.path.join(folder, path))


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return f"user {uid}"
