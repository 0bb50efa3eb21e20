"""Settings worth a trial, and a race of them: made-up machines, and rates from nowhere."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count, pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import UsageError
from shardkit.loading.settings import Settings
from shardkit.measure.race import (
    MEMORY_SHARE,
    Footprint,
    Race,
    between,
    choose,
    cost,
    each_kind,
    scores,
    why_not,
    worker_counts,
)
from shardkit.system.resources import Allowance

MB = 10**6
ROOMY = Allowance("Some CPU", 16, None, 10**12, 10**12, None)
SMALL = Footprint(10 * MB, 2)


def using(workers: int, worker_type: str = "thread", prefetch: int = 2) -> Settings:
    return Settings(workers, worker_type, prefetch)  # type: ignore[arg-type]


@given(cpus=st.integers(1, 512))
def test_numbers_of_workers_are_few_and_reach_over_the_cores(cpus: int) -> None:
    counts = worker_counts(cpus)
    assert counts == sorted(set(counts))
    assert counts[0] == 1 and cpus in counts and cpus < counts[-1] <= 1.25 * cpus + 1
    assert all(b <= 2 * a for a, b in pairwise(counts))


@given(tried=st.sets(st.integers(0, 99), min_size=1), data=st.data())
def test_the_middle_of_the_gaps(tried: set[int], data: st.DataObject) -> None:
    workers = data.draw(st.sampled_from(sorted(tried)))
    found = between(workers, tried)
    assert len(found) <= 2 and not set(found) & tried
    below = max((n for n in tried if n < workers), default=workers)
    above = min((n for n in tried if n > workers), default=workers)
    assert all(below < n < above for n in found)
    assert len(found) == (workers - below > 1) + (above - workers > 1)


def test_each_kind_in_each_number() -> None:
    assert [str(one) for one in each_kind(["thread", "process"], 2)] == [
        "1 thread, prefetch 2",
        "2 threads, prefetch 2",
        "3 threads, prefetch 2",
        "1 process, prefetch 2",
        "2 processes, prefetch 2",
        "3 processes, prefetch 2",
    ]


def test_what_costs_less() -> None:
    cheap_first = (using(1), using(1, prefetch=4), using(1, "process"), using(2))
    assert all(cost(one) < cost(other) for one, other in pairwise(cheap_first))


# --- room ---------------------------------------------------------------------------------


def test_too_little_memory() -> None:
    small = replace(ROOMY, memory_bytes=200 * MB)  # 50 MB for 10 MB each
    assert why_not(using(1), SMALL, small) == ""
    assert why_not(using(2), SMALL, small) == (
        "its workers and batches would take 60.0 MB, more than 25 % of the 200.0 MB of memory"
        " that are free"
    )
    assert why_not(using(1), SMALL, small, ranks=2).startswith("its workers and batches")
    assert "217.3 MB, more than 25 % of the 200.0 MB" in why_not(
        using(1, "process", 5), SMALL, small
    )


def test_too_little_shared_memory_matters_to_processes_alone() -> None:
    docker = replace(ROOMY, shm_bytes=64 * MB)  # as containers have it by default
    assert why_not(using(9), SMALL, docker) == ""
    assert why_not(using(1, "process"), SMALL, docker) == ""
    assert why_not(using(2, "process"), SMALL, docker) == (
        "its batches would take 60.0 MB, more than 80 % of the 64.0 MB free in /dev/shm"
    )
    assert why_not(using(2, "process"), SMALL, replace(docker, shm_bytes=None)) == ""


def test_too_few_open_files() -> None:
    few = replace(ROOMY, open_files=100)
    ragged = Footprint(MB, 64)  # a list of 64 tensors
    assert why_not(using(4), ragged, few) == ""
    assert why_not(using(1, "process"), SMALL, few) == ""
    assert why_not(using(1, "process"), ragged, few) == (
        "it would open 256 files of the 100 that `ulimit -n` leaves"
    )


@given(
    workers=st.integers(1, 64),
    prefetch=st.integers(1, 8),
    worker_type=st.sampled_from(["thread", "process"]),
    batch=st.builds(Footprint, st.integers(1, 10**9), st.integers(0, 1000)),
    memory=st.integers(0, 10**11),
    shm=st.none() | st.integers(0, 10**10),
    files=st.none() | st.integers(0, 10**5),
    ranks=st.integers(1, 8),
)
def test_what_has_room_has_it_with_less(
    workers: int, prefetch: int, worker_type: str, batch: Footprint, memory: int,
    shm: int | None, files: int | None, ranks: int,
) -> None:  # fmt: skip
    found = Allowance("Some CPU", 64, None, memory, shm, files)
    one = using(workers, worker_type, prefetch)
    if why_not(one, batch, found, ranks):
        return
    assert ranks * workers * prefetch * batch.batch_bytes <= MEMORY_SHARE * memory
    less = [
        using(workers, worker_type, max(1, prefetch - 1)),
        using(max(1, workers - 1), worker_type, prefetch),
        using(workers, "thread", prefetch),
    ]
    assert all(why_not(each, batch, found, ranks) == "" for each in less)


@pytest.mark.parametrize(
    ("settings", "message"),
    [((-1,), "workers must be at least 0"), ((1, "fiber"), "worker_type must be"),
     ((1, "thread", 0), "prefetch must be at least 1"), (("2",), "workers must be a whole")],
)  # fmt: skip
def test_settings_that_make_no_sense(settings: tuple[object, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Settings(*settings)  # type: ignore[arg-type]


# --- the race ------------------------------------------------------------------------------


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
