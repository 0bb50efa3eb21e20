"""Files of arrays of which each row belongs to a sample: what is in them, and blocks of their rows.

``.npy`` and idx files of one folder, of which each is a column, are one such "file", too: the
folder. They and ``.safetensors`` are mapped; the others have modules of their own.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shardkit.arrays import Array
from shardkit.errors import CorpusError, FormatError
from shardkit.inputs.containers.idx_files import idx_layout, is_idx_name, map_idx
from shardkit.inputs.containers.pickled_arrays import PICKLED
from shardkit.inputs.containers.row_columns import ArrayColumn, How
from shardkit.memory.maps import mapped
from shardkit.samples.encoding import MAX_NPY_HEADER, holds_pickles, parse_npy
from shardkit.system.full_reads import pread
from shardkit.system.paths import show_path

BLOCK_BYTES = 8 << 20
"""About how much of an array is held at a time."""

_MAX_HEADER = 100_000_000
"""Bytes of the longest header of a .safetensors file, as its own library has it."""

_DTYPES = {
    **{"BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4"},
    **{"I32": "<i4", "U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8"},
    "C64": "<c8",
}
"""safetensors' name of a dtype -> NumPy's."""


ATTRIBUTES = "the attributes of "
"""What stands before a group's or an array's name where its attributes are left out."""


class RowFile(Protocol):
    """A file of arrays, open.

    Attributes:
        columns: the arrays that have rows. left_out: name of anything else -> why.
    """

    columns: list[ArrayColumn]
    left_out: dict[str, str]

    def block(self, name: str, start: int, stop: int) -> Any:
        """Rows [start, stop) of a column: an array of them, in C order; of texts and pictures a
        list of bytes, of ragged ones a list of arrays.

        Raises:
            FormatError: they are damaged.
        """

    def prepare(self) -> None:
        """Check the checksums that the file has, and make what reading needs: once a pack.

        Raises:
            FormatError: the file is damaged. StorageError: the disk is full.
        """


# --- .npy and idx --------------------------------------------------------------------------


class ArrayFolder(RowFile):
    """``.npy`` and idx files of one folder, each a column of its own, by the file's name.

    ``scratch``: where idx files are unpacked to.
    """

    def __init__(self, folder: Path, names: Sequence[str], scratch: Path | None) -> None:
        self.left_out: dict[str, str] = {}
        self.columns = []
        self._folder, self._scratch = folder, scratch
        self._arrays: dict[str, Array] = {}
        for name in names:
            if is_idx_name(name):
                dtype, shape = idx_layout(folder / name)
            else:
                array = map_npy(folder / name)
                if array is None:
                    self.left_out[name] = PICKLED
                    continue
                self._arrays[name] = array
                dtype, shape = array.dtype, array.shape
            column = column_of(name, dtype, shape)
            if column is None:
                self.left_out[name] = NO_ROWS
            else:
                self.columns.append(column)

    def block(self, name: str, start: int, stop: int) -> Any:
        if not is_idx_name(name):
            return rows_of(self._arrays[name], start, stop)
        rows = self._idx(name)[start:stop]
        return np.ascontiguousarray(rows, rows.dtype.newbyteorder("="))

    def prepare(self) -> None:
        for column in self.columns:
            if is_idx_name(column.name):
                self._idx(column.name)

    def _idx(self, name: str) -> Array:
        if name not in self._arrays:
            self._arrays[name] = map_idx(self._folder / name, self._scratch)
        return self._arrays[name]


def map_npy(path: Path) -> Array | None:
    """The array of a ``.npy`` file, read-only; None if it holds pickles.

    Raises:
        FormatError: it is none, or damaged. OSError.
    """
    with path.open("rb") as file:
        view = mapped(file.fileno(), os.fstat(file.fileno()).st_size)
    if holds_pickles(view[:MAX_NPY_HEADER]):
        return None
    try:
        return parse_npy(view)
    except FormatError as error:
        raise FormatError(f"{show_path(path)}: {error}") from error


NO_ROWS = "it has no axis, so no rows"


def column_of(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> ArrayColumn | None:
    """The column that an array of NumPy's is; None if it has no rows. Strings are texts."""
    if not shape:
        return None
    how: How = "txt" if dtype.kind == "U" and len(shape) == 1 else "npy"
    return ArrayColumn(name, shape, dtype, how)


def rows_of(array: Array, start: int, stop: int) -> Any:
    """A :meth:`RowFile.block` of an array."""
    block = array[start:stop]
    if array.dtype.kind != "U" or array.ndim > 1:
        return np.ascontiguousarray(block)
    try:
        return [str(text).encode() for text in block]
    except UnicodeEncodeError as error:
        raise FormatError(f"a text holds half a surrogate pair: {error.reason}") from error


# --- .safetensors -------------------------------------------------------------------------


class SafetensorsFile(RowFile):
    """A mapped ``.safetensors`` file: 8 bytes that say how long the header is, the header in JSON,
    and the arrays end to end."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            header, start = _header(pread(file.fileno(), 8, 0), file.fileno(), size)
            self._data = mapped(file.fileno(), size)[start:]
        self.left_out: dict[str, str] = {}
        self.columns = []
        self._places: dict[str, tuple[int, ArrayColumn]] = {}
        for name, entry in header.items():
            if name == "__metadata__":
                self.left_out[name] = "it is text about the whole file"
                continue
            first, column = _entry(name, entry, len(self._data))
            if column is None:
                self.left_out[name] = NO_ROWS
            else:
                self.columns.append(column)
                self._places[name] = first, column

    def block(self, name: str, start: int, stop: int) -> Any:
        first, column = self._places[name]
        data = self._data[first : first + column.num_bytes]
        return np.frombuffer(data, column.dtype).reshape(column.shape)[start:stop]

    def prepare(self) -> None:
        pass


def _header(head: bytes, fd: int, num_bytes: int) -> tuple[dict[str, Any], int]:
    """The header, and where the arrays begin. Raises FormatError."""
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > min(num_bytes - 8, _MAX_HEADER):
        raise FormatError(f"is damaged: its header would have {length} bytes of {num_bytes}")
    try:
        header = json.loads(pread(fd, length, 8))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"is damaged: its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise FormatError("is damaged: its header is no JSON object")
    return header, 8 + length


def _entry(name: str, entry: Any, num_bytes: int) -> tuple[int, ArrayColumn | None]:
    """Where an array begins, and its column. Raises FormatError, CorpusError."""
    try:
        kind, shape = str(entry["dtype"]), tuple(entry["shape"])
        first, last = entry["data_offsets"]
        is_good = all(type(n) is int and 0 <= n < 2**62 for n in (*shape, first, last))
    except (TypeError, KeyError, ValueError) as error:
        raise FormatError(f"is damaged: {name!r} has no dtype, shape and place") from error
    if is_good and kind not in _DTYPES:
        raise CorpusError(
            f"{name!r} is {kind}, which NumPy has not; save it as F32 (tensor.float())"
        )
    dtype = np.dtype(_DTYPES.get(kind, "|u1"))
    if not is_good or last > num_bytes or last - first != dtype.itemsize * math.prod(shape):
        raise FormatError(f"is damaged: {name!r} is not where its header says")
    return first, column_of(name, dtype, shape)
