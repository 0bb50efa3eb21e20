"""Which of many numbers are equal, and which of equal samples stays: pure functions."""

from __future__ import annotations

import numpy as np

from shardkit.arrays import Array, Hashes, Integers, Mask

ROWS = 1 << 20
"""Looked up together."""


def repeated(values: Array) -> Mask:
    """(N,) bool: which of (N,) values are there more than once. It takes as much memory again as
    the values, and some three bytes each."""
    ordered = np.sort(values)
    is_second = ordered[1:] == ordered[:-1]
    is_second[1:] &= ordered[2:] != ordered[:-2]  # not the third or a later one
    twice = ordered[1:][is_second]
    del ordered, is_second
    found = np.zeros(len(values), bool)
    for start in range(0, len(values) if len(twice) else 0, ROWS):
        some = values[start : start + ROWS]
        at = np.minimum(np.searchsorted(twice, some), len(twice) - 1)
        found[start : start + ROWS] = twice[at] == some
    return found


def find_copies(hashes: Hashes, gives_way: Mask) -> tuple[Integers, Integers]:
    """Of samples that are equal all but one, in their order, and for each the one that stays.

    That is the first of those that do not give way, or, if all do, the first.

    Args:
        hashes: (N, 3), as of :func:`shardkit.samples.contents.contents_of`; may be mapped. Where
            both halves of the contents are 0, there are none, and the sample is equal to no other.
        gives_way: (N,), of which samples.

    Two samples whose contents have equal hashes of 128 bits count as equal. It takes some 20 bytes
    of memory a sample, and some 30 more each that has a copy or is one.
    """
    suspects = np.flatnonzero(repeated(np.ascontiguousarray(hashes[:, 0])))
    halves = np.asarray(hashes[suspects, :2])
    has_some = halves.any(axis=1)
    suspects, halves = suspects[has_some], halves[has_some]
    order = np.lexsort((gives_way[suspects], halves[:, 1], halves[:, 0]))
    halves = halves[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (halves[1:] != halves[:-1]).any(axis=1)
    stays = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
    copies, firsts = suspects[order[~is_first]], suspects[order[stays[~is_first]]]
    in_order = np.argsort(copies, kind="stable")
    return copies[in_order], firsts[in_order]
