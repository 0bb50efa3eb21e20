"""The report of a bench as one HTML page: no script, and nothing that is not in the file.

Charts are drawn while the page is made, so that it needs no library to be looked at, and the
browser is told to load nothing (Content-Security-Policy).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shardkit.errors import UsageError
from shardkit.measure.report import charts
from shardkit.measure.report.marks import Spec
from shardkit.measure.report.style import STYLE
from shardkit.measure.report.tables import conditions, tables
from shardkit.measure.report.text import amount, is_whole, showable
from shardkit.measure.report.words import Row, cache_states, in_words, label
from shardkit.system.storage import atomic_write, os_errors, show_path

Report = dict[str, Any]

NEEDS = "charts are drawn by the vl-convert-python library: pip install 'shardkit[report]'"

HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
"""

SAME = ("read", "workers", "worker_type", "batch_size")
"""What a cold row and a warm one must share, beside the target, to be set side by side."""


def write(path: str | Path, *reports: Report) -> None:
    """Write reports of :func:`shardkit.bench` as one page.

    The first is the one in question; another may be of the same targets, one of them cold.

    Raises:
        UsageError: the library that draws is missing. StorageError: the file cannot be written.
    """
    text = page(reports)
    with os_errors(f"writing {show_path(path)}"):
        atomic_write(Path(path), [text.encode()])


def page(reports: Sequence[Report]) -> str:
    """The page. Raises UsageError if the library that draws is missing."""
    shown: list[Report] = [showable(report) for report in reports]
    names = dict.fromkeys(label(row) for report in shown for row in report["rows"])
    parts = [
        f"{HEAD}<title>shardkit bench: {escape(', '.join(names))}</title>",
        f"<style>{STYLE}</style></head><body><main><h1>shardkit bench</h1>",
        *(_opening(report, len(shown) > 1) for report in shown),
        _cold_and_warm(shown),
        *(_figures(report, len(shown) > 1) for report in shown),
        "</main></body></html>\n",
    ]
    return "\n".join(parts)


def refuse_without_charts() -> None:
    """Raises UsageError if the library that draws is missing: said before minutes of measuring."""
    if find_spec("vl_convert") is None:
        raise UsageError(NEEDS)


# --- in the order of the page -------------------------------------------------------------


def _name(report: Report) -> str:
    return f"{report['options']['read']}, cache {cache_states(report['rows'])}"


def _opening(report: Report, has_name: bool) -> str:
    """The verdict, and what it was measured on."""
    rows = _drawable(report)
    lines = in_words({**report, "rows": rows}) if rows else ["no row has all its figures"]
    title = f"<h2>{escape(_name(report))}</h2>" if has_name else ""
    words = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return f'{title}<div class="words">{words}</div>{conditions(report)}'


def _cold_and_warm(reports: Sequence[Report]) -> str:
    pairs = cold_with_warm([row for report in reports for row in _drawable(report)])
    if not pairs:
        return ""
    note = "The bars are medians, the thin lines their 95 % intervals; the shares are cold to warm."
    facts = {tuple(r["machine"].get(f) for f in ("cpu", "cores", "memory_bytes")) for r in reports}
    if len(facts) > 1:
        note = f"Measured on different machines. {note}"
    key = _key(("warm", "warm"), ("cold", "cold"))
    chart = _chart("Cold against warm", charts.cold_and_warm(pairs), key + escape(note))
    return f'<div class="charts">{chart}</div>'


def cold_with_warm(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Rows measured cold, each with the one of the same case that was warm."""
    warm = {_case(row): row for row in reversed(rows) if row["cache"] == "warm"}
    cold = {_case(row): row for row in reversed(rows) if row["cache"] == "cold"}
    cases = dict.fromkeys(map(_case, rows))
    return [(cold[case], warm[case]) for case in cases if case in cold and case in warm]


def _case(row: Row) -> tuple[Any, ...]:
    return (row["path"], label(row), row["format"], *(row[name] for name in SAME))


def _figures(report: Report, has_name: bool) -> str:
    title = f"<h2>{escape(_name(report))}</h2>" if has_name else ""
    drawn = "".join(_charts(report)) if _drawable(report) else ""
    text = json.dumps(report, indent=1, ensure_ascii=False)
    return (
        f'{title}<div class="charts">{drawn}</div>{tables(report)}'
        f"<details><summary>The report as JSON</summary><pre>{escape(text)}</pre></details>"
    )


def _charts(report: Report) -> Iterator[str]:
    rows, limits = _drawable(report), report["limits"]
    note = "The bars are medians, the thin lines their 95 % intervals."
    yield _chart("Rate", charts.rates(rows, limits), escape(note) + _limits(rows, limits))
    key = _key(("read", "reading"), ("transform", "the transform"), ("collate", "collating"))
    note = (
        "Of all workers, added up. The thin line is how long the loop waited: with workers, who"
        " share the work, less."
    )
    yield _chart("Where the time goes", charts.time_spent(rows), key + escape(note))
    note = (
        "How long the loop waited for each batch; a logarithmic scale. The thin line is the median,"
        " which is named, and what 99 % of them stay below; the last bar has all above, too."
    )
    yield _chart("Time a batch", charts.batch_times(rows), escape(note))


def _limits(rows: Sequence[Row], limits: Sequence[dict[str, Any]]) -> str:
    """What the marks of the limits are, and which are not drawn."""
    near = [one["name"] for one in charts.near_limits(rows, limits)]
    named = {
        one["name"]: f"{one['name']} {amount(one['samples_per_s'])} a second" for one in limits
    }
    drawn = ", ".join(named[name] for name in named if name in near)
    far = ", ".join(named[name] for name in named if name not in near)
    return (f" {_key(('limit', f'limit: {drawn}'))}" if drawn else "") + (
        f" Too far right to be drawn: {escape(far)}." if far else ""
    )


# --- what it is made of -------------------------------------------------------------------


def _drawable(report: Report) -> list[Row]:
    return [row for row in report["rows"] if is_whole(row)]


def _key(*names: tuple[str, str]) -> str:
    """Swatches of the colours of that name, and what they stand for."""
    swatches = (f'<i class="{color}"></i>{escape(text)}' for color, text in names)
    return f'<span class="key">{" ".join(f"<span>{one}</span>" for one in swatches)}</span> '


def _chart(title: str, spec: Spec, caption: str) -> str:
    svg = with_titles(draw(spec))
    about = f"{title}: a chart; its figures are in the tables below"
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(about)}" ', 1)
    return f"<figure><h3>{title}</h3>{svg}<figcaption>{caption}</figcaption></figure>"


def draw(spec: Spec) -> str:
    """An SVG element. Raises UsageError if the library is missing."""
    try:
        import vl_convert
    except ImportError as error:
        raise UsageError(NEEDS) from error
    svg = vl_convert.vegalite_to_svg(spec)
    return re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg, count=2)


def with_titles(svg: str) -> str:
    """What screen readers are told of a mark is what a mouse over it shows, too."""
    return re.sub(
        r'<(path|line) aria-label="([^"]*)"([^>]*)/>', r"<\1\3><title>\2</title></\1>", svg
    )
