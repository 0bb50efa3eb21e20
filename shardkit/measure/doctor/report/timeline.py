"""A rank's steps over time, as shapes that stay few however many steps there are. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardkit.measure.doctor.evidence import Phase, RankEvidence
from shardkit.measure.report.words import milliseconds, percent

WIDE, TALL = 1000, 100
"""Units of a row's drawing, which is stretched to the page's width."""

MOST_BARS = 2400
"""Of all ranks together: a page of some 100 kB."""

RAREST = 0.02
"""So many of the bars may be cut off at the top: one step of 30 s would leave the others flat."""

ROOM = 1.15
"""The highest of the others leaves some."""

Step = tuple[float, Phase, float, float]


@dataclass(frozen=True)
class RankRow:
    """A rank: ``paths`` of SVG by colour, and what they show."""

    rank: int
    paths: dict[str, str]
    about: str


@dataclass(frozen=True)
class Timeline:
    """All ranks on one scale: ``seconds`` from its left to its right end, ``top`` seconds a step
    from the bottom to the upper end of each row."""

    rows: tuple[RankRow, ...]
    seconds: float
    top: float


@dataclass(frozen=True)
class Bar:
    """Some steps of one phase, one after another: from when to when, and their mean wait and
    total, in seconds."""

    start: float
    end: float
    phase: Phase
    wait: float
    total: float


def timeline(ranks: Sequence[RankEvidence]) -> Timeline | None:
    """None if no step of any was seen."""
    seen = [rank for rank in ranks if _usable(rank.timeline)]
    if not seen:
        return None
    most = max(MOST_BARS // len(seen), 20)
    bars = [[*in_bars(_usable(rank.timeline), most)] for rank in seen]
    seconds = max(bar.end for row in bars for bar in row)
    top = _top([bar.total for row in bars for bar in row])
    made = [_row(rank, row, seconds, top) for rank, row in zip(seen, bars, strict=True)]
    return Timeline(tuple(made), seconds, top)


def _usable(steps: Sequence[Step]) -> list[Step]:
    """Those that took some time."""
    return [one for one in steps if all(map(math.isfinite, (one[0], *one[2:]))) and one[3] > 0]


def in_bars(steps: Sequence[Step], most: int) -> Iterator[Bar]:
    """So many bars at most, but for where the phase changes: there a bar ends. No phase that was
    seen is left out."""
    size = math.ceil(len(steps) / most)
    for start in range(0, len(steps), size):
        chunk = steps[start : start + size]
        end = chunk[0][0]
        for phase in dict.fromkeys(step[1] for step in chunk):
            own = [step for step in chunk if step[1] == phase]
            total = sum(step[3] for step in own)
            begun = max(end, own[0][0])
            end = begun + total
            yield Bar(begun, end, phase, sum(s[2] for s in own) / len(own), total / len(own))


def _top(totals: Sequence[float]) -> float:
    kept = sorted(totals)[: max(math.ceil((1 - RAREST) * len(totals)), 1)]
    return ROOM * kept[-1]


def _row(rank: RankEvidence, bars: Sequence[Bar], seconds: float, top: float) -> RankRow:
    paths: dict[str, list[str]] = {}
    for bar in bars:
        x, wide = WIDE * bar.start / seconds, WIDE * (bar.end - bar.start) / seconds
        whole = TALL * min(bar.total / top, 1)
        wait = min(TALL * min(max(bar.wait, 0) / top, 1), whole)
        paths.setdefault("wait", []).append(_box(x, TALL - wait, wide, wait))
        paths.setdefault(f"phase-{bar.phase}", []).append(_box(x, TALL - whole, wide, whole - wait))
    return RankRow(rank.rank, {key: "".join(drawn) for key, drawn in paths.items()}, _about(rank))


def _box(x: float, y: float, wide: float, tall: float) -> str:
    return f"M{x:.1f} {y:.1f}h{wide:.2f}v{tall:.1f}h{-wide:.2f}z" if tall >= 0.05 else ""


def _about(rank: RankEvidence) -> str:
    steps = _usable(rank.timeline)
    total, wait = sum(step[3] for step in steps), sum(step[2] for step in steps)
    mean = milliseconds(total / len(steps))
    return (
        f"rank {rank.rank}: {len(steps):,} steps of {mean}, {percent(wait / total)} of it waiting"
    )
