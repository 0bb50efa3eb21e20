"""What the report of a bench looks like on a terminal."""

from __future__ import annotations

from typing import Any

import click

Row = dict[str, Any]

_LEFT = {"", "against the first"}


def echo_report(report: dict[str, Any]) -> None:
    """A table with one line a target and number of workers, and what it says."""
    from shardkit.measure.report.words import cache_states, in_words

    options = report["options"]
    click.echo(
        f"{report['checked']}: {options['read']}, cache {cache_states(report['rows'])}, batches of"
        f" {options['batch_size']}, {options['rounds']} rounds"
    )
    lines = [*map(_cells, report["rows"]), *map(_limit_cells, report["limits"])]
    if len({line["cache"] for line in lines[: len(report["rows"])]}) == 1:
        lines = [{**line, "cache": ""} for line in lines]
    _echo_table(lines)
    for line in in_words(report):
        click.echo(line)


def _echo_table(lines: list[dict[str, str]]) -> None:
    """Without the columns in which there is nothing."""
    heads = [head for head in lines[0] if any(line.get(head) for line in lines)]
    rows = [heads, *([line.get(head, "") for head in heads] for line in lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if head in _LEFT else cell.rjust(width)
            for head, cell, width in zip(heads, row, widths, strict=True)
        ]
        click.echo(f"  {'  '.join(cells)}".rstrip())


def _cells(row: Row) -> dict[str, str]:
    from shardkit.measure.report.words import label, percent, times

    rate, ratio, read = row["samples_per_s"], row["ratio"], row["device_bytes"]
    against = "reference"
    if ratio:
        median, low, high = (times(ratio[name]) for name in ("median", "low", "high"))
        against = f"{median} ({low}-{high}) {row['verdict']}"
    is_cold = row["cache"] != "warm" and read
    return {
        "": label(row),
        "workers": str(row["workers"]),
        "cache": row["cache"],
        "samples/s": f"{rate['median']:,.0f}",
        "95 % interval": f"{rate['low']:,.0f}-{rate['high']:,.0f}",
        "MB/s": f"{row['bytes_per_s']['median'] / 1e6:,.0f}",
        "from disk": f"{read / row['dataset_bytes']:.2f}" if is_cold else "",
        "of limit": "" if row["of_limit"] is None else percent(row["of_limit"]),
        "against the first": against,
    }


def _limit_cells(limit: dict[str, Any]) -> dict[str, str]:
    return {
        "": f"limit: {limit['name']}",
        "cache": limit["cache"],
        "samples/s": f"{limit['samples_per_s']:,.0f}",
        "MB/s": f"{limit['bytes_per_s'] / 1e6:,.0f}",
    }
