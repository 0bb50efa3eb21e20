"""What is worth a trial, and what the machine has no room for."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import UsageError
from shardkit.loading.settings import Settings
from shardkit.measure.tune.race import (
    MEMORY_SHARE,
    Footprint,
    between,
    cost,
    each_kind,
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
