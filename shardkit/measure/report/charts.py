"""The charts of a bench's report: Vega-Lite specifications, from the rows alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from shardkit.measure.bench.evaluate import MOST_APART
from shardkit.measure.report.marks import (
    BAR,
    GAP,
    HEAD,
    LEFT,
    WIDTH,
    Layout,
    Spec,
    Values,
    by_target,
    chart,
    lay_out,
    layer,
    rule,
    text,
)
from shardkit.measure.report.text import amount, case_name
from shardkit.measure.report.words import Row, percent, workers_in_words

RIDGE = 26
"""Pixels that a distribution is high."""

BESIDE = 27
"""Characters of a name that fit beside ``0.0234 ms, 99 %: 10.7``, in wide fonts."""

FAR = 3.0
"""A limit this many times beyond the fastest rate would leave no room for the rates."""

PARTS = ("read", "transform", "collate")


def rates(rows: Sequence[Row], limits: Sequence[dict[str, Any]]) -> Spec:
    """Samples a second, the interval of the median, and the nearest limit where it is in sight."""
    layout = lay_out(rows)
    seen = {one["name"]: one["samples_per_s"] for one in near_limits(rows, limits)}
    bars = [_rate_bar(place.row, place.y, "var(--bar)") for place in layout.places]
    marks = [
        {"x": seen[place.row["limit"]], "y": place.y - 1, "y2": place.y + BAR - 2}
        for place in layout.places
        if place.row["limit"] in seen
    ]
    top = max([1.3 * _fastest(rows), *(1.05 * rate for rate in seen.values())])
    layers = _bars(bars, rule(marks, "var(--limit)", 3))
    return chart(layout, layers, [0, top], "samples a second")


def near_limits(rows: Sequence[Row], limits: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that a chart of the rates has room for."""
    return [one for one in limits if (one["samples_per_s"] or 1e99) <= FAR * _fastest(rows)]


def cold_and_warm(pairs: Sequence[tuple[Row, Row]]) -> Spec:
    """Two bars a case, the cold one with its share of the warm one's rate."""
    cold = {id(warm): row for row, warm in pairs}
    layout = lay_out([warm for _, warm in pairs], bars=2)
    bars = []
    for place in layout.places:
        other = cold[id(place.row)]
        share = other["samples_per_s"]["median"] / max(place.row["samples_per_s"]["median"], 1e-9)
        bars.append(_rate_bar(place.row, place.y, "var(--warm)", " warm"))
        bars.append(_rate_bar(other, place.y + BAR, "var(--cold)", f" cold, {percent(share)}"))
        bars[-1]["workers"] = ""
    top = 1.55 * _fastest([row for pair in pairs for row in pair])
    return chart(layout, _bars(bars), [0, top], "samples a second")


def time_spent(rows: Sequence[Row]) -> Spec:
    """Of a sample, in µs: the work of all workers, one after another, and how long the loop
    waited, which with workers is less."""
    layout = lay_out(rows)
    bars, waits = [], []
    for place in layout.places:
        spent = {part: _us(place.row, part) for part in (*PARTS, "wait")}
        start, about = 0.0, ", ".join(f"{part} {amount(us)} µs" for part, us in spent.items())
        for part in PARTS:
            bar = _bar(place.row, place.y, f"var(--{part})", start, start + spent[part])
            bars.append(bar | {"about": f"{case_name(place.row)}: {about}"})
            start += spent[part]
        bars[-1] |= {"text": amount(start), "end": max(start, spent["wait"])}
        waits.append({"x": spent["wait"], "y": place.y - 1, "y2": place.y + BAR - 2})
    top = 1.25 * max(*(bar["x2"] for bar in bars), *(wait["x"] for wait in waits), 1e-3)
    return chart(layout, _bars(bars, rule(waits, "var(--ink)", 2)), [0, top], "µs a sample")


def batch_times(rows: Sequence[Row]) -> Spec:
    """A distribution a row, one below another; each as high as its highest bin."""
    high = max(row["batch_histogram"]["edges_ms"][-1] for row in rows)
    low = max(min(row["batch_histogram"]["edges_ms"][0] for row in rows), high / MOST_APART)
    bins: Values = []
    heads: Values = []
    medians: Values = []
    step = HEAD + RIDGE + GAP
    for i, row in enumerate(by_target(rows)):
        foot, times = (i + 1) * step - GAP, row["batch_ms"]
        bins += _bins(row, foot, low)
        medians.append({"x": max(times["p50"], low), "y": foot - RIDGE, "y2": foot})
        right = f"{amount(times['p50'])} ms, 99 %: {amount(times['p99'])}"
        heads.append({"text": case_name(row, BESIDE), "right": right, "y": i * step + HEAD / 2})
    layers = [
        layer({"type": "rect", "color": "var(--bar)"}, bins, x=True, x2=True, y=True, y2=True),
        rule(medians, "var(--ink)", 1.5),
        text(heads, "right", {"align": "right", "fontSize": 11}, x={"value": WIDTH}),
    ]
    layout = Layout([], heads, len(rows) * step)
    return chart(layout, layers, [low, high], "ms a batch", left=0, is_log=True, size=11)


def _bins(row: Row, foot: float, start: float) -> Values:
    """The bins with batches in them, as far as they lie right of ``start``."""
    edges, counts = row["batch_histogram"]["edges_ms"], row["batch_histogram"]["counts"]
    most, total = max([1, *counts]), max(sum(counts), 1)
    return [
        {
            "x": max(low, start),
            "x2": high,
            "y": foot - RIDGE * count / most,
            "y2": foot,
            "about": f"{amount(low)} to {amount(high)} ms: {percent(count / total)} of the batches",
        }
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
        if count and high > start
    ]


# --- what they are made of ----------------------------------------------------------------


def _fastest(rows: Iterable[Row]) -> float:
    return float(max(row["samples_per_s"]["high"] for row in rows)) or 1.0


def _us(row: Row, part: str) -> float:
    return float(1e6 * row["seconds"][part] / max(row["samples"], 1))


def _bar(row: Row, y: int, color: str, x: float, x2: float) -> dict[str, Any]:
    place = {"x": x, "x2": x2, "y": y, "y2": y + BAR - 3, "mid": y + (BAR - 3) / 2}
    return {**place, "color": color, "workers": workers_in_words(row)}


def _rate_bar(row: Row, y: int, color: str, after: str = "") -> dict[str, Any]:
    rate = row["samples_per_s"]
    median, low, high = (amount(rate[name]) for name in ("median", "low", "high"))
    return {
        **_bar(row, y, color, 0, rate["median"]),
        "low": rate["low"],
        "high": rate["high"],
        "end": max(rate["high"], rate["median"]),
        "text": median + after,
        "about": f"{case_name(row)}: {median} samples/s ({low} to {high})",
    }


def _bars(bars: Values, *marks: Spec) -> list[Spec]:
    """Rectangles, marks on them, the interval of those that have one, what their workers are, and
    their text, which what is below it must not hide."""
    spread = [bar for bar in bars if "low" in bar]
    rect = {"type": "rect"}
    color = {"field": "color", "type": "nominal", "scale": None}
    left = {"align": "right", "dx": -6, "fontSize": 11}
    right = {"align": "left", "dx": 5, "fontSize": 11}
    ends = [bar for bar in bars if "text" in bar]
    starts = list({bar["mid"]: bar for bar in bars if bar["workers"]}.values())
    return [
        layer(rect, bars, x=True, x2=True, y=True, y2=True, color=color),
        *marks,
        layer(
            {"type": "rule", "color": "var(--ink)", "strokeWidth": 1.5, "aria": False},
            spread,
            x={"field": "low"},
            x2={"field": "high"},
            y={"field": "mid"},
        ),
        text(starts, "workers", left, x={"value": LEFT}, y={"field": "mid"}),
        text(ends, "text", right, x={"field": "end"}, y={"field": "mid"}),
    ]
