"""Mixes: exact proportions, any position at any time, datasets that go on where they were."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardkit
from shardkit.errors import UsageError
from shardkit.order.turns import PERIOD, Pattern, Turns, quantise
from shardkit.reading.mix import Mix, mix


class Numbers:
    """A source whose sample i is ``start + i``."""

    def __init__(self, start: int, size: int, field: str = "n") -> None:
        self._start, self._size, self._field = start, size, field

    def __len__(self) -> int:
        return self._size

    def read(self, rows: Any) -> dict[str, Any]:
        return {self._field: self._start + rows, "both": rows}

    def keys(self, rows: Any) -> list[str]:
        return [str(row) for row in rows]

    def where(self, row: int) -> str:
        return f"number {row}"


def served(what: Mix, epochs: int, shuffle: Any, seed: int = 0) -> list[int]:
    rows = [
        what.order(shuffle, seed, epoch).rows(np.arange(what.length)) for epoch in range(epochs)
    ]
    return list(map(int, what.read(np.concatenate(rows))["n"]))


SHARES = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=9)


@given(SHARES)
def test_weights_are_rounded_fairly(shares: list[float]) -> None:
    counts = quantise(shares)
    exact = np.array(shares) / sum(shares) * PERIOD
    assert sum(counts) == PERIOD
    assert min(counts) >= 1
    # Largest remainder: off by less than one, but for what the rarest are given at least.
    assert (np.abs(counts - exact) < 1 + (exact < 1).sum()).all()


PLACES = np.arange(300)
COUNTS = st.lists(st.integers(1, 40), min_size=1, max_size=5).map(tuple)
LENGTHS = st.one_of(st.integers(1, 300), st.sampled_from(["first", "all"]))


@given(COUNTS, st.lists(st.integers(1, 90), min_size=5, max_size=5), LENGTHS, st.data())
def test_turns_are_counted(counts: Any, sizes: list[int], length: Any, data: Any) -> None:
    """Through all epochs, from any position, in any order."""
    pattern = Pattern.of(counts, data.draw(st.integers(0, 3)), sizes[: len(counts)], length)
    seed, first = data.draw(st.integers(-2, 2)), data.draw(st.sampled_from([0, 1, 7, 2**62]))
    seen: dict[int, int] = {}
    for epoch in range(first, first + 3):
        turns = Turns(pattern, seed, epoch)
        which, numbers = turns.at(np.arange(pattern.length))
        for dataset, number in zip(which.tolist(), numbers.tolist(), strict=True):
            sample = turns.before(dataset) + number
            assert sample == seen.get(dataset, sample)
            seen[dataset] = sample + 1
        some = np.array(data.draw(st.lists(st.integers(0, pattern.length - 1), max_size=9)), int)
        assert np.array_equal(Turns(pattern, seed, epoch).at(some), (which[some], numbers[some]))


@given(COUNTS, st.integers(0, 9), st.integers(0, 9))
def test_each_period_has_its_shares(counts: Any, seed: int, epoch: int) -> None:
    size = sum(counts)
    which, _ = Turns(Pattern(counts, 1, 3 * size), seed, epoch).at(np.arange(3 * size))
    for turns in which.reshape(3, size):
        assert np.bincount(turns, minlength=len(counts)).tolist() == list(counts)


@given(COUNTS, st.lists(st.integers(1, 90), min_size=5, max_size=5))
def test_epochs_end_where_they_say(counts: Any, sizes: list[int]) -> None:
    for length in ("first", "all"):
        pattern = Pattern.of(counts, 0, sizes[: len(counts)], length)
        which, _ = Turns(pattern, 3, 8).at(np.arange(pattern.length))
        seen = np.bincount(which, minlength=len(counts))
        before = seen - np.eye(len(counts), dtype=int)[which[-1]]
        ends = any if length == "first" else all
        assert ends(seen >= sizes[: len(counts)]) and not ends(before >= sizes[: len(counts)])
        assert (seen > 0).all() or min(sizes[: len(counts)]) == 1
        ideal = np.array(counts) * pattern.length / sum(counts)
        assert (np.abs(seen - ideal) <= len(counts)).all()


@pytest.mark.parametrize("length", [PERIOD, "first"])
def test_turns_are_drawn_anew(length: Any) -> None:
    """By both seeds, in each epoch and each period: a batch of 256 had one of 16 compositions."""
    counts, sizes = (3072, 1024), [6 * 3072, 6 * 1024 + 9]
    drawn, batches = set(), []
    for own in range(2):
        pattern = Pattern.of(counts, own, sizes, length)
        for seed in range(3):
            for epoch in range(6):
                which, _ = Turns(pattern, seed, epoch).at(np.arange(PERIOD))
                drawn.add(which.tobytes())
                batches += which.reshape(16, 256).sum(axis=1).tolist()
    assert len(drawn) == 36
    found, expected = np.array(batches), 64  # hypergeometric, of 4,096 turns
    variance = 256 * 0.25 * 0.75 * (PERIOD - 256) / (PERIOD - 1)
    assert found.mean() == expected
    assert len(set(batches)) > 30
    assert abs(found.var() / variance - 1) < 4 * (2 / len(found)) ** 0.5
    pattern = Pattern(counts, 0, 8 * PERIOD)
    which, _ = Turns(pattern, 0, 0).at(np.arange(pattern.length))
    assert len({turns.tobytes() for turns in which.reshape(8, PERIOD)}) == 8


def test_no_two_epochs_take_turns_alike() -> None:
    parts = {"a": Numbers(0, 3000), "b": Numbers(3000, 9000)}
    for length in ("first", 500):
        seen = set()
        for own, seed, epoch in itertools.product(range(3), range(3), [0, 1, 2, 2**61]):
            rows = mix(parts, length=length, seed=own).order("full", seed, epoch).rows(PLACES)
            assert rows.min() >= 0 and rows.max() < 12000
            seen.add((rows < 3000).tobytes())
        assert len(seen) == 36


def test_turns_of_one_dataset_are_as_likely_anywhere() -> None:
    counts, num = (6, 2, 1), 4000
    which, _ = Turns(Pattern(counts, 0, 9 * num), 5, 0).at(np.arange(9 * num))
    turns = which.reshape(num, 9)
    for dataset, count in enumerate(counts):
        found = (turns == dataset).sum(axis=0)
        expected = num * count / 9
        assert ((found - expected) ** 2 / expected).sum() < 9 + 4 * 18**0.5
    after = Counter(zip(turns[:, :-1].ravel().tolist(), turns[:, 1:].ravel().tolist(), strict=True))
    for (a, b), found in after.items():
        expected = 8 * num * counts[a] * (counts[b] - (a == b)) / 72
        assert abs(found - expected) < 4 * expected**0.5


def test_a_rare_dataset_is_seen_in_short_epochs() -> None:
    parts = {"a": Numbers(0, 100), "b": Numbers(1000, 100)}
    numbers = served(mix(parts, {"a": 127, "b": 1}, length=8), 512, "full")
    assert sum(n // 1000 for n in numbers) == 32


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    shuffle=st.sampled_from(["full", "block", None]),
    length=st.one_of(st.integers(1, 120), st.sampled_from(["first", "all"])),
    seed=st.integers(0, 5),
)
def test_each_dataset_is_gone_through_in_epochs_of_its_own(
    sizes: list[int], shuffle: Any, length: Any, seed: int
) -> None:
    parts = {str(k): Numbers(1000 * k, size) for k, size in enumerate(sizes)}
    weights = {str(k): 1 + k for k in range(len(sizes))}
    mixed = mix(parts, weights, length=length, seed=seed)
    numbers = served(mixed, 3, shuffle=shuffle, seed=seed)
    assert len(numbers) == 3 * mixed.length
    for k, size in enumerate(sizes):
        own = [n - 1000 * k for n in numbers if n // 1000 == k]
        for start in range(0, len(own), size):
            a_round = own[start : start + size]
            assert len(set(a_round)) == len(a_round)
            if shuffle is None:
                assert a_round == list(range(len(a_round)))


def test_proportions_are_those_asked_for() -> None:
    parts = {"a": Numbers(0, 100), "b": Numbers(1000, 100), "c": Numbers(2000, 9)}
    numbers = served(mix(parts, {"a": 5, "b": 2, "c": 1}, length=8192), 1, "full")
    assert [sum(n // 1000 == k for n in numbers) for k in range(3)] == [5120, 2048, 1024]
    by_size = mix(parts)
    assert by_size.pattern.counts[0] == by_size.pattern.counts[1] > 10 * by_size.pattern.counts[2]


def test_a_mix_within_a_mix_keeps_its_shares() -> None:
    inner = mix({"a": Numbers(0, 100), "b": Numbers(1000, 100)}, {"a": 9, "b": 1}, length=4096)
    outer = mix({"in": inner, "c": Numbers(2000, 100)}, {"in": 1, "c": 1}, length=8192)
    numbers = served(outer, 1, "full")
    assert [sum(n // 1000 == k for n in numbers) for k in range(3)] == [3686, 410, 4096]


def test_fields_and_keys() -> None:
    mixed = mix({"a": Numbers(0, 50), "b": Numbers(0, 50, "m")}, length=40)
    (batch,) = shardkit.Loader(mixed, 40, with_keys=True)
    names = [key.partition("/")[0] for key in batch["__key__"]]
    assert [n is None for n in batch["n"]] == [name == "b" for name in names]
    assert [m is None for m in batch["m"]] == [name == "a" for name in names]
    assert [int(key.partition("/")[2]) for key in batch["__key__"]] == [
        int(v) for v in batch["both"]
    ]
    assert mixed.where(51) == "b: number 1"
    assert repr(mixed) == "<Mix of a: 0.5, b: 0.5; 40 samples an epoch>"


@pytest.mark.parametrize(
    ("datasets", "options", "message"),
    [
        ({}, {}, "no datasets"),
        ({"a": Numbers(0, 0)}, {}, "'a' is empty"),
        ({"a/b": Numbers(0, 1)}, {}, "is no name"),
        ({"a": [1]}, {}, "list cannot be fed from"),
        ({"a": Numbers(0, 1)}, {"weights": {"b": 1}}, "weights are for 'b'"),
        ({"a": Numbers(0, 1)}, {"weights": {"a": 0}}, "positive number"),
        ({"a": Numbers(0, 1)}, {"weights": {"a": float("nan")}}, "positive number"),
        ({"a": Numbers(0, 1)}, {"length": 0}, "at least 1"),
        ([Numbers(0, 1)], {}, "give a dict"),
        ({"a": Numbers(0, 1)}, {"length": "longest"}, "'first' or 'all'"),
    ],
)
def test_mixes_that_make_no_sense(datasets: Any, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mix(datasets, **options)
