"""What the charts of a report are made of: where rows are drawn, marks, axes, colours.

A chart is laid out here, in pixels from the top: a line with the target's name, then a bar for
each number of workers. An axis with the names beside it would leave a phone no room for the bars.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from shardkit.measure.report.text import shortened
from shardkit.measure.report.words import Row, label

Spec = dict[str, Any]
Values = list[dict[str, Any]]

WIDTH = 340
LEFT = 78
"""Pixels; ``16 processes`` fits in, in wide fonts."""

HEAD, BAR, GAP = 16, 14, 7
"""Heights in pixels: of a name, of a bar with the space below it, between targets."""

BETWEEN = 4
"""Between the groups where a row has more than one bar."""

LONGEST = 40
"""Characters of a name that a line holds, in wide fonts."""

MOST_STEPS = 7
"""Labels that an axis has room for."""


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


def by_target(rows: Sequence[Row]) -> list[Row]:
    """Those of one target together, targets in the order in which they come first."""
    names = [*dict.fromkeys(map(label, rows))]
    return sorted(rows, key=lambda row: names.index(label(row)))


def lay_out(rows: Sequence[Row], bars: int = 1) -> Layout:
    """Rows of one target below one another, in the order of the targets; ``bars`` for each."""
    y, heads, places = 0, [], []
    for name, own in groupby(by_target(rows), label):
        heads.append({"text": shortened(name, LONGEST), "y": y + HEAD / 2})
        y += HEAD
        for row in own:
            places.append(Place(row, y))
            y += bars * BAR + (bars - 1) * BETWEEN
        y += GAP
    return Layout(places, heads, y)


def rule(values: Values, color: str, width: float) -> Spec:
    """Upright lines."""
    mark = {"type": "rule", "color": color, "strokeWidth": width, "aria": False}
    return layer(mark, values, x=True, y=True, y2=True)


def text(values: Values, field: str, mark: Spec, **encoding: Any) -> Spec:
    """The text that a field has."""
    mark = {"type": "text", "baseline": "middle", "color": "var(--ink)", "aria": False} | mark
    shown = {"field": field, "type": "nominal"}
    return layer(mark, values, **({"y": True} | encoding), text=shown)


def layer(mark: Spec, values: Values, **encoding: Any) -> Spec:
    """A layer; ``x=True`` is the field of that name."""
    made = {name: {"field": name} if what is True else what for name, what in encoding.items()}
    for name in ("x", "y"):
        if "field" in made.get(name, {}):
            made[name] = made[name] | {"type": "quantitative"}
    if any("about" in value for value in values):
        made["description"] = {"field": "about"}
    return {"mark": mark, "data": {"values": values}, "encoding": made}


def chart(
    layout: Layout,
    layers: Sequence[Spec],
    domain: Sequence[float],
    title: str,
    left: int = LEFT,
    is_log: bool = False,
    size: int = 12,
) -> Spec:
    """A chart of these layers, with its names above them."""
    bold = {"align": "left", "fontWeight": 600, "fontSize": size}
    names = text(layout.heads, "text", bold, x={"value": 0})
    kind = {"type": "log"} if is_log else {"type": "linear"}
    x = {**kind, "domain": [*domain], "range": [left, WIDTH], "nice": False, "clamp": True}
    y = {"domain": [0, layout.height], "range": [0, layout.height], "nice": False}
    axis: Spec = {
        "title": title,
        "format": "~g" if is_log else "~s",
        "tickCount": 4,
        "labelExpr": ZERO,
    }
    if is_log and (values := steps(*domain)):
        axis["values"] = values
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


def steps(low: float, high: float) -> list[float]:
    """Where to draw lines to a logarithmic scale: 1, 2, 5, 10, or powers of ten where these are
    too many. Empty if there are fewer than two."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1,)):
        # Not 10**-3: a product of that is not the float that its digits are.
        found = [float(f"{factor}e{exponent}") for exponent in exponents for factor in factors]
        found = [value for value in found if low <= value <= high]
        if len(found) <= MOST_STEPS:
            break
    return found if len(found) > 1 else []


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
