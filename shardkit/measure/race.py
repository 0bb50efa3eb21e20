"""Settings worth a trial on a machine, and a race between them. Pure: what is timed, and how, comes
from outside.

Candidates are timed in turn, and compared within a round, where all met the same noise. After a few
rounds the slower half is left out, and the time goes to the others (successive halving: Jamieson
and Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", AISTATS
2016).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardkit.batches.collate import Batch
from shardkit.loading.settings import DEFAULT_PREFETCH, Settings
from shardkit.loading.workers import WorkerType
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.resources import Allowance

PREFETCHES = (DEFAULT_PREFETCH, 4, 8)
"""One batch ahead is as fast in a trial, but leaves nothing to make up for a slow read with."""

MEMORY_SHARE = 0.25
"""The share of free memory that batches made ahead may fill: the training needs the rest."""

SHM_SHARE = 0.8

PROCESS_BYTES = 150 << 20
"""Memory that a worker process with torch in it takes; 60 to 120 MB were measured."""

SPARE_FILES = 64
"""Open files that are left to the training program: logs, sockets, libraries."""


@dataclass(frozen=True)
class Footprint:
    """Memory and tensors of one batch.

    Attributes:
        batch_bytes: in memory. batch_tensors: each takes an open file on its way from a process.
    """

    batch_bytes: int
    batch_tensors: int


def footprint(batch: Batch) -> Footprint:
    """Return what one batch takes in memory, and on its way from a worker process."""
    sizes = [size for value in batch.values() for size in _sizes(value)]
    return Footprint(sum(size for size, _ in sizes), sum(is_tensor for _, is_tensor in sizes))


def _sizes(value: Any) -> Iterator[tuple[int, bool]]:
    if hasattr(value, "nbytes") and hasattr(value, "is_pinned"):
        yield int(value.nbytes), True
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _sizes(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _sizes(each)
    else:
        yield len(value) if isinstance(value, bytes | str) else 64, False


def cost(settings: Settings) -> tuple[int, ...]:
    """Return what settings cost; of two that are equally fast, the one that costs less is chosen:
    fewer workers, threads before processes, less made ahead.
    """
    return (settings.workers, settings.worker_type == "process", settings.prefetch)


def worker_counts(cpus: int) -> list[int]:
    """Return powers of two up to the cores, the cores, and a little more.

    >>> worker_counts(2), worker_counts(12)
    ([1, 2, 3], [1, 2, 4, 8, 12, 15])
    """
    powers = [2**n for n in range(cpus.bit_length()) if 2**n < cpus]
    return [*powers, cpus, cpus + math.ceil(cpus / 4)]


def between(workers: int, tried: Iterable[int]) -> list[int]:
    """Return counts in the middle of the gaps to the next tried below and above."""
    below = max((n for n in tried if n < workers), default=workers)
    above = min((n for n in tried if n > workers), default=workers)
    middle = {(below + workers) // 2, (workers + above) // 2}
    return sorted(middle - {below, workers, above})


def each_kind(types: Iterable[WorkerType], cpus: int) -> list[Settings]:
    """Return each kind of worker in each number."""
    return [Settings(workers, kind) for kind in types for workers in worker_counts(cpus)]


def why_not(how: Settings, batch: Footprint, found: Allowance, ranks: int = 1) -> str:
    """Return why the machine has no room for settings, in words with figures; empty if it has.

    Each of ``ranks`` processes on the machine takes as much. Open files are a process's own.
    """
    if ranks > 1 and how.workers > (share := found.share(ranks)):
        return f"each of {ranks} processes has {share} of the {found.cpus} cores"
    waiting = how.workers * (how.prefetch + 1) if how.workers else 1
    is_process = bool(how.workers) and how.worker_type == "process"
    in_memory = ranks * (waiting * batch.batch_bytes + is_process * how.workers * PROCESS_BYTES)
    if in_memory > MEMORY_SHARE * found.memory_bytes:
        most = f"{100 * MEMORY_SHARE:.0f} % of the {format_bytes(found.memory_bytes)}"
        return (
            f"its workers and batches would take {format_bytes(in_memory)}, more than {most} of"
            " memory that are free"
        )
    if not is_process:
        return ""
    in_shm = ranks * waiting * batch.batch_bytes
    if found.shm_bytes is not None and in_shm > SHM_SHARE * found.shm_bytes:
        most = f"{100 * SHM_SHARE:.0f} % of the {format_bytes(found.shm_bytes)}"
        return f"its batches would take {format_bytes(in_shm)}, more than {most} free in /dev/shm"
    files = waiting * batch.batch_tensors + SPARE_FILES
    if found.open_files is not None and files > found.open_files:
        return f"it would open {files} files of the {found.open_files} that `ulimit -n` leaves"
    return ""


# --- the race ------------------------------------------------------------------------------


FIRST_ROUNDS = 2

ROUNDS = 3
"""How many rounds are run between two halvings."""

FINAL_ROUNDS = 7
"""How many the last few are compared in."""

LAST = 3
"""When so many are left, they are not halved any more."""

NEAR = 0.03
"""Two whose rates differ by less are the same: more cannot be told apart in a minute here."""

DROP = 0.75
"""What reached less of the best's rate in the first rounds is left out at once."""


Rates = Mapping[Settings, Sequence[float]]
"""Samples a second of each round; lists of equal length."""

Timer = Callable[[Sequence[Settings], int], Rates]
"""Times candidates in turn for a number of rounds. One that cannot run is missing."""


@dataclass
class Race:
    """Finds the best of some candidates.

    Attributes:
        timer: see :data:`Timer`. is_over: returns True if the time is spent: whoever is ahead then
            has won.
    """

    timer: Timer
    is_over: Callable[[], bool] = lambda: False

    def best(self, candidates: Sequence[Settings]) -> Settings | None:
        """Return the cheapest of those that are as fast as the fastest; None if none can run."""
        timed: dict[Settings, list[float]] = {one: [] for one in candidates}
        self._run(timed, FIRST_ROUNDS)
        self._leave(timed, len(timed), DROP)
        while len(timed) > LAST and not self.is_over():
            self._run(timed, ROUNDS)
            self._leave(timed, max(LAST, math.ceil(len(timed) / 2)))
        for _ in range(FINAL_ROUNDS):
            if len(timed) > 1 and not self.is_over():
                self._run(timed, 1)
        return choose(timed) if timed else None

    def _run(self, timed: dict[Settings, list[float]], rounds: int) -> None:
        got = self.timer(list(timed), rounds)
        for one in list(timed):
            if one not in got:
                del timed[one]
                continue
            timed[one] += got[one]

    def _leave(self, timed: dict[Settings, list[float]], most: int, least: float = 0.0) -> None:
        """Keep the cheapest of those that are as fast as the fastest, then the fastest."""
        standing = scores(timed)
        alike = set(_alike(standing))
        ranked = sorted(
            timed, key=lambda one: (one not in alike, cost(one) if one in alike else -standing[one])
        )
        fastest = max(standing.values(), default=0.0)
        for rank, one in enumerate(ranked):
            if rank >= most or standing[one] < least * fastest:
                del timed[one]


def scores(rates: Rates) -> dict[Settings, float]:
    """Return each rate over the geometric mean of its round: the median over the rounds."""
    logs = {one: [math.log(rate) for rate in found] for one, found in rates.items()}
    means = [statistics.fmean(each) for each in zip(*logs.values(), strict=True)]
    return {
        one: math.exp(statistics.median(a - b for a, b in zip(found, means, strict=True)))
        for one, found in logs.items()
    }


def choose(rates: Rates) -> Settings:
    """Return the cheapest of those within :data:`NEAR` of the fastest, in paired ratios."""
    return min(_alike(scores(rates)), key=cost)


def _alike(standing: Mapping[Settings, float]) -> list[Settings]:
    fastest = max(standing.values(), default=0.0)
    return [one for one, score in standing.items() if score >= (1 - NEAR) * fastest]
