"""Unions of time intervals: how long at least one of several things went on. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]
"""When something began, and when it ended, which is not before."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times without overlaps: in order, with a gap between any two."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def length(merged: Iterable[Interval]) -> float:
    """How long a union's intervals are together."""
    return sum(end - start for start, end in merged)


def overlap(one: Sequence[Interval], other: Sequence[Interval]) -> float:
    """How long both of two unions went on at once."""
    total, i, k = 0.0, 0, 0
    while i < len(one) and k < len(other):
        total += max(0.0, min(one[i][1], other[k][1]) - max(one[i][0], other[k][0]))
        if one[i][1] < other[k][1]:
            i += 1
        else:
            k += 1
    return total
