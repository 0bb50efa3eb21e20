"""The report of a bench as one HTML page: no script, and nothing that is not in the file.

The page is ``page.html`` within ``base.html``, with the charts drawn in it, so that it needs no
library to be looked at, and the browser is told to load nothing (Content-Security-Policy).
"""

from __future__ import annotations

import json
from pathlib import Path

from shardkit.measure.report import charts
from shardkit.measure.report.data import Limit, Report
from shardkit.measure.report.tables import LEFT, conditions, tables
from shardkit.measure.report.template import render, showable
from shardkit.measure.report.words import amount, in_words
from shardkit.system.durable_files import write_output


def write(path: str | Path, report: Report) -> None:
    """Write a report of :func:`shardkit.bench` as a page.

    Raises:
        StorageError: the file cannot be written.
    """
    write_output(path, page(report).encode())


def page(report: Report) -> str:
    """Return the page, as HTML."""
    near = charts.near_limits(report.rows, report.limits)
    return render(
        "report/page.html",
        names=dict.fromkeys(row.target for row in report.rows),
        words=in_words(report.rows, report.notes),
        conditions=conditions(report),
        command=showable(report.command),
        rates=charts.rates(report.rows, report.limits),
        time_spent=charts.time_spent(report.rows),
        near=[_limit(one) for one in near],
        far=[_limit(one) for one in report.limits if one not in near],
        tables=tables(report),
        left=LEFT,
        json=json.dumps(report.to_json(), indent=1),
    )


def _limit(one: Limit) -> str:
    return f"{one.name} {amount(one.samples_per_s)} a second"
