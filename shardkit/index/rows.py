"""The row index of a split: where every value of a sample lies, its key, class and checksums.

It is one memory-mapped table of 64-bit integers for a whole split, so that opening costs a few
small reads however many samples there are. Nothing in it is trusted: sizes and shapes are checked
when it is opened, byte ranges when they are used.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import xxhash

from shardkit.arrays import Array, Hashes, Integers
from shardkit.errors import IndexFileError
from shardkit.index.manifest import DatasetInfo, SplitInfo
from shardkit.memory.maps import READ_BYTES
from shardkit.storage.interface import Storage

NO_INT = -(2**63)
"""In the ``cls`` column: the sample has no class index."""

FIXED_COLUMNS = ("xxh3", "key", "name.start", "name.size", "name.xxh3")
ROW_SUM = "row.xxh3"
"""The last column: a hash of all the others, so that none of them can change unnoticed."""

MAX_NAME_BYTES = 1 << 20
"""A key and its paths; without a limit, a few rows that share one huge name eat all memory."""


_HEADER_ALIGN = 64


def row_columns(fields: list[str]) -> list[str]:
    """Column names of the row index, in order, for sorted field names."""
    places = [f"{name}.{part}" for name in fields for part in ("start", "size")]
    return [*FIXED_COLUMNS, *places, *(["cls"] if "cls" in fields else []), ROW_SUM]


def row_sums(table: Integers, numbers: Integers, fingerprint: str) -> Hashes:
    """(B,) uint64: what rows of these numbers, of the split of this fingerprint, should have as
    ``row.xxh3``.

    Number and fingerprint make the seed, so that two rows that changed places are found, too, and
    so are those of another dataset. It takes 0.1 us a row.
    """
    own = np.uint64(xxhash.xxh3_64_intdigest(fingerprint.encode(errors="surrogatepass")))
    seeds = (numbers.astype(np.uint64) + own).tolist()
    hashed = np.ascontiguousarray(table[:, :-1])
    # As one value a row, of the dtype that numpy turns into bytes and keeps trailing zeros of.
    entries = hashed.view(f"V{hashed.shape[1] * 8}")[:, 0].tolist()
    return np.fromiter(map(xxhash.xxh3_64_intdigest, entries, seeds), np.uint64, len(table))


def rows_header(fields: list[str], num_rows: int) -> bytes:
    """The ``.npy`` header of a row index: a structured dtype of 64-bit integers."""
    unsigned = ("xxh3", "key", "name.xxh3", ROW_SUM)
    descr = [(name, "<u8" if name in unsigned else "<i8") for name in row_columns(fields)]
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': ({num_rows},), }}"
    pad = -(12 + len(text) + 1) % _HEADER_ALIGN
    body = (text + " " * pad + "\n").encode()
    return b"\x93NUMPY\x02\x00" + len(body).to_bytes(4, "little") + body


class RowIndex:
    """The rows of one split: byte ranges, checksums, keys and paths.

    Attributes:
        split: what it is the index of. fields: names of all fields.
        table: (num_rows, num_columns) int64, read-only, memory-mapped where files can be.
        column: column name -> position in ``table``.
    """

    def __init__(
        self, storage: Storage, info: DatasetInfo, split: SplitInfo, *, copied: bool = False
    ) -> None:
        """``copied``: as of :meth:`shardkit.storage.interface.Storage.contents`."""
        self.split = split
        self.fields = info.fields
        self._storage = storage
        columns = row_columns(info.fields)
        self.column = {name: i for i, name in enumerate(columns)}
        header = rows_header(info.fields, split.num_rows)
        name = split.index_file("rows")
        expected = len(header) + split.num_rows * len(columns) * 8
        self._copied = copied
        data = storage.contents(name, expected, copied=copied)
        if data[: len(header)] != header:
            raise IndexFileError(
                f"{storage.show(name)}: its header is not the one this index needs"
            )
        flat = np.frombuffer(data, "<i8", offset=len(header))
        self.table = flat.reshape(split.num_rows, len(columns))
        counts = np.array([s.num_rows for s in split.shards], np.int64)
        self.row_starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        self._names: memoryview | None = None
        self._order: Integers | None = None

    def shard_of(self, rows: Integers) -> Integers:
        """Shard number of each row."""
        return np.searchsorted(self.row_starts, rows, side="right") - 1

    def names(self) -> memoryview:
        if self._names is None:
            name = self.split.index_file("names")
            num_bytes, _ = self.split.files[name]
            self._names = self._storage.contents(name, num_bytes, copied=self._copied)
        return self._names

    def refuse_damage(self, rows: Integers, table: Integers) -> None:
        """Raise unless all entries of these rows are as they were written.

        A row that is whole binds its key and label to the checksum of its sample, so this and
        that of the sample together say that nothing of it has changed.

        Args:
            rows: (B,) row numbers. table: (B, columns), these rows of :attr:`table`.

        Raises:
            IndexFileError: one is damaged, or belongs elsewhere; names the first.
        """
        wrong = row_sums(table, rows, self.split.fingerprint) != table[:, -1].view(np.uint64)
        if wrong.any():
            raise IndexFileError(
                f"row {rows[np.argmax(wrong)]} of {self.split.name}: its entries in"
                f" {self.split.index_file('rows')} differ from those written; restore the file"
            )

    def name(self, row: int) -> tuple[bytes, bytes]:
        """(key, packed paths) of a row.

        Raises:
            IndexFileError: they are not those written.
        """
        start, size, digest = self.table[row, 2:5].tolist()
        blob = self.names()
        if start < 0 or not 0 <= size <= MAX_NAME_BYTES or start + size > len(blob):
            raise IndexFileError(
                f"row {row} of {self.split.name}: its name lies outside the names file"
            )
        entry = bytes(blob[start : start + size])
        if xxhash.xxh3_64_intdigest(entry) != digest % 2**64:
            raise IndexFileError(
                f"row {row} of {self.split.name}: its key and paths differ from those written;"
                " `shardkit verify` tells whether .rows or .names is damaged"
            )
        key, _, paths = entry.partition(b"\0")
        return key, paths

    def find(self, key: bytes) -> int | None:
        """Row of a key by binary search in the rows sorted by key hash, else None.

        Raises:
            IndexFileError: the rows around the place where it should be are damaged, or not sorted:
            one wrong entry of .find or .rows hides the key, or leads past it.
        """
        order = self.by_key_hash()
        hashes = self.table[:, self.column["key"]].view(np.uint64)
        wanted = xxhash.xxh3_64_intdigest(key)
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            if int(hashes[self._checked(order, middle)]) < wanted:
                low = middle + 1
            else:
                high = middle
        at = low
        while at < len(order) and int(hashes[row := self._checked(order, at)]) == wanted:
            if self.name(row)[0] == key:
                return row
            at += 1
        # Wherever one wrong entry led the search, it is among the two before and the two behind.
        near = [self._checked(order, i) for i in range(max(low - 2, 0), min(at + 2, len(order)))]
        self.refuse_damage(np.array(near, np.int64), self.table[near])
        if any((hashes[a], a) >= (hashes[b], b) for a, b in pairwise(near)):
            raise IndexFileError(
                f"{self.split.index_file('find')} and {self.split.index_file('rows')} contradict"
                " each other: keys are not found; `shardkit verify` tells which is damaged"
            )
        return None

    def by_key_hash(self) -> Integers:
        """(num_rows,) row numbers sorted by hash of key, as .find has them. A copy is checked as a
        whole, since several wrong entries can hide a key that is there."""
        if self._order is None:
            name, num_bytes = self.split.index_file("find"), 8 * self.split.num_rows
            data = self._storage.contents(name, num_bytes, copied=self._copied)
            is_copy = self._copied and num_bytes <= READ_BYTES
            if is_copy and xxhash.xxh3_64_intdigest(data) != self.split.files[name][1]:
                raise IndexFileError(
                    f"{self._storage.show(name)} is not as it was written; restore it"
                )
            self._order = np.frombuffer(data, "<i8")
        return self._order

    def _checked(self, order: Array, position: int) -> int:
        row = int(order[position])
        if not 0 <= row < self.split.num_rows:
            find = self.split.index_file("find")
            raise IndexFileError(f"{find} names row {row} of {self.split.num_rows}")
        return row
