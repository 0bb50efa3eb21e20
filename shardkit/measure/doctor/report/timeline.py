"""A rank's steps over time, as shapes that stay few however many steps there are. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from shardkit.measure.doctor.evidence import Phase, RankEvidence
from shardkit.measure.report.words import milliseconds, percent

WIDE, TALL = 1000, 100
"""Units of a row's drawing, which is stretched to the page's width."""

MOST_BARS = 2400
"""Of all ranks together: a page of some 100 kB."""

RAREST = 0.02
"""So many of the bars may be cut off at the top: one step of 30 s would leave the others flat."""

HEADROOM = 1.15
"""The highest of the others leaves some space above it."""

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


def timeline(ranks: Sequence[RankEvidence]) -> Timeline | None:
    """Return the steps as bars; None if no step of any rank was seen."""
    known = {rank.rank: [step for step in rank.timeline if _is_usable(step)] for rank in ranks}
    seen = {number: steps for number, steps in known.items() if steps}
    if not seen:
        return None
    totals = sorted(step[3] for steps in seen.values() for step in steps)
    top = HEADROOM * totals[math.ceil((1 - RAREST) * len(totals)) - 1]
    seconds = max(steps[-1][0] + steps[-1][3] for steps in seen.values())
    most = max(MOST_BARS // len(seen), 20)
    rows = [_row(number, steps, most, seconds, top) for number, steps in seen.items()]
    return Timeline(tuple(rows), seconds, top)


def _is_usable(step: Step) -> bool:
    return all(map(math.isfinite, (step[0], *step[2:]))) and step[3] > 0


def _row(rank: int, steps: Sequence[Step], most: int, seconds: float, top: float) -> RankRow:
    """Return a bar for each step, or of very many for some, each as wide as the time to the next
    one."""
    some = steps[:: math.ceil(len(steps) / most)]
    ends = [*(step[0] for step in some[1:]), seconds]
    paths: dict[str, str] = defaultdict(str)
    for (start, phase, wait, total), end in zip(some, ends, strict=True):
        x, wide = WIDE * start / seconds, WIDE * (end - start) / seconds
        whole = TALL * min(total / top, 1)
        waited = min(TALL * max(wait, 0) / top, whole)
        paths["wait"] += _box(x, TALL - waited, wide, waited)
        paths[f"phase-{phase}"] += _box(x, TALL - whole, wide, whole - waited)
    spent, waits = sum(step[3] for step in steps), sum(step[2] for step in steps)
    mean, share = milliseconds(spent / len(steps)), percent(waits / spent)
    return RankRow(
        rank, paths, f"rank {rank}: {len(steps):,} steps of {mean}, {share} of it waiting"
    )


def _box(x: float, y: float, wide: float, tall: float) -> str:
    return f"M{x:.1f} {y:.1f}h{wide:.2f}v{tall:.1f}h{-wide:.2f}z" if tall >= 0.05 else ""
