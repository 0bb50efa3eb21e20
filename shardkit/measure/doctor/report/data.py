"""The doctor's findings as plain values, for JSON, and with names that a terminal can show."""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass, replace
from typing import Any, TypeVar

from shardkit.measure.doctor.diagnosis import Applied, Diagnosis
from shardkit.measure.doctor.evidence import Evidence
from shardkit.measure.report.template import showable

VERSION = 1
"""Of the JSON; a higher one if a field goes or changes its meaning."""

_T = TypeVar("_T")


def to_json(
    evidence: Evidence, diagnosis: Diagnosis, applied: Applied | None = None
) -> dict[str, Any]:
    """Plain values, which ``json.dumps`` takes with ``allow_nan=False``: sets are sorted lists, and
    what is no finite number is None."""
    whole = {
        "version": VERSION,
        "diagnosis": asdict(diagnosis),
        "applied": None if applied is None else _applied(applied),
        "evidence": asdict(without_timelines(evidence)),
    }
    made: dict[str, Any] = showable(whole)
    for rank, plain in zip(evidence.ranks, made["evidence"]["ranks"], strict=True):
        plain["timeline"] = showable(rank.timeline)
    return made


def _applied(applied: Applied) -> dict[str, Any]:
    """With its factor; None if nothing ran before."""
    return {**asdict(applied), "factor": applied.factor if applied.before else None}


def without_timelines(evidence: Evidence) -> Evidence:
    """The same but for each step, of which there may be very many."""
    ranks = tuple(replace(rank, timeline=()) for rank in evidence.ranks)
    return replace(evidence, ranks=ranks)


def printable(value: _T) -> _T:
    """The same with every name in characters that a terminal or a page can show; what are no names
    stays as it is. A file name may hold any bytes, which Python reads as lone surrogates."""
    made: Any = value
    if is_dataclass(value) and not isinstance(value, type):
        made = replace(
            value, **{one.name: printable(getattr(value, one.name)) for one in fields(value)}
        )
    elif isinstance(value, tuple | frozenset):
        made = type(value)(printable(one) for one in value)
    elif isinstance(value, dict):
        made = {printable(key): printable(one) for key, one in value.items()}
    elif isinstance(value, str):
        made = showable(value)
    return made  # type: ignore[no-any-return]
