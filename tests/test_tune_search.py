"""The search for the best settings: on a simulated machine that drifts and stumbles."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from shardkit.loading.settings import Settings
from shardkit.measure.tune_search import Race
from shardkit.measure.tune_space import Candidate, spread

Rate = Callable[[Candidate], float]


def threads(workers: int, prefetch: int = 2) -> Candidate:
    return Candidate(Settings(workers, "thread", prefetch))


class Machine:
    """True rates, and noise as on a shared machine: a drift all share, a jitter of each trial, and
    now and then another's work that takes a good part of one trial."""

    def __init__(self, rate: Rate, seed: int, jitter: float = 0.04) -> None:
        self.rate = rate
        self.random = random.Random(seed)
        self.jitter = jitter
        self.drift = 0.0
        self.num_trials = 0

    def time(self, candidates: Sequence[Candidate], rounds: int) -> dict[Candidate, list[float]]:
        rates: dict[Candidate, list[float]] = {one: [] for one in candidates}
        for _ in range(rounds):
            for one in candidates:
                rates[one].append(self._trial(one))
        return rates

    def _trial(self, one: Candidate) -> float:
        self.num_trials += 1
        self.drift = 0.9 * self.drift + self.random.gauss(0, 0.03)
        stumble = self.random.uniform(0.5, 0.9) if self.random.random() < 0.05 else 1.0
        return self.rate(one) * math.exp(self.drift + self.random.gauss(0, self.jitter)) * stumble


def a_rate(seed: int, cpus: int) -> Rate:
    """A plausible landscape: each kind of worker scales so far, at a price of its own."""
    draw = random.Random(seed)
    one_worker = draw.uniform(0.5, 1.5)
    kinds = {
        kind: (draw.uniform(0.4, 1.0), draw.uniform(0.3, 1.0), draw.uniform(0.0, 0.06))
        for kind in ("thread", "process")
    }

    def rate(one: Candidate) -> float:
        how = one.settings
        if not how.workers:
            return one_worker
        efficiency, parallel, price = kinds[how.worker_type]
        busy = min(how.workers, cpus)
        return efficiency * busy / (1 + (1 - parallel) * (busy - 1)) * (1 - price) ** how.workers

    return rate


@pytest.mark.parametrize("cpus", [2, 8, 64])
def test_the_choice_is_near_the_best_of_all(cpus: int) -> None:
    candidates = spread(threads(1), ["thread", "process"], cpus)
    shares = []
    for seed in range(300):
        rate = a_rate(seed, cpus)
        chosen = Race(Machine(rate, seed).time).best(candidates)
        assert chosen is not None
        shares.append(rate(chosen) / max(map(rate, candidates)))
    print(sorted(shares)[:20])
    assert sum(share >= 0.95 for share in shares) >= 0.95 * len(shares)
