"""hdf5: the columns of :mod:`shardkit.formats.columns` as datasets of one file.

h5py only lays the file out: contiguous datasets whose space is given at once and never filled.
Their place in the file is then known, the file is closed, and the bytes go there by plain writes
(h5py slices cost 10 us each, this under 0.3 us a value). With ``compression``, arrays of fixed
shape are chunked instead, one row a chunk, so that a row is still one byte range of the file.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.errors import FormatError, StorageError
from shardkit.formats.columns import Column, FieldColumns, lay_out_all, moved
from shardkit.formats.format import Extents, Format
from shardkit.formats.writev import write_all
from shardkit.samples.encoding import Encoding
from shardkit.samples.sample import KEY, Value
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

MIN_CHUNK_BYTES = 256
"""Smaller rows are never compressed: a chunk costs some 50 bytes of index and 4 us."""

MAX_CHUNK_BYTES = 2**32 - 1
"""HDF5's limit of a chunk; larger rows are not compressed."""

READABLE_SINCE = ("earliest", "v108")
"""Objects as HDF5 1.8 reads them; HDF5 2.0 would otherwise write newer ones."""


class Hdf5Format(Format):
    """One HDF5 file a shard; see :class:`shardkit.formats.format.Format`."""

    name = "hdf5"
    aliases = ("h5",)
    suffix = "h5"
    library = "h5py"
    has_typed_arrays = True
    compresses_from = MIN_CHUNK_BYTES

    def open_with(self, path: str) -> str:
        return f"h5py.File({path!r})"

    def example(self, folder: str, stems: Sequence[str], field: str, encoding: Encoding) -> str:
        path = os.path.join(folder, f"{stems[0]}.{self.suffix}")
        opened = f"import h5py\nwith h5py.File({path!r}, 'r') as file:\n"
        if encoding.kind in ("int", "array"):
            return f"{opened}    value = file[{field!r}][0]"
        offsets = f"{field}.offsets"
        as_bytes = ".tobytes()" if encoding.kind == "bytes" else ""
        return (
            f"{opened}    first, last = file[{offsets!r}][:2]\n"
            f"    value = file[{field!r}][first:last]{as_bytes}"
        )

    def write(
        self,
        folder: Path,
        stem: str,
        keys: list[bytes],
        columns: dict[str, list[Value | None]],
        compression: int | None,
    ) -> dict[str, Extents]:
        path = folder / f"{stem}.{self.suffix}"
        extents: dict[str, Extents] = {}
        later: list[tuple[int, Column]] = []
        with _hdf5_errors(path), _created(path) as file:
            for field, laid in lay_out_all(keys, columns):
                values, *others = laid.columns
                if _compresses(laid.extents.encoding, compression):
                    extents[field] = _write_chunks(file, laid, compression or 0)
                else:
                    start = _reserve(file, values)
                    extents[field] = moved(laid.extents, start)
                    later.append((start, values))
                later += [(_reserve(file, column), column) for column in others]
        with os_errors(f"writing {show_path(path)}"):
            _fill(path, later)
        del extents[KEY]
        return extents


@contextmanager
def _created(path: Path) -> Iterator[Any]:
    import h5py

    # Nobody else knows this file yet, and some network file systems cannot lock.
    with h5py.File(path, "w", libver=READABLE_SINCE, locking=False) as file:
        yield file


@contextmanager
def _hdf5_errors(path: Path) -> Iterator[None]:
    """h5py says RuntimeError or OSError, with errno in its words alone."""
    with os_errors(f"writing {show_path(path)}"):
        try:
            yield
        except (RuntimeError, OSError) as error:
            if found := re.search(r"errno = (\d+)", str(error)):
                raise OSError(int(found[1]), os.strerror(int(found[1]))) from error
            if isinstance(error, OSError):
                raise
            raise StorageError(f"writing {show_path(path)}: HDF5 failed: {error}") from error


def _create(file: Any, column: Column, properties: Any) -> Any:
    from h5py import h5d, h5s, h5t

    properties.set_obj_track_times(False)
    dtype = h5t.py_create(np.dtype(column.dtype), logical=True)
    space = h5s.create_simple(column.shape)
    return h5d.create(file.id, column.name.encode(), dtype, space, properties)


def _reserve(file: Any, column: Column) -> int:
    """Create a contiguous dataset; returns where its data shall go (0 if it has none)."""
    from h5py import h5d, h5p

    properties = h5p.create(h5p.DATASET_CREATE)
    properties.set_layout(h5d.CONTIGUOUS)
    properties.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5d.FILL_TIME_NEVER)
    return _create(file, column, properties).get_offset() or 0


def _fill(path: Path, columns: list[tuple[int, Column]]) -> None:
    with path.open("r+b") as file:
        for start, column in columns:
            write_all(file.fileno(), column.data, start)


def _compresses(encoding: Encoding, compression: int | None) -> bool:
    if not compression or encoding.kind != "array":
        return False
    return MIN_CHUNK_BYTES <= encoding.nbytes <= MAX_CHUNK_BYTES


def _write_chunks(file: Any, laid: FieldColumns, level: int) -> Extents:
    """Write each present row as a chunk of its own; absent ones have no chunk and read as zeros."""
    from h5py import h5p

    column, encoding = laid.columns[0], laid.extents.encoding
    properties = h5p.create(h5p.DATASET_CREATE)
    properties.set_chunk((1, *encoding.shape))
    properties.set_deflate(level)
    dataset = _create(file, column, properties)
    rest = (0,) * len(encoding.shape)
    for row, (value, size) in enumerate(zip(column.data, laid.extents.size.tolist(), strict=True)):
        if size >= 0:
            dataset.write_direct_chunk((row, *rest), zlib.compress(value, level))
    return _chunk_places(dataset, laid, Encoding("array", encoding.dtype, encoding.shape, "zlib"))


def _chunk_places(dataset: Any, laid: FieldColumns, encoding: Encoding) -> Extents:
    start = np.zeros_like(laid.extents.start)
    size = np.full_like(laid.extents.size, -1)

    def note(chunk: Any) -> None:
        row = chunk.chunk_offset[0]
        start[row], size[row] = chunk.byte_offset, chunk.size

    dataset.chunk_iter(note)
    if not np.array_equal(size >= 0, laid.extents.size >= 0):
        raise FormatError(f"HDF5 lost chunks of {laid.columns[0].name}; please report this")
    return Extents(start, size, encoding)
