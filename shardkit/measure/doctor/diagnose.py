"""What is wrong with a training loop: one cause, by rules from what was seen. Pure.

Each rule names a cause that it finds, with the factor of the rate if that were removed. The largest
counts, if it is large enough; of causes that are nearly as large, the cheapest to remove. All
thresholds are in ``thresholds.py``, all formulas in ``predict.py``.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Callable
from dataclasses import replace

from shardkit.measure.doctor import predict
from shardkit.measure.doctor import thresholds as at
from shardkit.measure.doctor.evidence import (
    CAUSES,
    Diagnosis,
    Evidence,
    RankEvidence,
    Rate,
)
from shardkit.measure.doctor.loading_causes import loading
from shardkit.measure.doctor.predict import PARTS, Case, cases, noise, used_by_others
from shardkit.measure.figures import amount, percent
from shardkit.measure.figures import milliseconds as ms

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
    if usual.comes_in_time and not is_start and any(one.worth >= at.FLOOR for one in own):
        blamed = None
    large = [one for one in (slow, blamed, *own) if one is not None and one.worth >= at.FLOOR]
    if not large:
        return healthy(usual)
    most = max(one.worth for one in large)
    near = [one for one in large if one.worth * at.TIE >= most]
    return min(near, key=lambda one: CAUSES.index(one.cause))


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
    factor = predict.free_loading(case).factor
    if case.noise >= at.UNSTEADY or at.FLOOR <= factor < 1 + case.noise:
        low, high = factor * (1 - min(case.noise, 0.99)), factor * (1 + case.noise)
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
    hint = computing(case.rank, mfu) if case.rank.is_cuda else None
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


def computing(rank: RankEvidence, mfu: float | None) -> str | None:
    """Return what makes the step on a GPU faster, as far as the evidence says; None if nothing."""
    is_slow = rank.step.optimizer > at.OPTIMIZER * rank.step.total > 0
    hints = {
        'Compute in bfloat16: `with torch.autocast("cuda", dtype=torch.bfloat16):` around'
        " forward and loss uses the Tensor Cores.": "amp" not in rank.flags
        and rank.dtype in (None, "float32", "tf32"),
        "`model = torch.compile(model)` fuses operations.": "compile" not in rank.flags,
        "Pass fused=True to the optimizer.": is_slow and "fused_optimizer" not in rank.flags,
        f"Only {mfu or 0:.0%} of the device's peak is used (MFU): `--trace` shows by what.": mfu
        is not None
        and mfu < at.LOW_MFU,
    }
    return next((hint for hint, is_so in hints.items() if is_so), None)


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
    free, is_alone = 1 / replay.steps_per_s, rank.world_size == 1 and not rank.is_cuda
    if not is_alone or step.wait <= spread or free <= step.total - step.wait + spread:
        return None
    return (
        f"{start} the loop waits for {percent(step.wait / step.total)} of a step of"
        f" {ms(step.total)}, which still takes {ms(free)} with loading free."
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


# --- the step itself: what it does beside computing, and ranks that others wait for -------

OWN_PARTS = ("checkpoint", "logging", "sync")
"""Parts of a step that one rank alone may have: all others then wait for it in a collective."""


def step_causes(found: list[Case]) -> list[Diagnosis]:
    """Return all that the step's own parts may be slow by; each is looked at where it is the
    largest."""
    rules: dict[str, Callable[[Case], Diagnosis]] = {
        "checkpoint": checkpointing,
        "logging": logging,
        "sync": synchronising,
        "copy": copying,
    }
    causes = []
    for part, rule in rules.items():
        case = max(found, key=lambda case: case.share(part))
        if case.share(part) >= at.OWN_PART:
            causes.append(rule(case))
    launching = [launch_bound(case) for case in found if launch_seconds(case)]
    return [*causes, *launching[:1]]


def checkpointing(case: Case) -> Diagnosis:
    seconds = case.seconds("checkpoint")
    how = f"saving takes {ms(seconds)} a step on average, most of which goes to the background"
    return Diagnosis(
        "checkpointing",
        f"Saving checkpoints takes {case.share('checkpoint'):.0%} of the loop's time.",
        f"Save less often, or in the background{case.rank.at('checkpoint')}: copy the state"
        " to the host and let a thread write it (torch.distributed.checkpoint.async_save).",
        predict.sooner(case, seconds, how, predict.STILL_COPIED),
        removal=predict.sooner(case, seconds, how),
    )


def logging(case: Case) -> Diagnosis:
    seconds = case.seconds("logging")
    how = f"printing, logging and flushing take {ms(seconds)} a step"
    return Diagnosis(
        "logging",
        f"Printing, logging and flushing take {case.share('logging'):.0%} of the loop's time.",
        f"Log every 100 steps, and flush as often{case.rank.at('logging')}.",
        predict.sooner(case, seconds, how),
    )


def synchronising(case: Case) -> Diagnosis:
    """Name synchronising. On a GPU, a part of it is waiting for work that must be done anyhow: no
    more can be gained than the GPU is idle; half of it, if that was not seen."""
    seconds = case.seconds("sync")
    likely: tuple[float, ...] = (0.0,)
    how = f".item() and its like take {ms(seconds)} a step"
    idle = idle_share(case)
    if case.rank.is_cuda and idle is None:
        likely, how = (0.0, 0.5, 1.0), f"{how}, of which some is the GPU's work"
    elif case.rank.is_cuda and idle is not None:
        seconds = min(seconds, idle * case.step)
        how = f"{how}, in {ms(seconds)} of which the GPU is idle"
    return Diagnosis(
        "synchronising",
        f"Reading values off the device (.item() and its like) takes {case.share('sync'):.0%} of"
        " the loop's time.",
        f"Keep values on the device, and read them every 100 steps{case.rank.at('sync')}:"
        " until then, add loss.detach() to a tensor.",
        predict.sooner(case, seconds, how, likely),
    )


def copying(case: Case) -> Diagnosis:
    """Name copies to the device that the step does not hide."""
    seconds, trace, rank = case.seconds("copy"), case.evidence.trace, case.rank
    if trace is not None:
        seconds = min(seconds, trace.copy_exposed * case.step)
    how = f"copies to the device take {ms(seconds)} a step that nothing hides"
    whole = predict.sooner(case, seconds, how)
    sentence = f"Copying batches to the device takes {case.share('copy'):.0%} of the loop's time."
    if rank.loader.pin_memory or rank.loader.kind != "DataLoader":
        change = (
            "Hide the copies: .to(device, non_blocking=True) from pinned memory, or wrap the"
            " loader: shardkit.CudaPrefetcher(loader) copies while the step runs."
        )
        return Diagnosis("copying", sentence, change, whole, removal=whole)
    change = (
        f"Copy from pinned memory: DataLoader(..., pin_memory=True){rank.loader.where},"
        " and .to(device, non_blocking=True)."
    )
    gain = predict.sooner(case, seconds, how, predict.PINNED)
    return Diagnosis("copying", sentence, change, gain, {"pin_memory": True}, removal=whole)


def launch_seconds(case: Case) -> float:
    """Return seconds of a step in which operations are launched rather than done; 0 if they are
    large."""
    trace = case.evidence.trace
    if trace is not None:
        idle = idle_share(case) or 0.0
        is_short = 0 < trace.kernel_s < at.SHORT_KERNEL_S
        return idle * case.step if is_short and idle >= at.GPU_IDLE else 0.0
    own = case.share("backward") + case.share("optimizer") + case.share("other")
    own = max(0.0, own - case.share("blocked"))
    if case.rank.cpu_share > 0:  # beside busy processes, an operation's time is not all its own
        own = min(own, case.trainer_cpu / case.step)
    ops = case.rank.num_ops or 0
    is_long = own * case.step >= ops * at.LAUNCH_S
    is_large = ops < at.LAUNCH_OPS or own < at.LAUNCH_SHARE or is_long
    return 0.0 if is_large else own * case.step


def launch_bound(case: Case) -> Diagnosis:
    """Name operations so small that starting them takes most of the time."""
    ops, seconds = case.rank.num_ops or 0, launch_seconds(case)
    each = f"{1e6 * seconds / ops:.0f} µs each" if ops else "short ones"
    mode = ', mode="reduce-overhead"' if case.rank.is_cuda else ""
    left = tuple(1 - saved for saved in predict.LAUNCHES_SAVED)
    how = f"launching takes most of {ms(seconds)} a step, about half of which can go"
    return Diagnosis(
        "launching",
        f"A step is {ops:,} small operations, {each}: starting them takes longer than they do.",
        f"Do more with each operation{case.rank.at('profile')}: a larger batch, tensors in"
        f" place of Python loops, torch.compile(model{mode}).",
        predict.sooner(case, seconds, how, left),
    )


def idle_share(case: Case) -> float | None:
    """Return the share of the time in which the GPU has nothing to do though the loop does not wait
    for batches, save or log; None if no GPU was traced."""
    trace = case.evidence.trace
    if trace is None:
        return None
    other = case.share("wait") + case.share("checkpoint") + case.share("logging")
    return min(1.0, max(0.0, trace.gpu_idle - other))


# --- a rank that others wait for ----------------------------------------------------------


def straggler(found: list[Case]) -> Diagnosis | None:
    """Return the rank that waits least in collectives, if the others wait for it there."""
    if len(found) < 2:
        return None
    slow = min(found, key=lambda case: case.share("collective"))
    others = [case for case in found if case is not slow]
    usual = median(others, "collective")
    excess = usual - slow.share("collective")
    longer = {part: slow.share(part) - median(others, part) for part in ("wait", *OWN_PARTS)}
    most = max(longer, key=lambda part: longer[part])
    part = most if longer[most] >= at.EXPLAINS * excess else None
    if excess < at.STRAGGLER or part in OWN_PARTS:
        return None
    rank, worker = slow.rank, slow.rank.worker
    reason = " because its batches come late" if part else ""
    change = (
        f"Look at rank {rank.rank} (process {rank.pid}, {rank.device}, {rank.host}): give it as"
        " much work and as free a device as the others have"
        f"{rank.at('profile')}."
    )
    if part:
        most = max(PARTS, key=lambda name: getattr(worker, name))
        where = f", above all {most}" if getattr(worker, most) > 0 else ""
        change = (
            f"Make loading on rank {rank.rank} as fast as on the others{where}: compare its files'"
            f" medium, its share of the data and the cores of {rank.host}."
        )
    how = f"the others wait {ms(slow.step * excess)} longer for it than it for them"
    return Diagnosis(
        "straggler",
        f"Rank {rank.rank} on {rank.host} is slow{reason}: the others wait for it in collectives"
        f" for {usual:.0%} of their time, and it for them for {slow.share('collective'):.0%}.",
        change,
        predict.gain(slow, slow.step * (1 - excess), how),
        rank=rank.rank,
    )


def median(found: list[Case], part: str) -> float:
    return statistics.median(case.share(part) for case in found)
