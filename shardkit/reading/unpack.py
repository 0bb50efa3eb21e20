"""``unpack``: the original files, under their original names."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.encoding import TOKENS
from shardkit.errors import DataError, DestinationError, UnsafePathError
from shardkit.index import INDEX_NAME
from shardkit.indexing.locate import locate
from shardkit.progress import Progress
from shardkit.reading.detokenize import Texts
from shardkit.sample import Value, unpack_paths
from shardkit.shards import ShardReader
from shardkit.storage import as_path, os_errors, pread, show_path

Sizes = np.ndarray[Any, np.dtype[np.int64]]


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
        DestinationError: ``dest`` holds something, or lies in a dataset.
        UnsafePathError: a stored path leaves ``dest``.
        DataError: the dataset is damaged, or was not packed from files.
    """
    source, target = as_path(dataset, "the dataset"), as_path(dest, "the destination")
    place = locate(source)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DestinationError(
            f"{show_path(target)} exists and is not an empty folder; choose another"
        )
    _refuse_dataset(target)
    texts = Texts.of(place.folder, place.info)
    if texts is not None and not texts.spec.is_lossless:
        raise DataError(
            f"{show_path(source)} holds ids of a tokenizer that does not keep text as it is: the"
            " original files cannot be written; `shardkit show` prints what the ids say"
        )
    writer = _Writer(target)
    readers = [ShardReader(place.folder, place.info, split) for split in place.info.splits.values()]
    name = show_path(target)
    refusals = os_errors(f"unpacking into {name}", f"remove {name} before unpacking again")
    with refusals, Progress("unpacking", progress) as bar:
        target.mkdir(parents=True, exist_ok=True)
        bar.expect(sum(len(reader.index.table) for reader in readers))
        for reader in readers:
            for start, stop in reader.pieces(0, len(reader.index.table)):
                before = writer.num_bytes
                _write_rows(reader, start, stop, writer, texts)
                bar.add(stop - start, writer.num_bytes - before)
        writer.close()
    if not writer.num_files:
        raise DataError(
            f"{show_path(source)} does not say which files it was packed from;"
            " `shardkit convert --to webdataset` makes tars, which `tar xf` unpacks"
        )
    return UnpackResult(target, writer.num_files, writer.num_bytes)


def _refuse_dataset(target: Path) -> None:
    """What is put into the folder of a dataset is lost with it, or taken for a part of it."""
    for folder in target.absolute().resolve().parents:
        if os.path.isfile(folder / INDEX_NAME):
            raise DestinationError(
                f"{show_path(target)} lies in the dataset {show_path(folder)}; choose another"
            )


def _write_rows(
    reader: ShardReader, start: int, stop: int, writer: _Writer, texts: Texts | None
) -> None:
    samples = reader.samples(start, stop)
    for i, (key, packed) in enumerate(zip(samples.keys, samples.paths, strict=True)):
        values = samples.fields(i)
        for field, path, offset in unpack_paths(key, packed, [*values]):
            if texts is not None and field == TOKENS:
                writer.write(path, offset, texts.pieces(values[field]))
            else:
                writer.write(path, offset, [values[field]])


class _Writer:
    """Writes files below one folder, each once.

    A file of which every line was a sample comes in parts. They are appended as they come and, if
    that was not their order, put in order at the end: a stored offset is only ever compared, so
    that none can make a file larger than its parts.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = os.fsencode(folder)
        self._folders: set[bytes] = set()
        self._parts: dict[bytes, array[int]] = {}
        self.num_files = 0
        self.num_bytes = 0

    def write(self, path: bytes, offset: int | None, value: Iterable[Value]) -> None:
        """Write a file, or the part of one at ``offset``; ``value`` comes in pieces."""
        parts = self._parts.get(path) if offset is not None else None
        whole = self._make_folder(path) if parts is None else os.path.join(self._folder, path)
        flags = os.O_CREAT | os.O_EXCL if parts is None else os.O_APPEND
        num_bytes = 0
        try:
            fd = os.open(whole, os.O_WRONLY | os.O_NOFOLLOW | flags, 0o644)
        except FileExistsError as error:
            raise DataError(
                f"two samples hold the file {show_path(path)}; the dataset is damaged"
            ) from error
        try:
            for piece in value:
                _write_all(fd, memoryview(piece))
                num_bytes += len(piece)
        finally:
            os.close(fd)
        if offset is not None:
            self._parts.setdefault(path, array("q")).extend((offset, num_bytes))
        self.num_files += parts is None
        self.num_bytes += num_bytes

    def _make_folder(self, path: bytes) -> bytes:
        check_path(path)
        whole = os.path.join(self._folder, path)
        parent = os.path.dirname(whole)
        if parent not in self._folders:
            os.makedirs(parent, exist_ok=True)
            self._folders.add(parent)
        return whole

    def close(self) -> None:
        """Put the parts of each file in order.

        Raises:
            DataError: two parts overlap.
        """
        for path, numbers in self._parts.items():
            offsets, sizes = np.array(numbers, np.int64).reshape(-1, 2).T
            order = np.argsort(offsets, kind="stable")
            if (offsets[order][1:] < (offsets + sizes)[order][:-1]).any():
                raise DataError(
                    f"two samples hold the same part of {show_path(path)}; the dataset is damaged"
                )
            if (order[1:] < order[:-1]).any():
                _reorder(os.path.join(self._folder, path), sizes, order)


def _reorder(path: bytes, sizes: Sizes, order: Sizes) -> None:
    """Rewrite a file with its pieces, which have these sizes, in another order."""
    starts = np.cumsum(sizes) - sizes
    with open(path, "rb", buffering=0) as old:
        os.unlink(path)
        with open(path, "xb") as new:
            for i in order.tolist():
                new.write(pread(old.fileno(), int(sizes[i]), int(starts[i])))


def _write_all(fd: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(fd, data) :]


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
