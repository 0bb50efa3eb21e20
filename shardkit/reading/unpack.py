"""``unpack``: the original files, under their original names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from shardkit.errors import DataError, DestinationError, UnsafePathError
from shardkit.indexing.locate import locate
from shardkit.progress import Progress
from shardkit.sample import Value, unpack_paths
from shardkit.shards import ShardReader
from shardkit.storage import os_errors, show_path

ROWS = 256
"""Rows read at a time."""


@dataclass(frozen=True)
class UnpackResult:
    """How many files and bytes were written to ``dest``."""

    dest: Path
    num_files: int
    num_bytes: int


def unpack(dataset: str | Path, dest: str | Path, *, progress: bool | None = None) -> UnpackResult:
    """Write every file a dataset was packed from. Labels that came from folder names need no file.

    Args:
        dataset: its folder. dest: a folder that does not exist yet, or is empty.

    Raises:
        DestinationError: ``dest`` holds something. UnsafePathError: a stored path leaves ``dest``.
        DataError: the dataset is damaged, or was not packed from files.
    """
    source, target = Path(dataset), Path(dest)
    place = locate(source)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DestinationError(
            f"{show_path(target)} exists and is not an empty folder; choose another"
        )
    writer = _Writer(target)
    with os_errors(f"unpacking into {show_path(target)}"), Progress("unpacking", progress) as bar:
        target.mkdir(parents=True, exist_ok=True)
        bar.expect(sum(split.num_rows for split in place.info.splits.values()))
        for split in place.info.splits.values():
            reader = ShardReader(place.folder, place.info, split)
            for start in range(0, split.num_rows, ROWS):
                before = writer.num_bytes
                stop = min(start + ROWS, split.num_rows)
                _write_rows(reader, start, stop, writer)
                bar.add(stop - start, writer.num_bytes - before)
    if not writer.paths:
        raise DataError(
            f"{show_path(source)} does not say which files it was packed from;"
            " `shardkit convert --to webdataset` makes tars, which `tar xf` unpacks"
        )
    return UnpackResult(target, len(writer.paths), writer.num_bytes)


def _write_rows(reader: ShardReader, start: int, stop: int, writer: _Writer) -> None:
    samples = reader.samples(start, stop)
    for i, (key, packed) in enumerate(zip(samples.keys, samples.paths, strict=True)):
        values = samples.fields(i)
        for field, path, offset in unpack_paths(key, packed, [*values]):
            writer.write(path, offset, values[field])


class _Writer:
    """Writes files below one folder, each made once; parts of a file at their offsets."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.fsencode(folder)
        self._folders: set[bytes] = set()
        self.paths: set[bytes] = set()
        self.num_bytes = 0

    def write(self, path: bytes, offset: int | None, value: Value) -> None:
        check_path(path)
        whole = os.path.join(self._folder, path)
        parent = os.path.dirname(whole)
        if parent not in self._folders:
            os.makedirs(parent, exist_ok=True)
            self._folders.add(parent)
        new = path not in self.paths
        if not new and offset is None:
            raise DataError(f"two samples hold the file {show_path(path)}; the dataset is damaged")
        flags = os.O_WRONLY | os.O_NOFOLLOW | (os.O_CREAT | os.O_EXCL if new else 0)
        fd = os.open(whole, flags, 0o644)
        try:
            _write_all(fd, memoryview(value), offset or 0)
        finally:
            os.close(fd)
        self.paths.add(path)
        self.num_bytes += len(value)


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    while len(data):
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done


def check_path(path: bytes) -> None:
    """Refuse a stored path that is not plainly relative.

    Raises:
        UnsafePathError: absolute, empty, or with ``..`` or NUL in it.
    """
    parts = path.split(b"/")
    if b"\0" in path or path.startswith(b"/") or any(p in (b"", b".", b"..") for p in parts):
        raise UnsafePathError(
            f"stored path {show_path(path)} would leave the destination; refusing to unpack"
        )
