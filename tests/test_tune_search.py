"""The search for the best settings: on a simulated machine that drifts and stumbles."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.loading.settings import Settings
from shardkit.measure.tune.race import Race, choose, each_kind, scores

Rate = Callable[[Settings], float]


def threads(workers: int, prefetch: int = 2) -> Settings:
    return Settings(workers, "thread", prefetch)


class Machine:
    """True rates, and noise as on a shared machine: a drift all share, a jitter of each trial, and
    now and then another's work that takes a good part of one trial."""

    def __init__(self, rate: Rate, seed: int, jitter: float = 0.04) -> None:
        self.rate = rate
        self.random = random.Random(seed)
        self.jitter = jitter
        self.drift = 0.0
        self.num_trials = 0

    def time(self, candidates: Sequence[Settings], rounds: int) -> dict[Settings, list[float]]:
        rates: dict[Settings, list[float]] = {one: [] for one in candidates}
        for _ in range(rounds):
            for one in candidates:
                rates[one].append(self._trial(one))
        return rates

    def _trial(self, one: Settings) -> float:
        self.num_trials += 1
        self.drift = 0.9 * self.drift + self.random.gauss(0, 0.03)
        stumble = self.random.uniform(0.5, 0.9) if self.random.random() < 0.05 else 1.0
        return self.rate(one) * math.exp(self.drift + self.random.gauss(0, self.jitter)) * stumble


def a_rate(seed: int, cpus: int) -> Rate:
    """A plausible landscape: each kind of worker scales so far, at a price of its own."""
    draw = random.Random(seed)
    kinds = {
        kind: (draw.uniform(0.4, 1.0), draw.uniform(0.3, 1.0), draw.uniform(0.0, 0.06))
        for kind in ("thread", "process")
    }

    def rate(one: Settings) -> float:
        efficiency, parallel, price = kinds[one.worker_type]
        busy = min(one.workers, cpus)
        return efficiency * busy / (1 + (1 - parallel) * (busy - 1)) * (1 - price) ** one.workers

    return rate


@pytest.mark.parametrize("cpus", [2, 8, 64])
def test_the_choice_is_near_the_best_of_all(cpus: int) -> None:
    candidates = each_kind(["thread", "process"], cpus)
    shares = []
    for seed in range(100):
        rate = a_rate(seed, cpus)
        chosen = Race(Machine(rate, seed).time).best(candidates)
        assert chosen is not None
        shares.append(rate(chosen) / max(map(rate, candidates)))
    assert sum(share >= 0.95 for share in shares) >= 0.95 * len(shares)


@pytest.mark.parametrize("stumbling", range(12))
def test_one_stumble_loses_nothing(stumbling: int) -> None:
    """One trial of the best, whichever it is, at three quarters of its rate."""
    candidates = [threads(n) for n in range(1, 8)]
    best = candidates[-1]
    trials: Iterator[int] = count()

    def time(some: Sequence[Settings], rounds: int) -> dict[Settings, list[float]]:
        rates: dict[Settings, list[float]] = {one: [] for one in some}
        for _, one in product(range(rounds), some):
            is_hit = one == best and next(trials) == stumbling
            rates[one].append((1 + 0.2 * one.workers) * (0.75 if is_hit else 1.0))
        return rates

    assert Race(time).best(candidates) == best


def test_of_equals_the_cheapest() -> None:
    rates = {threads(4): 100.0, threads(2): 97.5, threads(1): 96.5, threads(3): 99.0}

    def time(some: Sequence[Settings], rounds: int) -> dict[Settings, list[float]]:
        return {one: [rates[one]] * rounds for one in some}

    assert Race(time).best(list(rates)) == threads(2)


def test_what_cannot_run_is_left_out() -> None:
    def time(some: Sequence[Settings], rounds: int) -> dict[Settings, list[float]]:
        return {one: [1.0] * rounds for one in some if one != threads(1)}

    assert Race(time).best([threads(1), threads(2), threads(3)]) == threads(2)
    assert Race(time).best([threads(1)]) is None


def test_the_time_ends_it() -> None:
    machine = Machine(lambda one: one.workers, seed=0)
    candidates = [threads(n) for n in range(10, 20)]
    Race(machine.time, is_over=lambda: True).best(candidates)
    assert machine.num_trials == 2 * len(candidates)
    machine = Machine(lambda one: one.workers, seed=0)
    Race(machine.time).best(candidates)
    assert 2 * len(candidates) < machine.num_trials < 100


@given(
    rates=st.lists(st.lists(st.floats(1e-3, 1e9), min_size=3, max_size=3), min_size=1, max_size=6),
    drift=st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=3),
)
def test_what_all_met_does_not_matter(rates: list[list[float]], drift: list[float]) -> None:
    """A round in which the machine was slow for all changes no score."""
    named = {threads(n): found for n, found in enumerate(rates, 1)}
    drifted = {
        one: [rate * all_met for rate, all_met in zip(found, drift, strict=True)]
        for one, found in named.items()
    }
    assert scores(drifted) == pytest.approx(scores(named), rel=1e-6)
    assert choose(named) in named


def test_scores_are_ratios() -> None:
    got = scores({threads(1): [1.0, 1.0, 9.0], threads(2): [2.0, 2.0, 3.0]})
    assert got[threads(2)] / got[threads(1)] == pytest.approx(2.0)
