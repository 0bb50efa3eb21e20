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
from shardkit.measure.tune.search import NEAR_A_STEP, Race, choose, scores
from shardkit.measure.tune.space import Candidate, each_kind
from shardkit.measure.tune.step import SPARE, loops_per_s

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
    candidates = each_kind(threads(1), ["thread", "process"], cpus)
    shares = []
    for seed in range(300):
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

    def time(some: Sequence[Candidate], rounds: int) -> dict[Candidate, list[float]]:
        rates: dict[Candidate, list[float]] = {one: [] for one in some}
        for _, one in product(range(rounds), some):
            is_hit = one == best and next(trials) == stumbling
            rates[one].append((1 + 0.2 * one.settings.workers) * (0.75 if is_hit else 1.0))
        return rates

    assert Race(time).best(candidates) == best


def test_of_equals_the_cheapest() -> None:
    rates = {threads(4): 100.0, threads(2): 97.5, threads(1): 96.5, threads(3): 99.0}

    def time(some: Sequence[Candidate], rounds: int) -> dict[Candidate, list[float]]:
        return {one: [rates[one]] * rounds for one in some}

    assert Race(time).best(list(rates)) == threads(2)
    assert Race(time, near=0.05).best(list(rates)) in (threads(1), threads(2))
    assert Race(time, near=0.0).best(list(rates)) == threads(4)


def test_what_cannot_run_is_left_out() -> None:
    def time(some: Sequence[Candidate], rounds: int) -> dict[Candidate, list[float]]:
        return {one: [1.0] * rounds for one in some if one != threads(1)}

    assert Race(time).best([threads(1), threads(2), threads(3)]) == threads(2)
    assert Race(time).best([threads(1)]) is None


def test_the_time_ends_it() -> None:
    machine = Machine(lambda one: one.settings.workers, seed=0)
    candidates = [threads(n) for n in range(10, 20)]
    Race(machine.time, is_over=lambda: True).best(candidates)
    assert machine.num_trials == 2 * len(candidates)
    machine = Machine(lambda one: one.settings.workers, seed=0)
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
    assert choose(named, 0.0) in named


def test_scores_are_ratios() -> None:
    got = scores({threads(1): [1.0, 1.0, 9.0], threads(2): [2.0, 2.0, 3.0]})
    assert got[threads(2)] / got[threads(1)] == pytest.approx(2.0)


# --- a loop with a step -------------------------------------------------------------------


@given(load_s=st.floats(1e-6, 10), step_s=st.floats(0, 10), workers=st.integers(0, 9))
def test_a_loop_is_never_faster_than_its_step_or_its_loader(
    load_s: float, step_s: float, workers: int
) -> None:
    taken = 1 / loops_per_s(load_s, step_s, workers)
    assert taken >= max(step_s, load_s) * (1 - 1e-9)
    assert taken <= (step_s + load_s) * (1 + 1e-9)
    assert loops_per_s(load_s, 0.0, workers) == pytest.approx(1 / load_s)
    if workers and load_s * SPARE <= step_s:
        assert taken == pytest.approx(step_s)


def test_a_step_is_fed_by_the_cheapest_that_has_something_to_spare() -> None:
    load_ms = {0: 50.0, 1: 45.0, 2: 30.0, 3: 16.0, 4: 14.0}

    def best(step_ms: float) -> int:
        def time(some: Sequence[Candidate], rounds: int) -> dict[Candidate, list[float]]:
            return {
                one: [loops_per_s(load_ms[n] / 1e3, step_ms / 1e3, n)] * rounds
                for one in some
                for n in [one.settings.workers]
            }

        found = Race(time, NEAR_A_STEP).best([threads(n) for n in load_ms])
        assert found is not None
        return found.settings.workers

    assert [best(ms) for ms in (10, 20, 25, 50, 100, 10_000)] == [4, 4, 3, 2, 1, 1]
