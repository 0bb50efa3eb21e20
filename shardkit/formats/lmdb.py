"""lmdb: one LMDB file a shard, values at ``{row:08d}.{field}``, the key at ``{row:08d}.__key__``.

The library writes it. Where each value lies is then read off the pages of the finished file
(asking the library for each value would cost as much again as writing it): values lie in leaf
pages, or, when large, in overflow pages of their own. Only the LMDB 0.9 file format is written;
LMDB 1.0's is another one, which 0.9 cannot read.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Integers
from shardkit.errors import FormatError, StorageError
from shardkit.formats.columns import all_fields, sizes_of
from shardkit.formats.format import Extents, Format, Listed
from shardkit.formats.lmdb_pages import MAX_PAGE_BYTES, PAGE_HEADER, read_leaves
from shardkit.samples.encoding import BYTES, Encoding
from shardkit.samples.sample import Value
from shardkit.storage.local_files import Folder
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

MAX_VALUE_BYTES = 2**32 - 1
"""LMDB's own limit."""

MAX_ROWS = 10**8
"""Rows have eight digits, so that their keys sort as numbers do."""

TXN_BYTES = 2 << 20
"""A transaction holds its pages in memory until its commit. At 16 MiB, values of 110 KB took
twice as long: that memory has left the caches, and is fresh from the system each time."""

VALUE_COST = 256
"""What a value costs besides its bytes, in Python objects and in its node."""

SIGNPOST = "data.mdb"
"""What ``lmdb.open(folder)`` opens, and makes if it is not there: an empty database, in a folder
of data. It refuses a file of that name that is none of its own, and writes nothing."""

_SIGNPOST_TEXT = b"""\
This is not a database: it makes lmdb.open() refuse this folder, in which it would else make an
empty one. Each file *.lmdb here is a database of its own, which opens with

    lmdb.open("train-00000.lmdb", subdir=False, readonly=True, lock=False)

and `shardkit info --open` says more.
"""


class LmdbFormat(Format):
    """One LMDB file a shard; see :class:`shardkit.formats.format.Format`."""

    name = "lmdb"
    suffix = "lmdb"
    library = "lmdb"
    signpost_names = frozenset({SIGNPOST})

    def open_with(self, path: str) -> str:
        return f"lmdb.open({path!r}, subdir=False, readonly=True, lock=False)"

    def example(self, folder: str, stems: Sequence[str], field: str, encoding: Encoding) -> str:
        path = os.path.join(folder, f"{stems[0]}.{self.suffix}")
        return (
            "import lmdb\n"
            f"with {self.open_with(path)} as env:\n"
            "    with env.begin() as txn:\n"
            f"        value = txn.get(b'{0:08d}.{field}')"
        )

    def signposts(self, fields: Sequence[str], classes: Sequence[str] | None) -> dict[str, bytes]:
        return {SIGNPOST: _SIGNPOST_TEXT}

    def write(
        self,
        folder: Path,
        stem: str,
        keys: list[bytes],
        columns: dict[str, list[Value | None]],
        compression: int | None,
    ) -> dict[str, Extents]:
        path = folder / f"{stem}.{self.suffix}"
        fields = all_fields(keys, columns)
        size = np.stack([sizes_of(values) for values in fields.values()], axis=1)
        _check_limits(path, size)
        with os_errors(f"writing {show_path(path)}"):
            path.unlink(missing_ok=True)
            _fill(path, fields, size)
            leaves = read_leaves(Folder(folder), path.name)
        start = _places(path, list(fields), size, leaves)
        return {
            f: Extents(start[:, i], size[:, i], BYTES) for i, f in enumerate(fields) if f in columns
        }


def _check_limits(path: Path, size: Integers) -> None:
    if len(size) > MAX_ROWS:
        raise FormatError(f"{show_path(path)}: {len(size)} samples, an lmdb shard holds {MAX_ROWS}")
    if size.size and int(size.max()) > MAX_VALUE_BYTES:
        row = int(size.max(axis=1).argmax())
        raise FormatError(
            f"{show_path(path)}: sample {row} has a value of {int(size.max())} bytes, LMDB holds at"
            f" most {MAX_VALUE_BYTES}; choose another format"
        )


# --- writing ------------------------------------------------------------------------------


def _fill(path: Path, fields: dict[str, Sequence[Value | None]], size: Integers) -> None:
    import lmdb

    cuts = transactions(size)
    suffixes = [b"." + field.encode() for field in fields]
    page = min(mmap.PAGESIZE, MAX_PAGE_BYTES)
    options: dict[str, Any] = {
        "map_size": map_bytes(size, 8 + max(map(len, suffixes)), len(cuts), page),
        "subdir": False,
        "mode": 0o644,
        "lock": False,
        "sync": False,
    }
    if int(lmdb.__version__.partition(".")[0]) >= 3:
        options["lib_version"] = 0  # it can write LMDB 1.0's format too, and may default to it
    with _lmdb_errors(path), lmdb.open(os.fspath(path), **options) as env:
        for first, last in cuts:
            items = _items(suffixes, [values[first:last] for values in fields.values()], first)
            with env.begin(write=True) as txn, txn.cursor() as cursor:
                cursor.putmulti(items, append=True)


def _items(
    suffixes: list[bytes], columns: list[Sequence[Value | None]], first: int
) -> list[tuple[bytes, Value]]:
    """Keys and values of consecutive rows, in order of key."""
    step = len(suffixes)
    rows = [b"%08d" % row for row in range(first, first + len(columns[0]))]
    items: list[Any] = [None] * (len(rows) * step)
    partial = False
    for i, (suffix, values) in enumerate(zip(suffixes, columns, strict=True)):
        items[i::step] = zip([row + suffix for row in rows], values, strict=True)
        partial = partial or None in values
    return [item for item in items if item[1] is not None] if partial else items


@contextmanager
def _lmdb_errors(path: Path) -> Iterator[None]:
    import lmdb

    try:
        yield
    except lmdb.Error as error:
        # errno, or LMDB's own negative numbers; lmdb 1.4 has an errno's words alone
        words = next((n for n in errno.errorcode if str(error).endswith(os.strerror(n))), 0)
        code = getattr(error, "code", 0) or words
        if code == errno.EIO:  # LMDB calls any write cut short so: the system says why it was
            with path.open("ab") as file:
                file.write(bytes(TXN_BYTES))
        if code > 0:
            raise OSError(code, os.strerror(code)) from error
        raise StorageError(f"writing {show_path(path)}: LMDB failed: {error}") from error


def transactions(size: Integers) -> list[tuple[int, int]]:
    """Cut rows into transactions of about :data:`TXN_BYTES` (each a little over it)."""
    cost = np.cumsum(np.where(size >= 0, size + VALUE_COST, 0).sum(axis=1))
    cuts = np.flatnonzero(np.diff(cost // TXN_BYTES)) + 1
    edges = [0, *cuts.tolist(), len(size)]
    return [(a, b) for a, b in pairwise(edges) if b > a]


def map_bytes(size: Integers, key_bytes: int, num_txns: int, page_bytes: int) -> int:
    """LMDB's map_size: enough for these values, and a function of nothing else.

    It is written into the file, so another map_size would be another file.
    """
    usable = page_bytes - PAGE_HEADER
    node = np.where(size >= 0, 8 + key_bytes + 1 + size + 1 + 2, 0)
    large = node > usable // 2 - 4
    overflow = np.where(large, (PAGE_HEADER + size) // page_bytes + 1, 0)
    in_leaves = np.where(large, 8 + key_bytes + 1 + 8 + 2, node)
    # Two neighbouring leaves hold more than a page of nodes; a quarter more for branch pages, and
    # each transaction copies a path of the tree and lists the pages it freed.
    leaves = 2 * int(in_leaves.sum()) // usable + 1
    pages = leaves + leaves // 4 + int(overflow.sum()) + 32 * (num_txns + 1)
    return (pages * page_bytes + (1 << 20) - 1) >> 20 << 20


# --- finding ------------------------------------------------------------------------------


def _places(path: Path, fields: list[str], size: Integers, leaves: Listed) -> Integers:
    """(rows, fields): where values lie; what LMDB wrote must be just what it was given."""
    present = size >= 0
    key_size = np.broadcast_to([9 + len(f.encode()) for f in fields], size.shape)
    if not (
        np.array_equal(leaves.size, size[present])
        and np.array_equal(leaves.key_size, key_size[present])
    ):
        raise FormatError(
            f"{show_path(path)}: LMDB wrote {len(leaves.size)} values, not the"
            f" {present.sum()} it was given; please report this"
        )
    start = np.zeros_like(size)
    start[present] = leaves.start
    return start
