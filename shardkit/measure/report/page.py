"""The report of a bench as one HTML page: no script, and nothing that is not in the file.

The page is ``page.html`` within ``base.html``, with the charts drawn in it, so that it needs no
library to be looked at, and the browser is told to load nothing (Content-Security-Policy).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from shardkit.measure.report import charts
from shardkit.measure.report.data import Report, Row, from_json
from shardkit.measure.report.tables import LEFT, conditions, tables
from shardkit.measure.report.template import render, showable
from shardkit.measure.report.words import amount, cache_states, in_words
from shardkit.system.durable_files import write_output


def write(path: str | Path, *reports: Report) -> None:
    """Write reports of :func:`shardkit.bench` as one page.

    The first is the one in question; another may be of the same targets, one of them cold.

    Raises:
        StorageError: the file cannot be written.
    """
    text = page(reports)
    write_output(path, text.encode())


def page(reports: Sequence[Report]) -> str:
    """The page, as HTML."""
    shown = [from_json(showable(report.to_json())) for report in reports]
    pairs = cold_with_warm([row for report in shown for row in report.rows if is_complete(row)])
    here = {(one.machine.cpu, one.machine.cores, one.machine.memory_bytes) for one in shown}
    return render(
        "report/page.html",
        names=dict.fromkeys(row.label for report in shown for row in report.rows),
        parts=[_part(report) for report in shown],
        cold_and_warm=charts.cold_and_warm(pairs) if pairs else None,
        is_one_machine=len(here) == 1,
        left=LEFT,
    )


def _part(report: Report) -> dict[str, Any]:
    """What the page shows of one report."""
    rows = [row for row in report.rows if is_complete(row)]
    near = charts.near_limits(rows, report.limits) if rows else []
    return {
        "name": f"{report.options.read}, cache {cache_states(report.rows)}",
        "words": in_words(rows, report.notes) if rows else ["no row has all its figures"],
        "conditions": conditions(report),
        "command": report.command,
        "charts": rows
        and {
            "rates": charts.rates(rows, report.limits),
            "time_spent": charts.time_spent(rows),
            "batch_times": charts.batch_times(rows),
        },
        "near": [_limit(one) for one in report.limits if one in near],
        "far": [_limit(one) for one in report.limits if one not in near],
        "tables": tables(report),
        "json": json.dumps(showable(report.to_json()), indent=1, ensure_ascii=False),
    }


def _limit(one: Any) -> str:
    return f"{one.name} {amount(one.samples_per_s)} a second"


def cold_with_warm(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Rows measured cold, each with the one of the same case that was warm."""
    warm = {_case(row): row for row in reversed(rows) if row.cache == "warm"}
    cold = {_case(row): row for row in reversed(rows) if row.cache == "cold"}
    cases = dict.fromkeys(map(_case, rows))
    return [(cold[case], warm[case]) for case in cases if case in cold and case in warm]


def _case(row: Row) -> tuple[Any, ...]:
    """What a cold row and a warm one must share to be set side by side."""
    target = (row.path, row.label, row.format)
    return (*target, row.read, row.workers, row.worker_type, row.batch_size)


def is_complete(row: Row) -> bool:
    """Whether a row has all the figures that charts are drawn from."""
    edges, times = row.batch_histogram.edges_ms, row.batch_ms
    needed = (*astuple(row.samples_per_s), *astuple(row.seconds), times.p50, times.p99, *edges)
    are_amounts = all(math.isfinite(one) and one >= 0 for one in needed)
    return are_amounts and len(edges) > 1 and edges[-1] > edges[0]
