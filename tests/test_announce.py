"""Announcing what will be read: which ranges, and that the kernel does fetch them."""

from __future__ import annotations

import mmap
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardkit.memory.maps
from shardkit.storage.local_files import ANNOUNCE_BYTES, MappedFiles
from shardkit.storage.opened import Warmth, merged
from shardkit.system.page_cache import evict, resident_fraction

RANGES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 200_000), st.integers(1, 50_000)), min_size=1
)


@given(RANGES)
def test_merged_ranges_hold_what_was_asked_for_and_at_most_a_page_more_between(ranges):
    columns = [np.array(column, np.int64) for column in zip(*ranges, strict=True)]
    numbers, starts, sizes = (column.tolist() for column in merged(*columns))
    for number, start, size in ranges:
        assert any(
            n == number and s <= start and start + size <= s + z
            for n, s, z in zip(numbers, starts, sizes, strict=True)
        )
    assert len(numbers) <= len(ranges)
    assert sum(sizes) <= sum(size for _, _, size in ranges) + mmap.PAGESIZE * len(ranges)


def test_neighbours_become_one_range():
    numbers, starts, sizes = merged(
        np.array([0, 0, 0, 1, 1]),
        np.array([0, 1000, 1000 + 500 + mmap.PAGESIZE, 9000, 0]),
        np.array([1000, 500, 10, 5, 5]),
    )
    assert numbers.tolist() == [0, 1, 1]
    assert starts.tolist() == [0, 9000, 0]
    assert sizes.tolist() == [1510 + mmap.PAGESIZE, 5, 5]


@pytest.mark.parametrize("way", ["all at once", "one by one"])
def test_the_kernel_fetches_what_is_announced(tmp_path, monkeypatch, way):
    if way == "one by one":
        monkeypatch.setattr(shardkit.memory.maps, "_all_at_once", lambda ranges: False)
    size, num = 3 * mmap.PAGESIZE, 1500  # more ranges than one call takes
    path = tmp_path / "file"
    path.write_bytes(bytes(2 * size * num))
    if evict(path) != 0.0:
        pytest.skip("this file system's pages cannot be dropped")
    files = MappedFiles(tmp_path, ["file"], [2 * size * num])
    starts = np.arange(num, dtype=np.int64) * 2 * size
    deadline = time.monotonic() + 20
    while (there := resident_fraction(path)) < 0.5 and time.monotonic() < deadline:
        # Again, since the kernel may leave some out where memory or the disk's queue is short.
        files.announce(np.zeros(num, np.int64), starts + 100, np.full(num, size - 200))
        time.sleep(0.2)
    assert 0.5 <= there < 0.6  # every second half of the file, and no more


def test_small_and_empty_values_are_not_announced(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(bytes(2 * ANNOUNCE_BYTES))
    announced = []
    monkeypatch.setattr(
        "shardkit.storage.local_files.will_need", lambda at, sizes: announced.append(sizes.tolist())
    )
    one = np.ones(1, np.int64)
    files = MappedFiles(tmp_path, ["file"], [2 * ANNOUNCE_BYTES])
    files.read(0 * one, one, (ANNOUNCE_BYTES - 1) * one)
    files.announce(0 * one, one, 0 * one)
    assert not announced
    files.read(0 * one, one, ANNOUNCE_BYTES * one)
    files.announce(0 * one, one, one)
    assert announced == [[ANNOUNCE_BYTES], [1]]


def test_batches_are_announced_while_reads_go_to_the_disk_and_some_after(monkeypatch):
    reads, asked = [0], []

    def usage(who):
        asked.append(who)
        return SimpleNamespace(ru_majflt=0, ru_inblock=reads[0])

    monkeypatch.setattr("shardkit.storage.opened.resource.getrusage", usage)
    warmth = Warmth()
    while warmth.is_cold():
        reads[0] += len(asked) < 100
    assert 100 < len(asked) <= 100 + Warmth.BATCHES  # each of them

    asked.clear()
    assert not any(warmth.is_cold() for _ in range(100 * Warmth.ASKED_EVERY))
    assert len(asked) == 100

    reads[0] += 1  # it goes to the disk again
    announced = [warmth.is_cold() for _ in range(Warmth.ASKED_EVERY + Warmth.BATCHES)]
    assert any(announced[: Warmth.ASKED_EVERY])
    assert sum(announced) == Warmth.BATCHES - 1
    assert not warmth.is_cold()
