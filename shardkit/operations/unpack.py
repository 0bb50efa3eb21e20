"""``unpack``: the original files, under their original names."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Integers
from shardkit.errors import DataError, DestinationError, UnsafePathError
from shardkit.formats import TARS
from shardkit.index.manifest import INDEX_NAME, DatasetInfo
from shardkit.operations.detokenize import Texts
from shardkit.operations.restored import File, has_restarts, require_undo, undoing
from shardkit.operations.unpack_work import (
    LAST_MARKER,
    PIECES,
    WORK_NAME,
    Done,
    UnpackWork,
    refuse_taken,
)
from shardkit.remote.urls import as_place, show_place
from shardkit.samples.encoding import TOKENS
from shardkit.samples.sample import Value, unpack_paths
from shardkit.shards.locate import locate_place
from shardkit.shards.restarted import samples_to_undo
from shardkit.shards.stored import ShardReader
from shardkit.system.full_reads import pread
from shardkit.system.full_writes import write_full
from shardkit.system.paths import as_path, show_path
from shardkit.system.progress import Progress
from shardkit.system.refusals import os_errors


@dataclass(frozen=True)
class UnpackResult:
    """How many files and bytes were written to ``dest``."""

    dest: Path
    num_files: int
    num_bytes: int


@os_errors("unpacking")
def unpack(dataset: str | Path, dest: str | Path, *, progress: bool | None = None) -> UnpackResult:
    """Write every file a dataset was packed from. Labels that came from folder names need no file.

    Call it again after an interruption, even a kill -9, and it goes on. No file has its name before
    it is whole: until all are, they lie in a work folder in ``dest``.

    Args:
        dataset: its folder, or its URL. dest: a folder that does not exist yet, or is empty, or
            where an unpack of the same dataset was interrupted.

    Raises:
        DestinationError: ``dest`` holds something, or lies in a dataset.
        UnsafePathError: a stored path leaves ``dest``.
        DataError: the dataset is damaged, or was not packed from files; or the disk refused.
        UsageError: restart markers were added to its JPEGs, and what removes them was not built.
    """
    source, target = as_place(dataset, "the dataset"), as_path(dest, "the destination")
    place = locate_place(source)
    refuse_taken(target)
    refuse_dataset(target)
    require_undo(place.info)
    texts = Texts.of(place.folder, place.info)
    if texts is not None and not texts.spec.is_lossless:
        raise DataError(
            f"{show_place(source)} holds ids of a tokenizer that does not keep text as it is: the"
            " original files cannot be written; `shardkit show` prints what the ids say"
        )
    readers = [
        ShardReader(place.storage, place.info, split) for split in place.info.splits.values()
    ]
    refusals = os_errors(f"unpacking into {show_path(target)}")
    with (
        refusals,
        Progress("unpacking", progress) as bar,
        UnpackWork(target, _identity(place.info)) as work,
    ):
        bar.expect(sum(len(reader.index.table) for reader in readers))
        if not work.done.is_whole:
            _write_files(work, readers, texts, place.info, bar)
        done = work.done
        if not done.num_files:
            work.discard()
            raise DataError(
                f"{show_place(source)} does not say which files it was packed from;"
                f" `shardkit convert --to {TARS}` makes tars, which `tar xf` unpacks"
            )
        work.settle()
    return UnpackResult(target, done.num_files, done.num_bytes)


def _identity(info: DatasetInfo) -> dict[str, Any]:
    """What is the same of two datasets only if the same files come of them, in the same order."""
    splits = {
        name: [
            split.num_rows,
            split.fingerprint,
            f"{split.files[split.index_file('names')][1]:016x}",
        ]
        for name, split in info.splits.items()
    }
    identity = {"splits": splits, "tokenizer": (info.provenance.tokens or {}).get("xxh3")}
    return identity | ({"restarts": True} if has_restarts(info) else {})


def refuse_dataset(target: Path) -> None:
    """Raises DestinationError for a place in the folder of a dataset: what is put there is lost
    with it, or taken for a part of it."""
    for folder in target.absolute().resolve().parents:
        if os.path.isfile(folder / INDEX_NAME):
            raise DestinationError(
                f"{show_path(target)} lies in the dataset {show_path(folder)}; choose another"
            )


def _kept(info: DatasetInfo) -> dict[bytes, bytes]:
    """Path -> contents of the files that the manifest itself holds, as YOLO's data.yaml."""
    texts = info.provenance.kept_texts
    return {
        os.fsencode(path): text.encode("utf-8", "surrogatepass") for path, text in texts.items()
    }


def _write_files(
    work: UnpackWork,
    readers: list[ShardReader],
    texts: Texts | None,
    info: DatasetInfo,
    bar: Progress,
) -> None:
    """Write all files that are not recorded as done, each whole, and record that."""
    kept = _kept(info)
    with _resumed(work, readers, [*kept]) as writer, undoing(info) as undone:
        before = [len(reader.index.table) for reader in readers[: work.done.split]]
        bar.skip(sum(before) + work.done.row)
        at_end = len(readers), 0
        for number, (split, start, stop) in enumerate(_pieces(readers, work.done), 1):
            num_bytes = writer.num_bytes
            _write_rows(undone(_files(readers[split], start, stop)), writer, texts)
            bar.add(stop - start, writer.num_bytes - num_bytes)
            if number % PIECES == 0:
                work.checkpoint(writer.done(split, stop))
        if writer.has_parts:  # they are put together once, and no row is read again after that
            work.checkpoint(writer.done(*at_end))
            writer.join()
        for path, text in kept.items():  # last of all, as _resumed knows
            writer.write(path, None, [text])
        work.checkpoint(replace(writer.done(*at_end), is_whole=True))


def _resumed(work: UnpackWork, readers: list[ShardReader], kept: list[bytes]) -> _Writer:
    """A writer that goes on from the record; or from the beginning, if what is there is not it."""
    if work.done.num_files and work.has_logs:
        writer = _Writer(work)
        ahead: Iterator[list[bytes]] = (
            [path for _, path, _, _ in _files(readers[split], start, stop)]
            for split, start, stop in _pieces(readers, work.done)
        )
        ahead = chain(ahead, [kept])
        if work.restore(writer.part_bytes(), ahead, work.done.split == len(readers)):
            return writer
        writer.close()
    work.restart()
    return _Writer(work)


def _pieces(readers: list[ShardReader], done: Done) -> Iterator[tuple[int, int, int]]:
    """(split, start, stop) of what is taken at once, from where an earlier call came to."""
    for split, reader in enumerate(readers[done.split :], done.split):
        first = done.row if split == done.split else 0
        for start, stop in reader.row_ranges(first, len(reader.index.table)):
            yield split, start, stop


def _files(reader: ShardReader, start: int, stop: int) -> Iterator[File]:
    """All that came from files."""
    samples = samples_to_undo(reader, start, stop)
    for i, (key, packed) in enumerate(zip(samples.keys, samples.paths, strict=True)):
        values = samples.fields(i)
        for field, path, offset in unpack_paths(key, packed, [*values]):
            yield field, path, offset, values[field]


def _write_rows(files: Iterable[File], writer: _Writer, texts: Texts | None) -> None:
    for field, path, offset, value in files:
        if texts is not None and field == TOKENS:
            writer.write(path, offset, texts.pieces(value))
        else:
            writer.write(path, offset, [value])


class _Writer:
    """Writes files below one folder, each once. A context manager.

    A file of which every line was a sample comes in parts. They are appended to a file elsewhere as
    they come, and put in order at the end: a stored offset is only ever compared, so that none can
    make a file larger than its parts. An empty file keeps the place of each meanwhile. What the
    parts are is in two files of the work folder, ``log`` (:data:`_PART` each) and ``paths`` (ended
    by NUL), so that a later call knows, too.
    """

    def __init__(self, work: UnpackWork) -> None:
        self._work = work
        self._fd = work.fd
        self._folders = {b""}
        self.num_files, self.num_bytes = work.done.num_files, work.done.num_bytes
        self._log, self._paths = work.log.open("ab"), work.paths.open("ab")
        for file, size in (
            (self._log, work.done.log_bytes),
            (self._paths, work.done.paths_bytes),
        ):
            file.truncate(size)
            file.seek(0, os.SEEK_END)
        names = work.paths.read_bytes().split(b"\0")[:-1]
        self._numbers = {name: number for number, name in enumerate(names)}

    @property
    def has_parts(self) -> bool:
        return bool(self._numbers)

    def done(self, split: int, row: int) -> Done:
        """What there is to record when all files of the rows before this one are written."""
        self._log.flush()
        self._paths.flush()
        ends = self._log.tell(), self._paths.tell()
        return Done(split, row, self.num_files, self.num_bytes, *ends)

    def write(self, path: bytes, offset: int | None, value: Iterable[Value]) -> None:
        """Write a file, or the part of one at ``offset``; ``value`` comes in pieces."""
        fd = self._create(path) if offset is None else self._open_part(path)
        num_bytes = 0
        try:
            for piece in value:
                write_full(fd, [piece])
                num_bytes += len(piece)
        finally:
            os.close(fd)
        if offset is not None:
            self._log.write(_PART.pack(self._numbers[path], offset, num_bytes))
        self.num_bytes += num_bytes

    def _create(self, path: bytes) -> int:
        check_path(path)
        try:
            self._make_folder(path.rpartition(b"/")[0])
            fd = os.open(path, _CREATE, 0o644, dir_fd=self._fd)
        except FileExistsError as error:
            raise DataError(
                f"two samples hold the file {show_path(path)}: the dataset is damaged, or was made"
                " of tars whose splits repeat keys; convert the tars of each split apart"
            ) from error
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise DataError(
                f"stored path {_shortened(path)} of {len(path):,} bytes is longer than this system"
                f" takes; `shardkit convert --to {TARS}` makes tars of any names"
            ) from error
        self.num_files += 1
        return fd

    def _make_folder(self, folder: bytes) -> None:
        missing = []
        while folder not in self._folders:
            missing.append(folder)
            folder = folder.rpartition(b"/")[0]
        for one in reversed(missing):
            try:
                os.mkdir(one, dir_fd=self._fd)
            except FileExistsError:  # by an earlier call; a file is told from it when it is entered
                pass
            self._folders.add(one)

    def _open_part(self, path: bytes) -> int:
        number = self._numbers.get(path)
        if number is None:
            os.close(self._create(path))
            number = self._numbers[path] = len(self._numbers)
            self._paths.write(path + b"\0")
        return os.open(self._work.parts / str(number), _APPEND, 0o644)

    def part_bytes(self) -> dict[bytes, int]:
        """Path -> bytes of all parts that are logged, of each file that comes in parts."""
        return {path: int(sizes.sum()) for path, _, sizes in self._parts()}

    def _parts(self) -> Iterator[tuple[bytes, Integers, Integers]]:
        """(path, offsets, sizes) of each file that comes in parts, in the order they came in."""
        self._log.flush()
        log = np.frombuffer(self._work.log.read_bytes(), np.int64)  # fromfile drops read errors
        numbers, offsets, sizes = log.reshape(-1, 3).T
        order = np.argsort(numbers, kind="stable")
        starts = np.searchsorted(numbers[order], np.arange(len(self._numbers) + 1)).tolist()
        for path, (start, stop) in zip(self._numbers, pairwise(starts), strict=True):
            yield path, offsets[order[start:stop]], sizes[order[start:stop]]

    def join(self) -> None:
        """Give each file that came in parts its place, its parts in order.

        Raises:
            DataError: two parts overlap.
        """
        for number, (path, offsets, sizes) in enumerate(self._parts()):
            part = self._work.parts / str(number)
            if not part.exists():  # an earlier call has come this far
                continue
            order = np.argsort(offsets, kind="stable")
            if (offsets[order][1:] < (offsets + sizes)[order][:-1]).any():
                raise DataError(
                    f"two samples hold the same part of {show_path(path)}; the dataset is damaged"
                )
            whole = part
            if (order[1:] < order[:-1]).any():
                whole = part.with_name("ordered")
                _reorder(part, whole, sizes, order)
            os.replace(whole, path, dst_dir_fd=self._fd)
            part.unlink(missing_ok=True)

    def close(self) -> None:
        self._log.close()
        self._paths.close()

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_CREATE = os.O_WRONLY | os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL
_APPEND = os.O_WRONLY | os.O_NOFOLLOW | os.O_CREAT | os.O_APPEND

_PART = struct.Struct("=3q")
"""The file's number, the offset in it, and the bytes of a part."""


def _reorder(old: Path, new: Path, sizes: Integers, order: Integers) -> None:
    """Write the pieces of a file, which have these sizes, in another order."""
    starts = np.cumsum(sizes) - sizes
    with old.open("rb", buffering=0) as source, new.open("wb") as out:
        for i in order.tolist():
            out.write(pread(source.fileno(), int(sizes[i]), int(starts[i])))


def check_path(path: bytes) -> None:
    """Refuse a stored path that is not plainly relative, or is one that unpacking needs itself.

    Raises:
        UnsafePathError: absolute, empty, or with ``..`` or NUL in it.
    """
    parts = path.split(b"/")
    if b"\0" in path or path.startswith(b"/") or any(p in (b"", b".", b"..") for p in parts):
        raise UnsafePathError(
            f"stored path {_shortened(path)} would leave the destination; refusing to unpack"
        )
    if parts[0] in _RESERVED:
        raise UnsafePathError(
            f"stored path {_shortened(path)} is where unpacking keeps its own state; refusing to"
            " unpack"
        )


_RESERVED = frozenset(map(os.fsencode, (WORK_NAME, LAST_MARKER)))


def _shortened(path: bytes) -> str:
    """A path for a message: of a long one both ends."""
    return show_path(path if len(path) <= 200 else path[:100] + b"..." + path[-100:])
