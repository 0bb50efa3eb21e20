"""The figures of a report as text, and a report that any page can show."""

from __future__ import annotations

import math
from typing import Any

from shardkit.measure.bench_words import Row, label, workers_in_words

NOTHING = "–"


def amount(value: float | None) -> str:
    """With three digits at least, and commas: ``39,853``, ``12.3``, ``0.0417``."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if abs(value) >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.{max(2 - math.floor(math.log10(abs(value))), 0)}f}"


def case_name(row: Row) -> str:
    """``lmdb, 2 threads``."""
    return f"{label(row)}, {workers_in_words(row)}"


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
    needed = [
        *(row["samples_per_s"][name] for name in ("median", "low", "high")),
        *row["batch_ms"].values(),
        *row["batch_histogram"]["edges_ms"],
        *row["seconds"].values(),
    ]
    return all(isinstance(value, int | float) and math.isfinite(value) for value in needed)
