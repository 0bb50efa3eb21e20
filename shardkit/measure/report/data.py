"""The report of a bench, as values; and the JSON that ``shardkit bench --json`` writes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shardkit.measure.bench.options import BenchOptions
from shardkit.measure.machine import Machine
from shardkit.measure.verdict import Interval

VERSION = 2
"""Of the JSON; a higher one if a field goes or changes its meaning."""


@dataclass(frozen=True)
class BatchTimes:
    """Median and 99th percentile of the loop's waits for a batch, and the longest; milliseconds."""

    p50: float
    p99: float
    max: float


@dataclass(frozen=True)
class Seconds:
    """Seconds of a round that all workers spent on each kind of work, and that the loop waited."""

    read: float
    transform: float
    collate: float
    wait: float


@dataclass(frozen=True)
class Row:
    """A target, read by some number of workers.

    Attributes:
        target: its name. format: ``lmdb``, ``folder`` ... path: absolute.
        workers, worker_type: as in
            :class:`shardkit.measure.bench.options.BenchOptions`.
        cache: ``warm``, ``cold`` or ``unknown``. rounds: that were timed. samples: a round.
        samples_per_s, bytes_per_s: medians of the rounds, and their intervals.
        ratio: of its rate to that of the first target with as many workers; None for the first.
        verdict: see :data:`shardkit.measure.verdict.Verdict`.
        limit: the name of the nearest, or None. of_limit: the share of it that is reached.
        seconds: of a round. device_bytes: read from the device in a round; None where nobody
            counts them. dataset_bytes: of all files that are read from.
    """

    target: str
    format: str
    path: str
    workers: int
    worker_type: str
    cache: str
    rounds: int
    samples: int
    samples_per_s: Interval
    bytes_per_s: Interval
    ratio: Interval | None
    verdict: str
    limit: str | None
    of_limit: float | None
    batch_ms: BatchTimes
    seconds: Seconds
    device_bytes: int | None
    dataset_bytes: int


@dataclass(frozen=True)
class Limit:
    """A rate that no reader can pass; medians of the rounds."""

    name: str
    cache: str
    samples_per_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Report:
    """Result of :func:`shardkit.bench`.

    Attributes:
        version: of the JSON. commit: of a checkout, or None. command: the command line, or
            nothing. checked: what was compared before anything was timed. rows: one for each
            target and number of workers. notes: what else there is to know, a sentence each.
    """

    version: int
    machine: Machine
    commit: str | None
    command: str
    options: BenchOptions
    checked: str
    limits: tuple[Limit, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)
