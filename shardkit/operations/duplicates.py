"""Samples that a dataset has more than once, found in its index alone: no sample is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardkit.arrays import Hashes, Integers, Mask
from shardkit.index.rows import NO_INT, RowIndex
from shardkit.operations.diff import summed_index
from shardkit.samples.checksums import sample_checksums
from shardkit.samples.sample import Value
from shardkit.shards.locate import Located

ROWS = 1 << 20
"""Looked at together."""

LABEL = "cls"


@dataclass(frozen=True)
class Copy:
    """One of several equal samples. ``label``: its class number; None where it has none."""

    split: str
    key: str
    label: int | None


@dataclass(frozen=True)
class Duplicates:
    """Samples whose fields are all equal, but for their keys and class numbers.

    Attributes:
        num_samples: in all splits. num_copies: of these, how many there are more than once: a
            sample that is there three times counts as two.
        num_groups: different samples of which there are copies. num_contradictions: those of them
            whose copies have different labels. num_across: those with copies in several splits, as
            ``"train, val"``.
        num_unplain: samples whose class is not stored as plain decimal digits: words, or with a
            line end. It counts as content: copies that differ in that alone are not found.
        examples: the first few groups, contradictions before others.
    """

    num_samples: int
    num_copies: int
    num_groups: int
    num_contradictions: int
    num_across: dict[str, int]
    num_unplain: int
    examples: list[list[Copy]]


def find_duplicates(place: Located, most_examples: int = 10) -> Duplicates:
    """Find them by the 64-bit checksums that the index has, in some 40 bytes of memory a sample.

    Raises:
        UsageError: it is tars of others, which have no checksums. IndexFileError: it is damaged.
    """
    indexes = [summed_index(place, name) for name in place.info.splits]
    starts = np.cumsum([0, *(index.split.num_rows for index in indexes)])
    contents = np.concatenate([np.zeros(0, np.uint64), *map(contents_of, indexes)])
    order = np.argsort(contents, kind="stable")
    ordered = contents[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    bounds = np.append(np.flatnonzero(is_first), len(order))
    many = np.flatnonzero(np.diff(bounds) > 1)
    ends = zip(bounds[many].tolist(), bounds[many + 1].tolist(), strict=True)
    groups = [order[start:end] for start, end in ends]
    contradicting, others = list[Integers](), list[Integers]()
    num_across: dict[str, int] = {}
    labels = np.concatenate([np.zeros(0, np.int64), *map(labels_of, indexes)])
    for rows in groups:
        is_contradiction = len(set(labels[rows].tolist())) > 1
        found = sorted(set((np.searchsorted(starts, rows, "right") - 1).tolist()))
        if len(found) > 1:
            names = ", ".join(indexes[i].split.name for i in found)
            num_across[names] = num_across.get(names, 0) + 1
        (contradicting if is_contradiction else others).append(rows)
    shown = [*contradicting[:most_examples], *others[:most_examples]][:most_examples]
    return Duplicates(
        num_samples=len(order),
        num_copies=len(order) - int(is_first.sum()),
        num_groups=len(groups),
        num_contradictions=len(contradicting),
        num_across=num_across,
        num_unplain=sum(int((~plain_labels(index)).sum()) for index in indexes),
        examples=[[*_copies(indexes, starts, rows)] for rows in shown],
    )


def contents_of(index: RowIndex) -> Hashes:
    """Return (num_rows,) uint64: what a sample's checksum would be without its class number, so
    that it is the same of samples that are equal but for keys and class numbers. A class that is
    not plain digits stays in it."""
    found = np.empty(index.split.num_rows, np.uint64)
    for start in range(0, len(found), ROWS):
        table = index.table[start : start + ROWS]
        index.refuse_damage(np.arange(start, start + len(table)), table)
        found[start : start + ROWS] = table[:, index.column["xxh3"]].view(np.uint64)
    if LABEL in index.column:
        taken_away = np.where(plain_labels(index), labels_of(index), NO_INT)
        labels, which = np.unique(taken_away, return_inverse=True)
        found -= label_shares(labels)[which]
    return found


def labels_of(index: RowIndex) -> Integers:
    """Return (num_rows,) int64 class numbers, ``NO_INT`` for none; a view where there are any."""
    if LABEL not in index.column:
        return np.full(index.split.num_rows, NO_INT)
    labels: Integers = index.table[:, index.column[LABEL]]
    return labels


def plain_labels(index: RowIndex) -> Mask:
    """Return (num_rows,) bool: whether a class is absent, or its value is its number in decimal
    digits, as ``pack`` writes it."""
    found = np.ones(index.split.num_rows, bool)
    if LABEL not in index.column:
        return found
    sizes, labels = index.table[:, index.column[f"{LABEL}.size"]], labels_of(index)
    for number, shard in enumerate(index.split.shards):
        encoding = index.split.layouts[shard.layout].get(LABEL)
        if encoding is None or encoding.kind in ("int", "label"):  # only plain ones are stored so
            continue
        rows = slice(*index.row_starts[number : number + 2].tolist())
        values, which = np.unique(labels[rows], return_inverse=True)
        digits = np.array([-1 if v == NO_INT else len(str(v)) for v in values.tolist()])
        found[rows] = (sizes[rows] == digits[which]) | (sizes[rows] < 0)
    return found


def label_shares(labels: Integers) -> Hashes:
    """Return (N,) uint64: what the field of these class numbers adds to the checksum of a sample,
    which is a sum over fields, so that the share of one can be taken away or exchanged."""
    values: list[Value | None] = [None if n == NO_INT else b"%d" % n for n in labels.tolist()]
    return sample_checksums({LABEL: values}, len(labels))


def _copies(indexes: Sequence[RowIndex], starts: Integers, rows: Integers) -> Iterator[Copy]:
    for row in np.sort(rows).tolist():
        number = int(np.searchsorted(starts, row, "right")) - 1
        index, own = indexes[number], row - int(starts[number])
        label = int(labels_of(index)[own])
        key = index.name(own)[0].decode(errors="backslashreplace")
        yield Copy(index.split.name, key, None if label == NO_INT else label)
