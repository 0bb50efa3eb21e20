"""Fair timing: cases in turn, ratios within a round, medians over the rounds.

A noisy machine drifts: what is timed in one block is compared with another minute's machine.
So :func:`interleave` runs A B C A B C ..., takes a *ratio* within each round, where both sides met
the same noise, and only then the median over the rounds.

A case is a function that does some work and returns a :class:`Work`: how much it did and, where
its set-up must not count, how long that took. Seconds, bytes and samples everywhere; a rate is a
second's worth of one of the latter two. The machine's own limits are cases like any other, timed in
the same rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from shardkit.errors import UsageError
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

    def __post_init__(self) -> None:
        if self.samples < 0 or self.bytes < 0 or self.samples == self.bytes == 0:
            raise UsageError(f"work of {self.samples} samples and {self.bytes} bytes is none")
        if self.seconds is not None and not self.seconds >= 0:
            raise UsageError(f"work cannot take {self.seconds} seconds")


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
        if name not in self.measurements:
            raise UsageError(f"no case {name!r} was timed, only {', '.join(self.measurements)}")
        return self.measurements[name]

    def ratio(self, name: str, reference: str, unit: Unit = "samples") -> float:
        """Return the median over the rounds of the rate of ``name`` over the reference's."""
        own, theirs = self[name].rates(unit), self[reference].rates(unit)
        if not all(theirs):
            raise UsageError(f"{reference!r} counted no {unit}: it cannot be a reference")
        return statistics.median(a / b for a, b in zip(own, theirs, strict=True))


def interleave(cases: Mapping[str, Case], rounds: int = 5, warmup: int = 1) -> Result:
    """Run the cases in turn, ``warmup`` rounds untimed and then ``rounds`` timed ones.

    Raises:
        UsageError: no case, or no round.
    """
    if not cases:
        raise UsageError("there is no case to time")
    if rounds < 1 or warmup < 0:
        raise UsageError(f"rounds must be 1 or more and warmup 0 or more, got {rounds}, {warmup}")
    done: dict[str, list[Work]] = {name: [] for name in cases}
    for turn in range(warmup + rounds):
        for name, case in cases.items():
            work = _timed(case)
            if turn >= warmup:
                done[name].append(work)
    return Result({name: Measurement(name, tuple(works)) for name, works in done.items()})


def _timed(case: Case) -> Work:
    started = time.perf_counter()
    work = case()
    seconds = time.perf_counter() - started
    return work if work.seconds is not None else replace(work, seconds=seconds)
