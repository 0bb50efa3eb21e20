"""Why the step itself is slow: what it does beside computing, and a rank that others wait for."""

from __future__ import annotations

import statistics
from dataclasses import replace

from shardkit.measure.doctor.diagnosis import Gain
from shardkit.measure.doctor.verdict import advice, predict
from shardkit.measure.doctor.verdict.case import Case, Suspect, candidate, step_parts
from shardkit.measure.doctor.verdict.thresholds import (
    EXPLAINS,
    GPU_IDLE,
    LAUNCH_OPS,
    LAUNCH_S,
    LAUNCH_SHARE,
    OWN_PART,
    SHORT_KERNEL_S,
    STRAGGLER,
)
from shardkit.measure.report.words import milliseconds as ms

OWN_PARTS = ("checkpoint", "logging", "sync")
"""Parts of a step that one rank alone may have: all others then wait for it in a collective."""


def step_causes(cases: list[Case]) -> list[Suspect]:
    """All that the step's own parts may be slow by; each is looked at where it is the largest."""
    rules = {
        "checkpoint": checkpointing,
        "logging": logging,
        "sync": synchronising,
        "copy": copying,
    }
    found = []
    for part, rule in rules.items():
        case = max(cases, key=lambda case: case.share(part))
        if case.share(part) >= OWN_PART:
            found.append(rule(case))
    return [*found, *launching(cases)]


def checkpointing(case: Case) -> Suspect:
    seconds = case.seconds("checkpoint")
    how = f"saving takes {ms(seconds)} a step on average, most of which goes to the background"
    gain = predict.sooner(case.loop, seconds, how, predict.STILL_COPIED)
    return candidate(
        "checkpointing",
        because(case),
        f"Saving checkpoints takes {case.share('checkpoint'):.0%} of the loop's time.",
        f"Save less often, or in the background{advice.at(case.rank, 'checkpoint')}: copy the state"
        " to the host and let a thread write it (torch.distributed.checkpoint.async_save).",
        gain,
        removal=predict.sooner(case.loop, seconds, how),
    )


def logging(case: Case) -> Suspect:
    seconds = case.seconds("logging")
    how = f"printing, logging and flushing take {ms(seconds)} a step"
    return candidate(
        "logging",
        because(case),
        f"Printing, logging and flushing take {case.share('logging'):.0%} of the loop's time.",
        f"Log every 100 steps, and flush as often{advice.at(case.rank, 'logging')}.",
        predict.sooner(case.loop, seconds, how),
    )


def synchronising(case: Case) -> Suspect:
    """On a GPU, a part of it is waiting for work that must be done anyhow."""
    seconds = case.seconds("sync")
    likely: tuple[float, ...] = (0.0,)
    how = f".item() and its like take {ms(seconds)} a step"
    if advice.is_cuda(case.rank):
        seconds, likely, how = on_gpu(case, seconds, how)
    return candidate(
        "synchronising",
        because(case),
        f"Reading values off the device (.item() and its like) takes {case.share('sync'):.0%} of"
        " the loop's time.",
        f"Keep values on the device, and read them every 100 steps{advice.at(case.rank, 'sync')}:"
        " until then, add loss.detach() to a tensor.",
        predict.sooner(case.loop, seconds, how, likely),
    )


def on_gpu(case: Case, seconds: float, how: str) -> tuple[float, tuple[float, ...], str]:
    """No more can be gained than the GPU is idle; half of it, if that was not seen."""
    idle = idle_share(case)
    if idle is None:
        return seconds, (0.0, 0.5, 1.0), f"{how}, of which some is the GPU's work"
    gained = min(seconds, idle * case.loop.step)
    return gained, (0.0,), f"{how}, in {ms(gained)} of which the GPU is idle"


def copying(case: Case) -> Suspect:
    """Copies to the device that the step does not hide."""
    seconds, trace, rank = case.seconds("copy"), case.evidence.trace, case.rank
    if trace:
        seconds = min(seconds, trace.copy_exposed * case.loop.step)
    how = f"copies to the device take {ms(seconds)} a step that nothing hides"
    whole = predict.sooner(case.loop, seconds, how)
    prefetch = "wrap the loader: shardkit.CudaPrefetcher(loader) copies while the step runs"
    sentence = f"Copying batches to the device takes {case.share('copy'):.0%} of the loop's time."
    if rank.loader.pin_memory or rank.loader.kind != "DataLoader":
        change = (
            f"Hide the copies: .to(device, non_blocking=True) from pinned memory, or {prefetch}."
        )
        return candidate("copying", because(case), sentence, change, whole)
    gain = predict.sooner(case.loop, seconds, how, predict.PINNED)
    return candidate(
        "copying",
        because(case),
        sentence,
        f"Copy from pinned memory: DataLoader(..., pin_memory=True){advice.where_made(rank)}, and"
        " .to(device, non_blocking=True).",
        gain,
        removal=whole,
        apply=advice.applicable(rank, pin_memory=True),
        then=(prefetch, "copy bytes (uint8), and normalise on the device"),
    )


def launching(cases: list[Case]) -> list[Suspect]:
    """Operations so small that starting them takes most of the time."""
    for case in cases:
        seconds = launch_seconds(case)
        if seconds is not None:
            return [launch_bound(case, seconds)]
    return []


def launch_seconds(case: Case) -> float | None:
    """Of a step, in which operations are launched rather than done; None if they are large."""
    trace = case.evidence.trace
    if trace:
        idle = idle_share(case) or 0.0
        is_short = 0 < trace.kernel_s < SHORT_KERNEL_S
        return idle * case.loop.step if is_short and idle >= GPU_IDLE else None
    own = case.share("backward") + case.share("optimizer") + case.share("other")
    own = max(0.0, own - case.share("blocked"))
    if case.rank.cpu_share > 0:  # beside busy processes, an operation's time is not all its own
        own = min(own, case.loop.trainer_cpu / case.loop.step)
    ops = case.rank.num_ops or 0
    if ops < LAUNCH_OPS or own < LAUNCH_SHARE or own * case.loop.step >= ops * LAUNCH_S:
        return None
    return own * case.loop.step


def launch_bound(case: Case, seconds: float) -> Suspect:
    ops = case.rank.num_ops or 0
    each = f"{1e6 * seconds / ops:.0f} µs each" if ops else "short ones"
    mode = ', mode="reduce-overhead"' if advice.is_cuda(case.rank) else ""
    left = tuple(1 - saved for saved in predict.LAUNCHES_SAVED)
    how = f"launching takes most of {ms(seconds)} a step, about half of which can go"
    return candidate(
        "launching",
        because(case),
        f"A step is {ops:,} small operations, {each}: starting them takes longer than they do.",
        f"Do more with each operation{advice.at(case.rank, 'profile')}: a larger batch, tensors in"
        f" place of Python loops, torch.compile(model{mode}).",
        predict.sooner(case.loop, seconds, how, left),
    )


def idle_share(case: Case) -> float | None:
    """Of the time, in which the GPU has nothing to do though the loop does not wait for batches,
    save or log; None if no GPU was seen."""
    trace, gpus = case.evidence.trace, case.evidence.system.gpus
    if trace:
        idle = trace.gpu_idle
    elif gpus:
        idle = 1 - max(gpu.utilisation for gpu in gpus)
    else:
        return None
    other = case.share("wait") + case.share("checkpoint") + case.share("logging")
    return min(1.0, max(0.0, idle - other))


def straggler(cases: list[Case]) -> Suspect | None:
    """The rank that waits least in collectives, if the others wait for it there."""
    if len(cases) < 2:
        return None
    slow = min(cases, key=lambda case: case.share("collective"))
    others = [case for case in cases if case is not slow]
    excess = median(others, "collective") - slow.share("collective")
    if excess < STRAGGLER or explained(slow, others, excess) in OWN_PARTS:
        return None
    after = slow.loop.step * (1 - excess)
    how = f"the others wait {ms(slow.loop.step * excess)} longer for it than it for them"
    return slow_rank(slow, others, excess, predict.gain(slow.loop, after, how))


def slow_rank(slow: Case, others: list[Case], excess: float, gain: Gain) -> Suspect:
    rank = slow.rank
    reason, change = why_slow(slow, others, excess)
    sentence = (
        f"Rank {rank.rank} on {rank.host} is slow{reason}: the others wait for it in collectives"
        f" for {median(others, 'collective'):.0%} of their time, and it for them for"
        f" {slow.share('collective'):.0%}."
    )
    found = candidate("straggler", because(slow), sentence, change, gain)
    return replace(found, diagnosis=replace(found.diagnosis, rank=rank.rank))


def why_slow(slow: Case, others: list[Case], excess: float) -> tuple[str, str]:
    """By what the slow rank is slow, to go on in a sentence, and what to change."""
    rank = slow.rank
    if explained(slow, others, excess) == "wait":
        parts = {part: getattr(rank.worker, part) for part in predict.PARTS}
        most = max(parts, key=lambda part: parts[part])
        where = f", above all {most}" if parts[most] > 0 else ""
        return (
            " because its batches come late",
            f"Make loading on rank {rank.rank} as fast as on the others{where}: compare its files'"
            f" medium, its share of the data and the cores of {rank.host}.",
        )
    return (
        "",
        f"Look at rank {rank.rank} (process {rank.pid}, {rank.device}, {rank.host}): give it as"
        " much work and as free a device as the others have"
        f"{advice.at(rank, 'profile')}.",
    )


def explained(slow: Case, others: list[Case], excess: float) -> str | None:
    """The part of the step that is so much longer on the slow rank than on the others."""
    longer = {part: slow.share(part) - median(others, part) for part in ("wait", *OWN_PARTS)}
    most = max(longer, key=lambda part: longer[part])
    return most if longer[most] >= EXPLAINS * excess else None


def because(case: Case) -> tuple[str, ...]:
    return (step_parts(case),)


def median(cases: list[Case], part: str) -> float:
    return statistics.median(case.share(part) for case in cases)
