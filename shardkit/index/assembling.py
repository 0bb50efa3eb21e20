"""From the journal to a dataset: the row index of each split, then shardkit.json."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import xxhash

from shardkit.arrays import Hashes, Integers
from shardkit.commit.durable_files import atomic_write
from shardkit.errors import DataError
from shardkit.index.journal import FinishedShard, Receipt, journal_path, read_finished
from shardkit.index.manifest import DatasetInfo, ShardInfo, SplitInfo
from shardkit.index.rows import NO_INT, RowIndex, row_columns, row_sums, rows_header
from shardkit.samples.encoding import Encoding
from shardkit.storage.local_files import Folder
from shardkit.system.paths import show_path

SORT_ROWS = 2_000_000
"""Rows sorted at a time for the find file: 32 MB."""

Chunks = Iterable[bytes | memoryview]


@dataclass
class _Hashed:
    """Passes chunks through, counting and hashing them."""

    chunks: Chunks
    num_bytes: int = 0

    def __post_init__(self) -> None:
        self.hash = xxhash.xxh3_64()

    def __iter__(self) -> Iterator[bytes | memoryview]:
        for chunk in self.chunks:
            self.num_bytes += len(chunk)
            self.hash.update(chunk)
            yield chunk


def assemble_split(
    dest: Path,
    work: Path,
    name: str,
    receipts: list[Receipt],
    info: DatasetInfo,
    *,
    unique_keys: bool,
    new_paths: bool = False,
    fingerprint: str | None = None,
) -> SplitInfo:
    """Write ``{split}.rows``, ``.names``, ``.sums`` and ``.find`` from the journal.

    ``fingerprint`` is what the split's should be, if not a hash of keys and sample checksums.

    Raises:
        DataError: two samples have one key (only if ``unique_keys``), or one file's name (only
            looked at if ``new_paths``: some were written anew).
    """

    def journal() -> Iterator[FinishedShard]:
        return (read_finished(journal_path(work, name, receipt.shard)) for receipt in receipts)

    split = SplitInfo(name, 0, fingerprint or "", *_layouts(receipts), {})
    return write_split(
        dest, name, split, journal, info, unique_keys=unique_keys, new_paths=new_paths
    )


def write_split(
    dest: Path,
    stem: str,
    split: SplitInfo,
    journal: Callable[[], Iterable[FinishedShard]],
    info: DatasetInfo,
    *,
    unique_keys: bool,
    new_paths: bool = False,
) -> SplitInfo:
    """Write a split's own files, from what its shards have; the split with what is known then.

    Args:
        stem: what the files are called before their endings.
        split: its name, layouts and shards; its fingerprint, where that is no hash of keys and
            sample checksums, else ``""``.
        journal: called for each pass over all its shards, in order.

    Raises:
        DataError: as of :func:`assemble_split`.
    """
    num_rows = sum(shard.num_rows for shard in split.shards)
    files: dict[str, tuple[int, int]] = {}

    def write(kind: str, chunks: Chunks) -> None:
        hashed = _Hashed(chunks)
        atomic_write(dest / f"{stem}.{kind}", hashed)
        files[f"{stem}.{kind}"] = (hashed.num_bytes, hashed.hash.intdigest())

    # Before the rows, whose checksums have it.
    fingerprint = split.fingerprint or _fingerprint(journal())
    write("rows", _row_chunks(journal(), info.fields, num_rows, fingerprint))
    write("names", (finished.names for finished in journal()))
    write("sums", (finished.sums.tobytes() for finished in journal()))
    split = replace(split, num_rows=num_rows, fingerprint=fingerprint, files=files)
    files[f"{stem}.find"] = (0, 0)
    index = RowIndex(Folder(dest), info, split)
    write("find", _as_bytes((_checked if unique_keys else find_chunks)(index)))
    if new_paths:
        check_free_paths(index)
    return split


def check_unique_keys(index: RowIndex) -> None:
    """Raise DataError if two samples of the split have one key."""
    for _ in _checked(index):
        pass


def hash_twins(index: RowIndex) -> Iterator[tuple[Integers, Integers]]:
    """Pairs of rows whose keys have one hash, a slice of the hash space at a time."""
    return (_twins(index, rows) for rows in find_chunks(index))


def _twins(index: RowIndex, rows: Integers) -> tuple[Integers, Integers]:
    hashes = index.table[:, index.column["key"]][rows]
    at = np.flatnonzero(hashes[1:] == hashes[:-1])
    return rows[at], rows[at + 1]


def check_free_paths(index: RowIndex) -> None:
    """Raise DataError if a file that got a new ending got another file's name.

    New names are key and ending, and keys are unique; so only a file whose whole name is its key
    can be in the way.
    """
    for row in range(len(index.table)):
        key, paths = index.name(row)
        path = key + paths[1:] if paths[:1] == b"+" else paths[1:]
        path = path[max(path.rfind(key), 0) :]  # less the folder of the split
        if paths[:1] in (b"+", b"=") and path != key and index.find(path) is not None:
            one, other = (show_path(each) for each in (key, path))
            raise DataError(
                f"split {index.split.name}: the picture of {one} would be restored as {other},"
                " which another file is called; rename one of them"
            )


def _fingerprint(journal: Iterable[FinishedShard]) -> str:
    digest = xxhash.xxh3_128()
    for finished in journal:
        digest.update(finished.rows[:, :2].tobytes())
    return digest.hexdigest()


def _row_chunks(
    journal: Iterable[FinishedShard], fields: list[str], num_rows: int, fingerprint: str
) -> Iterator[bytes]:
    yield rows_header(fields, num_rows)
    columns = row_columns(fields)
    names_before = rows_before = 0
    for finished in journal:
        own = row_columns(sorted(finished.receipt.encodings))
        rows = np.full((finished.receipt.num_rows, len(columns)), -1, np.int64)
        if "cls" in fields:
            rows[:, columns.index("cls")] = NO_INT
        rows[:, [columns.index(column) for column in own]] = finished.rows
        rows[:, columns.index("name.start")] += names_before
        names_before += finished.receipt.names_bytes
        numbers = np.arange(rows_before, rows_before := rows_before + len(rows))
        rows[:, -1] = row_sums(rows, numbers, fingerprint).view(np.int64)
        yield rows.tobytes()


def _layouts(receipts: list[Receipt]) -> tuple[list[dict[str, Encoding]], list[ShardInfo]]:
    layouts: list[dict[str, Encoding]] = []
    shards = []
    for receipt in receipts:
        layout = receipt.layout()
        if layout not in layouts:
            layouts.append(layout)
        shards.append(ShardInfo(receipt.num_rows, layouts.index(layout), receipt.file_bytes))
    return layouts, shards


def find_chunks(index: RowIndex) -> Iterator[Integers]:
    """Row numbers sorted by key hash, made a slice of the hash space at a time."""
    hashes = index.table[:, index.column["key"]].view(np.uint64)
    slices = len(hashes) // SORT_ROWS + 1
    bounds = [min(i * 2**64 // slices, 2**64 - 1) for i in range(slices + 1)]
    for low, high in pairwise(bounds):
        rows = _rows_between(hashes, low, high)
        yield rows[np.argsort(hashes[rows], kind="stable")]


def _as_bytes(chunks: Iterable[Integers]) -> Iterator[bytes]:
    return (rows.astype("<i8").tobytes() for rows in chunks)


def _checked(index: RowIndex) -> Iterator[Integers]:
    for rows in find_chunks(index):
        _refuse_repeats(index, rows)
        yield rows


def _rows_between(hashes: Hashes, low: int, high: int) -> Integers:
    found = []
    for start in range(0, len(hashes), SORT_ROWS):
        block = hashes[start : start + SORT_ROWS]
        inside = (block >= np.uint64(low)) & (
            (block < np.uint64(high)) | np.bool_(high == 2**64 - 1)
        )
        found.append(np.flatnonzero(inside).astype(np.int64) + start)
    return np.concatenate([np.zeros(0, np.int64), *found])


def repeats(index: RowIndex, rows: Integers) -> Iterator[tuple[int, int, bytes]]:
    """(row, another, key) of samples that have one key, among rows sorted by its hash."""
    for one, other in zip(*(each.tolist() for each in _twins(index, rows)), strict=True):
        key = index.name(one)[0]
        if index.name(other)[0] == key:
            yield one, other, key


def _refuse_repeats(index: RowIndex, rows: Integers) -> None:
    for one, other, key in repeats(index, rows):
        raise DataError(
            f"split {index.split.name}: two samples have the key"
            f" {key.decode(errors='backslashreplace')!r} (rows {one} and {other}), and a key must"
            " be unique; rename the files of one"
        )
