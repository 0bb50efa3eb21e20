"""All figures of a report, and what they were measured on, as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from typing import Any

from shardkit.measure.report.charts import us_per_sample
from shardkit.measure.report.data import Report, Row
from shardkit.measure.report.words import NOTHING, WORK, amount, cache_states, percent, times
from shardkit.system.storage import format_bytes

Columns = dict[str, Callable[[Any], object]]
"""What the text of a cell is made of, by its column's head."""

LEFT = frozenset(
    {"target", "limit", "cache", "against the first", "nearest limit", "format", "path"}
)
"""Columns of text, which stand left."""


@dataclass(frozen=True)
class Table:
    """``lines``: of cells, each as long as ``heads``."""

    title: str
    heads: list[str]
    lines: list[list[str]]


def conditions(report: Report) -> dict[str, str]:
    """The machine, the versions, the state of the cache, what was measured."""
    machine, options = report.machine, report.options
    packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
    return {
        "machine": f"{machine.cpu}, {machine.cores} cores, {format_bytes(machine.memory_bytes)},"
        f" {machine.kernel}; load {machine.load_1min}",
        "versions": f"Python {machine.python}, {packages}",
        "commit": report.commit or NOTHING,
        "cache": cache_states(report.rows),
        "measured": f"{report.checked}; {options.read}, batches of {options.batch_size},"
        f" {options.rounds} rounds of all in turn",
    }


def tables(report: Report) -> list[Table]:
    """Every figure of every row, and the limits."""
    made = [
        _table("Rates", _CASE | _RATES, report.rows),
        _table("Time a batch, in ms", _CASE | _BATCHES, report.rows),
        _table("Where the time of a sample goes, in µs", _CASE | _ROUNDS, report.rows),
        _table("Targets", _TARGETS, {row.label: row for row in report.rows}.values()),
    ]
    return [*made, _table("Limits", _LIMITS, report.limits)] if report.limits else made


def _table(title: str, columns: Columns, rows: Iterable[Any]) -> Table:
    lines = [[str(cell(row)) for cell in columns.values()] for row in rows]
    return Table(title, [*columns], lines)


def _against(row: Row) -> str:
    if not row.ratio:
        return row.verdict
    median, low, high = map(times, astuple(row.ratio))
    return f"{median} ({low} to {high}), {row.verdict}"


_CASE: Columns = {
    "target": lambda row: row.label,
    "workers": lambda row: row.workers,
    "cache": lambda row: row.cache,
}

_RATES: Columns = {
    "samples/s": lambda row: amount(row.samples_per_s.median),
    "95 % interval": lambda row: (
        f"{amount(row.samples_per_s.low)} to {amount(row.samples_per_s.high)}"
    ),
    "MB/s": lambda row: amount(1e-6 * row.bytes_per_s.median),
    "against the first": _against,
    "nearest limit": lambda row: row.limit or NOTHING,
    "of it": lambda row: NOTHING if row.of_limit is None else percent(row.of_limit),
    "rounds": lambda row: row.rounds,
    "samples a round": lambda row: f"{row.samples:,}",
    "bytes from the device": lambda row: (
        NOTHING if row.device_bytes is None else f"{row.device_bytes:,}"
    ),
    "bytes of the dataset": lambda row: f"{row.dataset_bytes:,}",
}

_BATCHES: Columns = {
    "5 %": lambda row: amount(row.batch_ms.p5),
    "median": lambda row: amount(row.batch_ms.p50),
    "95 %": lambda row: amount(row.batch_ms.p95),
    "99 %": lambda row: amount(row.batch_ms.p99),
    "longest": lambda row: amount(row.batch_ms.max),
}

_ROUNDS: Columns = {
    part: lambda row, part=part: amount(us_per_sample(row, part))  # type: ignore[misc]
    for part in (*WORK, "wait")
}

_TARGETS: Columns = {
    "target": lambda row: row.label,
    "format": lambda row: row.format,
    "path": lambda row: row.path,
}

_LIMITS: Columns = {
    "limit": lambda limit: limit.name,
    "samples/s": lambda limit: amount(limit.samples_per_s),
    "MB/s": lambda limit: amount(1e-6 * limit.bytes_per_s),
}
