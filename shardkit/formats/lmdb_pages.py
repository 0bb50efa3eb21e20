"""The pages of an LMDB 0.9 file, read with NumPy: where every value of the main tree lies.

::

    page 0, 1   meta: the one with the higher transaction number is the file's state
    any page    u64 number, u16 pad, u16 flags, u16 lower, u16 upper, u16 offsets of nodes in order
    node        u16 lo, u16 hi, u16 flags, u16 key size, key, data
      of a branch: the child page is lo + (hi << 16) + (flags << 32)
      of a leaf:   the data has lo + (hi << 16) bytes and follows the key; with flag BIGDATA the
                   number of an overflow page stands there, and the data follows that page's header

Everything is little-endian: LMDB writes in the machine's order, and we support no other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from shardkit.arrays import Integers
from shardkit.errors import FormatError
from shardkit.formats.format import Listed
from shardkit.storage.interface import Sliceable, Storage

PAGE_HEADER = 16
MAX_PAGE_BYTES = 32768
MAGIC = 0xBEEFC0DE
DATA_VERSION = 1
"""1 is LMDB 0.9's format, 3 is 1.0's."""

NO_PAGE = 2**64 - 1
BRANCH, LEAF = 1, 2
BIGDATA = 1

PAGES_AT_ONCE = 512
"""2 MiB of usual pages: what is read stays in the caches while it is parsed."""

MAX_DEPTH = 32
"""LMDB's own limit (CURSOR_STACK)."""

META = np.dtype(
    [
        ("page", "V16"),
        ("magic", "<u4"),
        ("version", "<u4"),
        ("address", "<u8"),
        ("map_bytes", "<u8"),
        ("page_bytes", "<u4"),
        ("free", "V44"),
        ("pad", "<u4"),
        ("flags", "<u2"),
        ("depth", "<u2"),
        ("branches", "<u8"),
        ("leaves", "<u8"),
        ("overflows", "<u8"),
        ("entries", "<u8"),
        ("root", "<u8"),
        ("last_page", "<u8"),
        ("txn", "<u8"),
    ]
)

Found = TypeVar("Found")

Words = np.ndarray[Any, np.dtype[np.uint16]]


@dataclass(frozen=True)
class Entries:
    """Every entry of the main tree in order of key: where key and value lie, all (n,) int64, in
    bytes."""

    start: Integers
    size: Integers
    key_start: Integers
    key_size: Integers


def read_leaves(storage: Storage, name: str) -> Listed:
    """Walk the main tree of a finished file.

    Raises:
        FormatError: not an LMDB 0.9 file, or damaged. StorageError: it cannot be read.
    """
    return _walk(storage, name, _Tree.leaves)


def read_entries(storage: Storage, name: str) -> Entries:
    """Walk the main tree of a file that others made; errors as of :func:`read_leaves`.

    Raises:
        FormatError: also where there are named databases in it.
    """
    return _walk(storage, name, _Tree.entries)


def _walk(storage: Storage, name: str, walk: Callable[[_Tree], Found]) -> Found:
    num_bytes = storage.size(name)
    file = storage.files([name], [num_bytes], copied=True).piece(0, 0, num_bytes)
    try:
        return walk(_Tree(file, num_bytes))
    except IndexError as error:
        raise FormatError(f"{storage.show(name)}: a damaged LMDB page") from error
    except FormatError as error:
        raise FormatError(f"{storage.show(name)}: {error}") from error


class _Tree:
    def __init__(self, file: Sliceable, num_bytes: int) -> None:
        self.file = file
        self.num_bytes = num_bytes
        first = self._meta(0)
        self.page_bytes = int(first["page_bytes"])
        if not 512 <= self.page_bytes <= MAX_PAGE_BYTES or self.page_bytes & (self.page_bytes - 1):
            raise FormatError(f"LMDB pages of {self.page_bytes} bytes")
        self.meta = max(first, self._meta(self.page_bytes), key=lambda meta: int(meta["txn"]))
        if int(self.meta["depth"]) > MAX_DEPTH or self.meta["flags"]:
            raise FormatError("an LMDB tree too deep, or with duplicates")
        self.num_pages = self.num_bytes // self.page_bytes

    def _meta(self, offset: int) -> Any:
        data = self.file[offset : offset + META.itemsize]
        if len(data) < META.itemsize:
            raise FormatError("no LMDB file: it is too short")
        meta = np.frombuffer(data, META)[0]
        if meta["magic"] != MAGIC or meta["version"] != DATA_VERSION:
            raise FormatError("no LMDB 0.9 file of a little-endian machine")
        return meta

    def entries(self) -> Entries:
        """Raises FormatError if one is a named database, or holds several values."""
        listed = self.leaves()
        parts = [self._keys(chunk) for chunk in self._chunks(self._leaf_pages())]
        key_start = np.concatenate([np.zeros(0, np.int64), *parts])
        return Entries(listed.start, listed.size, key_start, listed.key_size)

    def _leaf_pages(self) -> Integers:
        """In order of key; none of an empty tree."""
        root = int(self.meta["root"])
        if root == NO_PAGE:
            return np.zeros(0, np.int64)
        pages = np.array([min(root, self.num_pages)], np.int64)
        for _ in range(int(self.meta["depth"]) - 1):
            pages = np.concatenate(
                [_children(*self._nodes(c, BRANCH)) for c in self._chunks(pages)]
            )
        return pages

    def leaves(self) -> Listed:
        pages = self._leaf_pages()
        if not len(pages):
            return Listed(*(np.zeros(0, np.int64) for _ in range(3)))
        parts = [self._values(c) for c in self._chunks(pages)]
        start, size, key_size = (np.concatenate(part) for part in zip(*parts, strict=True))
        if len(size) and (int(start.min()) < 0 or int((start + size).max()) > self.num_bytes):
            raise FormatError("an LMDB value lies outside the file")
        return Listed(start, size, key_size)

    def _chunks(self, pages: Integers) -> list[Integers]:
        return [pages[i : i + PAGES_AT_ONCE] for i in range(0, len(pages), PAGES_AT_ONCE)]

    def _read(self, pages: Integers) -> Words:
        """The pages, one a row. Neighbours in the file are read together."""
        if int(pages.min()) < 0 or int(pages.max()) >= self.num_pages:
            raise FormatError("an LMDB page lies outside the file")
        words = np.empty((len(pages), self.page_bytes // 2), "<u2")
        cuts = [0, *(np.flatnonzero(np.diff(pages) != 1) + 1).tolist(), len(pages)]
        for first, last in pairwise(cuts):
            where, size = int(pages[first]) * self.page_bytes, (last - first) * self.page_bytes
            words[first:last].data.cast("B")[:] = self.file[where : where + size]
        return words

    def _nodes(self, pages: Integers, kind: int) -> tuple[Words, Integers, Integers]:
        """(words, page of each node, index of its first word); nodes in order of key."""
        words = self._read(pages)
        if (words[:, 5] != kind).any():
            raise FormatError(f"an LMDB page is none of kind {kind}")
        count = (words[:, 6].astype(np.int64) - PAGE_HEADER) // 2
        if int(count.min()) < 1 or int(count.max()) > words.shape[1] - PAGE_HEADER // 2:
            raise FormatError("an LMDB page holds no nodes, or too many")
        row = np.repeat(np.arange(len(pages)), count)
        base = row * words.shape[1]
        nth = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        flat = words.reshape(-1)
        return flat, row, base + (flat[base + PAGE_HEADER // 2 + nth] >> 1)

    def _keys(self, pages: Integers) -> Integers:
        """Where the key of each node lies in the file."""
        words, row, node = self._nodes(pages, LEAF)
        if (words[node + 2] & 0xFFFE).any():
            raise FormatError("an LMDB file of named databases; copy the one that is meant")
        return node * 2 + 8 + (pages[row] - row) * self.page_bytes

    def _values(self, pages: Integers) -> tuple[Integers, Integers, Integers]:
        words, row, node = self._nodes(pages, LEAF)
        size = _word(words, node) | _word(words, node + 1) << 16
        key_size = _word(words, node + 3)
        data = node * 2 + 8 + key_size
        start = data + (pages[row] - row) * self.page_bytes
        large = np.flatnonzero(words[node + 2] & BIGDATA)
        if len(large):
            eight = words.view(np.uint8)[data[large][:, None] + np.arange(8)]
            start[large] = eight.view("<i8").reshape(-1) * self.page_bytes + PAGE_HEADER
        return start, size, key_size


def _word(words: Words, at: Integers) -> Integers:
    return words[at].astype(np.int64)


def _children(words: Words, row: Integers, node: Integers) -> Integers:
    high = _word(words, node + 2) << 32
    return _word(words, node) | _word(words, node + 1) << 16 | high
