"""What is wrong with a training loop: one cause, by rules from what was seen. Pure.

Each rule names a cause that it finds, with the factor of the rate if that were removed. The largest
counts, if it is large enough; of causes that are nearly as large, the cheapest to remove. All
thresholds are in ``thresholds.py``, all formulas in ``predict.py``.
"""

from __future__ import annotations

import shlex
import statistics
from dataclasses import replace

from shardkit.measure.doctor import advice, predict
from shardkit.measure.doctor import thresholds as at
from shardkit.measure.doctor.evidence import Cause, Diagnosis, Evidence, RankEvidence, Rate
from shardkit.measure.doctor.loading_causes import loading
from shardkit.measure.doctor.pipeline import Case, cases, noise, used_by_others
from shardkit.measure.doctor.step_causes import step_causes, straggler
from shardkit.measure.figures import amount, milliseconds, percent

CHEAPEST: tuple[Cause, ...] = (
    "iterator per step",
    "epoch starts",
    "too few workers",
    "logging",
    "synchronising",
    "copying",
    "checkpointing",
    "storage",
    "decoding",
    "tokenizing",
    "transform",
    "collating",
    "too few cores",
    "straggler",
    "launching",
    "not enough evidence",
)
"""From an argument over a line of code and a pack to other code and other machines."""

STARTS = ("iterator per step", "epoch starts")
"""Causes that a loop has though its workers make batches fast enough."""

LOOK_AGAIN = "Let the doctor look again, for longer (--steps), on a machine that is less busy."


def diagnose(evidence: Evidence) -> Diagnosis:
    """Return the one verdict on what was seen; of a machine that others use, it says so first."""
    if evidence.failed:
        return Diagnosis(
            "script failed",
            f"The script failed, so there is no verdict: {evidence.ended}.",
            f"Mend that first; without the doctor: `{shlex.join(evidence.command)}`.",
        )
    ranks, notes = [], []
    for rank in evidence.ranks:
        why = warm_contradicts(rank)
        ranks.append(replace(rank, rates=replace(rank.rates, warm=None)) if why else rank)
        notes += [why] if why else []
    if evidence.cut_s is not None:
        notes.append(
            f"The run was cut after {amount(evidence.cut_s)} s (--seconds), before all steps were"
            " measured."
        )
    said = verdict(replace(evidence, ranks=tuple(ranks)))
    system, others = evidence.system, used_by_others(evidence.system)
    shared = (
        f"This machine is shared: other processes use {others:.1f} of {system.cores} cores, and the"
        f" script got {system.script_cores:.1f}. "
    ) * (others >= at.SHARED * system.cores)
    return replace(said, sentence=f"{shared}{said.sentence}", notes=tuple(notes))


def verdict(evidence: Evidence) -> Diagnosis:
    """Return the verdict on rates that do not contradict each other."""
    found = cases(evidence)
    missing = not_enough(evidence, found)
    if missing is not None:
        return missing
    # Of two ranks the one that waits less, as the other may be slow alone.
    waits = statistics.median_low(case.share("wait") for case in found)
    usual = next(case for case in found if case.share("wait") == waits)
    contradiction = replay_contradicts(usual.rank)
    if contradiction is not None:
        return no_verdict(contradiction)
    slow = straggler(found)
    blamed = None if slow and waits < at.WAITS else loading(usual)
    own = step_causes(found)
    is_start = blamed is not None and blamed.cause in STARTS
    if usual.loop.comes_in_time and not is_start and any(one.worth >= at.FLOOR for one in own):
        blamed = None
    large = [one for one in (slow, blamed, *own) if one is not None and one.worth >= at.FLOOR]
    if not large:
        return healthy(usual)
    most = max(one.worth for one in large)
    near = [one for one in large if one.worth * at.TIE >= most]
    return min(near, key=lambda one: CHEAPEST.index(one.cause))


def not_enough(evidence: Evidence, found: list[Case]) -> Diagnosis | None:
    """Return the verdict that there is none; None if there is enough to go by."""
    longer = "Let the script run longer: more epochs, or more data."
    if not evidence.ranks and evidence.short_loop is not None:
        return no_verdict(
            f"A loop was seen, but only {evidence.short_loop} steps of it, of which the first are"
            f" not timed; {at.LEAST_STEPS} are needed. How the script ended: {evidence.ended}.",
            longer,
        )
    if not evidence.ranks:
        return no_verdict(
            "No process was seen that runs a loop over a torch DataLoader or a shardkit.Loader.",
            "Iterate over one of these, or over shardkit.watch(batches) for any other.",
        )
    steps = max(rank.rates.own.num_steps for rank in evidence.ranks)
    if found and steps >= at.LEAST_STEPS:
        return None
    return no_verdict(
        f"Only {steps} steps were timed, and {at.LEAST_STEPS} are needed; how the script ended:"
        f" {evidence.ended or 'not seen'}.",
        longer if evidence.cut_s is None else "Let the doctor look for longer: a larger --seconds.",
    )


def no_verdict(sentence: str, change: str = LOOK_AGAIN) -> Diagnosis:
    return Diagnosis("not enough evidence", sentence, change)


def healthy(case: Case) -> Diagnosis:
    """Return the verdict that nothing is wrong; on a GPU, the step may still be made faster."""
    loop, factor = case.loop, predict.free_loading(case.loop).factor
    if loop.noise >= at.UNSTEADY or at.FLOOR <= factor < 1 + loop.noise:
        low, high = factor * (1 - min(loop.noise, 0.99)), factor * (1 + loop.noise)
        return no_verdict(
            f"Free loading would make the loop {low:.2f} to {high:.2f} times as fast: the rates"
            " vary too much to say more."
        )
    if factor >= at.UNEXPLAINED:
        return no_verdict(
            f"The loop would be {factor:.2f} times as fast if loading cost nothing, but nothing"
            " that was timed explains what it waits for."
        )
    mfu = case.evidence.utilisation.mfu
    hint = advice.computing(case.rank, mfu) if advice.is_cuda(case.rank) else None
    if hint:
        return Diagnosis(
            "computing",
            "The loop computes: free loading would make it no more than"
            f" {factor:.2f} times as fast.",
            hint,
        )
    sentence = f"the loop would be {factor:.2f} times as fast if loading cost nothing."
    if factor >= at.FLOOR and case.is_served:
        sentence = (
            f"its batches are made in time, and the loop waits for {case.share('wait'):.0%} of a"
            " step, to take them."
        )
    sentence = f"There is nothing to gain from the loader: {sentence}"
    return Diagnosis("nothing to gain", sentence, "Leave it as it is.")


# --- rates that cannot all be true --------------------------------------------------------
# Free loading is never slower than files in memory, and these never slower than the loop as it is.
# A rate that breaks this order by more than its blocks vary is used for nothing.


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
    spread = _tolerance(own, replay) * step.total + at.CONTRADICTS_S
    free, is_alone = 1 / replay.steps_per_s, rank.world_size == 1 and not advice.is_cuda(rank)
    if not is_alone or step.wait <= spread or free <= step.total - step.wait + spread:
        return None
    return (
        f"{start} the loop waits for {percent(step.wait / step.total)} of a step of"
        f" {milliseconds(step.total)}, which still takes {milliseconds(free)} with loading free."
    )


def warm_contradicts(rank: RankEvidence) -> str | None:
    """Return why the rate with files in memory is unusable, in a sentence; None if it is usable."""
    own, warm = rank.rates.own, rank.rates.warm
    if warm is None or not _breaks_order(warm, own):
        return None
    return (
        f"{amount(warm.steps_per_s)} steps/s with the files in memory is unusable: something else"
        f" slowed that or the loop as it is, {amount(own.steps_per_s)}."
    )


def _breaks_order(faster: Rate, slower: Rate) -> bool:
    """Return True if the first rate is lower than the second, which it cannot be."""
    return slower.steps_per_s > faster.steps_per_s * (1 + _tolerance(faster, slower))


def _tolerance(one: Rate, other: Rate) -> float:
    return max(at.CONTRADICTS, 2 * noise(one, other))
