"""``.npy``, idx, ``.safetensors`` and ``.npz`` files. What is stored plainly is mapped; what is
compressed is unpacked into the work folder, once per pack."""

from __future__ import annotations

import json
import os
import shutil
import struct
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path

import numpy as np
import xxhash

from shardkit.arrays import Array
from shardkit.errors import CorpusError, FormatError
from shardkit.inputs.endings import HDF5_EXTENSIONS, NPZ, SAFETENSORS
from shardkit.inputs.files import input_stamp
from shardkit.inputs.lines import plain_copy, refuse_bomb
from shardkit.inputs.names import extension
from shardkit.inputs.rows.row_columns import LOOK_ROWS, PICKLED, ArrayFile, damage, is_idx_name
from shardkit.memory.maps import mapped
from shardkit.samples.encoding import MAX_NPY_HEADER, holds_pickles, npy_layout, parse_npy
from shardkit.system.durable_files import appearing
from shardkit.system.paths import show_path
from shardkit.tars.members import GZIP

BLOCK_BYTES = 8 << 20
"""About how much of an array is held at a time."""

_MAX_HEADER = 100_000_000
"""Bytes of the longest header of a .safetensors file, as its own library has it."""

_SAFETENSORS = {
    **{"BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4"},
    **{"I32": "<i4", "U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8"},
    "C64": "<c8",
}
"""safetensors' name of a dtype -> NumPy's."""

_IDX = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_IDX_AXES = 32
"""Most axes of an idx file: as many as NumPy had before 2.0."""


@contextmanager
def open_arrays(
    path: Path, names: Sequence[str] | None, scratch: Path, stamp: int = 0
) -> Iterator[ArrayFile]:
    """Open a file of arrays, or of a folder the ``.npy`` and idx files of these names.

    Args:
        names: columns that will be read; None for all of a file. scratch: a folder for unpacked
            copies. stamp: the file's, by which its copies are named.

    Raises:
        FormatError: the file is damaged; says which. CorpusError: it cannot be packed as it is.
        OSError.
    """
    ending = extension(path.name)
    with _naming(path), ExitStack() as stack:
        with damage():
            if path.is_dir():
                made: ArrayFile = ArrayFolder(path, names or [], scratch)
            elif ending == SAFETENSORS:
                made = SafetensorsFile(path)
            elif ending == NPZ:
                made = NpzFile(path, stack, names, scratch, stamp)
            elif ending in HDF5_EXTENSIONS:
                from shardkit.inputs.rows.hdf5_rows import Hdf5File

                made = Hdf5File(path, stack)
            else:
                made = ArrayFolder(path.parent, [path.name], scratch)
        yield made


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put a file's name before what is wrong with it."""
    try:
        yield
    except (FormatError, CorpusError) as error:
        if str(error).startswith(show_path(path)):
            raise
        raise type(error)(f"{show_path(path)}: {error}") from error


def _map_file(path: Path) -> memoryview:
    with path.open("rb") as file:
        return mapped(file.fileno(), os.fstat(file.fileno()).st_size)


# --- .npy and idx -------------------------------------------------------------------------


class ArrayFolder(ArrayFile):
    """``.npy`` and idx files of one folder, each a column called by the file's name."""

    def __init__(self, folder: Path, names: Sequence[str], scratch: Path) -> None:
        super().__init__()
        self._arrays: dict[str, Array] = {}
        for name in names:
            with _naming(folder / name), damage():
                view = _map_file(folder / name)
                if holds_pickles(view[:MAX_NPY_HEADER]):
                    self.left_out[name] = PICKLED
                    continue
                is_idx = is_idx_name(name)
                array = _idx_array(folder / name, view, scratch) if is_idx else parse_npy(view)
            self._arrays[name] = array
            dtype = array.dtype.newbyteorder("=") if is_idx else array.dtype
            self.add(name, dtype, array.shape, array[:LOOK_ROWS] if array.ndim else None)

    def array(self, name: str) -> Array:
        return self._arrays[name]


def _idx_array(path: Path, data: memoryview, scratch: Path) -> Array:
    """Return the array of one of MNIST's files, plain or compressed: two zero bytes, a byte for the
    type, one for the number of axes, each axis as a big-endian integer, and the values."""
    if data[:2] == GZIP:  # whatever it is called: browsers unpack without being asked
        data = _map_file(plain_copy(path, os.path.abspath(path), input_stamp(path), scratch))
    head = bytes(data[:4])
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _IDX or head[3] > _IDX_AXES:
        raise FormatError(f"is no idx file: it begins with {bytes(data[:8])!r}; fetch it again")
    start = 4 + 4 * data[3]
    shape = [int.from_bytes(data[i : i + 4]) for i in range(4, min(start, len(data)), 4)]
    dtype = np.dtype(_IDX[data[2]])
    if len(data) != start + dtype.itemsize * prod(shape):
        raise FormatError(
            f"is damaged: it has {len(data):,} bytes, which does not fit {dtype.name} of {shape};"
            " fetch it again"
        )
    return np.ndarray(shape, dtype, data, start)


# --- .safetensors -------------------------------------------------------------------------


class SafetensorsFile(ArrayFile):
    """A ``.safetensors`` file: 8 bytes that say how long the header is, the header in JSON, and the
    arrays end to end."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        view = _map_file(path)
        length = int.from_bytes(view[:8], "little")
        if len(view) < 8 or length > min(len(view) - 8, _MAX_HEADER):
            raise FormatError(f"is damaged: a header of {length} bytes in a file of {len(view)}")
        header = json.loads(bytes(view[8 : 8 + length]))
        self._data, self._starts = view[8 + length :], dict[str, int]()
        for name, entry in dict(header).items():
            if name == "__metadata__":
                self.left_out[name] = "it is text about the whole file"
                continue
            kind, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]
            if kind not in _SAFETENSORS:
                raise CorpusError(f"{name!r} is {kind}, which NumPy has not; save tensor.float()")
            dtype = np.dtype(_SAFETENSORS[kind])
            are_numbers = all(type(n) is int and 0 <= n < 2**62 for n in (*shape, first, last))
            size = dtype.itemsize * prod(shape) if are_numbers else -1
            if last - first != size or last > len(self._data):
                raise FormatError(f"is damaged: {name!r} is not where its header says")
            self._starts[name] = first
            self.add(name, dtype, tuple(shape))

    def array(self, name: str) -> Array:
        dtype, shape = self.columns[name].dtype, self.columns[name].shape
        data = self._data[self._starts[name] :][: dtype.itemsize * prod(shape)]
        return np.frombuffer(data, dtype).reshape(shape)


# --- .npz ---------------------------------------------------------------------------------


class NpzFile(ArrayFile):
    """A zip of ``.npy`` files."""

    def __init__(
        self, path: Path, stack: ExitStack, names: Sequence[str] | None, scratch: Path, stamp: int
    ) -> None:
        super().__init__()
        self._path, self._scratch, self._stamp = path, scratch, stamp
        self._arrays: dict[str, Array] = {}
        self._zip = stack.enter_context(zipfile.ZipFile(stack.enter_context(path.open("rb"))))
        infos = self._zip.infolist()
        refuse_bomb(sum(info.file_size for info in infos), path.stat().st_size)
        for name in [info.filename for info in infos if names is None or info.filename in names]:
            if not name.endswith(".npy"):
                self.left_out[name] = "it is no .npy file"
                continue
            with self._zip.open(name) as member:
                head = member.read(MAX_NPY_HEADER)
                if holds_pickles(memoryview(head)):
                    self.left_out[name] = PICKLED
                    continue
                dtype, shape, start = npy_layout(head)
                num_first = min(LOOK_ROWS, prod(shape)) if dtype.kind in "SV" else 0
                first = head[start:] + member.read(num_first * dtype.itemsize)
            self.add(name, dtype, shape, np.frombuffer(first, dtype, num_first))

    def array(self, name: str) -> Array:
        if name not in self._arrays:
            info = self._zip.getinfo(name)
            if info.compress_type == zipfile.ZIP_STORED:
                view = _map_file(self._path)
                local = view[info.header_offset :][:30]  # the member's own header
                start = info.header_offset + 30 + sum(struct.unpack("<26xHH", local))
                view = view[start : start + info.file_size]
            else:
                view = _map_file(self._copy(info))
            self._arrays[name] = parse_npy(view)
        return self._arrays[name]

    def prepare(self) -> None:
        with damage():
            for name in self.columns:
                self.array(name)
                if self._zip.getinfo(name).compress_type == zipfile.ZIP_STORED:
                    with self._zip.open(name) as member:  # zipfile compares the checksum
                        while member.read(BLOCK_BYTES):
                            pass

    def _copy(self, info: zipfile.ZipInfo) -> Path:
        """Return the member's unpacked copy, made if it is not there."""
        self._scratch.mkdir(exist_ok=True)
        named = f"{os.path.abspath(self._path)}\0{info.filename}\0{self._stamp}"
        done = self._scratch / f"{xxhash.xxh3_64_hexdigest(os.fsencode(named))}.npy"
        if not done.exists():
            with appearing(done) as out, self._zip.open(info) as member:
                shutil.copyfileobj(member, out, BLOCK_BYTES)
        return done
