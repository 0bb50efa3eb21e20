"""The charts of a bench's report. Pure.

A chart has a line with the name of each target, and below it a bar for each number of workers. An
axis with the names beside it would leave a phone no room for the bars.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from shardkit.measure.report.data import Limit, Row
from shardkit.measure.report.shapes import BAR, GAP, HEAD, LEFT, LONGEST, Chart, Scale, Text, middle
from shardkit.measure.report.words import WORK, amount, case_name, shortened, workers_in_words

FAR = 3.0
"""A limit this many times beyond the fastest rate would leave no room for the rates."""


def rates(rows: Sequence[Row], limits: Sequence[Limit]) -> Chart:
    """Draw samples a second, the interval of the median, and the nearest limit if in sight."""
    seen = {one.name: one.samples_per_s for one in near_limits(rows, limits)}
    top = max([1.3 * _fastest(rows), *(1.05 * rate for rate in seen.values())])
    chart, placed = _laid_out("samples a second", top, rows)
    for row, y in placed:
        rate, end = row.samples_per_s, amount(row.samples_per_s.median)
        about = f"{case_name(row)}: {end} samples/s ({amount(rate.low)} to {amount(rate.high)})"
        chart.add_bar(0, rate.median, y, "bar", about)
        ends = chart.scale(rate.low), chart.scale(rate.high)
        chart.lines.append((*ends, middle(y), middle(y), "ink", 1.5))
        chart.add_end(max(rate.high, rate.median), y, end)
        if row.limit in seen:
            chart.add_upright(seen[row.limit], y, "limit", 3)
    return chart


def near_limits(rows: Sequence[Row], limits: Sequence[Limit]) -> list[Limit]:
    """Return the limits that a chart of the rates has room for."""
    return [one for one in limits if 0 < one.samples_per_s <= FAR * _fastest(rows)]


def time_spent(rows: Sequence[Row]) -> Chart:
    """Draw microseconds a sample: the work of all workers, one after another, and how long the loop
    waited, which is less with workers."""
    longest = max(max(us_per_sample(row, *WORK), us_per_sample(row, "wait"), 1e-3) for row in rows)
    chart, placed = _laid_out("µs a sample", 1.25 * longest, rows)
    for row, y in placed:
        spent, start = {part: us_per_sample(row, part) for part in (*WORK, "wait")}, 0.0
        each = ", ".join(f"{part} {amount(us)} µs" for part, us in spent.items())
        for part in WORK:
            chart.add_bar(start, start + spent[part], y, part, f"{case_name(row)}: {each}")
            start += spent[part]
        chart.add_end(max(start, spent["wait"]), y, amount(start))
        chart.add_upright(spent["wait"], y, "ink", 2)
    return chart


def us_per_sample(row: Row, *parts: str) -> float:
    """Return microseconds of a round's ``read``, ``transform``, ``collate`` or ``wait`` for each
    sample: rounds are of different lengths.
    """
    spent = sum(getattr(row.seconds, part) for part in parts)
    return float(1e6 * spent / max(row.samples, 1))


# --- what they are made of ----------------------------------------------------------------


def by_target(rows: Sequence[Row]) -> list[Row]:
    """Return rows of one target together, targets in the order in which they come first."""
    names = [*dict.fromkeys(row.target for row in rows)]
    return sorted(rows, key=lambda row: names.index(row.target))


def _laid_out(unit: str, top: float, rows: Sequence[Row]) -> tuple[Chart, list[tuple[Row, int]]]:
    """Return a chart with the names of targets and workers, and where each row's bar begins: those
    of one target below one another.
    """
    y, placed = 0, []
    texts: list[Text] = []
    for name, own in groupby(by_target(rows), lambda row: row.target):
        texts.append((0.0, y + HEAD / 2, shortened(name, LONGEST), "start", "name"))
        y += HEAD
        for row in own:
            texts.append((LEFT - 6, middle(y), workers_in_words(row), "end", ""))
            placed.append((row, y))
            y += BAR
        y += GAP
    return Chart(unit, Scale(0, top), y, texts=texts), placed


def _fastest(rows: Iterable[Row]) -> float:
    return max(row.samples_per_s.high for row in rows) or 1.0
