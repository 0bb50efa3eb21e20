"""Folders of many small files: listing them and reading them, fast.

Order is fixed: within a folder names in Python's ``sorted()``; a folder's own files come before
its sub-folders, which follow depth first. Symbolic links are followed, hidden names passed over.

Measured on 60,000 files of 1 KB, a file: ``listdir`` + ``stat(dir_fd=)`` 2.4 us, ``open`` by
``dir_fd`` with one right-sized ``read`` 3.1 us; less where ``files.c`` was built. Threads make both
worse (the GIL changes hands at each call), a ``Path`` or a ``with open()`` a file doubles them.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from itertools import compress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from shardkit.errors import FormatError, StorageError
from shardkit.memory.maps import mapped
from shardkit.samples.sample import Value
from shardkit.system.file_io import pread
from shardkit.system.paths import show_path
from shardkit.system.stamps import inodes_stay, stamp, stamps

Reason = str
"""Stands in place of a value: why there is none."""

_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
"""Without O_NONBLOCK, a FIFO put in a file's place since listing would block for ever."""

GONE = frozenset({errno.ENOENT, errno.ELOOP})
"""Errors of a link that leads nowhere, or of a name that vanished since it was listed."""

_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that say something of this process, not of the file that was opened."""

_POINTER = b"version https://git-lfs.github.com/spec/"
"""The first bytes of a file that stands in the place of one that Git LFS did not fetch."""

POINTER_BYTES = 200
"""A pointer has fewer bytes."""

HUGE_BYTES = 64 << 20
"""Values from this size on are mapped, not read: what they came from must not change meanwhile."""

HIDDEN = "hidden"
"""The key under which names that begin with a dot are counted; no extension has that name.
:data:`SYSTEM_NAMES` are counted under themselves."""

_Id = tuple[int, int]


@dataclass
class FolderListing:
    """A folder of a source: its visible names, sorted.

    Attributes:
        base: relative to the source; ``""`` is the source itself.
        folders: names of sub-folders.
        names, sizes, stamps: the wanted files.
        hidden: how many files and sub-folders were hidden, by what they are counted under.
        lost: names that lead nowhere, links or gone by now, of folders that cannot be listed, and
            of FIFOs, sockets and devices; reading them says why. They may have been folders, so
            each is an entry whatever its extension.
    """

    base: str
    folders: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    hidden: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)

    def keep(self, extensions: frozenset[str] | None, ignored: dict[str, int]) -> None:
        """Drop files whose extension is not among ``extensions``, counting them in ``ignored``, and
        what is hidden."""
        for name, count in self.hidden.items():
            ignored[name] = ignored.get(name, 0) + count
        if extensions is not None:
            seen = {name[name.rfind(".") :] for name in self.names}
            if odd := {ending for ending in seen if ending.lower() not in extensions}:
                self.drop({name for name in self.names if name[name.rfind(".") :] in odd}, ignored)

    def files(self) -> dict[str, tuple[int, int]]:
        """Return size and stamp of each file, by its name."""
        known = zip(self.sizes, self.stamps, strict=True)
        return dict(zip(self.names, known, strict=True))

    def drop(self, passed: Set[str], ignored: dict[str, int]) -> None:
        """Drop files by their names, and count them in ``ignored``."""
        if not passed:
            return
        kept = [name not in passed for name in self.names]
        for name in compress(self.names, [not each for each in kept]):
            pass_over(name, ignored)
        self.names = [*compress(self.names, kept)]
        self.sizes = [*compress(self.sizes, kept)]
        self.stamps = [*compress(self.stamps, kept)]


def pass_over(name: str, ignored: dict[str, int]) -> None:
    """Count a file in ``ignored``."""
    ending = extension(name)
    ignored[ending] = ignored.get(ending, 0) + 1


# --- names ---------------------------------------------------------------------------------


def extension(name: str) -> str:
    """Return a name's ending, lower case with its dot; ``""`` if there is none."""
    stem, dot, ending = name.rpartition(".")
    return dot + ending.lower() if stem else ""


DOCUMENTS = frozenset(
    {"readme", "license", "licence", "copying", "notice", "changelog", "citation", "authors"}
)
"""Stems, in lower case, of what lies in any folder and says nothing of it."""


SYSTEM_NAMES = frozenset(
    {"@eaDir", "#recycle", "#snapshot", "@Recycle", "@Recently-Snapshot", "__MACOSX", "lost+found"}
    | {"$RECYCLE.BIN", "System Volume Information", "Thumbs.db", "desktop.ini"}
)
"""Names that file servers and desktops put into folders: thumbnails, trash, folder views."""


def stem(name: str) -> str:
    """Return a name up to the first dot."""
    return name.partition(".")[0]


def join(base: str, name: str) -> str:
    """Return a path relative to the source."""
    return f"{base}/{name}" if base else name


def stems(names: list[str]) -> list[str]:
    """Return a key for each file of one folder: its name up to the last dot.

    A name stays whole where its stem is another file's stem, or another file's whole name; so
    keys never repeat.
    """
    cut = [name.rpartition(".")[0] or name for name in names]
    if len(set(cut)) == len(cut) and set(cut).isdisjoint(names):
        return cut
    count = Counter(cut)
    whole = set(names)
    return [
        stem if count[stem] == 1 and stem not in whole else name
        for stem, name in zip(cut, names, strict=True)
    ]


def encode(names: list[str], base: str = "") -> list[bytes]:
    """Return names as the file system has them, behind ``base/``. One call for all: they hold no
    NUL."""
    if not names:
        return []
    prefix = join(base, "")
    return os.fsencode(prefix + ("\0" + prefix).join(names)).split(b"\0")


_PACKED = (".gz", ".zst", ".bz2", ".xz")


def cut_ending(name: str) -> tuple[str, str]:
    """Return the part of a name before its ending, and the ending, lower case with its dot, or
    ``""``.

    A compressed file's ending is that of both: ``a.nii.gz`` is ``a`` and ``.nii.gz``.
    """
    ending = extension(name)
    if ending == ".":
        return name, ""
    start = name[: len(name) - len(ending)]
    if ending in _PACKED:
        inner = extension(start)
        if inner[1:].isalnum() and not inner[1:].isdigit():
            return start[: len(start) - len(inner)], inner + ending
    return start, ending


# --- listing ------------------------------------------------------------------------------


def walk(
    source: Path,
    base: str = "",
    extensions: frozenset[str] | None = None,
    ignored: dict[str, int] | None = None,
    measure: bool = True,
) -> Iterator[FolderListing]:
    """Yield all folders at and below ``source/base``, empty ones too; for one that vanishes, or
    cannot be listed, its parent once more, with its name among the ``lost``.

    Files of other ``extensions`` (None: any) and hidden ones are counted in ``ignored``. With
    ``measure=False`` only names are listed: five times faster.

    Raises:
        StorageError: ``source/base`` cannot be listed, this process is out of files or memory,
            folders are nested too deep, or a link leads back to a folder that contains it.
    """
    ignored = {} if ignored is None else ignored
    parts = base.split("/") if base else []
    try:  # a link must not lead back to any of these
        inside = [source.joinpath(*parts[:depth]) for depth in range(len(parts))]
        trail = [(s.st_dev, s.st_ino) for s in map(os.stat, [*source.resolve().parents, *inside])]
    except OSError as error:
        raise StorageError(_listing_message(os.fspath(source), error)) from error
    below = [iter([base])]
    while below:
        child = next(below[-1], None)
        if child is None:
            below, trail = below[:-1], trail[:-1]
            continue
        try:
            folder, folder_id = list_folder(source, child, measure)
        except StorageError as error:
            number = getattr(error.__cause__, "errno", None)
            if child == base or number is None or number in _OURS | {errno.ENAMETOOLONG}:
                raise
            parent, _, name = child.rpartition("/")
            yield FolderListing(parent, lost=[name])
            continue
        if folder_id in trail:
            link = source / child
            while not link.is_symlink() and link != source:
                link = link.parent
            raise StorageError(
                f"{show_path(link)} is a link to a folder that contains it"
                f" ({show_path(os.path.realpath(link))}); remove the link"
            )
        trail.append(folder_id)
        below.append(iter([join(child, name) for name in folder.folders]))
        folder.keep(extensions, ignored)
        yield folder


def list_folder(source: Path, base: str, measure: bool = True) -> tuple[FolderListing, _Id]:
    """Return one folder without its sub-folders, and its device and inode.

    Raises:
        StorageError: it cannot be listed.
    """
    path = os.path.join(source, base) if base else os.fspath(source)
    found = FolderListing(base)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise StorageError(_listing_message(path, error)) from error
    try:
        if measure:
            _measure(fd, _visible(os.listdir(fd), found), found, inodes_stay(path))
        else:
            _list_names(fd, found)
        status = os.fstat(fd)
    except OSError as error:
        if isinstance(error.filename, str):
            path = os.path.join(path, error.filename)
        raise StorageError(_listing_message(path, error)) from error
    finally:
        os.close(fd)
    return found, (status.st_dev, status.st_ino)


@cache
def compiled() -> ModuleType | None:
    """Return the module made from ``files.c``, if it was built with this installation."""
    try:
        return import_module("shardkit.system._files")
    except ImportError:
        return None


def _measure(fd: int, names: list[str], found: FolderListing, has_inodes: bool) -> None:
    if names and (made := compiled()) is not None:
        rows = np.empty((len(names), 5), np.int64)
        made.stat_names(fd, os.fsencode("\0".join(names)) + b"\0", rows)
        modes, sizes, mtimes, ctimes, inodes = map(np.ascontiguousarray, rows.T)
        if (modes & 0o170000 == stat.S_IFREG).all():  # the common case, at a third of the cost
            found.names += names
            found.sizes += sizes.tolist()
            found.stamps += stamps(mtimes, ctimes, inodes, has_inodes).tolist()
            return
    status = os.stat
    files, file_sizes, file_stamps = found.names, found.sizes, found.stamps
    for name in names:
        try:
            st = status(name, dir_fd=fd)
        except OSError as error:
            if error.errno not in GONE:
                raise
            found.lost.append(name)
            continue
        kind = st.st_mode & 0o170000
        if kind == stat.S_IFREG:
            files.append(name)
            file_sizes.append(st.st_size)
            file_stamps.append(stamp(st, has_inodes))
        elif kind == stat.S_IFDIR:
            found.folders.append(name)
        else:
            found.lost.append(name)


def _visible(listed: list[str], found: FolderListing) -> list[str]:
    """Return the visible names, sorted, and count the hidden ones."""
    names = sorted([n for n in listed if n[0] != "." and n not in SYSTEM_NAMES])
    if len(names) < len(listed):
        hidden = {*listed}.difference(names)
        found.hidden.update(HIDDEN if name[0] == "." else name for name in hidden)
    return names


def _list_names(fd: int, found: FolderListing) -> None:
    names, folders, lost = list[str](), list[str](), list[str]()
    with os.scandir(fd) as entries:
        for entry in entries:
            try:
                if entry.is_file():
                    names.append(entry.name)
                elif entry.is_dir():
                    folders.append(entry.name)
                else:
                    entry.stat()  # raises for a link that leads nowhere, which stays a name
                    lost.append(entry.name)  # opening a FIFO may wait for ever
            except OSError as error:
                if error.errno not in GONE:
                    raise
                names.append(entry.name)
    found.names += _visible(names, found)
    found.folders += _visible(folders, found)
    found.lost += _visible(lost, found)


def _listing_message(path: str, error: OSError) -> str:
    return f"{show_path(path)} cannot be listed: {_why_unlisted(error)}"


def _why_unlisted(error: OSError) -> str:
    if error.errno == errno.ENAMETOOLONG:
        return "folders are nested deeper than the system's limit for a path; move it further up"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "no permission to list it or look at its files"
    return error.strerror or str(error)


# --- reading ------------------------------------------------------------------------------


def read_files(folder: Path, names: list[bytes], sizes: list[int]) -> list[Value | Reason]:
    """Return the contents of files of one folder, huge ones mapped; a str says why there are none.

    A file must still have the size it was listed with; what is no regular file is never opened. A
    pointer of Git LFS stands for a file that is not there.

    Raises:
        StorageError: the folder is there and cannot be opened, or this process is out of file
            descriptors.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return ["its folder vanished since it was listed"] * len(names)
    except OSError as error:
        raise StorageError(f"{show_path(folder)} cannot be read: {error.strerror}") from error
    try:
        if (made := compiled()) is not None:
            packed = b"\0".join(names) + b"\0"
            values: list[Any] = made.read_names(fd, packed, np.array(sizes, np.int64), HUGE_BYTES)
        else:
            values = [_read_small(name, size, fd) for name, size in zip(names, sizes, strict=True)]
        for i, value in enumerate(values):
            if value is None:
                try:
                    values[i] = _read_odd(names[i], sizes[i], fd)
                except OSError as error:
                    if error.errno in _OURS:
                        raise StorageError(f"cannot open more files: {error.strerror}") from error
                    values[i] = f"cannot be read: {error.strerror}"
                    if error.errno in GONE:
                        values[i] = gone(names[i], fd)
                    elif error.errno in (errno.EACCES, errno.EPERM):
                        values[i] = "no permission to read it"
    finally:
        os.close(fd)
    for i in [i for i, size in enumerate(sizes) if size < POINTER_BYTES]:
        if not isinstance(values[i], Reason) and values[i][: len(_POINTER)] == _POINTER:
            values[i] = "a pointer of Git LFS and not the file; run git lfs pull"
    return values


def _read_small(name: bytes, size: int, fd: int) -> bytes | None:
    """Return a file of that size; None for any other, for an empty one, or one that is huge."""
    if not 0 < size < HUGE_BYTES:
        return None
    try:
        file = os.open(name, _OPEN, dir_fd=fd)
    except OSError:
        return None
    try:
        value = os.read(file, size + 1)
    except OSError:
        return None
    finally:
        os.close(file)
    return value if len(value) == size else None


def _read_odd(name: bytes, size: int, fd: int) -> Value | Reason:
    """Return a file that is empty, huge or changed since it was listed; or why it is none."""
    status = os.stat(name, dir_fd=fd)
    if not stat.S_ISREG(status.st_mode):
        return _no_file(name, status.st_mode, fd)
    file = os.open(name, _OPEN, dir_fd=fd)
    try:
        if size < HUGE_BYTES:
            value: Value = pread(file, size + 1, 0)
        else:
            value = mapped(file, os.fstat(file).st_size)
    finally:
        os.close(file)
    if len(value) == size:
        return value
    now = os.stat(name, dir_fd=fd).st_size
    return f"changed while packing: {size} bytes when listed, now {now}"


def _no_file(name: bytes | str, mode: int, fd: int | None = None) -> Reason:
    """Return what is there in place of a file; for a folder, why it could not be listed."""
    if not stat.S_ISDIR(mode):
        return "is no regular file; remove it"
    try:
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        try:
            _measure(folder, os.listdir(folder), FolderListing(""), has_inodes=False)
        finally:
            os.close(folder)
    except OSError as error:
        if error.errno in _OURS:
            raise
        return f"is a folder that cannot be listed: {_why_unlisted(error)}"
    return "is a folder, not a file"


def gone(name: bytes | str, fd: int | None = None) -> Reason:
    """Return why there is nothing under a name, in the folder open as ``fd``."""
    try:
        target = os.readlink(os.fsdecode(name), dir_fd=fd)
    except OSError:
        return "vanished since it was listed"
    return f"a symbolic link to {show_path(target)}, which leads nowhere; remove it"


def input_stamp(path: Path) -> int:
    """Return a file's :mod:`stamp <shardkit.system.stamps>`. Raises FormatError, which does not
    name it, for what is no file."""
    try:
        status = path.stat()
    except OSError as error:
        if error.errno not in GONE:
            raise
        raise FormatError(gone(os.fspath(path))) from error
    if not stat.S_ISREG(status.st_mode):
        raise FormatError(_no_file(os.fspath(path), status.st_mode))
    return stamp(status, inodes_stay(path))
