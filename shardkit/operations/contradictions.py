"""Where a row index contradicts itself, or the shards that it is about.

Checksums tell that files are as somebody wrote them, not that what was written is true: an index
may have been written anew, hashes and seal included.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xxhash

from shardkit.arrays import Integers, Mask
from shardkit.errors import IndexFileError
from shardkit.index.assembling import find_chunks, repeats
from shardkit.index.making import integers
from shardkit.index.rows import NO_INT, RowIndex, row_sums
from shardkit.shards.stored import ShardReader

CHUNK_ROWS = 1 << 16

Found = Iterator[tuple[int, str]]
"""(row, what is wrong with it)."""


# --- rows and names -----------------------------------------------------------------------


def wrong_rows(index: RowIndex, classes: list[str] | None) -> Found:
    """Rows that contradict themselves or their names, each once."""
    fingerprint = _fingerprint_of_rows(index)
    names_end = np.zeros(1, np.int64)
    for start in range(0, len(index.table), CHUNK_ROWS):
        table = index.table[start : start + CHUNK_ROWS]
        numbers = range(start, start + len(table))
        sums = row_sums(table, np.array(numbers), fingerprint)
        unlike = sums != table[:, -1].view(np.uint64)
        begin, size = table[:, index.column["name.start"]], table[:, index.column["name.size"]]
        ends = np.concatenate([names_end, begin + size])
        apart, names_end = begin != ends[:-1], ends[-1:]
        keys = table[:, index.column["key"]].view(np.uint64).tolist()
        unnamed = _labels_without_class(index, table, classes)
        for at, row in enumerate(numbers):
            try:
                key = index.name(row)[0]
            except IndexFileError as error:
                yield row, str(error).partition(": ")[2]
                continue
            if xxhash.xxh3_64_intdigest(key) != keys[at]:
                yield row, "its key is not the one that the index has the hash of"
            elif unlike[at]:
                yield row, "its entries in the row index differ from those written"
            elif apart[at]:
                yield row, "its name does not follow that of the row before"
            elif unnamed[at]:
                label = table[at, index.column["cls"]]
                yield row, f"its label is {label}, and classes are 0 to {len(classes or ()) - 1}"


def _labels_without_class(index: RowIndex, table: Integers, classes: list[str] | None) -> Mask:
    if classes is None or "cls" not in index.column:
        return np.zeros(len(table), bool)
    labels = table[:, index.column["cls"]]
    return np.asarray(((labels < 0) & (labels != NO_INT)) | (labels >= len(classes)))


def wrong_files(index: RowIndex, has_find: bool) -> Iterator[tuple[str, str]]:
    """(file, what is wrong with it) of what is about all rows together."""
    split, num_names = index.split, len(index.names())
    if num_names != (index.table[-1, 2:4].sum() if len(index.table) else 0):
        what = f"has {num_names} bytes, and names do not end there"
        yield split.index_file("names"), what
    if not split.has_checksums:
        return
    if _fingerprint(index) != split.fingerprint:
        what = "the fingerprint in shardkit.json is that of other samples"
        yield split.index_file("rows"), what
    if has_find and not _is_sorted(index):
        what = "is not all rows, sorted by key; samples may not be found"
        yield split.index_file("find"), what


def _fingerprint_of_rows(index: RowIndex) -> str:
    """That which is in the rows' checksums. Where no row has that of shardkit.json, it is another,
    which is said once, and not of all rows."""
    declared, table = index.split.fingerprint, index.table[:CHUNK_ROWS]
    sums = row_sums(table, np.arange(len(table)), declared)
    is_another = (sums != table[:, -1].view(np.uint64)).all()
    return _fingerprint(index) if is_another else declared


def _fingerprint(index: RowIndex) -> str:
    """What the rows say; of tars made by others nothing does."""
    if not index.split.has_checksums:
        return index.split.fingerprint
    seen = xxhash.xxh3_128()
    for start in range(0, len(index.table), CHUNK_ROWS):
        seen.update(index.table[start : start + CHUNK_ROWS, :2].tobytes())
    return seen.hexdigest()


def _is_sorted(index: RowIndex) -> bool:
    order, at = index.by_key_hash(), 0
    for rows in find_chunks(index):
        if not np.array_equal(order[at : at + len(rows)], rows):
            return False
        at += len(rows)
    return True


def repeated_keys(index: RowIndex) -> Found:
    """Samples whose key another has, too; in tars made by others, any may."""
    for rows in find_chunks(index) if index.split.has_checksums else ():
        for one, other, _ in repeats(index, rows):
            yield other, f"row {one} has the same key"


# --- values -------------------------------------------------------------------------------


def wrong_labels(reader: ShardReader, rows: Integers) -> Found:
    """Rows whose ``cls`` is not what their value of that name says."""
    if "cls" not in reader.index.column:
        return
    batch = reader.gather(rows)
    labels = batch.table[:, reader.index.column["cls"]]
    said = integers(reader.canonical(batch, "cls"))
    for at in np.flatnonzero(labels != said).tolist():
        yield (
            int(rows[at]),
            f"its label in the row index is {_label(labels[at])}, its value"
            + (" no integer" if said[at] == NO_INT else f" {said[at]}"),
        )


def _label(number: int) -> str:
    return "none" if number == NO_INT else str(number)
