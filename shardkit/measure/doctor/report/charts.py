"""The bars on the doctor's page: what is drawn where. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from shardkit.measure.doctor.evidence import RankEvidence, Rates, StepTimes, WorkerTimes
from shardkit.measure.doctor.report import facts
from shardkit.measure.report.shapes import BAR, GAP, HEAD, LEFT, LONGEST, Chart, Scale, Text, middle
from shardkit.measure.report.words import amount, milliseconds, percent, shortened


def steps(ranks: Sequence[RankEvidence]) -> Chart | None:
    """Milliseconds of a step's parts, a bar a rank."""
    return _stacked(ranks, lambda rank: rank.step, facts.STEP, "ms a step")


def making(ranks: Sequence[RankEvidence]) -> Chart | None:
    """Milliseconds of making a batch, a bar a rank."""
    return _stacked(ranks, lambda rank: rank.worker, facts.MAKING, "ms a batch")


def _stacked(
    ranks: Sequence[RankEvidence],
    times_of: Callable[[RankEvidence], StepTimes | WorkerTimes],
    names: dict[str, str],
    unit: str,
) -> Chart | None:
    """None if no rank spent any time so."""
    longest = 1e3 * max((times_of(rank).total for rank in ranks), default=0)
    if not 0 < longest < math.inf:
        return None
    chart = Chart(unit, Scale(0, 1.22 * longest), len(ranks) * BAR + GAP)
    for number, rank in enumerate(ranks):
        times, y, start = times_of(rank), number * BAR, 0.0
        chart.texts.append(_left(f"rank {rank.rank}", y))
        for part, seconds in facts.parts(times).items():
            about = f"rank {rank.rank}, {names[part]}: {milliseconds(seconds)}"
            share = percent(seconds / times.total)
            chart.add_bar(start, start + 1e3 * seconds, y, part, f"{about}, {share}")
            start += 1e3 * seconds
        chart.add_end(start, y, amount(1e3 * times.total))
    return chart


def _left(text: str, y: float) -> Text:
    """Text to the left of a bar."""
    return (LEFT - 6, middle(y), text, "end", "")


def rates(measured: Rates) -> Chart | None:
    """Steps a second of each phase, and their range; None if nothing was timed."""
    found = facts.rates_of(measured)
    top = max((max(rate.high, rate.steps_per_s) for rate in found.values()), default=0)
    if not top > 0:
        return None
    each = HEAD + BAR + GAP
    chart = Chart("steps a second", Scale(0, 1.22 * top, left=0), len(found) * each)
    for number, (phase, rate) in enumerate(found.items()):
        y = number * each + HEAD
        text, name = amount(rate.steps_per_s), facts.RATES[phase]
        chart.texts.append((0, y - HEAD / 2, shortened(name, LONGEST), "start", "name"))
        about = f"{name}: {text} steps/s ({amount(rate.low)} to {amount(rate.high)})"
        chart.add_bar(0, rate.steps_per_s, y, f"phase-{phase}", about)
        ends = chart.scale(rate.low), chart.scale(rate.high)
        chart.lines.append((*ends, middle(y), middle(y), "ink", 1.5))
        chart.add_end(max(rate.high, rate.steps_per_s), y, text)
    return chart
