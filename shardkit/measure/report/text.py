"""The figures of a report as text, and a report that any page can show."""

from __future__ import annotations

import math
from typing import Any

from shardkit.measure.report.words import Row, label, workers_in_words

NOTHING = "–"


def amount(value: float | None) -> str:
    """With three digits at least, and commas: ``39,853``, ``12.3``, ``0.0417``."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if abs(value) >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.{max(2 - math.floor(math.log10(abs(value))), 0)}f}"


def case_name(row: Row, most: int | None = None) -> str:
    """``lmdb, 2 threads``; with so many characters at most, the workers whole."""
    workers = f", {workers_in_words(row)}"
    name = label(row)
    return (name if most is None else shortened(name, most - len(workers))) + workers


def shortened(text: str, most: int) -> str:
    """With so many characters at most, without those in the middle: names differ at their ends."""
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def showable(value: Any) -> Any:
    """The same report with every name in characters that a page can hold, and None for what is no
    finite number. A file name may hold any bytes, which Python reads as lone surrogates."""
    if isinstance(value, dict):
        return {key: showable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [showable(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in value)
    return value


def is_whole(row: Row) -> bool:
    """Whether a row has all the figures that charts are drawn from."""
    edges = row["batch_histogram"]["edges_ms"]
    needed = [
        *(row["samples_per_s"][name] for name in ("median", "low", "high")),
        *(row["batch_ms"][name] for name in ("p50", "p99")),
        *edges,
        *row["batch_histogram"]["counts"],
        *row["seconds"].values(),
    ]
    are_numbers = all(isinstance(one, int | float) and math.isfinite(one) for one in needed)
    return are_numbers and len(edges) > 1 and edges[-1] > 0
