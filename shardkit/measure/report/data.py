"""What a bench found, as values; and the JSON that ``shardkit bench --json`` writes.

A rate that is no finite number is ``null`` there, and NaN here.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from shardkit.errors import FormatError, ShardkitError
from shardkit.measure.bench.options import BenchOptions
from shardkit.measure.machine import Machine
from shardkit.measure.verdict import Interval
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

VERSION = 1

MOST_APART = 1e4
"""The end of a histogram's last bin over the start of its first, at most."""


@dataclass(frozen=True)
class BatchTimes:
    """Percentiles of how long the loop waited for a batch, and the longest; milliseconds."""

    p5: float
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True)
class Histogram:
    """How many batches took so long: N counts between N + 1 edges, in milliseconds."""

    edges_ms: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Seconds:
    """How long a round took all workers, on each kind of work, and how long the loop waited."""

    read: float
    transform: float
    collate: float
    wait: float


@dataclass(frozen=True)
class Row:
    """A target, read by some number of workers.

    Attributes:
        target: its name. format: ``lmdb``, ``folder`` ... path: absolute. where: the other medium
            that it was copied to, or None.
        read, workers, worker_type, batch_size: as in
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
    where: str | None
    read: str
    workers: int
    worker_type: str
    batch_size: int
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
    batch_histogram: Histogram
    seconds: Seconds
    device_bytes: int | None
    dataset_bytes: int

    @property
    def label(self) -> str:
        """The target, and where it lies."""
        return self.target if self.where is None else f"{self.target} on {self.where}"


@dataclass(frozen=True)
class Limit:
    """What no reader can pass; medians of the rounds."""

    name: str
    cache: str
    samples_per_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Report:
    """What :func:`shardkit.bench` returns.

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
        """Plain values, as :func:`from_json` reads them."""
        return asdict(self)


def load(path: str | Path) -> Report:
    """The report in a file that ``--json`` wrote.

    Raises:
        FormatError: it is none. StorageError: it cannot be read.
    """
    with os_errors(f"reading {show_path(path)}"):
        data = Path(path).read_bytes()
    try:
        return from_json(json.loads(data))
    except FormatError as error:
        raise FormatError(
            f"{show_path(path)} is no report of shardkit bench --json: {error}"
        ) from error
    except ValueError as error:
        raise FormatError(f"{show_path(path)} is not JSON: {error}") from error


def from_json(value: Any) -> Report:
    """The report that these plain values are. Raises FormatError for what is none."""
    if not isinstance(value, dict) or "version" not in value:
        raise FormatError("it has no version")
    if value["version"] != VERSION:
        raise FormatError(f"its version is {value['version']!r}, this shardkit reads {VERSION}")
    given = dict(value)
    if isinstance(rows := value.get("rows"), list):
        given["rows"] = [_made(Row, row, f"its row {number}") for number, row in enumerate(rows)]
    report: Report = _made(Report, given, "it")
    if not report.rows:
        raise FormatError("it has no rows")
    return report


def _made(kind: type[Any], value: Any, what: str) -> Any:
    """A dataclass of plain values. Raises FormatError that says what is missing or is no such."""
    hints, made = get_type_hints(kind), {}
    for name in sorted(hints):
        try:
            made[name] = _value(hints[name], value[name])
        except (KeyError, TypeError, ValueError, AttributeError, ShardkitError) as error:
            raise FormatError(f"{what} has no {name}") from error
    return kind(**made)


def _value(kind: Any, value: Any) -> Any:
    """A plain value as this type. Raises ValueError and others for what is none."""
    if isinstance(kind, UnionType):
        return None if value is None else _value(get_args(kind)[0], value)
    if isinstance(kind, type) and is_dataclass(kind):
        return value if isinstance(value, kind) else _made(kind, value, "it")
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_value(get_args(kind)[0], one) for one in value)
    if get_origin(kind) is dict:
        return {str(key): _value(get_args(kind)[1], one) for key, one in value.items()}
    if kind is float and value is None:
        return math.nan
    plain = {float: int | float}.get(kind, kind)
    is_one = value in get_args(kind) if get_origin(kind) is Literal else isinstance(value, plain)
    if not is_one or isinstance(value, bool) != (kind is bool):
        raise ValueError(f"{value!r} is no {kind}")
    return value
