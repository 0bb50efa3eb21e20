"""``bench``: the same samples through every target, in turn, beside what the machine can do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.errors import UsageError
from shardkit.loading.workers import WorkerType
from shardkit.measure import work
from shardkit.measure.bench_report import make_report
from shardkit.measure.folder import FolderTarget
from shardkit.measure.loading import Loading
from shardkit.measure.same import Samples, align, check_same
from shardkit.measure.target import PackedTarget, Read, Target, is_packed
from shardkit.measure.timing import Case, interleave
from shardkit.reading.order import Order
from shardkit.reading.permute import Positions
from shardkit.storage import as_path
from shardkit.whole import whole

ROUNDS = 11
"""Of which one wild one on either side may be left out, see :mod:`shardkit.measure.verdict`: that
leaves 1 % of chance to find a difference where there is none."""

PASS_S = 1.0
"""Warm, at most so many seconds of different samples of the slowest target are read: what is
enough to know a rate, of a dataset that may not fit into memory."""

PROBED = 256
"""Samples read of each target to see how fast it is."""


@dataclass(frozen=True)
class BenchOptions:
    """Options of :func:`bench`; checked when made, raising UsageError.

    Attributes:
        read: ``raw`` samples as :func:`shardkit.open` gives them, pictures as bytes; ``decode``
            every picture whole; ``train``: random crops of 224 pixels into uint8 batches;
            ``tokens``: windows of 2,048 tokens.
        workers: counts, each measured with every target. worker_type: ``thread`` or ``process``.
        batch_size: samples a batch. cold: drop the files from the page cache before each case.
        rounds: in each, every case runs once. limit: samples to measure, drawn by ``seed``, which
            orders them, too.
    """

    read: Read = "raw"
    workers: tuple[int, ...] = (0, 2)
    worker_type: WorkerType = "thread"
    batch_size: int = 64
    cold: bool = False
    rounds: int = ROUNDS
    limit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.read not in ("raw", "decode", "train", "tokens"):
            raise UsageError(f"read must be raw, decode, train or tokens, got {self.read!r}")
        if self.worker_type not in ("thread", "process"):
            raise UsageError(f"worker_type must be thread or process, got {self.worker_type!r}")
        counts = [whole("workers", count) for count in self.workers]
        if not counts or len(set(counts)) < len(counts):
            raise UsageError(f"workers must be different counts, got {list(self.workers)}")
        whole("batch_size", self.batch_size, 1)
        whole("rounds", self.rounds, 1)
        whole("seed", self.seed, None)
        if self.limit is not None:
            whole("limit", self.limit, 1)


def default_workers() -> tuple[int, ...]:
    """None, and one a core."""
    return (0, len(os.sched_getaffinity(0)))


def bench(
    *targets: str | Path,
    workers: Sequence[int] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Measure how fast the same samples come from different places.

    Args:
        targets: datasets of any format, others' tars, plain folders. The first is what the others
            are compared with. workers, options: see :class:`BenchOptions`.

    Returns:
        The report, of plain values: ``rows`` is a list of one dict a target and number of workers.

    Raises:
        UsageError: the call makes no sense. DataError: the targets do not hold the same samples.
    """
    try:
        made = BenchOptions(workers=tuple(workers or default_workers()), **options)
    except TypeError as error:
        raise UsageError(f"bench: {error}") from error
    opened = open_targets([as_path(path, "a target") for path in targets])
    return measure(opened, made)


def open_targets(paths: Sequence[Path]) -> list[Target]:
    """Each under a name of its own: its format, or, where that is not one, its path."""
    if not paths:
        raise UsageError("name at least one dataset or folder to measure")
    targets: list[Target] = [
        PackedTarget(path) if is_packed(path) else FolderTarget(path) for path in paths
    ]
    for labels in (
        [target.path.name or str(target.path) for target in targets],
        [str(target.path) for target in targets],
        [f"{target.path} ({number})" for number, target in enumerate(targets, 1)],
    ):
        names = [target.name for target in targets]
        for target, label in zip(targets, labels, strict=True):
            if names.count(target.name) > 1:
                target.name = label
    return targets


def measure(targets: Sequence[Target], options: BenchOptions) -> dict[str, Any]:
    """The report on these targets."""
    rows = _choose(targets, options)
    samples = check_same(targets, rows)
    work.refuse_without_pictures(options.read, targets[0].name, samples.fields)
    cases = {
        (target.name, workers): Loading(target, own, samples.sizes, workers, options)
        for workers in options.workers
        for target, own in zip(targets, rows, strict=True)
    }
    limits = _limits(targets[0], rows[0], samples, options)
    named: dict[str, Case] = {f"{name}/{workers}": case for (name, workers), case in cases.items()}
    result = interleave(limits | named, options.rounds, warmup=1)
    return make_report(targets, cases, limits, result, samples, options)


def _choose(targets: Sequence[Target], options: BenchOptions) -> list[Positions]:
    """The rows to measure, of each target: all of the first's, some that ``limit`` asks for, or,
    warm, as many as the slowest target reads in :data:`PASS_S`."""
    order = Order(len(targets[0]), "full", options.seed)
    most = min(len(order), options.limit or len(order))
    if not most:
        raise UsageError(f"{targets[0].name} has no samples to measure")
    if not options.cold:
        probed = align(targets, order.rows(np.arange(min(most, PROBED))))
        rates = [_rate(target, own, options) for target, own in zip(targets, probed, strict=True)]
        most = min(most, max(PROBED, ceil(min(rates) * PASS_S)))
    return align(targets, order.rows(np.arange(most)))


def _rate(target: Target, rows: Positions, options: BenchOptions) -> float:
    """Samples a second, the second time; the first may have come from the disk."""
    case = Loading(target, rows, np.ones(len(rows), np.int64), 0, options)
    case()
    done = case()
    return done.samples / max(done.seconds or 0.0, 1e-9)


def _limits(
    first: Target, rows: Positions, samples: Samples, options: BenchOptions
) -> dict[str, Case]:
    """What no reader can pass, by name."""
    limits: dict[str, Case] = {}
    num_bytes = int(samples.sizes.sum())
    if options.cold:
        limits["sequential read"] = work.in_order(first.files(rows), len(rows), num_bytes)
    elif options.read in ("raw", "tokens"):
        limits["memory copy"] = work.copying(samples.sizes.tolist())
    return limits
