"""Verdicts: intervals that hold whatever the noise, and what they call a difference."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.measure.bench.cases import ROUNDS
from shardkit.measure.timing import EQUAL, LEAST, Interval, num_cut, spread, verdict

ratios = st.lists(st.floats(0.01, 100), min_size=1, max_size=40)
RUNS = 2000


def test_how_many_may_be_cut_is_as_in_the_tables() -> None:
    """Of the sign test: the 5 % points of Conover's table A3."""
    found = [num_cut(n) for n in range(1, 21)]
    assert found == [-1] * 5 + [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 4, 5]


@given(ratios)
def test_an_interval_lies_round_the_median(values: list[float]) -> None:
    found = spread(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)
    assert found.median == statistics.median(values)
    assert found.is_sure == (len(values) >= 6)
    assert spread(values[::-1]) == found


@given(ratios)
def test_turned_round_faster_is_slower(values: list[float]) -> None:
    opposite = {"faster": "slower", "slower": "faster"}
    if len(values) % 2 == 0:
        values = values[:-1] or [1.0]  # the mean of two middles has no such inverse
    there, back = verdict(spread(values)), verdict(spread([1 / value for value in values]))
    if not any(math.isclose(abs(math.log(v)), math.log(LEAST)) for v in values):
        assert opposite.get(there, there) == back


@given(st.lists(st.floats(1.001, 100), min_size=6, max_size=40))
def test_what_won_every_round_is_never_slower(values: list[float]) -> None:
    found = verdict(spread(values))
    assert found == ("faster" if statistics.median(values) >= LEAST else found)
    assert found != "slower"


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (Interval(1.3, 1.2, 1.4), "faster"),
        (Interval(0.77, 0.7, 0.8), "slower"),
        (Interval(1.3, 1.2, 1.4, is_sure=False), "unclear"),
        (Interval(1.3, 0.99, 1.4), "unclear"),
        (Interval(1.04, 1.02, 1.06), "no difference"),
        (Interval(1.0, 1 / EQUAL, EQUAL), "no difference"),
        (Interval(1.0, 0.8, 1.2), "unclear"),
        (Interval(1.0, 1.0, 1.0), "no difference"),
    ],
)
def test_words(found: Interval, word: str) -> None:
    assert verdict(found) == word


def test_five_wild_rounds_change_nothing() -> None:
    steady = [1.30 + i / 1000 for i in range(ROUNDS)]
    for wild in ([0.01] * 5, [100.0] * 5, [0.01] * 2 + [100.0] * 3):
        assert verdict(spread([*steady[5:], *wild])) == "faster"
        assert verdict(spread([*([1.0] * (ROUNDS - 5)), *wild])) == "no difference"


# --- on noisy machines --------------------------------------------------------------------


def noisy(rng: np.random.Generator, noise: float) -> np.ndarray[tuple[int, int], np.dtype[float]]:
    """(runs, rounds) times of one case: noise, and now and then another program for a while."""
    times = np.exp(rng.normal(0, noise, (RUNS, ROUNDS)))
    return times * np.where(rng.random((RUNS, ROUNDS)) < 0.08, rng.uniform(1.2, 3, times.shape), 1)


def share(runs: np.ndarray[tuple[int, int], np.dtype[float]], *words: str) -> float:
    return float(np.mean([verdict(spread(run.tolist())) in words for run in runs]))


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.1, 0.3])
def test_two_copies_of_one_thing_do_not_differ(noise: float) -> None:
    """The interval alone would find a difference in 3.9 % of runs, however small."""
    rng = np.random.default_rng(1)
    same = noisy(rng, noise) / noisy(rng, noise)
    assert share(same, "faster", "slower") < (0.02 if noise <= 0.05 else 0.05)
    inside = np.mean([(s := spread(run.tolist())).low <= 1 <= s.high for run in same])
    assert inside > 0.95


@pytest.mark.parametrize(("noise", "found"), [(0.01, 0.99), (0.05, 0.99), (0.1, 0.98), (0.2, 0.7)])
def test_what_is_slower_by_1_3_is_found(noise: float, found: float) -> None:
    """Though every twelfth time is of a machine that somebody else uses."""
    rng = np.random.default_rng(2)
    assert share(noisy(rng, noise) / (1.3 * noisy(rng, noise)), "slower") > found
