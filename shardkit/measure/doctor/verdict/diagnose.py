"""What is wrong with a training loop: one cause, by rules from what was seen. Pure.

Each rule names a cause that it finds, with the factor of the rate if that were removed. The largest
counts, if it is large enough; of causes that are nearly as large, the cheapest to remove. All
thresholds are in ``thresholds.py``, all formulas in ``predict.py``.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from shardkit.measure.doctor.diagnosis import Cause, Diagnosis
from shardkit.measure.doctor.evidence import Evidence
from shardkit.measure.doctor.verdict import advice, predict
from shardkit.measure.doctor.verdict.case import Case, Suspect, cases, rates, step_parts, typical
from shardkit.measure.doctor.verdict.contradictions import (
    replay_contradicts,
    without_contradictions,
)
from shardkit.measure.doctor.verdict.loading_causes import loading
from shardkit.measure.doctor.verdict.step_causes import idle_share, step_causes, straggler
from shardkit.measure.doctor.verdict.thresholds import (
    BLOCKED,
    FLOOR,
    GPU_IDLE,
    LEAST_STEPS,
    SHARED,
    TIE,
    UNEXPLAINED,
    UNSTEADY,
    WAITS,
)
from shardkit.measure.report.words import amount

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

NUM_THEN = 4
"""Changes that are named for afterwards: more of them are not read."""


def diagnose(evidence: Evidence) -> Diagnosis:
    """The one verdict on what was seen; of a machine that others use, it says so first."""
    if evidence.failed:
        return script_failed(evidence)
    usable = [without_contradictions(rank) for rank in evidence.ranks]
    seen = replace(evidence, ranks=tuple(rank for rank, _ in usable))
    said = verdict(seen)
    unused = [sentence for _, why in usable for sentence in why]
    if evidence.cut_s is not None:
        unused.append(
            f"The run was cut after {amount(evidence.cut_s)} s (--seconds), before all steps were"
            " measured."
        )
    sentence = f"{shared(evidence)}{said.sentence}"
    return replace(said, sentence=sentence, because=(*said.because, *unused))


def shared(evidence: Evidence) -> str:
    """Return a sentence about other processes that use the machine; empty if they use little."""
    system, others = evidence.system, predict.used_by_others(evidence.system)
    if others < SHARED * system.cores:
        return ""
    return (
        f"This machine is shared: other processes use {others:.1f} of {system.cores} cores, and the"
        f" script got {system.script_cores:.1f}. "
    )


def script_failed(evidence: Evidence) -> Diagnosis:
    """Return what ended the script in place of a verdict."""
    return Diagnosis(
        "script failed",
        f"The script failed, so there is no verdict: {evidence.ended}.",
        (),
        f"Mend that first; without the doctor: `{shlex.join(evidence.command)}`.",
    )


def verdict(evidence: Evidence) -> Diagnosis:
    """The verdict on rates that do not contradict each other."""
    found = cases(evidence)
    missing = not_enough(evidence, found)
    if missing is not None:
        return missing
    usual = typical(found)
    contradiction = replay_contradicts(usual.rank)
    if contradiction is not None:
        return no_verdict(contradiction, LOOK_AGAIN, step_parts(usual))
    large = [each for each in candidates(found, usual) if each.removal >= FLOOR]
    if not large:
        return healthy(usual)
    best = choose(large)
    rest = [each for each in large if each is not best]
    then = (*best.diagnosis.then, *(afterwards(each) for each in rest), *general(usual))
    return replace(best.diagnosis, then=then[:NUM_THEN])


def candidates(found: list[Case], usual: Case) -> list[Suspect]:
    slow = straggler(found)
    blamed = None if slow and usual.share("wait") < WAITS else loading(usual)
    own = step_causes(found)
    is_start = blamed is not None and blamed.diagnosis.cause in STARTS
    if usual.loop.comes_in_time and not is_start and any(each.removal >= FLOOR for each in own):
        blamed = None
    return [each for each in (slow, blamed, *own) if each is not None]


def choose(large: list[Suspect]) -> Suspect:
    """The largest, or the cheapest to remove of those that are nearly as large."""
    most = max(each.removal for each in large)
    near = [each for each in large if each.removal * TIE >= most]
    return min(near, key=lambda each: CHEAPEST.index(each.diagnosis.cause))


def afterwards(other: Suspect) -> str:
    return f"then {other.diagnosis.cause}: {other.diagnosis.change}"


def general(case: Case) -> tuple[str, ...]:
    """Worth a line whatever the verdict."""
    return advice.data_parallel(case.rank)


def not_enough(evidence: Evidence, found: list[Case]) -> Diagnosis | None:
    """The verdict that there is none; None if there is enough to go by."""
    if not evidence.ranks and evidence.short_loop is not None:
        return no_verdict(
            f"A loop was seen, but only {evidence.short_loop} steps of it, of which the first are"
            f" not timed; {LEAST_STEPS} are needed. How the script ended: {evidence.ended}.",
            "Let the script run longer: more epochs, or more data.",
        )
    if not evidence.ranks:
        return no_verdict(
            "No process was seen that runs a loop over a torch DataLoader or a shardkit.Loader.",
            "Iterate over one of these, or over shardkit.watch(batches) for any other.",
            *evidence.notes,
        )
    steps = max(rank.rates.own.num_steps for rank in evidence.ranks)
    if not found or steps < LEAST_STEPS:
        return no_verdict(
            f"Only {steps} steps were timed, and {LEAST_STEPS} are needed; how the script ended:"
            f" {evidence.ended or 'not seen'}.",
            "Let the script run longer: more epochs, or more data."
            if evidence.cut_s is None
            else "Let the doctor look for longer: a larger --seconds.",
            *evidence.notes,
        )
    return None


def no_verdict(sentence: str, change: str, *because: str) -> Diagnosis:
    return Diagnosis("not enough evidence", sentence, because, change)


def healthy(case: Case) -> Diagnosis:
    """Nothing is wrong; on a GPU, the step may still be made faster."""
    loop = case.loop
    gain = predict.free_loading(loop)
    because = (rates(case), step_parts(case), *idle(case), *blocked(case))
    hints = advice.computing(case.evidence, case.rank)
    is_unsure = loop.noise >= UNSTEADY or FLOOR <= gain.factor < 1 + loop.noise
    if is_unsure:
        low, high = min(loop.noise, 0.99), loop.noise
        return no_verdict(
            f"Free loading would make the loop {gain.factor * (1 - low):.2f} to"
            f" {gain.factor * (1 + high):.2f} times as fast: the rates vary too much to say more.",
            LOOK_AGAIN,
            *because,
        )
    if gain.factor >= UNEXPLAINED:
        sentence = (
            f"The loop would be {gain.factor:.2f} times as fast if loading cost nothing, but"
            " nothing that was timed explains what it waits for."
        )
        return no_verdict(sentence, LOOK_AGAIN, *because)
    if not hints or not advice.is_cuda(case.rank):
        sentence = (
            "There is nothing to gain from the loader: the loop would be"
            f" {gain.factor:.2f} times as fast if loading cost nothing."
        )
        if gain.factor >= FLOOR and case.is_served:
            sentence = (
                "There is nothing to gain from the loader: its batches are made in time, and the"
                f" loop waits for {case.share('wait'):.0%} of a step, to take them."
            )
        return Diagnosis("nothing to gain", sentence, because, "Leave it as it is.", then=hints)
    sentence = (
        "The loop computes: free loading would make it no more than"
        f" {gain.factor:.2f} times as fast."
    )
    change = hints[0][0].upper() + hints[0][1:] + "."
    return Diagnosis("computing", sentence, because, change, then=hints[1:])


def idle(case: Case) -> tuple[str, ...]:
    """A GPU without work though nothing was found that keeps it from working."""
    share = idle_share(case) or 0.0
    if share < GPU_IDLE:
        return ()
    place = advice.at(case.rank, "profile")
    return (f"The GPU is idle for {share:.0%} of the time, in the script's own code{place}.",)


def blocked(case: Case) -> tuple[str, ...]:
    """A loop that sleeps or waits in its own code."""
    share = case.share("blocked")
    if share < BLOCKED:
        return ()
    place = advice.at(case.rank, "profile")
    return (f"The script's own code sleeps or waits for {share:.0%} of a step{place}.",)
