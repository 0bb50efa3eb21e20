"""The charts of a bench's report: what is drawn where. Pure.

A chart has a line with the name of each target, and below it a bar for each number of workers. An
axis with the names beside it would leave a phone no room for the bars.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from shardkit.measure.report.data import MOST_APART, Limit, Row
from shardkit.measure.report.shapes import (
    BAR,
    GAP,
    HEAD,
    LEFT,
    LONGEST,
    WIDTH,
    Bar,
    Chart,
    Scale,
    Text,
    middle,
)
from shardkit.measure.report.words import (
    WORK,
    amount,
    case_name,
    percent,
    shortened,
    workers_in_words,
)

BETWEEN = 4
"""The space between groups, where a row has more than one bar."""

RIDGE = 26
"""The height of a distribution."""

BESIDE = 27
"""Characters of a name that fit beside ``0.0234 ms, 99 %: 10.7``, in wide fonts."""

FAR = 3.0
"""A limit this many times beyond the fastest rate would leave no room for the rates."""


def rates(rows: Sequence[Row], limits: Sequence[Limit]) -> Chart:
    """Samples a second, the interval of the median, and the nearest limit where it is in sight."""
    seen = {one.name: one.samples_per_s for one in near_limits(rows, limits)}
    top = max([1.3 * _fastest(rows), *(1.05 * rate for rate in seen.values())])
    chart, placed = _laid_out("samples a second", top, rows)
    for row, y in placed:
        _add_rate(chart, row, y, "bar")
        if row.limit in seen:
            chart.add_upright(seen[row.limit], y, "limit", 3)
    return chart


def near_limits(rows: Sequence[Row], limits: Sequence[Limit]) -> list[Limit]:
    """The limits that a chart of the rates has room for."""
    return [one for one in limits if 0 < one.samples_per_s <= FAR * _fastest(rows)]


def cold_and_warm(pairs: Sequence[tuple[Row, Row]]) -> Chart:
    """Two bars a case, the cold one with its share of the warm one's rate."""
    cold = {id(warm): row for row, warm in pairs}
    top = 1.55 * _fastest([row for pair in pairs for row in pair])
    chart, placed = _laid_out("samples a second", top, [warm for _, warm in pairs], bars=2)
    for warm, y in placed:
        other = cold[id(warm)]
        share = other.samples_per_s.median / max(warm.samples_per_s.median, 1e-9)
        _add_rate(chart, warm, y, "warm", " warm")
        _add_rate(chart, other, y + BAR, "cold", f" cold, {percent(share)}")
    return chart


def time_spent(rows: Sequence[Row]) -> Chart:
    """Microseconds a sample: the work of all workers, one after another, and how long the loop
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
    """Microseconds of a round's ``read``, ``transform``, ``collate`` or ``wait``, a sample: rounds
    are of different lengths."""
    spent = sum(getattr(row.seconds, part) for part in parts)
    return float(1e6 * spent / max(row.samples, 1))


def batch_times(rows: Sequence[Row]) -> Chart:
    """A distribution a row, one below another; each as high as its highest bin."""
    high = max(row.batch_histogram.edges_ms[-1] for row in rows)
    low = max(min(row.batch_histogram.edges_ms[0] for row in rows), high / MOST_APART)
    step = HEAD + RIDGE + GAP
    chart = Chart("ms a batch", Scale(low, high, left=0), len(rows) * step)
    for number, row in enumerate(by_target(rows)):
        foot, p50 = (number + 1) * step - GAP, row.batch_ms.p50
        chart.bars.extend(_bins(row, foot, chart.scale))
        median = chart.scale(p50)
        chart.lines.append((median, median, foot - RIDGE, foot, "ink", 1.5))
        y, right = number * step + HEAD / 2, f"{amount(p50)} ms, 99 %: {amount(row.batch_ms.p99)}"
        chart.texts.append((0, y, case_name(row, BESIDE), "start", "name"))
        chart.texts.append((WIDTH, y, right, "end", ""))
    return chart


def _bins(row: Row, foot: float, scale: Scale) -> Iterator[Bar]:
    """The bins with batches in them, as far as they are on the scale."""
    edges, counts = row.batch_histogram.edges_ms, row.batch_histogram.counts
    most, total = max([1, *counts]), max(sum(counts), 1)
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        if count and high > scale.low:
            x, tall = scale(low), RIDGE * count / most
            about = f"{amount(low)} to {amount(high)} ms: {percent(count / total)} of the batches"
            yield x, foot - tall, scale(high) - x, tall, "bar", about


# --- what they are made of ----------------------------------------------------------------


def by_target(rows: Sequence[Row]) -> list[Row]:
    """Rows of one target together, targets in the order in which they come first."""
    names = [*dict.fromkeys(row.label for row in rows)]
    return sorted(rows, key=lambda row: names.index(row.label))


def _laid_out(
    unit: str, top: float, rows: Sequence[Row], bars: int = 1
) -> tuple[Chart, list[tuple[Row, int]]]:
    """A chart with the names of targets and workers, and where each row's bars begin: those of one
    target below one another."""
    y, placed = 0, []
    texts: list[Text] = []
    for name, own in groupby(by_target(rows), lambda row: row.label):
        texts.append((0.0, y + HEAD / 2, shortened(name, LONGEST), "start", "name"))
        y += HEAD
        for row in own:
            texts.append((LEFT - 6, middle(y), workers_in_words(row), "end", ""))
            placed.append((row, y))
            y += bars * BAR + (bars - 1) * BETWEEN
        y += GAP
    return Chart(unit, Scale(0, top), y, texts=texts), placed


def _fastest(rows: Iterable[Row]) -> float:
    return max(row.samples_per_s.high for row in rows) or 1.0


def _add_rate(chart: Chart, row: Row, y: float, color: str, after: str = "") -> None:
    rate = row.samples_per_s
    median, low, high = amount(rate.median), amount(rate.low), amount(rate.high)
    about = f"{case_name(row)}: {median} samples/s ({low} to {high})"
    chart.add_bar(0, rate.median, y, color, about)
    ends = chart.scale(rate.low), chart.scale(rate.high)
    chart.lines.append((*ends, middle(y), middle(y), "ink", 1.5))
    chart.add_end(max(rate.high, rate.median), y, median + after)
