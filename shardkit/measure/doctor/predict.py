"""How fast the loop would run after a change: formulas of what was seen. Pure.

A step takes T as it is, and G if loading costs nothing. Workers make a batch in L seconds of their
own, c of them on a core, and the loop's process uses t seconds of a core a step. With w workers a
step then takes the longest of

    G + h,  L / w,  (c + t) / cores

where the loop needs h to take a batch from a worker, and with none G + L, one after the other. That
is the bound of a pipeline of stations by its slowest one (Denning and Buzen, "The Operational
Analysis of Queueing Network Models", ACM Computing Surveys 1978), and DS-Analyzer's min(G, P, F)
with the stages of P and F named (Mohan et al., "Analyzing and Mitigating Data Stalls in DNN
Training", VLDB 2021). Epochs that take long to begin add their share.

The formula is fitted to the one case that was measured: what loading really takes is so many times
what the formula says, for it waits for memory, queues and the interpreter too. This factor stays
the same after a change, and widens the interval the farther it lies from 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from shardkit.measure.doctor.evidence import (
    Evidence,
    Gain,
    RankEvidence,
    Rate,
    StepTimes,
    SystemEvidence,
    WorkerTimes,
)
from shardkit.measure.doctor.thresholds import FLOOR, FULL, THROTTLED
from shardkit.measure.figures import amount
from shardkit.measure.figures import milliseconds as ms

# --- one rank's loop ----------------------------------------------------------------------

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


@dataclass(frozen=True, kw_only=True)
class Case(Loop):
    """The loop of one rank, with the evidence that it is taken from."""

    evidence: Evidence
    rank: RankEvidence

    def share(self, part: str) -> float:
        """Return the share of a step that a part takes, by its name."""
        return share(self.rank.step, part)

    def seconds(self, part: str) -> float:
        """Return seconds of a step within an epoch, as the rate has it: the parts' means may
        differ a little."""
        return self.steady * self.share(part)

    def made(self, *parts: str) -> float:
        """Return the share of making a batch that some parts of it take."""
        made = made_in(self.work)
        return sum(getattr(self.work, part) for part in parts) / made if made > 0 else 0.0

    @property
    def is_served(self) -> bool:
        """Return True if the loop hardly waits for batches but to take them: what it would gain
        with loading free is that, and what workers beside it slow it by."""
        late = self.seconds("wait") - self.taking
        return self.workers > 0 and late < (FLOOR - 1) * self.step


def named(workers: int) -> str:
    """Return ``2 workers`` and the like."""
    if workers == 0:
        return "the loop's own process"
    return "1 worker" if workers == 1 else f"{workers} workers"


def cases(evidence: Evidence) -> list[Case]:
    """Return a case for each rank that was timed."""
    found = [case_of(evidence, rank) for rank in evidence.ranks]
    return [case for case in found if case is not None]


def case_of(evidence: Evidence, rank: RankEvidence) -> Case | None:
    """Return one rank's loop; None if no step was timed."""
    own, replay, system = rank.rates.own.steps_per_s, rank.rates.replay, evidence.system
    step = 1 / own if own > 0 else rank.step.total
    if step <= 0:
        return None
    gap = step * min(rank.epochs.share, 1.0) if rank.epochs.num >= LEAST_EPOCHS else 0.0
    # Within an epoch, if loading costs nothing: as replayed, or else what is not waiting.
    free = (step - gap) * (1 - share(rank.step, "wait"))
    if replay and replay.steps_per_s > 0:
        free = min(step - gap, 1 / replay.steps_per_s)
    # A step's processor time is all threads', from getting its batch on.
    cpu = rank.cpu_share * step - (rank.worker.cpu if rank.loader.worker_type == "thread" else 0.0)
    cores = max(1, system.cores)
    others = used_by_others(system)
    if (system.throttled or 0.0) >= THROTTLED:  # a quota gives no more than was used
        others = max(others, cores - system.script_cores)
    on_same_host = max(1, sum(other.host == rank.host for other in evidence.ranks))
    return Case(
        evidence=evidence,
        rank=rank,
        step=step,
        free=free,
        gap=gap,
        work=rank.worker,
        workers=rank.loader.num_workers,
        cores=cores / on_same_host,
        trainer_cpu=max(0.0, cpu),
        noise=noise(rank.rates.own, replay),
        others=others / on_same_host,
        handover=rank.handover if rank.loader.num_workers else 0.0,
    )


def share(step: StepTimes, part: str) -> float:
    """Return the share of a step that a part takes, by its name; 0 if no step was timed."""
    return float(getattr(step, part)) / step.total if step.total > 0 else 0.0


def used_by_others(system: SystemEvidence) -> float:
    """Return cores that processes of others keep busy."""
    return max(0.0, min(system.cores_busy, system.cores) - system.script_cores)


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


# --- after a change -----------------------------------------------------------------------

LEAST_ERROR = 0.10
"""Half of a prediction's interval is at least that much: two runs of one script on a shared machine
differ by some percent, and the formula knows nothing of queues."""

LARGEST_ERROR = 0.5
"""An interval wider than that says nothing."""

MISFIT = 0.25
"""Of the distance (as a logarithm) between what was measured and what the formula says of it, so
much is added to the interval."""

LARGEST = 100.0
"""No larger factor is predicted: what a step takes beside a stall of 99 % was not measured."""

BY_KERNEL = (1 / 2.5, 1 / 2.2, 1 / 2.0)
"""What is left of decoding and cropping where shardkit's kernel does it: at least, likely, at most.
It makes 2,388 crops a second where Pillow in torch's DataLoader makes 1,089 (2.2 times as many),
and 2,600 where it makes 1,100 (2.4), as docs/benchmarks.md has it."""

STILL_READ = (0.0, 0.25, 1.0)
"""What is left of reading if files are packed: at least, likely, at most. Opening and closing go,
and a read becomes a page that is there; from a disk, the bytes must still come."""

RESIZED = (0.25, 884 / 2429, 0.6)
"""What is left of decoding by the kernel if pictures are packed with ``--resize 256``, as
docs/pictures.md has it: at least, likely, at most."""

WORKER_SPARE = 0.8
"""Workers are enough if a batch comes after so much of a step: batches differ, and a queue of two
a worker hides only some of that."""

HANDOVER_S = 0.8e-3
"""Seconds that a loop takes to get a batch from a worker process, however small it is: 0.77 ms of a
step that does nothing else (22 November 2026, two cores of an AMD EPYC)."""

MOST_WORKERS = 512

NEARLY = 1.03
"""Fewer workers are as good if the step takes at most so many times as long."""

STILL_COPIED = (0.1, 0.25, 0.5)
"""What is left of a checkpoint's time if it is written in the background: state must be copied
first, and writing takes some of a core. At least, likely, at most."""

PINNED = (0.25, 0.4, 0.7)
"""What is left of a copy's time from pinned memory, which the host still waits for: pageable memory
is copied to a pinned buffer first, at 6 to 10 GB/s on links that give 25 to 50."""

LAUNCHES_SAVED = (0.9, 0.5, 0.2)
"""Share of a step of tiny operations that goes if they are fused or captured: at most, likely, at
least. It depends on what can be fused, which was not tried: nn.LSTM in place of a loop over its
gates left 0.12 (22 November 2026, one core of an AMD EPYC)."""


def load_after(
    loop: Loop, work: WorkerTimes, workers: int, trainer_cpu: float | None = None
) -> float:
    """Return what loading takes of a step after a change of these: beside it, or before it if there
    are no workers."""
    if loop.formula > 0 and loop.workers == 0 < workers:
        # What was measured is making batches alone: it says nothing of the step's own time.
        each = {one.name: loop.fit * getattr(work, one.name) for one in fields(work)}
        return modelled(loop, WorkerTimes(**each), workers, trainer_cpu)
    if loop.formula > 0:
        return modelled(loop, work, workers, trainer_cpu) * loop.fit
    # Nobody was seen making batches: how long one takes follows from how long the loop waits.
    waited = loop.steady - (0.0 if loop.workers else loop.free) if loop.is_limited else 0.0
    return waited * max(loop.workers, 1) / max(workers, 1)


def step_after(
    loop: Loop,
    work: WorkerTimes,
    workers: int,
    free: float | None = None,
    gap: float | None = None,
    trainer_cpu: float | None = None,
    taking: float | None = None,
) -> float:
    """Return seconds of a step, epochs' beginnings included, after a change of any of these."""
    free = loop.free if free is None else free
    gap = loop.gap if gap is None else gap
    taking = loop.taking if taking is None else taking
    load, formula = load_after(loop, work, workers, trainer_cpu), loop.formula
    stall = loop.stall * (modelled(loop, work, workers) / formula if formula > 0 else 1.0)
    return (free + load if workers == 0 else max(free + taking, load)) + stall + gap


def lighter(work: WorkerTimes, left: Mapping[str, float]) -> WorkerTimes:
    """Return the work if of some parts only these shares are left.

    Time on a core goes with them. Reading is taken to be waiting, as far as there is other work
    that the time on a core can have gone to.
    """
    gone = {part: getattr(work, part) * (1 - rest) for part, rest in left.items()}
    computing = made_in(work) - work.reading
    density = min(1.0, work.cpu / computing) if computing > 0 else 0.0
    after = replace(work, **{part: getattr(work, part) - gone[part] for part in gone})
    cpu = work.cpu - density * sum(gone[part] for part in gone if part != "reading")
    threads = max(1.0, work.cpu / made_in(work)) if made_in(work) > 0 else 1.0
    return replace(after, cpu=max(0.0, min(cpu, made_in(after) * threads)))


def gain(loop: Loop, step: float, how: str, least: float = 0.0, most: float = 0.0) -> Gain:
    """Return what a step of so many seconds in place of the loop's brings, between ``least`` and
    ``most``."""
    misfit = MISFIT * abs(math.log(loop.fit)) if loop.fit > 0 else LARGEST_ERROR
    error = min(max(LEAST_ERROR, loop.noise) + misfit, LARGEST_ERROR)
    factors = [min(max(1.0, loop.step / max(s, 1e-12)), LARGEST) for s in (step, least, most)]
    high = max(factors[:2]) if least else factors[0]
    low = min(factors[0], factors[2]) if most else factors[0]
    what = f"{ms(loop.step)} a step now, {ms(loop.step / factors[0])} then: {how}"
    return Gain(factors[0], low / (1 + error), high * (1 + error), what)


def free_loading(loop: Loop) -> Gain:
    """Return all that any change of loading can bring: T / G."""
    return gain(loop, loop.free, f"if loading cost nothing, the rest would take {ms(loop.free)}")


def after(
    loop: Loop,
    works: Sequence[WorkerTimes],
    workers: int,
    taking: float | None = None,
    gaps: Sequence[float] | None = None,
) -> Gain:
    """Return the gain of a change of loading, from what making a batch then takes: at least,
    likely, at most, or one of these."""
    gaps = gaps or [loop.gap] * len(works)
    steps = [
        step_after(loop, work, workers, gap=gap, taking=taking)
        for work, gap in zip(works, gaps, strict=True)
    ]
    made = ms(made_in(works[len(works) // 2]))
    how = f"a batch is made in {made} by {named(workers)}, and the rest takes {ms(loop.free)}"
    return gain(loop, steps[len(steps) // 2], how, least=steps[0], most=steps[-1])


def without(loop: Loop, *parts: str) -> Gain:
    """Return the gain if some parts of making a batch cost nothing: of :data:`PARTS`."""
    work = lighter(loop.work, dict.fromkeys(parts, 0.0))
    taking = min(loop.taking, HANDOVER_S) if "sending" in parts else None
    return after(loop, [work], loop.workers, taking)


def by_kernel(loop: Loop, begins: float) -> Gain:
    """Return the gain if shardkit's Loader made the crops by its kernel, from packed pictures.

    Of the transform, as much goes as is usual beside decoding: one that takes longer than decoding
    does more than crop. The kernel writes crops to their places in a batch, and threads hand it
    over as it is: nothing is collated or sent. There is a thread for each core, and none has to be
    started anew for an epoch, which so begins with making a batch.

    Args:
        begins: seconds that an epoch's first batch takes now.
    """
    work = loop.work
    usual = min(1.0, work.decoding / work.transform) if work.transform > 0 else 0.0
    gone = {"transform": 1 - usual, "collating": 0.0, "sending": 0.0}
    shares = zip(BY_KERNEL, STILL_READ, strict=True)
    works = [lighter(work, {**gone, "decoding": one, "reading": read}) for one, read in shares]
    gaps = [loop.gap * still_begins(one, begins) for one in works]
    return after(loop, works, max(loop.workers, math.ceil(loop.cores)), 0.0, gaps)


def still_begins(work: WorkerTimes, first_batch_s: float) -> float:
    """Return what is left of an epoch's beginning where nothing is started anew: making a batch."""
    return min(1.0, made_in(work) / first_batch_s) if first_batch_s > 0 else 1.0


def resized(loop: Loop) -> Gain:
    """Return the gain if pictures that the kernel decodes were packed smaller."""
    return after(loop, [lighter(loop.work, {"decoding": one}) for one in RESIZED], loop.workers)


def with_workers(loop: Loop, workers: int) -> Gain:
    """Return the gain of so many workers, at least one. A loop without any has been spared what
    passes between processes."""
    taking = loop.taking if loop.workers else HANDOVER_S
    return after(loop, [loop.work], max(1, workers), taking)


def enough_workers(loop: Loop) -> int:
    """Return the fewest that make batches with time to spare, or else that are nearly as good as
    the most that make sense: two for each core, as some of their time is waiting."""
    most = min(max(loop.workers, math.ceil(2 * loop.cores), 1), MOST_WORKERS)
    nearly = step_after(loop, loop.work, most) * NEARLY
    counts = range(1, most + 1)
    good = [num for num in counts if step_after(loop, loop.work, num) <= nearly]
    in_time = loop.free * WORKER_SPARE
    return min([num for num in good if load_after(loop, loop.work, num) <= in_time] or good)


def with_cores(loop: Loop, cores: float) -> Gain:
    """Return the gain of so many cores to itself."""
    wider = replace(loop, cores=max(loop.cores, cores), others=0.0)
    load = modelled(wider, loop.work, loop.workers) * min(loop.fit, 1.0)
    step = (loop.free + load if loop.workers == 0 else max(loop.free, load)) + loop.gap
    how = f"making batches takes {ms(load)} of a step on {amount(wider.cores)} cores"
    return gain(loop, step, how)


def persistent(loop: Loop, first_batch_s: float) -> Gain:
    """Return the gain if workers stayed alive between epochs: the first batch of one must still be
    made."""
    still = still_begins(loop.work, first_batch_s)
    step = loop.step - loop.gap * (1 - still)
    how = f"epochs' beginnings take {ms(loop.gap)} a step now, and {ms(loop.gap * still)} then"
    return gain(loop, max(step, loop.free), how)


def one_iterator(loop: Loop) -> Gain:
    """Return the gain if one iterator were used for all steps: batches come as fast as workers make
    them."""
    load = modelled(loop, loop.work, loop.workers)
    step = max(loop.free + HANDOVER_S, load) if loop.workers else loop.free + load
    how = f"a step takes {ms(loop.free)}, and making its batch {ms(load)}"
    return gain(loop, max(step, loop.free), how)


def in_memory(loop: Loop, warm: Rate) -> Gain:
    """Return the gain if all files were in memory, as measured within epochs: min(G, P)."""
    steady = max(loop.free, 1 / warm.steps_per_s) if warm.steps_per_s > 0 else loop.steady
    how = f"measured with the files in memory, {amount(warm.steps_per_s)} steps/s"
    return gain(loop, steady + loop.gap, how)


def sooner(loop: Loop, seconds: float, how: str, likely: Sequence[float] = (0.0,)) -> Gain:
    """If the loop's own part of a step took ``seconds`` less, but for these shares of them:
    at least, likely, at most, or one. Loading may then be what it waits for. They were on a core
    as much as the rest of the step is."""
    density = min(1.0, loop.trainer_cpu / loop.free) if loop.free > 0 else 0.0
    saved = [min(seconds * (1 - left), loop.free) for left in likely]
    steps = [
        step_after(
            loop,
            loop.work,
            loop.workers,
            free=loop.free - one,
            trainer_cpu=max(0.0, loop.trainer_cpu - one * density),
        )
        for one in saved
    ]
    return gain(loop, steps[len(steps) // 2], how, least=steps[0], most=steps[-1])
