"""Settings worth a trial on a machine, what they cost, and those that it has no room for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

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
