"""Why the step itself is slow: what it does beside computing, and ranks that others wait for."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from shardkit.measure.doctor import advice, predict
from shardkit.measure.doctor import thresholds as at
from shardkit.measure.doctor.evidence import Diagnosis, RankEvidence
from shardkit.measure.doctor.pipeline import PARTS, Case
from shardkit.measure.figures import milliseconds as ms

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
    launches = [launch_bound(case, seconds) for case in found if (seconds := launch_seconds(case))]
    return [*causes, *launches[:1]]


def checkpointing(case: Case) -> Diagnosis:
    seconds = case.seconds("checkpoint")
    how = f"saving takes {ms(seconds)} a step on average, most of which goes to the background"
    return Diagnosis(
        "checkpointing",
        f"Saving checkpoints takes {case.share('checkpoint'):.0%} of the loop's time.",
        f"Save less often, or in the background{advice.at(case.rank, 'checkpoint')}: copy the state"
        " to the host and let a thread write it (torch.distributed.checkpoint.async_save).",
        predict.sooner(case.loop, seconds, how, predict.STILL_COPIED),
        removal=predict.sooner(case.loop, seconds, how),
    )


def logging(case: Case) -> Diagnosis:
    seconds = case.seconds("logging")
    how = f"printing, logging and flushing take {ms(seconds)} a step"
    return Diagnosis(
        "logging",
        f"Printing, logging and flushing take {case.share('logging'):.0%} of the loop's time.",
        f"Log every 100 steps, and flush as often{advice.at(case.rank, 'logging')}.",
        predict.sooner(case.loop, seconds, how),
    )


def synchronising(case: Case) -> Diagnosis:
    """Name synchronising. On a GPU, a part of it is waiting for work that must be done anyhow: no
    more can be gained than the GPU is idle; half of it, if that was not seen."""
    seconds = case.seconds("sync")
    likely: tuple[float, ...] = (0.0,)
    how = f".item() and its like take {ms(seconds)} a step"
    idle = idle_share(case)
    if advice.is_cuda(case.rank) and idle is None:
        likely, how = (0.0, 0.5, 1.0), f"{how}, of which some is the GPU's work"
    elif advice.is_cuda(case.rank) and idle is not None:
        seconds = min(seconds, idle * case.loop.step)
        how = f"{how}, in {ms(seconds)} of which the GPU is idle"
    return Diagnosis(
        "synchronising",
        f"Reading values off the device (.item() and its like) takes {case.share('sync'):.0%} of"
        " the loop's time.",
        f"Keep values on the device, and read them every 100 steps{advice.at(case.rank, 'sync')}:"
        " until then, add loss.detach() to a tensor.",
        predict.sooner(case.loop, seconds, how, likely),
    )


def copying(case: Case) -> Diagnosis:
    """Name copies to the device that the step does not hide."""
    seconds, trace, rank = case.seconds("copy"), case.evidence.trace, case.rank
    if trace is not None:
        seconds = min(seconds, trace.copy_exposed * case.loop.step)
    how = f"copies to the device take {ms(seconds)} a step that nothing hides"
    whole = predict.sooner(case.loop, seconds, how)
    gain, apply = predict.sooner(case.loop, seconds, how, predict.PINNED), None
    if rank.loader.pin_memory or rank.loader.kind != "DataLoader":
        gain = whole
        change = (
            "Hide the copies: .to(device, non_blocking=True) from pinned memory, or wrap the"
            " loader: shardkit.CudaPrefetcher(loader) copies while the step runs."
        )
    else:
        apply = advice.applicable(rank, {"pin_memory": True})
        change = (
            f"Copy from pinned memory: DataLoader(..., pin_memory=True){advice.where_made(rank)},"
            " and .to(device, non_blocking=True)."
        )
    sentence = f"Copying batches to the device takes {case.share('copy'):.0%} of the loop's time."
    return Diagnosis("copying", sentence, change, gain, apply, removal=whole)


def launch_seconds(case: Case) -> float | None:
    """Return seconds of a step in which operations are launched rather than done; None if they are
    large."""
    trace = case.evidence.trace
    if trace is not None:
        idle = idle_share(case) or 0.0
        is_short = 0 < trace.kernel_s < at.SHORT_KERNEL_S
        return idle * case.loop.step if is_short and idle >= at.GPU_IDLE else None
    own = case.share("backward") + case.share("optimizer") + case.share("other")
    own = max(0.0, own - case.share("blocked"))
    if case.rank.cpu_share > 0:  # beside busy processes, an operation's time is not all its own
        own = min(own, case.loop.trainer_cpu / case.loop.step)
    ops = case.rank.num_ops or 0
    is_long = own * case.loop.step >= ops * at.LAUNCH_S
    if ops < at.LAUNCH_OPS or own < at.LAUNCH_SHARE or is_long:
        return None
    return own * case.loop.step


def launch_bound(case: Case, seconds: float) -> Diagnosis:
    """Name operations so small that starting them takes most of the time."""
    ops = case.rank.num_ops or 0
    each = f"{1e6 * seconds / ops:.0f} µs each" if ops else "short ones"
    mode = ', mode="reduce-overhead"' if advice.is_cuda(case.rank) else ""
    left = tuple(1 - saved for saved in predict.LAUNCHES_SAVED)
    how = f"launching takes most of {ms(seconds)} a step, about half of which can go"
    return Diagnosis(
        "launching",
        f"A step is {ops:,} small operations, {each}: starting them takes longer than they do.",
        f"Do more with each operation{advice.at(case.rank, 'profile')}: a larger batch, tensors in"
        f" place of Python loops, torch.compile(model{mode}).",
        predict.sooner(case.loop, seconds, how, left),
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
    rank = slow.rank
    reason = " because its batches come late" if part else ""
    how = f"the others wait {ms(slow.loop.step * excess)} longer for it than it for them"
    return Diagnosis(
        "straggler",
        f"Rank {rank.rank} on {rank.host} is slow{reason}: the others wait for it in collectives"
        f" for {usual:.0%} of their time, and it for them for {slow.share('collective'):.0%}.",
        straggler_change(rank, bool(part)),
        predict.gain(slow.loop, slow.loop.step * (1 - excess), how),
        rank=rank.rank,
    )


def straggler_change(rank: RankEvidence, is_late: bool) -> str:
    if is_late:
        parts = {part: getattr(rank.worker, part) for part in PARTS}
        most = max(parts, key=lambda part: parts[part])
        where = f", above all {most}" if parts[most] > 0 else ""
        return (
            f"Make loading on rank {rank.rank} as fast as on the others{where}: compare its files'"
            f" medium, its share of the data and the cores of {rank.host}."
        )
    return (
        f"Look at rank {rank.rank} (process {rank.pid}, {rank.device}, {rank.host}): give it as"
        " much work and as free a device as the others have"
        f"{advice.at(rank, 'profile')}."
    )


def median(found: list[Case], part: str) -> float:
    return statistics.median(case.share(part) for case in found)
