"""What the programs of `make bench` share: rows of what was timed, and limits of the machine."""

from __future__ import annotations

import mmap
import os
import statistics
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.measure.timing import Measurement, Work
from shardkit.system.page_cache import resident_fraction

FOLDER = next((Path(__file__).parents[1] / "scripts").rglob("bench_run.py")).parent
sys.path.insert(0, str(FOLDER))
try:
    bench_run: Any = import_module("bench_run")
finally:
    sys.path.remove(str(FOLDER))

PAGE = mmap.PAGESIZE
seconds = st.floats(1e-6, 1e3)
counts = st.integers(1, 10**9)
Rounds = list[tuple[float, int, float, int]]
rounds_of_two = st.lists(st.tuples(seconds, counts, seconds, counts), min_size=1, max_size=9)


def timed(rounds: Rounds) -> Any:
    """Cases a and b, timed as given: (seconds, samples) of each, a round."""
    a = tuple(Work(n, 2 * n, s) for s, n, _, _ in rounds)
    b = tuple(Work(n, 2 * n, s) for _, _, s, n in rounds)
    return bench_run.Timed({"a": Measurement("a", a), "b": Measurement("b", b)})


@pytest.fixture
def ten_pages(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(10 * PAGE - 100))
    return path


@given(rounds_of_two)
def test_a_row_holds_medians_and_extremes(rounds: Rounds) -> None:
    row = timed(rounds).row("a")
    times = [s for s, _, _, _ in rounds]
    assert row.rounds == len(rounds)
    assert (row.min_s, row.max_s) == (min(times), max(times))
    assert row.median_s == statistics.median(times)
    assert row.samples_per_s == statistics.median(n / s for s, n, _, _ in rounds)
    assert row.bytes_per_s == pytest.approx(2 * row.samples_per_s)


def test_rows_compare_all_but_the_reference() -> None:
    a, b = timed([(1.0, 10, 2.0, 10)]).rows("a")
    assert (a.reference, a.ratio) == (None, None)
    assert (b.reference, b.ratio) == ("a", 0.5)


def test_render_is_an_aligned_table() -> None:
    rows = [
        bench_run.Row("tar cf", "warm", 5, 200_000.0, 2.1e8, 0.3, 0.29, 0.35),
        bench_run.Row(
            "lmdb", "warm", 5, 150_000.4, 1.5e8, 0.4, 0.4, 0.5, "tar cf", 0.754, "target 0.6: met"
        ),
        bench_run.Row("limit", "cold", 5, 0.0, 3e9, 0.034, 0.03, 0.04),
    ]
    assert bench_run.render(rows).splitlines() == [
        "        cache  samples/s   MB/s  seconds      min-max  ratio",
        "tar cf  warm     200,000    210    0.300  0.290-0.350      -",
        "lmdb    warm     150,000    150    0.400  0.400-0.500   0.75  target 0.6: met",
        "limit   cold           -  3,000    0.034  0.030-0.040      -",
    ]


def test_cold_read_reads_all_of_it_from_the_disk(ten_pages: Path) -> None:
    work = bench_run.cold_read(ten_pages, chunk_bytes=PAGE)()
    assert work.bytes == 10 * PAGE - 100
    assert work.seconds is not None
    assert work.cache in ("cold", "warm")  # warm: a tmpfs, and it says so
    assert resident_fraction(ten_pages) == 1


def test_cold_read_says_when_it_was_not_cold(
    ten_pages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_run, "evict", lambda paths: 0.5)
    assert bench_run.cold_read(ten_pages)().cache == "unknown"


def test_synced_write_leaves_nothing_behind(tmp_path: Path) -> None:
    work = bench_run.synced_write(tmp_path, 100_000)()
    assert work.bytes == 100_000
    assert work.seconds
    assert list(tmp_path.iterdir()) == []


def test_memory_copy_goes_once_through_its_source() -> None:
    work = bench_run.memory_copy(1000, 10_500)()
    assert (work.samples, work.bytes, work.cache) == (0, 10_000, "warm")
