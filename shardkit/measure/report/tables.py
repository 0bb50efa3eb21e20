"""All figures of a report, and what they were measured on, as text."""

from __future__ import annotations

from dataclasses import astuple

from shardkit.measure.report.charts import us_per_sample
from shardkit.measure.report.data import Report, Row
from shardkit.measure.report.words import NOTHING, WORK, amount, cache_states, percent, times
from shardkit.system.byte_sizes import format_bytes

LEFT = frozenset(
    {"target", "limit", "cache", "against the first", "nearest limit", "format", "path"}
)
"""Columns of text, which stand left."""

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
"""Its title, its heads, and its lines."""

CASE = ("target", "workers", "cache")
PARTS = (*WORK, "wait")


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
    targets = {row.label: (row.label, row.format, row.path) for row in report.rows}
    limits: list[tuple[str, ...]] = [
        (one.name, amount(one.samples_per_s), amount(1e-6 * one.bytes_per_s))
        for one in report.limits
    ]
    made: list[Table] = [
        ("Rates", (*CASE, *RATES), [(*_case(row), *_rates(row)) for row in report.rows]),
        (
            "Time a batch, in ms",
            (*CASE, "5 %", "median", "95 %", "99 %", "longest"),
            [(*_case(row), *map(amount, astuple(row.batch_ms))) for row in report.rows],
        ),
        (
            "Where the time of a sample goes, in µs",
            (*CASE, *PARTS),
            [
                (*_case(row), *(amount(us_per_sample(row, part)) for part in PARTS))
                for row in report.rows
            ],
        ),
        ("Targets", ("target", "format", "path"), [*targets.values()]),
        ("Limits", ("limit", "samples/s", "MB/s"), limits),
    ]
    return made if limits else made[:-1]


def _case(row: Row) -> tuple[str, ...]:
    return (row.label, str(row.workers), row.cache)


RATES = (
    *("samples/s", "95 % interval", "MB/s", "against the first", "nearest limit", "of it"),
    *("rounds", "samples a round", "bytes from the device", "bytes of the dataset"),
)


def _rates(row: Row) -> tuple[str, ...]:
    rate, against = row.samples_per_s, row.verdict
    if row.ratio:
        median, low, high = map(times, astuple(row.ratio))
        against = f"{median} ({low} to {high}), {row.verdict}"
    return (
        amount(rate.median),
        f"{amount(rate.low)} to {amount(rate.high)}",
        amount(1e-6 * row.bytes_per_s.median),
        against,
        row.limit or NOTHING,
        NOTHING if row.of_limit is None else percent(row.of_limit),
        str(row.rounds),
        f"{row.samples:,}",
        NOTHING if row.device_bytes is None else f"{row.device_bytes:,}",
        f"{row.dataset_bytes:,}",
    )
