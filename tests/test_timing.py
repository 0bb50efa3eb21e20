"""Timing: the order of rounds, the arithmetic and the page cache."""

from __future__ import annotations

import json
import math
import mmap
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from shardkit.measure.machine import describe, machine
from shardkit.measure.timing import Measurement, Result, Work, interleave
from shardkit.system.file_systems import libc
from shardkit.system.page_cache import cache_state, evict, resident_fraction

PAGE = mmap.PAGESIZE
Rounds = list[tuple[float, int, float, int]]


def result_of(rounds: Rounds) -> Result:
    """Cases a and b, timed as given: (seconds, samples) of each, a round."""
    a = tuple(Work(n, 2 * n, s) for s, n, _, _ in rounds)
    b = tuple(Work(n, 2 * n, s) for _, _, s, n in rounds)
    return Result({"a": Measurement("a", a), "b": Measurement("b", b)})


# --- rounds -------------------------------------------------------------------------------


def test_cases_run_in_turn_and_warmup_is_not_counted() -> None:
    calls: list[str] = []

    def case(name: str) -> Work:
        calls.append(name)
        return Work(samples=len(calls))

    result = interleave({n: (lambda n=n: case(n)) for n in "abc"}, rounds=2, warmup=1)
    assert calls == list("abc" * 3)
    assert [work.samples for work in result["a"].works] == [4, 7]
    assert [work.samples for work in result["c"].works] == [6, 9]


def test_the_clock_covers_the_whole_call_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def takes(seconds: float) -> Work:
        clock[0] += seconds
        return Work(samples=1)

    result = interleave({"slow": lambda: takes(4.0), "idle": lambda: takes(0.5)}, rounds=2)
    assert result["slow"].seconds == [4.0, 4.0]
    assert result["idle"].seconds == [0.5, 0.5]


def test_a_case_may_bring_its_own_seconds() -> None:
    result = interleave({"packer": lambda: Work(10, seconds=2.5)}, rounds=3)
    assert result["packer"].seconds == [2.5] * 3
    assert result["packer"].rates("samples") == [4] * 3
    (rate,) = interleave({"quick": lambda: Work(1, seconds=0.0)}, 1)["quick"].rates("samples")
    assert 0 < rate < math.inf, "of a clock that stood still"


# --- arithmetic ---------------------------------------------------------------------------


def test_the_ratio_is_the_median_of_ratios_not_the_ratio_of_medians() -> None:
    rounds = [(1.0, 1, 2.0, 1), (10.0, 1, 40.0, 1), (100.0, 1, 50.0, 1)]
    assert result_of(rounds).ratio("a", "b") == 2  # of 2, 4, 0.5; the medians give 4


def test_a_ratio_may_go_by_bytes() -> None:
    works = {"copy": Work(bytes=100, seconds=1.0), "read": Work(samples=5, bytes=80, seconds=1.0)}
    result = Result({name: Measurement(name, (work,)) for name, work in works.items()})
    assert result.ratio("read", "copy", "bytes") == 0.8


def test_the_cache_state_is_known_only_where_all_rounds_agree() -> None:
    cold, warm = Work(1, cache="cold"), Work(1, cache="warm")
    assert Measurement("a", (cold, cold)).cache == "cold"
    assert Measurement("a", (cold, warm)).cache == "unknown"
    assert Measurement("a", (Work(1),)).cache == "unknown"


# --- the machine --------------------------------------------------------------------------


def test_machine_names_itself() -> None:
    here = machine()
    facts = json.loads(json.dumps(asdict(here)))
    assert facts["cores"] >= 1
    assert facts["memory_bytes"] > 2**28
    assert facts["packages"].keys() >= {"numpy", "h5py", "lmdb"}
    assert facts["packages"].keys() & {"pillow", "pillow-simd"}
    line = describe(here)
    assert "\n" not in line
    assert facts["cpu"] in line
    assert f"numpy {facts['packages']['numpy']}" in line


# --- the page cache -----------------------------------------------------------------------


@pytest.fixture
def file_of_ten_pages(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(10 * PAGE - 100))
    return path


def test_a_file_is_evicted_and_comes_back_when_read(file_of_ten_pages: Path) -> None:
    path = file_of_ten_pages
    assert resident_fraction(path) == 1
    left = evict(path)
    if left:
        pytest.skip(f"this file system keeps {left:.0%} of a file in memory (tmpfs?)")
    assert left == 0
    assert resident_fraction(path) == 0
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no readahead
        file.read(1)
    there = resident_fraction(path)
    assert there is not None
    assert 0 < there < 1
    path.read_bytes()
    assert resident_fraction(path) == 1


def test_ctrl_c_while_pages_are_counted_is_ctrl_c(
    file_of_ten_pages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: int) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(libc(), "mincore", interrupted)
    with pytest.raises(KeyboardInterrupt):
        resident_fraction(file_of_ten_pages)


def test_a_file_is_synced_before_it_is_dropped(
    file_of_ten_pages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some kernels drop a page that is still to be written, others keep it: only order tells."""
    calls: list[str] = []
    for name in ("fsync", "posix_fadvise"):
        monkeypatch.setattr(os, name, lambda *_, name=name: calls.append(name))
    evict(file_of_ten_pages)
    assert calls == ["fsync", "posix_fadvise"]


def test_several_files_count_by_their_pages(tmp_path: Path) -> None:
    small, large, empty = tmp_path / "small", tmp_path / "large", tmp_path / "empty"
    small.write_bytes(b"x")
    large.write_bytes(bytes(3 * PAGE))
    empty.write_bytes(b"")
    if evict([small, large, empty]):
        pytest.skip("this file system keeps files in memory (tmpfs?)")
    small.read_bytes()
    assert resident_fraction([small, large, empty]) == 0.25
    assert resident_fraction(empty) == 0


def test_eviction_says_when_a_page_would_not_go(file_of_ten_pages: Path) -> None:
    with (
        open(file_of_ten_pages, "rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as held,
    ):
        assert len(held[:]) == 10 * PAGE - 100  # touches every page: now they are mapped
        left = evict(file_of_ten_pages)
    assert left is not None
    assert left > 0.5
    assert cache_state(left) != "cold"


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        evict([tmp_path / "nowhere"])


def test_where_nothing_can_be_dropped_the_state_is_unknown(
    file_of_ten_pages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fadvise")
    assert evict(file_of_ten_pages) is None
    assert cache_state(None) == "unknown"


@pytest.mark.parametrize(
    ("share", "state"),
    [
        (0.0, "cold"),
        (0.01, "cold"),
        (0.02, "unknown"),
        (0.98, "unknown"),
        (0.995, "warm"),
        (1.0, "warm"),
    ],
)
def test_cache_states(share: float, state: str) -> None:
    assert cache_state(share) == state
