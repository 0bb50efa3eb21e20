"""What the report of a bench looks like on a terminal."""

from __future__ import annotations

from typing import Any

import click

_HEAD = ("", "workers", "samples/s", "95 % of", "MB/s", "ratio", "95 % of", "", "limit")
_LEFT = {0, 7}


def echo_report(report: dict[str, Any]) -> None:
    """A table with one line a target and number of workers, and what it says."""
    from shardkit.measure.bench_words import in_words

    options = report["options"]
    click.echo(
        f"{report['checked']}; {options['read']}, {_cache(report['rows'])}, batches of"
        f" {options['batch_size']}, {options['rounds']} rounds"
    )
    _echo_table([_HEAD, *map(_cells, report["rows"]), *map(_limit_cells, report["limits"])])
    for line in (*in_words(report), *report["notes"]):
        click.echo(line)


def _cache(rows: list[dict[str, Any]]) -> str:
    states = {row["cache"] for row in rows}
    return states.pop() if len(states) == 1 else "partly cached"


def _echo_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if i in _LEFT else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo(f"  {'  '.join(cells)}".rstrip())


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    rate, ratio = row["samples_per_s"], row["ratio"]
    return (
        row["target"] if row["where"] is None else f"{row['target']} on {row['where']}",
        str(row["workers"]),
        f"{rate['median']:,.0f}",
        f"{rate['low']:,.0f}-{rate['high']:,.0f}",
        f"{row['bytes_per_s']['median'] / 1e6:,.0f}",
        f"{ratio['median']:.2f}" if ratio else "",
        f"{ratio['low']:.2f}-{ratio['high']:.2f}" if ratio else "",
        row["verdict"],
        "" if row["of_limit"] is None else f"{row['of_limit']:.0%}",
    )


def _limit_cells(limit: dict[str, Any]) -> tuple[str, ...]:
    rates = f"{limit['samples_per_s']:,.0f}", "", f"{limit['bytes_per_s'] / 1e6:,.0f}"
    return (f"limit: {limit['name']}", "", *rates, "", "", "", "")
