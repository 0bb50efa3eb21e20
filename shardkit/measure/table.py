"""Figures in columns, as plain text."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def table(lines: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """Lines of cells, the heads first, with their columns flush right, or flush ``left`` those of
    these numbers."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
