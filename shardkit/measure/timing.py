"""Fair timing: cases in turn, ratios within a round, medians over the rounds.

A noisy machine drifts: what is timed in one block is compared with another minute's machine.
So :func:`interleave` runs A B C A B C ..., takes a *ratio* within each round, where both sides met
the same noise, and only then the median over the rounds.

A case is a function that does some work and returns a :class:`Work`: how much it did and, where
its set-up must not count, how long that took. Seconds, bytes and samples everywhere; a rate is a
second's worth of one of the latter two. The machine's own limits are cases like any other, timed in
the same rounds.

The interval of a median is the one of the sign test: between two of the sorted values, so that it
holds whatever the distribution: of 20 rounds five wild ones on either side do not move it.
Source: Conover, "Practical Nonparametric Statistics", section 3.2, intervals for quantiles.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import Literal

from shardkit.system.page_cache import Cache

Unit = Literal["samples", "bytes"]

_SHORTEST_S = 1e-9
"""Least seconds that a clock is read as, so that every rate is finite."""


@dataclass(frozen=True)
class Work:
    """Work that one call of a case got done.

    Attributes:
        samples: how many (files, records, windows); 0 where only bytes are meaningful.
        bytes: of payload, as the user counts them; 0 where not meaningful.
        seconds: taken by the part that counts; None: by the whole call.
        cache: state of the page cache for what was read.
    """

    samples: int = 0
    bytes: int = 0
    seconds: float | None = None
    cache: Cache = "unknown"


Case = Callable[[], Work]


@dataclass(frozen=True)
class Measurement:
    """One case: its name and the work of each round."""

    name: str
    works: tuple[Work, ...]

    @property
    def seconds(self) -> list[float]:
        """Seconds of each round."""
        return [max(work.seconds or 0.0, _SHORTEST_S) for work in self.works]

    def rates(self, unit: Unit) -> list[float]:
        """Return samples or bytes a second, of each round."""
        done = [work.samples if unit == "samples" else work.bytes for work in self.works]
        return [num / seconds for num, seconds in zip(done, self.seconds, strict=True)]

    @property
    def cache(self) -> Cache:
        """The state that all rounds agree on, else ``unknown``."""
        states = {work.cache for work in self.works}
        return states.pop() if len(states) == 1 else "unknown"


@dataclass(frozen=True)
class Result:
    """All cases of one :func:`interleave`, in the order given."""

    measurements: dict[str, Measurement]

    def __getitem__(self, name: str) -> Measurement:
        return self.measurements[name]

    def ratio(self, name: str, reference: str, unit: Unit = "samples") -> float:
        """Return the median over the rounds of the rate of ``name`` over the reference's."""
        own, theirs = self[name].rates(unit), self[reference].rates(unit)
        return statistics.median(a / b for a, b in zip(own, theirs, strict=True))


def interleave(cases: Mapping[str, Case], rounds: int = 5, warmup: int = 1) -> Result:
    """Run the cases in turn, ``warmup`` rounds untimed and then ``rounds`` timed ones."""
    done: dict[str, list[Work]] = {name: [] for name in cases}
    for turn in range(warmup + rounds):
        for name, case in cases.items():
            started = time.perf_counter()
            work = case()
            seconds = time.perf_counter() - started
            if turn >= warmup:
                is_own = work.seconds is not None
                done[name].append(work if is_own else replace(work, seconds=seconds))
    return Result({name: Measurement(name, tuple(works)) for name, works in done.items()})


# --- what paired ratios say ---------------------------------------------------------------

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
    """Return the median of some values, and its interval."""
    ordered = sorted(values)
    cut = num_cut(len(ordered))
    kept = ordered[max(cut, 0) : len(ordered) - max(cut, 0)]
    return Interval(statistics.median(ordered), kept[0], kept[-1], is_sure=cut >= 0)


def num_cut(num: int) -> int:
    """Return how many of so many sorted values may be left out at either end; -1 if even all of
    them are too few.

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
