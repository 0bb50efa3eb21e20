"""``.npz`` files: zips of ``.npy`` files. What is stored as it is, is mapped; what is compressed is
unpacked once a pack, into a file of its own."""

from __future__ import annotations

import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash

from shardkit.arrays import Array
from shardkit.errors import FormatError, StorageError
from shardkit.inputs.containers.pickled_arrays import PICKLED
from shardkit.inputs.containers.row_columns import ArrayColumn
from shardkit.inputs.containers.row_files import (
    BLOCK_BYTES,
    NO_ROWS,
    RowFile,
    column_of,
    rows_of,
)
from shardkit.inputs.lines import refuse_bomb
from shardkit.memory.maps import mapped
from shardkit.samples.encoding import MAX_NPY_HEADER, holds_pickles, npy_layout, parse_npy
from shardkit.system.durable_files import appearing
from shardkit.system.full_reads import pread
from shardkit.system.paths import show_path

_LOCAL = struct.Struct("<26xHH")
"""A member's own header: at its end, how long its name and its extra field are."""

_SPARE_BYTES = 256 << 20
"""Left free on the disk that is unpacked to."""

_ENCRYPTED = 1


@contextmanager
def open_npz(
    path: Path, names: Sequence[str] | None, scratch: Path | None, stamp: int
) -> Iterator[NpzFile]:
    """Open a ``.npz``; arguments and errors as of
    :func:`shardkit.inputs.containers.open_rows.open_rows`."""
    with path.open("rb") as file:
        with _damage():
            members = zipfile.ZipFile(file)
        with members:
            yield NpzFile(path, members, names, scratch, stamp)


class NpzFile(RowFile):
    """An open ``.npz``."""

    def __init__(
        self,
        path: Path,
        members: zipfile.ZipFile,
        names: Sequence[str] | None,
        scratch: Path | None,
        stamp: int,
    ) -> None:
        self.columns: list[ArrayColumn] = []
        self.left_out: dict[str, str] = {}
        self._path = path
        self._members = members
        self._scratch = scratch
        self._stamp = stamp
        self._arrays: dict[str, Array] = {}
        refuse_bomb(sum(info.file_size for info in members.infolist()), path.stat().st_size)
        for info in members.infolist():
            if names is None or info.filename in names:
                self._add(info)

    def _add(self, info: zipfile.ZipInfo) -> None:
        name = info.filename
        if not name.endswith(".npy"):
            self.left_out[name] = "it is no .npy file"
            return
        if info.flag_bits & _ENCRYPTED:
            raise FormatError(f"{name!r} is encrypted; save it without a password")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise FormatError(f"{name!r} is compressed as NumPy never does; save it again")
        head = self._head(info)
        if holds_pickles(memoryview(head)):
            self.left_out[name] = PICKLED
            return
        dtype, shape = _layout(info, head)
        column = column_of(name, dtype, shape)
        if column is None:
            self.left_out[name] = NO_ROWS
        elif name in (other.name for other in self.columns):
            raise FormatError(f"is damaged: it holds {name!r} twice")
        else:
            self.columns.append(column)

    def _head(self, info: zipfile.ZipInfo) -> bytes:
        with _damage(), self._members.open(info) as member:
            return member.read(MAX_NPY_HEADER)

    def prepare(self) -> None:
        for column in self.columns:
            info = self._members.getinfo(column.name)
            if _is_stored(info):
                self._unpack(info, None)
            else:
                self._copy(info)

    def block(self, name: str, start: int, stop: int) -> Any:
        if name not in self._arrays:
            info = self._members.getinfo(name)
            view = self._map_stored(info) if _is_stored(info) else self._map_copy(info)
            self._arrays[name] = parse_npy(view)
        return rows_of(self._arrays[name], start, stop)

    def _map_stored(self, info: zipfile.ZipInfo) -> memoryview:
        with self._path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            local = pread(file.fileno(), _LOCAL.size, info.header_offset)
            if len(local) < _LOCAL.size:
                raise FormatError(f"is damaged: {info.filename!r} is not where its index says")
            start = info.header_offset + _LOCAL.size + sum(_LOCAL.unpack(local))
            view = mapped(file.fileno(), size)[start : start + info.file_size]
        if len(view) != info.file_size:
            raise FormatError(f"is damaged: it ends within {info.filename!r}")
        return view

    def _map_copy(self, info: zipfile.ZipInfo) -> memoryview:
        if self._scratch is None:  # little is read: labels, to see whether they are some
            with _damage(), self._members.open(info) as member:
                return memoryview(member.read())
        with self._copy(info).open("rb") as file:
            return mapped(file.fileno(), info.file_size)

    def _copy(self, info: zipfile.ZipInfo) -> Path:
        """The member's decompressed copy, made if it is not there; it appears when it is whole."""
        folder = self._scratch or Path()
        folder.mkdir(exist_ok=True)
        named = f"{os.path.abspath(self._path)}\0{info.filename}\0{self._stamp}"
        done = folder / f"{xxhash.xxh3_64_hexdigest(os.fsencode(named))}.npy"
        if done.exists():
            return done
        _require_space(folder, info)
        with appearing(done) as out:
            self._unpack(info, out)
        return done

    def _unpack(self, info: zipfile.ZipInfo, out: IO[bytes] | None) -> None:
        """Read a member whole: zipfile compares its checksum at the end."""
        with _damage(), self._members.open(info) as member:
            while block := member.read(BLOCK_BYTES):
                if out is not None:
                    out.write(block)


def _layout(info: zipfile.ZipInfo, head: bytes) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The dtype and shape of a member that begins so. Raises FormatError."""
    try:
        dtype, shape, start = npy_layout(head)
    except FormatError as error:
        raise FormatError(f"{info.filename!r}: {error}") from error
    if not dtype.itemsize or info.file_size - start != dtype.itemsize * math.prod(shape):
        raise FormatError(f"{info.filename!r}: .npy data that does not fit {dtype}{shape}")
    return dtype, shape


def _is_stored(info: zipfile.ZipInfo) -> bool:
    return info.compress_type == zipfile.ZIP_STORED


def _require_space(folder: Path, info: zipfile.ZipInfo) -> None:
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < info.file_size + min(_SPARE_BYTES, disk.f_blocks * disk.f_frsize // 20):
        raise StorageError(
            f"{info.filename!r} unpacks to {info.file_size:,} bytes, and {show_path(folder)} has"
            f" {free:,} free; free some space, or give another destination"
        )


@contextmanager
def _damage() -> Iterator[None]:
    """What zipfile raises of a damaged zip, as a FormatError."""
    try:
        yield
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
        struct.error,
        ValueError,
        KeyError,
    ) as error:
        raise FormatError(f"is damaged: {error}; fetch or write it again") from error
