"""What paired ratios say: an interval for their median, and a verdict in one word. Pure.

The interval is the one of the sign test: between two of the sorted values, so that it holds
whatever the distribution: of 20 rounds five wild ones on either side do not move it.
Source: Conover, "Practical Nonparametric Statistics", section 3.2, intervals for quantiles.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Literal

from shardkit.errors import UsageError

Verdict = Literal["reference", "faster", "slower", "no difference", "unclear"]

CONFIDENCE = 0.95

LEAST = 1.05
"""A median ratio nearer to 1 than that is called no difference: two copies of one dataset differ
by 1 to 3 % by where they lie in memory and on the disk, round after round."""

EQUAL = 1.10
"""No difference is said only of an interval between 1 / this and this; a wider one is unclear."""


@dataclass(frozen=True)
class Interval:
    """A median, and the interval that it lies in with at least :data:`CONFIDENCE`. Fewer than 6
    values have none: then it goes from the least to the largest, and ``is_sure`` is False."""

    median: float
    low: float
    high: float
    is_sure: bool = True


def spread(values: Sequence[float]) -> Interval:
    """The median of some values, and its interval. Raises UsageError for no values."""
    if not values:
        raise UsageError("there is no median of no values: give at least one")
    ordered = sorted(values)
    cut = num_cut(len(ordered))
    return Interval(
        statistics.median(ordered),
        ordered[max(cut, 0)],
        ordered[-1 - max(cut, 0)],
        is_sure=cut >= 0,
    )


def num_cut(num: int) -> int:
    """How many of so many sorted values may be left out at either end; -1 if even all of them
    are too few.

    The median lies below the (k+1)-th of n values where at most k of n fair coins fall on heads.
    """
    tail, cut = 0.0, -1
    for heads in range(num):
        tail += comb(num, heads) / 2**num
        if 2 * tail > 1 - CONFIDENCE:
            break
        cut = heads
    return cut


def verdict(ratio: Interval) -> Verdict:
    """Judge the ratio of a rate to the reference's: over 1 is faster."""
    if ratio.is_sure and ratio.low > 1 and ratio.median >= LEAST:
        return "faster"
    if ratio.is_sure and ratio.high < 1 and ratio.median <= 1 / LEAST:
        return "slower"
    if ratio.is_sure and ratio.low >= 1 / EQUAL and ratio.high <= EQUAL:
        return "no difference"
    return "unclear"
