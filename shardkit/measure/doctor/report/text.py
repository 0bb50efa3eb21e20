"""What the doctor says, as lines for a terminal and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from shardkit.measure.doctor.diagnosis import Applied, Diagnosis
from shardkit.measure.doctor.evidence import Evidence
from shardkit.measure.doctor.report.sections import name, sections
from shardkit.measure.report.template import showable
from shardkit.measure.table import table

VERSION = 1
"""Of the JSON; a higher one if a field goes or changes its meaning."""

WIDTH, INDENT = 100, "  "

MOST_RANKS = 8
"""Ranks that have a line each; all are in the JSON."""

WIDEST_NAME = 22


def lines(
    evidence: Evidence, diagnosis: Diagnosis, applied: Applied | None = None, width: int = WIDTH
) -> list[str]:
    """Return the report, a line each, none with more than ``width`` characters."""
    made: list[str] = []
    for section in sections(evidence, diagnosis, applied, MOST_RANKS):
        title = [section.title] if section.title else []
        indent = INDENT if section.title else ""
        if not section.heads:
            body = _named(section.rows, width, indent)
        else:
            is_code = section.heads[0] == "where"  # whose columns are all text, and stand left
            left = {0, *(n for n, head in enumerate(section.heads) if is_code or not head)}
            heads = [section.heads] if section.heads[0] in ("rank", "rate") else []
            body = [f"{indent}{line}" for line in table([*heads, *section.rows], left)]
        made += ["", *title, *body]
    return [line[:width].rstrip() for line in made[1:]]


def _named(found: Sequence[tuple[str, ...]], width: int, indent: str) -> list[str]:
    """Return texts in lines of the width, each with its name on the left."""
    pairs = [(f"{name(head)}:" if head else "", text) for head, text in found]
    column = min(max(len(head) for head, _ in pairs) + 1, WIDEST_NAME)
    made = []
    for head, text in pairs:
        start = f"{indent}{head}".ljust(len(indent) + column)
        if len(head) >= column:
            start += " "
        after = " " * (len(indent) + column)
        # A path or a command is not to be cut at its hyphens: it is copied.
        made += wrap(
            text, width, initial_indent=start, subsequent_indent=after, break_on_hyphens=False
        ) or [start.rstrip()]
    return made


def to_json(
    evidence: Evidence, diagnosis: Diagnosis, applied: Applied | None = None
) -> dict[str, Any]:
    """Return plain values, which ``json.dumps`` takes with ``allow_nan=False``: sets are sorted
    lists, and what is no finite number is None."""
    plain = None if applied is None else asdict(applied)
    if applied is not None and plain is not None:
        plain["factor"] = applied.factor if applied.before else None
    whole = {"version": VERSION, "diagnosis": asdict(diagnosis), "applied": plain}
    made: dict[str, Any] = showable({**whole, "evidence": asdict(evidence)})
    return made
