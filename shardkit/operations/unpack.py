"""``unpack``: the original files, under their original names.

Law: a file has its name only when it is complete. Until then it lies in a work folder in the
destination, which a killed call leaves behind and the next one empties. A file that is there
already is compared with the dataset, byte for byte, and never written.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from shardkit.arrays import Integers
from shardkit.commit.own_files import entries_below, exists, opened
from shardkit.commit.work_folder import WorkFolder
from shardkit.errors import DataError, DestinationError, SampleError, UnsafePathError
from shardkit.formats import TARS
from shardkit.images import restarts
from shardkit.images.restarting import FIELD, without_restarts
from shardkit.index.file_names import INDEX_NAME
from shardkit.index.manifest import DatasetInfo
from shardkit.operations.detokenize import Texts
from shardkit.remote.urls import as_place, show_place
from shardkit.samples.encoding import TOKENS
from shardkit.samples.sample import Value, unpack_paths
from shardkit.shards.locate import locate_place
from shardkit.shards.restarted import samples_to_undo
from shardkit.shards.stored import ShardReader
from shardkit.system.file_io import pread, write_full
from shardkit.system.paths import as_path, show_path
from shardkit.system.progress import Progress
from shardkit.system.refusals import os_errors
from shardkit.system.resources import allowance

WORK_NAME = ".unpacking"
_TEMP = "file"

File = tuple[str, bytes, int | None, Value]
"""(field, path, offset in it if it is a part, contents)."""


@dataclass(frozen=True)
class UnpackResult:
    """How many files and bytes were written to ``dest``."""

    dest: Path
    num_files: int
    num_bytes: int


@os_errors("unpacking")
def unpack(dataset: str | Path, dest: str | Path, *, progress: bool | None = None) -> UnpackResult:
    """Write every file a dataset was packed from. Labels that came from folder names need no file.

    Call it again after an interruption, even a kill -9, and it goes on: files that are there are
    compared, and the others written. No file has its name before it is complete.

    Args:
        dataset: its folder, or its URL. dest: a folder that does not exist yet, or is empty, or
            where an unpack of the same dataset was interrupted.

    Raises:
        DestinationError: ``dest`` holds something else, or lies in a dataset.
        UnsafePathError: a stored path leaves ``dest``.
        DataError: the dataset is damaged, or was not packed from files; or the disk refused.
        UsageError: restart markers were added to its JPEGs, and what removes them was not built.
    """
    source, target = as_place(dataset, "the dataset"), as_path(dest, "the destination")
    place = locate_place(source)
    if target.exists() and not target.is_dir():
        raise DestinationError(f"{show_path(target)} exists and is no folder; choose another")
    refuse_dataset(target)
    require_undo(place.info)
    texts = Texts.of(place.folder, place.info)
    if texts is not None and not texts.spec.is_lossless:
        raise DataError(
            f"{show_place(source)} holds ids of a tokenizer that does not keep text as it is: the"
            " original files cannot be written; `shardkit show` prints what the ids say"
        )
    readers = [*place.readers().values()]
    # Files that the manifest itself holds, as YOLO's data.yaml.
    kept = {
        os.fsencode(path): text.encode("utf-8", "surrogatepass")
        for path, text in place.info.provenance.kept_texts.items()
    }
    with (
        os_errors(f"unpacking into {show_path(target)}"),
        Progress("unpacking", progress) as bar,
        _writing(target) as writer,
        ThreadPoolExecutor(allowance().cpus) as pool,
    ):
        if writer.found:
            writer.refuse_others({*kept, *_paths(readers)})
        bar.expect(sum(len(reader.index.table) for reader in readers))
        for reader in readers:
            for start, stop in reader.row_ranges(0, len(reader.index.table)):
                num_bytes = writer.num_bytes
                files = _files(reader, start, stop)
                if has_restarts(place.info):  # each takes 2 ms, most of it without the GIL
                    files = pool.map(_original, files)
                for field, path, offset, value in files:
                    pieces = texts.pieces(value) if texts and field == TOKENS else [value]
                    writer.write(path, offset, pieces)
                bar.add(stop - start, writer.num_bytes - num_bytes)
        writer.join()
        for path, text in kept.items():
            writer.write(path, None, [text])
    if not writer.num_files:
        raise DataError(
            f"{show_place(source)} does not say which files it was packed from;"
            f" `shardkit convert --to {TARS}` makes tars, which `tar xf` unpacks"
        )
    return UnpackResult(target, writer.num_files, writer.num_bytes)


def refuse_dataset(target: Path) -> None:
    """Raise DestinationError for a place in the folder of a dataset: what is put there is lost
    with it, or taken for a part of it."""
    for folder in target.absolute().resolve().parents:
        if os.path.isfile(folder / INDEX_NAME):
            raise DestinationError(
                f"{show_path(target)} lies in the dataset {show_path(folder)}; choose another"
            )


def has_restarts(info: DatasetInfo) -> bool:
    """Return True if a dataset may hold JPEGs that were given restart markers."""
    return info.provenance.has_restarts and FIELD in info.fields


def require_undo(info: DatasetInfo) -> None:
    """Raise UsageError if the dataset holds such JPEGs, and what undoes it was not built."""
    if has_restarts(info):
        restarts.require()


def _paths(readers: list[ShardReader]) -> Iterator[bytes]:
    """Yield the paths of all files that samples came from."""
    for reader in readers:
        for row in range(len(reader.index.table)):
            key, packed = reader.index.name(row)
            fields = [""] * (packed.count(b"\0") + 1)  # how many there are is enough
            for _, path, _ in unpack_paths(key, packed, fields):
                yield path


def _files(reader: ShardReader, start: int, stop: int) -> Iterator[File]:
    """Yield all stored values that came from files."""
    samples = samples_to_undo(reader, start, stop)
    for i, (key, packed) in enumerate(zip(samples.keys, samples.paths, strict=True)):
        values = samples.fields(i)
        for field, path, offset in unpack_paths(key, packed, [*values]):
            yield field, path, offset, values[field]


def _original(file: File) -> File:
    """Return a file as it was before it was given restart markers."""
    field, path, offset, value = file
    try:
        return field, path, offset, without_restarts(value) if field == FIELD else value
    except SampleError as error:
        raise DataError(
            f"{show_path(path)}: its restart markers cannot be removed: {error}"
        ) from error


@contextmanager
def _writing(dest: Path) -> Iterator[_Writer]:
    """Give what writes into a folder, and hold the folder's lock."""
    dest.mkdir(parents=True, exist_ok=True)
    folder = dest.resolve()
    with (
        WorkFolder(dest, dest / WORK_NAME) as work,
        opened(folder) as fd,
        opened(Path(WORK_NAME), within=fd) as work_fd,
    ):
        try:
            work.clear()
            yield _Writer(dest, fd, work_fd)
        finally:
            work.clear()


class _Writer:
    """Writes files below one folder, each once, and compares those that are there.

    A file of which every line was a sample comes in parts. They are appended to a file in the work
    folder as they come, and put in order at the end: a stored offset is only ever compared, so that
    none can make a file larger than its parts.

    Attributes:
        found: paths of what was there, and was not compared yet, and whether it is a file.
    """

    def __init__(self, dest: Path, fd: int, work_fd: int) -> None:
        self._dest, self._fd, self._work_fd = dest, fd, work_fd
        own = os.fsencode(WORK_NAME)
        self.found = {
            path: entry.is_file(follow_symlinks=False)
            for path, entry in entries_below(fd)
            if path.split(b"/")[0] != own and not entry.is_dir(follow_symlinks=False)
        }
        self._folders = {b""}
        self.num_files = self.num_bytes = 0
        self._parts: dict[bytes, tuple[str, array[int]]] = {}
        """Path -> name in the work folder, and offset and bytes of each part, as they came."""

    def refuse_others(self, own: set[bytes]) -> None:
        """Raise DestinationError if something was there that is no file of the dataset."""
        others = [path for path, is_file in self.found.items() if not is_file or path not in own]
        if others:
            raise DestinationError(
                f"{show_path(self._dest)} holds {show_path(min(others))}, which is not of this"
                " dataset; choose an empty folder"
            )

    def write(self, path: bytes, offset: int | None, value: Iterable[Value]) -> None:
        """Write a file, or the part of one at ``offset``; ``value`` comes in pieces."""
        check_path(path)
        if offset is not None:
            name, parts = self._parts.setdefault(path, (str(len(self._parts)), array("q")))
            num_bytes = self._append(name, value)
            parts.extend([offset, num_bytes])
        elif path in self.found:
            num_bytes = self._compare(path, value)
        else:
            num_bytes = self._append(_TEMP, value)
            self._move(_TEMP, path)
        self.num_bytes += num_bytes

    def _append(self, name: str, value: Iterable[Value]) -> int:
        """Write to a file of the work folder; return the bytes."""
        fd = os.open(name, _APPEND, 0o644, dir_fd=self._work_fd)
        num_bytes = 0
        try:
            for piece in value:
                write_full(fd, [piece])
                num_bytes += len(piece)
        finally:
            os.close(fd)
        return num_bytes

    def _compare(self, path: bytes, value: Iterable[Value]) -> int:
        """Return the bytes of a file that was there. Raise DestinationError if it is another."""
        self.found.pop(path)
        with open(os.open(path, _READ, dir_fd=self._fd), "rb") as file:
            is_same = all(file.read(len(piece)) == piece for piece in value)
            num_bytes = file.tell()
            if not is_same or file.read(1):
                raise DestinationError(
                    f"{show_path(self._dest)} holds another {show_path(path)} than this dataset;"
                    " remove it and run the same command again, or choose an empty folder"
                )
        self.num_files += 1
        return num_bytes

    def _move(self, name: str, path: bytes) -> None:
        """Give a file of the work folder its place."""
        try:
            if path.rpartition(b"/")[0] not in self._folders:
                for folder in accumulate(path.split(b"/")[:-1], lambda *two: b"/".join(two)):
                    # By an earlier call; a file is told from it when it is entered.
                    with suppress(FileExistsError):
                        os.mkdir(folder, dir_fd=self._fd)
                    self._folders.add(folder)
            if exists(path, self._fd):
                raise DataError(
                    f"two samples hold the file {show_path(path)}: the dataset is damaged, or was"
                    " made of tars whose splits repeat keys; convert the tars of each split apart"
                )
            os.rename(name, path, src_dir_fd=self._work_fd, dst_dir_fd=self._fd)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise DataError(
                f"stored path {_shortened(path)} of {len(path):,} bytes is longer than this system"
                f" takes; `shardkit convert --to {TARS}` makes tars of any names"
            ) from error
        self.num_files += 1

    def join(self) -> None:
        """Give each file that came in parts its place, its parts in order.

        Raises:
            DataError: two parts overlap.
        """
        for path, (name, flat) in self._parts.items():
            offsets, sizes = np.array(flat, np.int64).reshape(-1, 2).T
            order = np.argsort(offsets, kind="stable")
            at, until = offsets[order], (offsets + sizes)[order]
            if (at[1:] < until[:-1]).any():
                raise DataError(
                    f"two samples hold the same part of {show_path(path)}; the dataset is damaged"
                )
            with open(os.open(name, _READ, dir_fd=self._work_fd), "rb", buffering=0) as parts:
                in_order = _in_order(parts.fileno(), sizes, order)
                if path in self.found:
                    self._compare(path, in_order)
                    continue
                if (order[1:] < order[:-1]).any():
                    name = _TEMP
                    self._append(name, in_order)
            self._move(name, path)


_READ = os.O_RDONLY | os.O_NOFOLLOW
_APPEND = os.O_WRONLY | os.O_NOFOLLOW | os.O_CREAT | os.O_APPEND


def _in_order(fd: int, sizes: Integers, order: Integers) -> Iterator[bytes]:
    """Yield the pieces of an open file, which have these sizes, in another order."""
    starts = np.cumsum(sizes) - sizes
    for i in order.tolist():
        yield pread(fd, int(sizes[i]), int(starts[i]))


def check_path(path: bytes) -> None:
    """Refuse a stored path that is not plainly relative, or is one that unpacking needs itself.

    Raises:
        UnsafePathError: absolute, empty, or with ``..`` or NUL in it.
    """
    parts, fault = path.split(b"/"), ""
    if b"\0" in path or path.startswith(b"/") or any(p in (b"", b".", b"..") for p in parts):
        fault = "would leave the destination"
    elif parts[0] == os.fsencode(WORK_NAME):
        fault = "is where unpacking keeps its own state"
    if fault:
        raise UnsafePathError(f"stored path {_shortened(path)} {fault}; refusing to unpack")


def _shortened(path: bytes) -> str:
    """Return a path for a message: of a long one both ends."""
    return show_path(path if len(path) <= 200 else path[:100] + b"..." + path[-100:])
