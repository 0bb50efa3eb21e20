"""Measured rates that cannot all be true, since something else slowed some of them. Pure.

Free loading is never slower than files in memory, and these never slower than the loop as it is. A
rate that breaks this order by more than its blocks vary is used for nothing.
"""

from __future__ import annotations

from dataclasses import replace

from shardkit.measure.doctor.evidence import RankEvidence, Rate
from shardkit.measure.doctor.verdict.predict import noise
from shardkit.measure.doctor.verdict.thresholds import CONTRADICTS, CONTRADICTS_S
from shardkit.measure.report.words import amount, milliseconds, percent


def replay_contradicts(rank: RankEvidence) -> str | None:
    """Return why the rate with replayed batches is unusable, in a sentence; None if it is usable.

    On a GPU the host may wait for batches while the device works, and a rank may wait for others:
    there, waiting says nothing of the rate.
    """
    own, replay, step = rank.rates.own, rank.rates.replay, rank.step
    if replay is None or replay.steps_per_s <= 0:
        return None
    start = "The rates contradict each other:"
    if _breaks_order(replay, own):
        rates = f"{amount(own.steps_per_s)} steps/s as it is, and only {amount(replay.steps_per_s)}"
        return f"{start} {rates} with loading free."
    free, spread = 1 / replay.steps_per_s, _tolerance(own, replay) * step.total + CONTRADICTS_S
    is_alone = rank.world_size == 1 and not rank.device.startswith("cuda")
    if not is_alone or step.wait <= spread or free <= step.total - step.wait + spread:
        return None
    return (
        f"{start} the loop waits for {percent(step.wait / step.total)} of a step of"
        f" {milliseconds(step.total)}, which still takes {milliseconds(free)} with loading free."
    )


def without_contradictions(rank: RankEvidence) -> tuple[RankEvidence, tuple[str, ...]]:
    """Return the rank without an unusable rate of files in memory, and a sentence about it."""
    own, warm = rank.rates.own, rank.rates.warm
    if warm is None or not _breaks_order(warm, own):
        return rank, ()
    why = (
        f"{amount(warm.steps_per_s)} steps/s with the files in memory is unusable: something else"
        f" slowed that or the loop as it is, {amount(own.steps_per_s)}."
    )
    return replace(rank, rates=replace(rank.rates, warm=None)), (why,)


def _breaks_order(faster: Rate | None, slower: Rate | None) -> bool:
    """Return True if the first rate is lower than the second, which it cannot be."""
    if faster is None or slower is None:
        return False
    return slower.steps_per_s > faster.steps_per_s * (1 + _tolerance(faster, slower))


def _tolerance(one: Rate, other: Rate) -> float:
    return max(CONTRADICTS, 2 * noise(one, other))
