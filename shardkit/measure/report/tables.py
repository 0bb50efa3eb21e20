"""All figures of a report as text, for the terminal and for the page."""

from __future__ import annotations

from dataclasses import astuple

from shardkit.measure.machine import describe
from shardkit.measure.report.charts import us_per_sample
from shardkit.measure.report.data import Limit, Report, Row
from shardkit.measure.report.words import NOTHING, WORK, amount, cache_states, percent, times

LEFT = frozenset({"", "cache", "against the first", "nearest limit", "path"})
"""Columns of text, which stand left."""

Table = tuple[str, list[str], list[list[str]]]
"""Its title, its heads, and its lines."""

PARTS = (*WORK, "wait")


def conditions(report: Report) -> dict[str, str]:
    """Return the machine, the state of the cache, and what was measured."""
    options = report.options
    return {
        "machine": describe(report.machine),
        "commit": report.commit or NOTHING,
        "cache": cache_states(report.rows),
        "measured": f"{report.checked}; {options.read}, batches of {options.batch_size},"
        f" {options.rounds} rounds of all in turn",
    }


def tables(report: Report) -> list[Table]:
    """Return every figure of every row, and the limits."""
    times = [_case(row) | _times(row) for row in report.rows]
    heads, lines = rates(report)
    return [
        ("Rates", heads, lines),
        ("Where the time goes", [*times[0]], [[*line.values()] for line in times]),
    ]


def rates(report: Report) -> tuple[list[str], list[list[str]]]:
    """Return heads and lines, a line for each row and limit, without columns that are empty."""
    cells = [*map(_rates, report.rows), *map(_limit, report.limits)]
    heads = [head for head in cells[0] if not head or any(line.get(head) for line in cells)]
    return heads, [[line.get(head, "") for head in heads] for line in cells]


def _case(row: Row) -> dict[str, str]:
    return {"": row.target, "workers": str(row.workers), "cache": row.cache}


def _rates(row: Row) -> dict[str, str]:
    rate, read, against = row.samples_per_s, row.device_bytes, "reference"
    if row.ratio:
        median, low, high = map(times, astuple(row.ratio))
        against = f"{median} ({low}-{high}) {row.verdict}"
    is_cold = row.cache != "warm" and read
    return _case(row) | {
        "samples/s": f"{rate.median:,.0f}",
        "95 % interval": f"{rate.low:,.0f}-{rate.high:,.0f}",
        "MB/s": f"{row.bytes_per_s.median / 1e6:,.0f}",
        "from disk": f"{(read or 0) / row.dataset_bytes:.2f}" if is_cold else "",
        "of limit": "" if row.of_limit is None else percent(row.of_limit),
        "against the first": against,
    }


def _limit(limit: Limit) -> dict[str, str]:
    return {
        "": f"limit: {limit.name}",
        "cache": limit.cache,
        "samples/s": f"{limit.samples_per_s:,.0f}",
        "MB/s": f"{limit.bytes_per_s / 1e6:,.0f}",
    }


def _times(row: Row) -> dict[str, str]:
    found = {f"{part}, µs a sample": amount(us_per_sample(row, part)) for part in PARTS}
    batch = row.batch_ms
    return found | {
        "ms a batch": amount(batch.p50),
        "99 %": amount(batch.p99),
        "longest": amount(batch.max),
        "nearest limit": row.limit or NOTHING,
        "path": row.path,
    }
