"""What can be tuned: settings worth a trial on a machine, and those that it has no room for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from shardkit.loading.settings import DEFAULT_PREFETCH, Settings
from shardkit.loading.workers import WorkerType
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.resources import Allowance

PREFETCHES = (DEFAULT_PREFETCH, 4, 8)
"""One batch ahead is as fast in a trial, but leaves nothing to make up for a slow read with."""

WINDOWS = (4, 16, 64, 256)
"""Widths of the windows of block order, in blocks. A wider one mixes better."""

MEMORY_SHARE = 0.25
"""The share of free memory that batches made ahead may fill: the training needs the rest."""

SHM_SHARE = 0.8

PROCESS_BYTES = 150 << 20
"""Memory that a worker process with torch in it takes; 60 to 120 MB were measured."""

SPARE_FILES = 64
"""Open files that are left to the training program: logs, sockets, libraries."""


@dataclass(frozen=True)
class Candidate:
    """Settings to try.

    Attributes:
        backend: what decodes pictures; None: the fastest installed, or no pictures.
        window_blocks: of ``shuffle="block"``; None: of another order.
    """

    settings: Settings
    backend: str | None = None
    window_blocks: int | None = None

    def __str__(self) -> str:
        words = [str(self.settings)]
        if self.backend is not None:
            words.append(f"decoded by {self.backend}")
        if self.window_blocks is not None:
            words.append(f"windows of {self.window_blocks} blocks")
        return ", ".join(words)

    @property
    def cost(self) -> tuple[int, ...]:
        """Of two that are equally fast, the one that costs less is chosen: fewer workers, threads
        before processes, less made ahead, nothing to be given by hand; but a wider window. No
        worker at all comes last: nothing is hidden behind the training step then."""
        how = self.settings
        return (
            not how.workers,
            how.workers,
            how.worker_type == "process",
            how.prefetch,
            self.backend is not None,
            -(self.window_blocks or 0),
        )

    def using(self, **changes: Any) -> Candidate:
        """The same with other settings."""
        return replace(self, settings=replace(self.settings, **changes))


@dataclass(frozen=True)
class Footprint:
    """What one batch takes.

    Attributes:
        batch_bytes: in memory. batch_tensors: each takes an open file on its way from a process.
    """

    batch_bytes: int
    batch_tensors: int


def worker_counts(cpus: int) -> list[int]:
    """Powers of two up to the cores, the cores, and a little more; 0 apart.

    >>> worker_counts(2), worker_counts(12)
    ([1, 2, 3], [1, 2, 4, 8, 12, 15])
    """
    powers = [2**n for n in range(cpus.bit_length()) if 2**n < cpus]
    return [*powers, cpus, cpus + math.ceil(cpus / 4)]


def between(workers: int, tried: Iterable[int]) -> list[int]:
    """Counts in the middle of the gaps to the next tried below and above."""
    below = max((n for n in tried if n < workers), default=workers)
    above = min((n for n in tried if n > workers), default=workers)
    middle = {(below + workers) // 2, (workers + above) // 2}
    return sorted(middle - {below, workers, above})


def each_kind(base: Candidate, types: Iterable[WorkerType], cpus: int) -> list[Candidate]:
    """No worker, and each kind in each number."""
    return [base.using(workers=0)] + [
        base.using(worker_type=kind, workers=workers)
        for kind in types
        for workers in worker_counts(cpus)
    ]


def that_fit(
    candidates: Iterable[Candidate], batch: Footprint, found: Allowance, ranks: int = 1
) -> tuple[list[Candidate], dict[str, str]]:
    """Those that the machine has room for, one batch ahead if need be; and why not the others."""
    fit: list[Candidate] = []
    reasons = {}
    for one in candidates:
        tries = [one, one.using(prefetch=1)] if one.settings.prefetch == DEFAULT_PREFETCH else [one]
        for each in tries:
            reason = why_not(each, batch, found, ranks)
            if not reason:
                fit.append(each)
                break
        else:
            reasons[str(one)] = reason
    return fit, reasons


def why_not(one: Candidate, batch: Footprint, found: Allowance, ranks: int = 1) -> str:
    """Why the machine has no room for it, in words with figures; empty if it has.

    Each of ``ranks`` processes on the machine takes as much. Open files are a process's own.
    """
    how = one.settings
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
