"""The charts of a bench's report: Vega-Lite specifications, from the rows alone. Pure.

A chart is laid out here, in pixels from the top: a line with the target's name, then a bar for
each number of workers. An axis with the names beside it would leave a phone no room for the bars.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shardkit.measure.bench_words import Row, label, percent, workers_in_words
from shardkit.measure.report_text import amount, case_name

Spec = dict[str, Any]
Values = list[dict[str, Any]]

WIDTH = 340
LEFT = 66
"""Pixels; ``12 processes`` fits in."""

HEAD, BAR, GAP = 16, 14, 7
"""Heights in pixels: of a name, of a bar with the space below it, between targets."""

RIDGE = 26
"""Of a distribution."""

FAR = 3.0
"""A limit this many times beyond the fastest rate would leave no room for the rates."""

WIDE = 6.0
"""Batches whose times differ by more are drawn to a logarithmic scale."""

PARTS = ("read", "transform", "collate")


@dataclass(frozen=True)
class Place:
    """Where the bar of a row is drawn."""

    row: Row
    y: int


@dataclass(frozen=True)
class Layout:
    """``heads``: names and where their line begins."""

    places: list[Place]
    heads: Values
    height: int


def lay_out(rows: Sequence[Row], bars: int = 1) -> Layout:
    """Rows of one target below one another, in the order of the targets; ``bars`` for each."""
    y, heads, places = 0, [], []
    for name in dict.fromkeys(map(label, rows)):
        heads.append({"text": name, "y": y + HEAD / 2})
        y += HEAD
        for row in (row for row in rows if label(row) == name):
            places.append(Place(row, y))
            y += bars * BAR
        y += GAP
    return Layout(places, heads, y)


# --- the charts ---------------------------------------------------------------------------


def rates(rows: Sequence[Row], limits: Sequence[dict[str, Any]]) -> Spec:
    """Samples a second, the interval of the median, and the nearest limit where it is in sight."""
    layout = lay_out(rows)
    seen = {one["name"]: one["samples_per_s"] for one in near_limits(rows, limits)}
    bars = [_rate_bar(place.row, place.y, "var(--bar)") for place in layout.places]
    marks = [
        {"x": seen[place.row["limit"]], "y": place.y, "y2": place.y + BAR - 3}
        for place in layout.places
        if place.row["limit"] in seen
    ]
    top = max([1.3 * _fastest(rows), *(1.05 * rate for rate in seen.values())])
    layers = [*_bars(bars), _rule(marks, "var(--limit)", 3)]
    return _spec(layout, layers, [0, top], "samples a second")


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
        bars.append(_rate_bar(other, place.y + BAR - 3, "var(--cold)", f" cold, {percent(share)}"))
        bars[-1]["workers"] = ""
    top = 1.55 * _fastest([row for pair in pairs for row in pair])
    return _spec(layout, _bars(bars), [0, top], "samples a second")


def time_spent(rows: Sequence[Row]) -> Spec:
    """Of a sample, in µs: the work of all workers, one after another, and how long the loop
    waited, which with workers is less."""
    layout = lay_out(rows)
    bars, waits = [], []
    for place in layout.places:
        spent = {part: _us(place.row, part) for part in (*PARTS, "wait")}
        start, text = 0.0, ", ".join(f"{part} {amount(us)} µs" for part, us in spent.items())
        for part in PARTS:
            bar = _bar(place.row, place.y, f"var(--{part})", start, start + spent[part])
            bars.append(bar | {"about": f"{case_name(place.row)}: {text}"})
            start += spent[part]
        bars[-1] |= {"text": amount(start), "end": max(start, spent["wait"])}
        waits.append({"x": spent["wait"], "y": place.y - 1, "y2": place.y + BAR - 2})
    top = 1.25 * max(*(bar["x2"] for bar in bars), *(wait["x"] for wait in waits), 1e-3)
    return _spec(layout, [*_bars(bars), _rule(waits, "var(--ink)", 2)], [0, top], "µs a sample")


def batch_times(rows: Sequence[Row]) -> Spec:
    """A distribution a row, one below another; each as high as its highest bin."""
    low = min(row["batch_ms"]["p5"] for row in rows) / 2
    high = max(row["batch_histogram"]["edges_ms"][-1] for row in rows)
    is_log = low > 0 and max(r["batch_ms"]["p50"] for r in rows) > WIDE * 2 * low
    start = low if is_log else 0.0
    bins: Values = []
    heads: Values = []
    medians: Values = []
    step = HEAD + RIDGE + GAP
    for i, row in enumerate(rows):
        foot, times = (i + 1) * step - GAP, row["batch_ms"]
        bins += _bins(row, foot, start)
        medians.append({"x": max(times["p50"], start), "y": foot - RIDGE, "y2": foot})
        text = f"{amount(times['p50'])} ms, 99 % in {amount(times['p99'])}"
        heads.append({"text": case_name(row), "right": text, "y": i * step + HEAD / 2})
    layers = [
        _layer({"type": "rect", "color": "var(--bar)"}, bins, x=True, x2=True, y=True, y2=True),
        _rule(medians, "var(--ink)", 1.5),
        _text(heads, "right", {"align": "right", "fontSize": 11}, x={"value": WIDTH}),
    ]
    layout = Layout([], heads, len(rows) * step)
    return _spec(layout, layers, [start, high], "ms a batch", left=0, is_log=is_log, room=200)


def _bins(row: Row, foot: int, start: float) -> Values:
    """The bins with batches in them, as far as they lie right of ``start``."""
    edges, counts = row["batch_histogram"]["edges_ms"], row["batch_histogram"]["counts"]
    most, total = max([1, *counts]), max(sum(counts), 1)
    found = []
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        if count and high > start:
            about = f"{amount(low)} to {amount(high)} ms: {percent(count / total)} of the batches"
            top = foot - RIDGE * count / most
            x = max(low, start)
            found.append({"x": x, "x2": high, "y": top, "y2": foot, "about": about})
    return found


# --- what they are made of ----------------------------------------------------------------


def _fastest(rows: Iterable[Row]) -> float:
    return float(max(row["samples_per_s"]["high"] for row in rows)) or 1.0


def _us(row: Row, part: str) -> float:
    return float(1e6 * row["seconds"][part] / max(row["samples"], 1))


def _bar(row: Row, y: int, color: str, x: float, x2: float) -> dict[str, Any]:
    place = {"x": x, "x2": x2, "y": y, "y2": y + BAR - 3, "mid": y + (BAR - 3) / 2}
    return {**place, "color": color, "workers": workers_in_words(row)}


def _rate_bar(row: Row, y: int, color: str, text: str = "") -> dict[str, Any]:
    rate = row["samples_per_s"]
    median, low, high = (amount(rate[name]) for name in ("median", "low", "high"))
    return {
        **_bar(row, y, color, 0, rate["median"]),
        "low": rate["low"],
        "high": rate["high"],
        "end": max(rate["high"], rate["median"]),
        "text": median + text,
        "about": f"{case_name(row)}: {median} samples/s ({low} to {high})",
    }


def _bars(bars: Values) -> list[Spec]:
    """Rectangles, the interval of those that have one, what their workers are, and their text."""
    spread = [bar for bar in bars if "low" in bar]
    rect = {"type": "rect"}
    color = {"field": "color", "type": "nominal", "scale": None}
    left = {"align": "right", "dx": -6, "fontSize": 11}
    right = {"align": "left", "dx": 5, "fontSize": 11}
    ends = [bar for bar in bars if "text" in bar]
    starts = list({bar["mid"]: bar for bar in bars if bar["workers"]}.values())
    return [
        _layer(rect, bars, x=True, x2=True, y=True, y2=True, color=color),
        _layer(
            {"type": "rule", "color": "var(--ink)", "strokeWidth": 1.5, "aria": False},
            spread,
            x={"field": "low"},
            x2={"field": "high"},
            y={"field": "mid"},
        ),
        _text(starts, "workers", left, x={"value": LEFT}, y={"field": "mid"}),
        _text(ends, "text", right, x={"field": "end"}, y={"field": "mid"}),
    ]


def _rule(values: Values, color: str, width: float) -> Spec:
    mark = {"type": "rule", "color": color, "strokeWidth": width, "aria": False}
    return _layer(mark, values, x=True, y=True, y2=True)


def _text(values: Values, field: str, mark: Spec, **encoding: Any) -> Spec:
    mark = {"type": "text", "baseline": "middle", "color": "var(--ink)", "aria": False} | mark
    text = {"field": field, "type": "nominal"}
    return _layer(mark, values, **({"y": True} | encoding), text=text)


def _layer(mark: Spec, values: Values, **encoding: Any) -> Spec:
    """A layer; ``x=True`` is the field of that name."""
    made = {name: {"field": name} if what is True else what for name, what in encoding.items()}
    for name in ("x", "y"):
        if "field" in made.get(name, {}):
            made[name] = made[name] | {"type": "quantitative"}
    if any("about" in value for value in values):
        made["description"] = {"field": "about"}
    return {"mark": mark, "data": {"values": values}, "encoding": made}


def _spec(
    layout: Layout,
    layers: Sequence[Spec],
    domain: Sequence[float],
    title: str,
    left: int = LEFT,
    is_log: bool = False,
    room: int = WIDTH,
) -> Spec:
    """A chart; its names are ``room`` pixels wide at most."""
    names = _text(
        layout.heads, "text", {"align": "left", "fontWeight": 600, "limit": room}, x={"value": 0}
    )
    kind = {"type": "log"} if is_log else {"type": "linear"}
    x = {**kind, "domain": [*domain], "range": [left, WIDTH], "nice": False, "clamp": True}
    y = {"domain": [0, layout.height], "range": [0, layout.height], "nice": False}
    axis = {"title": title, "format": "~g" if is_log else "~s", "tickCount": 4, "labelExpr": ZERO}
    shared = {
        "x": {"type": "quantitative", "scale": x, "axis": axis},
        "y": {"type": "quantitative", "scale": y, "axis": None},
    }
    return {
        "width": WIDTH,
        "height": layout.height,
        "padding": 4,
        "encoding": shared,
        "layer": [*layers, names],
        "config": CONFIG,
    }


ZERO = "datum.value ? datum.label : '0'"
"""Not ``0k``."""

CONFIG = {
    "background": "transparent",
    "view": {"stroke": None},
    "text": {"fontSize": 12},
    "axis": {
        "labelColor": "var(--soft)",
        "titleColor": "var(--soft)",
        "titleFontWeight": "normal",
        "gridColor": "var(--grid)",
        "domain": False,
        "ticks": False,
        "labelFontSize": 11,
        "titleFontSize": 11,
    },
}
"""Colours are variables of the page, which has others in the dark."""
