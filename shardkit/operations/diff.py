"""``diff``: what two datasets do not have in common, found in their indexes alone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from shardkit.arguments import integer
from shardkit.arrays import Hashes, Integers, Mask
from shardkit.errors import IndexFileError, UsageError
from shardkit.index.rows import RowIndex
from shardkit.remote.urls import as_place
from shardkit.shards.locate import Located, locate_place


def summed_index(place: Located, name: str) -> RowIndex:
    """Return the rows of a split. Raises UsageError if they have no checksums, as those in tars of
    others have not."""
    if not place.info.splits[name].has_checksums:
        raise UsageError(
            f"{place.shown} was not packed by shardkit, and has no checksums to compare;"
            " `shardkit convert` makes a dataset that has"
        )
    return place.row_index(name)


ROWS = 1 << 18
"""Of each dataset, looked at together: some 100 MB."""


@dataclass
class SplitDiff:
    """One split of the second dataset beside that of the first.

    Attributes:
        num_added, num_removed, num_changed, num_same: samples, by their keys; one is changed if a
            field of it is another, its class number included.
        is_same_order: whether all samples are the same, in the same order: then loaders give the
            same batches.
        added, removed, changed: keys of the first few of each.
    """

    num_added: int = 0
    num_removed: int = 0
    num_changed: int = 0
    num_same: int = 0
    is_same_order: bool = False
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class DatasetDiff:
    """What ``shardkit diff`` prints.

    Attributes:
        is_same: whether both have the same samples and classes, in the same order. splits: of both.
        classes_added, classes_removed: names of classes; ``are_classes_moved``: whether those that
            both have come to other numbers.
    """

    is_same: bool
    splits: dict[str, SplitDiff]
    classes_added: list[str]
    classes_removed: list[str]
    are_classes_moved: bool


def diff(
    first: str | Path,
    second: str | Path | None = None,
    *,
    from_version: int | None = None,
    to_version: int | None = None,
    limit: int = 10,
) -> DatasetDiff:
    """Compare two datasets of any formats, or two versions of one, by the checksums of their
    samples, without reading these.

    Args:
        first, second: paths or URLs; samples that only the second has were added. Without the
            second, the first is compared with itself.
        from_version, to_version: numbers of versions, of the first and of the second; default: the
            last.
        limit: how many keys to name of each kind, in each split.

    Raises:
        UsageError: one is tars of others, which have no checksums, or has no such version.
        DatasetMissingError: there is none. IndexFileError: an index is damaged.
    """
    limit = integer("limit", limit, 0)
    if second is None and from_version is None and to_version is None:
        raise UsageError("diff: give a second dataset, or the number of a version")
    second = first if second is None else second
    places = [
        locate_place(as_place(each, "the dataset"), version=version)
        for each, version in ((first, from_version), (second, to_version))
    ]
    names = dict.fromkeys(name for place in places for name in place.info.splits)
    splits = {}
    for name in names:
        held = [summed_index(p, name) if name in p.info.splits else None for p in places]
        splits[name] = _compare(held[0], held[1], limit)
    before, after = (place.info.classes or [] for place in places)
    gone, new = set(before) - set(after), set(after) - set(before)
    numbers = {name: number for number, name in enumerate(after)}
    is_moved = any(numbers.get(name, number) != number for number, name in enumerate(before))
    is_same = all(split.is_same_order for split in splits.values()) and before == after
    return DatasetDiff(is_same, splits, sorted(new), sorted(gone), is_moved)


@dataclass(frozen=True)
class _Rows:
    """Some rows of one dataset, by ascending hash of key. ``sums``: of samples."""

    index: RowIndex
    rows: Integers
    keys: Hashes
    sums: Hashes

    def take(self, which: Integers | Mask) -> _Rows:
        return _Rows(self.index, self.rows[which], self.keys[which], self.sums[which])

    def names(self) -> list[bytes]:
        return [self.index.name(row)[0] for row in self.rows.tolist()]


def _compare(one: RowIndex | None, other: RowIndex | None, limit: int) -> SplitDiff:
    if one is not None and other is not None:
        same = (one.split.fingerprint, one.split.num_rows)
        if same == (other.split.fingerprint, other.split.num_rows):
            return SplitDiff(num_same=one.split.num_rows, is_same_order=True)
    found = SplitDiff()
    if one is None or other is None:
        for index, name in ((one, "removed"), (other, "added")):
            for rows in _pieces(index, [0, 2**64]) if index is not None else ():
                _note(found, name, rows, limit)
        return found
    num_pieces = max(one.split.num_rows, other.split.num_rows) // ROWS + 1
    bounds = [2**64 * i // num_pieces for i in range(num_pieces + 1)]
    for ours, theirs in zip(_pieces(one, bounds), _pieces(other, bounds), strict=True):
        _compare_piece(found, ours, theirs, limit)
    return found


def _pieces(index: RowIndex, bounds: list[int]) -> Iterator[_Rows]:
    """Yield the rows whose keys' hashes lie between each two bounds. Raises IndexFileError."""
    order = index.by_key_hash()
    find, table_file = map(index.split.index_file, ("find", "rows"))
    unsorted = IndexFileError(
        f"{find} does not have the rows of {table_file} by the hashes of their keys; restore it;"
        " `shardkit verify` tells which is damaged"
    )
    if len(order) and not (order.min() >= 0 and order.max() < len(order)):
        raise unsorted
    keys = index.table[:, index.column["key"]].view(np.uint64)
    starts = [bisect_left(order, bound, key=lambda row: int(keys[row])) for bound in bounds]
    for start, stop in pairwise(starts):
        rows = np.array(order[start:stop], np.int64)
        table = index.table[rows]
        index.refuse_damage(rows, table)
        own = table[:, index.column["key"]].view(np.uint64)
        ascends = (own[1:] > own[:-1]) | ((own[1:] == own[:-1]) & (rows[1:] > rows[:-1]))
        if not ascends.all():  # a row may be there twice, and another not at all
            raise unsorted
        yield _Rows(index, rows, own, table[:, index.column["xxh3"]].view(np.uint64))


def _compare_piece(found: SplitDiff, ours: _Rows, theirs: _Rows, limit: int) -> None:
    """Compare some rows. If both have a hash of a key once, and one checksum, that is one sample;
    else names decide, as two keys may have one hash."""
    both = np.intersect1d(_once(ours.keys), _once(theirs.keys), assume_unique=True)
    at, there = ours.keys.searchsorted(both), theirs.keys.searchsorted(both)
    is_same = ours.sums[at] == theirs.sums[there]
    found.num_same += int(is_same.sum())
    left = ours.take(np.delete(np.arange(len(ours.rows)), at[is_same]))
    right = theirs.take(np.delete(np.arange(len(theirs.rows)), there[is_same]))
    is_shared, is_shared_there = np.isin(left.keys, right.keys), np.isin(right.keys, left.keys)
    _note(found, "removed", left.take(~is_shared), limit)
    _note(found, "added", right.take(~is_shared_there), limit)
    ours, theirs = left.take(is_shared), right.take(is_shared_there)
    own = {name: number for number, name in enumerate(ours.names())}
    others = {name: number for number, name in enumerate(theirs.names())}
    common = [name for name in own if name in others]
    changed = [own[n] for n in common if ours.sums[own[n]] != theirs.sums[others[n]]]
    found.num_same += len(common) - len(changed)
    for kind, rows, numbers in (
        ("removed", ours, [number for name, number in own.items() if name not in others]),
        ("added", theirs, [number for name, number in others.items() if name not in own]),
        ("changed", ours, changed),
    ):
        _note(found, kind, rows.take(np.array(numbers, np.int64)), limit)


def _once(keys: Hashes) -> Hashes:
    values, counts = np.unique(keys, return_counts=True)
    found: Hashes = values[counts == 1]
    return found


def _note(found: SplitDiff, kind: str, some: _Rows, limit: int) -> None:
    setattr(found, f"num_{kind}", getattr(found, f"num_{kind}") + len(some.rows))
    named: list[str] = getattr(found, kind)
    few = some.take(np.arange(min(len(some.rows), limit - len(named))))
    named.extend(name.decode(errors="backslashreplace") for name in few.names())
