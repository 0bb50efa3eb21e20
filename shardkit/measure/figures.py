"""Figures and names as text, and tables of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

NOTHING = "–"
"""Stands for a figure that is missing."""


def times(ratio: float) -> str:
    """Return a ratio with as many digits as say something."""
    if not math.isfinite(ratio):
        return NOTHING
    return f"{ratio:.2f}" if ratio >= 0.2 else f"{ratio:.3f}"


def percent(share: float) -> str:
    """Return ``12 %`` or ``0.3 %``."""
    if not math.isfinite(share):
        return NOTHING
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.1f} %"


def amount(value: float) -> str:
    """Return a figure with three digits at least, and commas: ``39,853``, ``12.3``, ``0.0417``."""
    if not math.isfinite(value):
        return NOTHING
    if abs(value) >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.{max(2 - math.floor(math.log10(abs(value))), 0)}f}"


def milliseconds(seconds: float) -> str:
    """Return ``1,060 ms`` or ``0.284 ms``."""
    return f"{amount(1e3 * seconds)} ms"


def shortened(text: str, most: int) -> str:
    """Return the text in so many characters at most; the middle goes, since names differ at their
    ends.
    """
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def table(lines: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """Return lines of cells, the heads first, with their columns flush right, or flush ``left``
    those of these numbers."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
