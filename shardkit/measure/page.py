"""The page of a report, for bench and the doctor: no script, and nothing that is not in the file.

A browser is told to load nothing (Content-Security-Policy).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

LEFT = frozenset(
    {
        *("", "target", "cache", "against the first", "nearest limit", "path"),
        *("rank", "part", "where", "what", "cost", "rate"),
    }
)
"""Heads of columns of text, which are aligned left. Others are figures."""

BLOCK = 30
"""Characters of a bar that stands for the whole; a page draws it."""


@dataclass(frozen=True)
class Section:
    """A table, or, without ``heads``, texts that each have a name before them."""

    title: str
    rows: Sequence[Sequence[str]]
    heads: tuple[str, ...] = ()


def bar(share: float) -> str:
    """Return a bar as text, for a share from 0 to 1."""
    return "#" * round(BLOCK * share)


def page(
    title: str,
    words: Sequence[str],
    facts: Iterable[tuple[str, str]],
    sections: Sequence[Section],
    json: str = "",
) -> str:
    """Return a page, as HTML: ``words`` come first, then named ``facts``, then all else.

    Args:
        title: the name of the program, a colon, and what the report is about.
        json: the whole report, to be folded out.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    template = Environment(
        loader=PackageLoader("shardkit.measure", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("page.html")
    return template.render(
        title=showable(title),
        heading=title.partition(":")[0],
        words=showable(words),
        facts=showable([*facts]),
        sections=sections,
        left=LEFT,
        json=json,
    )


def showable(value: Any) -> Any:
    """Return the same plain values with every name in characters that a page can hold, and None
    for what is no finite number. A file name may hold any bytes, which Python reads as lone
    surrogates. A set becomes a sorted list, as JSON has none.
    """
    if isinstance(value, dict):
        return {showable(key): showable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [showable(one) for one in value]
    if isinstance(value, frozenset):
        return [showable(one) for one in sorted(value)]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in value)
    return value
