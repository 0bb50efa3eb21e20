"""What the report of a bench looks like on a terminal."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING

import click

from shardkit.measure.table import table

if TYPE_CHECKING:
    from shardkit.measure.report.data import Limit, Report, Row


def echo_report(report: Report) -> None:
    """A table with one line a target and number of workers, and what it says."""
    from shardkit.measure.report.words import cache_states, in_words

    options = report.options
    click.echo(
        f"{report.checked}: {options.read}, cache {cache_states(report.rows)}, batches of"
        f" {options.batch_size}, {options.rounds} rounds"
    )
    lines = [*map(_cells, report.rows), *map(_limit_cells, report.limits)]
    if len({row.cache for row in report.rows}) == 1:
        lines = [{**line, "cache": ""} for line in lines]
    heads = [head for head in lines[0] if any(line.get(head) for line in lines)]
    cells = [[line.get(head, "") for head in heads] for line in lines]
    for text in table([heads, *cells], left=(0, len(heads) - 1)):
        click.echo(f"  {text}")
    for text in in_words(report.rows, report.notes):
        click.echo(text)


def _cells(row: Row) -> dict[str, str]:
    from shardkit.measure.report.words import percent, times

    rate, read, against = row.samples_per_s, row.device_bytes, "reference"
    if row.ratio:
        median, low, high = map(times, astuple(row.ratio))
        against = f"{median} ({low}-{high}) {row.verdict}"
    is_cold = row.cache != "warm" and read
    return {
        "": row.label,
        "workers": str(row.workers),
        "cache": row.cache,
        "samples/s": f"{rate.median:,.0f}",
        "95 % interval": f"{rate.low:,.0f}-{rate.high:,.0f}",
        "MB/s": f"{row.bytes_per_s.median / 1e6:,.0f}",
        "from disk": f"{(read or 0) / row.dataset_bytes:.2f}" if is_cold else "",
        "of limit": "" if row.of_limit is None else percent(row.of_limit),
        "against the first": against,
    }


def _limit_cells(limit: Limit) -> dict[str, str]:
    return {
        "": f"limit: {limit.name}",
        "cache": limit.cache,
        "samples/s": f"{limit.samples_per_s:,.0f}",
        "MB/s": f"{limit.bytes_per_s / 1e6:,.0f}",
    }
