"""A race of settings, on a machine that is never twice the same.

Pure: what is timed, and how, comes from outside. Candidates are timed in turn, and compared within
a round, where all met the same noise. After a few rounds the slower half is left out, and the time
goes to the others (successive halving: Jamieson and Talwalkar, "Non-stochastic best arm
identification and hyperparameter optimization", AISTATS 2016).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardkit.loading.settings import Settings
from shardkit.measure.tune.space import cost

FIRST_ROUNDS = 2

ROUNDS = 3
"""How many rounds are run between two halvings."""

FINAL_ROUNDS = 7
"""How many the last few are compared in."""

LAST = 3
"""When so many are left, they are not halved any more."""

NEAR = 0.03
"""Two whose rates differ by less are the same: more cannot be told apart in a minute here."""

DROP = 0.75
"""What reached less of the best's rate in the first rounds is left out at once."""


Rates = Mapping[Settings, Sequence[float]]
"""Samples a second of each round; lists of equal length."""

Timer = Callable[[Sequence[Settings], int], Rates]
"""Times candidates in turn for a number of rounds. One that cannot run is missing."""


@dataclass
class Race:
    """Finds the best of some candidates.

    Attributes:
        timer: see :data:`Timer`. is_over: returns True if the time is spent: whoever is ahead then
            has won.
    """

    timer: Timer
    is_over: Callable[[], bool] = lambda: False

    def best(self, candidates: Sequence[Settings]) -> Settings | None:
        """Return the cheapest of those that are as fast as the fastest; None if none can run."""
        timed: dict[Settings, list[float]] = {one: [] for one in candidates}
        self._run(timed, FIRST_ROUNDS)
        self._leave(timed, len(timed), DROP)
        while len(timed) > LAST and not self.is_over():
            self._run(timed, ROUNDS)
            self._leave(timed, max(LAST, math.ceil(len(timed) / 2)))
        for _ in range(FINAL_ROUNDS):
            if len(timed) > 1 and not self.is_over():
                self._run(timed, 1)
        return choose(timed) if timed else None

    def _run(self, timed: dict[Settings, list[float]], rounds: int) -> None:
        got = self.timer(list(timed), rounds)
        for one in list(timed):
            if one not in got:
                del timed[one]
                continue
            timed[one] += got[one]

    def _leave(self, timed: dict[Settings, list[float]], most: int, least: float = 0.0) -> None:
        """Keep the cheapest of those that are as fast as the fastest, then the fastest."""
        standing = scores(timed)
        alike = set(_alike(standing))
        ranked = sorted(
            timed, key=lambda one: (one not in alike, cost(one) if one in alike else -standing[one])
        )
        fastest = max(standing.values(), default=0.0)
        for rank, one in enumerate(ranked):
            if rank >= most or standing[one] < least * fastest:
                del timed[one]


def scores(rates: Rates) -> dict[Settings, float]:
    """Return each rate over the geometric mean of its round: the median over the rounds."""
    logs = {one: [math.log(rate) for rate in found] for one, found in rates.items()}
    means = [statistics.fmean(each) for each in zip(*logs.values(), strict=True)]
    return {
        one: math.exp(statistics.median(a - b for a, b in zip(found, means, strict=True)))
        for one, found in logs.items()
    }


def choose(rates: Rates) -> Settings:
    """Return the cheapest of those within :data:`NEAR` of the fastest, in paired ratios."""
    return min(_alike(scores(rates)), key=cost)


def _alike(standing: Mapping[Settings, float]) -> list[Settings]:
    fastest = max(standing.values(), default=0.0)
    return [one for one, score in standing.items() if score >= (1 - NEAR) * fastest]
