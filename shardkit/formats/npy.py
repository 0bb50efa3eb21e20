"""npy: the columns of :mod:`shardkit.formats.columns`, each a ``.npy`` file of its own.

``np.load("train-00000.jpg.npy", mmap_mode="r")`` reads one; NumPy's header comes first, so a
value's place is the length of that header further on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from shardkit.formats.columns import Column, lay_out_all, moved
from shardkit.formats.format import Extents, Format
from shardkit.formats.writev import write_all
from shardkit.samples.encoding import Encoding, npy_header
from shardkit.samples.sample import KEY, Value
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors


class NpyFormat(Format):
    """One ``.npy`` file a column; see :class:`shardkit.formats.format.Format`."""

    name = "npy"
    suffix = "npy"
    library = "numpy"
    has_typed_arrays = True

    def open_with(self, path: str) -> str:
        return f"numpy.load({path!r}, mmap_mode='r')"

    def example(self, folder: str, stems: Sequence[str], field: str, encoding: Encoding) -> str:
        values = self.open_with(os.path.join(folder, self.file_of(stems[0], field)))
        if encoding.kind in ("int", "array"):
            return f"import numpy\nvalue = {values}[0]"
        offsets = self.open_with(os.path.join(folder, self.file_of(stems[0], f"{field}.offsets")))
        as_bytes = ".tobytes()" if encoding.kind == "bytes" else ""
        return f"import numpy\nfirst, last = {offsets}[:2]\nvalue = {values}[first:last]{as_bytes}"

    def file_of(self, stem: str, field: str) -> str:
        return f"{stem}.{field}.{self.suffix}"

    def write(
        self,
        folder: Path,
        stem: str,
        keys: list[bytes],
        columns: dict[str, list[Value | None]],
        compression: int | None,
    ) -> dict[str, Extents]:
        extents = {}
        for field, laid in lay_out_all(keys, columns):
            header = [_write_npy(folder / self.file_of(stem, c.name), c) for c in laid.columns]
            extents[field] = moved(laid.extents, header[0])
        del extents[KEY]
        return extents


def _write_npy(path: Path, column: Column) -> int:
    """Write one file; returns the length of its header."""
    header = npy_header(column.dtype, column.shape)
    with os_errors(f"writing {show_path(path)}"), path.open("wb") as out:
        write_all(out.fileno(), chain([header], column.data), 0)
    return len(header)
