"""One rank's loop: what the formulas and the rules need of what was seen. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from shardkit.measure.doctor.evidence import (
    Evidence,
    RankEvidence,
    Rate,
    StepTimes,
    SystemEvidence,
    WorkerTimes,
)
from shardkit.measure.doctor.thresholds import FLOOR, FULL, THROTTLED

LEAST_CORES = 0.05
"""A script that makes steps gets as much, whatever two readings of the kernel's counters say."""

LEAST_EPOCHS = 2
"""Only from then on beginnings count: the first one's belongs to the start of the script."""

STALLS = 1.25
"""A loop that waits for more than that, in times of what it would take without loading, waits for
batches on average, whatever the formula says; below that, it may be that some come late."""

IN_TIME = 0.8
"""Batches that workers make in so much of what the loop takes without loading come in time. What
it waits for then is taking them out of the queue, or cores that others have."""

PARTS = tuple(field.name for field in fields(WorkerTimes) if field.name not in ("starved", "cpu"))
"""Of a worker's time: what it spends on making a batch. While it is starved it makes nothing."""


@dataclass(frozen=True)
class Loop:
    """One rank as the formulas need it; times are seconds a step.

    Attributes:
        step: as it is, T. free: if loading costs nothing, G; never more. gap: of T, beginning
            epochs. work: making one batch. workers: 0 if the loop's own thread does it.
        cores: that this rank's processes may use: not other ranks'. others: of these, that other
            processes keep busy.
        trainer_cpu: of cores, by the loop's process, beside making batches.
        noise: half of the interval of the rates, as a share.
        handover: on a core, by the loop's thread, taking a batch from a worker.
    """

    step: float
    free: float
    gap: float
    work: WorkerTimes
    workers: int
    cores: float
    trainer_cpu: float
    noise: float
    others: float = 0.0
    handover: float = 0.0

    @property
    def steady(self) -> float:
        """A step within an epoch."""
        return max(self.step - self.gap, self.free)

    @property
    def formula(self) -> float:
        """Return the time that loading takes of the step as it is, by the formula."""
        return modelled(self, self.work, self.workers)

    @property
    def cores_left(self) -> float:
        """Cores that the rank's processes really get. More workers get no more of them: a fair
        share of 1.55 was reckoned on two busy cores, and 0.56 was got."""
        return max(self.cores - self.others, LEAST_CORES)

    @property
    def is_full(self) -> bool:
        """Return True if making batches and the step need all the cores that the rank gets."""
        return self.work.cpu + self.trainer_cpu >= FULL * self.cores_left * self.steady

    @property
    def is_limited(self) -> bool:
        """Return True if loading sets the pace, so that what was measured is how long it takes."""
        if self.workers == 0:
            return True
        is_late = self.steady > self.free * STALLS and not self.comes_in_time
        return self.formula >= self.free or is_late

    @property
    def comes_in_time(self) -> bool:
        """Return True if workers make batches fast enough by far, had they the cores that others
        use."""
        made, alone = made_in(self.work), replace(self, others=0.0)
        if self.workers == 0 or made <= 0 or alone.formula > self.free:
            return False
        return made / self.workers <= IN_TIME * self.free

    @property
    def fit(self) -> float:
        """Return how many times as long loading takes as the formula says; 1 where that cannot be
        seen."""
        if self.formula <= 0 or not self.is_limited:
            return 1.0
        return (self.steady - (self.free if self.workers == 0 else 0.0)) / self.formula

    @property
    def taking(self) -> float:
        """Return the time to take a batch that is there; no more than was seen of waiting."""
        return min(self.handover, self.steady - self.free)

    @property
    def stall(self) -> float:
        """Return the time that the loop waits now and then, though batches come fast enough on
        average."""
        return 0.0 if self.is_limited else self.steady - self.free - self.taking


def loop_of(evidence: Evidence, rank: RankEvidence) -> Loop | None:
    """Return one rank's loop; None if no step was timed."""
    own = rank.rates.own.steps_per_s
    step = 1 / own if own > 0 else rank.step.total
    if step <= 0:
        return None
    gap = step * min(rank.epochs.share, 1.0) if rank.epochs.num >= LEAST_EPOCHS else 0.0
    # A step's processor time is all threads', from getting its batch on.
    cpu = rank.cpu_share * step - (rank.worker.cpu if rank.loader.worker_type == "thread" else 0.0)
    cores = max(1, evidence.system.cores)
    others = used_by_others(evidence.system)
    if (evidence.system.throttled or 0.0) >= THROTTLED:  # a quota gives no more than was used
        others = max(others, cores - evidence.system.script_cores)
    return Loop(
        step=step,
        free=free_step(rank, step - gap),
        gap=gap,
        work=rank.worker,
        workers=rank.loader.num_workers,
        cores=cores / on_same_host(evidence, rank),
        trainer_cpu=max(0.0, cpu),
        noise=noise(rank.rates.own, rank.rates.replay),
        others=others / on_same_host(evidence, rank),
        handover=rank.handover if rank.loader.num_workers else 0.0,
    )


def free_step(rank: RankEvidence, step: float) -> float:
    """Return a step if loading costs nothing: as replayed, or else what is not waiting, of
    ``step``, one within an epoch."""
    if rank.rates.replay and rank.rates.replay.steps_per_s > 0:
        return min(step, 1 / rank.rates.replay.steps_per_s)
    return step * (1 - share(rank.step, "wait"))


def share(step: StepTimes, part: str) -> float:
    """Return the share of a step that a part takes, by its name; 0 if no step was timed."""
    return float(getattr(step, part)) / step.total if step.total > 0 else 0.0


def used_by_others(system: SystemEvidence) -> float:
    """Return cores that processes of others keep busy."""
    return max(0.0, min(system.cores_busy, system.cores) - system.script_cores)


def on_same_host(evidence: Evidence, rank: RankEvidence) -> int:
    return max(1, sum(other.host == rank.host for other in evidence.ranks))


def noise(*rates: Rate | None) -> float:
    """Return how far the ratio of some rates may be off, as a share.

    Each is a median of blocks, which wanders by about half as much as the blocks do.
    """
    spreads = [(r.high - r.low) / 2 / r.steps_per_s / 2 for r in rates if r and r.steps_per_s > 0]
    return min(math.hypot(*spreads), 0.5)


def made_in(work: WorkerTimes) -> float:
    """Return seconds of making a batch, without waiting for a core."""
    return work.total - work.starved


def modelled(
    loop: Loop, work: WorkerTimes, workers: int, trainer_cpu: float | None = None
) -> float:
    """Return what loading takes of a step, by the formula: beside the step, or before it if there
    are no workers."""
    if workers == 0:
        return made_in(work)
    trainer_cpu = loop.trainer_cpu if trainer_cpu is None else trainer_cpu
    return max(made_in(work) / workers, (work.cpu + trainer_cpu) / loop.cores_left)


@dataclass(frozen=True)
class Case:
    """The evidence, one of its ranks, and that rank's loop."""

    evidence: Evidence
    rank: RankEvidence
    loop: Loop

    def share(self, part: str) -> float:
        """Return the share of a step that a part takes, by its name."""
        return share(self.rank.step, part)

    def seconds(self, part: str) -> float:
        """Return seconds of a step within an epoch, as the rate has it: the parts' means may
        differ a little."""
        return self.loop.steady * self.share(part)

    def made(self, *parts: str) -> float:
        """Return the share of making a batch that some parts of it take."""
        work, made = self.loop.work, made_in(self.loop.work)
        return sum(getattr(work, part) for part in parts) / made if made > 0 else 0.0

    @property
    def is_served(self) -> bool:
        """Return True if the loop hardly waits for batches but to take them: what it would gain
        with loading free is that, and what workers beside it slow it by."""
        late = self.seconds("wait") - self.loop.taking
        return self.loop.workers > 0 and late < (FLOOR - 1) * self.loop.step

    @property
    def workers(self) -> str:
        """The number of workers, in a sentence."""
        return workers(self.loop.workers)


def workers(num: int) -> str:
    """Return ``2 workers`` and the like."""
    if num == 0:
        return "the loop's own process"
    return "1 worker" if num == 1 else f"{num} workers"


def cases(evidence: Evidence) -> list[Case]:
    """Return a case for each rank that was timed."""
    loops = [(rank, loop_of(evidence, rank)) for rank in evidence.ranks]
    return [Case(evidence, rank, loop) for rank, loop in loops if loop is not None]
