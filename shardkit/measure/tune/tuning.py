"""Which loader settings are the fastest, for this work on this machine."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from shardkit.arguments import integer, positive
from shardkit.batches.source import Source, check_source
from shardkit.errors import UsageError
from shardkit.loading import tuned
from shardkit.loading.auto import local_ranks
from shardkit.loading.settings import Settings
from shardkit.measure.machine import machine
from shardkit.measure.tune.reading import python_line
from shardkit.measure.tune.space import Candidate
from shardkit.measure.tune.step import Step, try_step
from shardkit.measure.tune.tuner import Tuner
from shardkit.measure.tune.workload import Workload
from shardkit.measure.verdict import spread
from shardkit.readers import open as open_dataset
from shardkit.system.paths import show_path
from shardkit.system.resources import Allowance, allowance

SEARCH_SHARE = 0.85
"""The share of the time that the search has, where a loop with a step is to be run, too."""

ENOUGH_ROUNDS = 4

WILD = 1.5
"""Where the interval of a choice's rate ends at so many times its beginning, it says little. Tuning
pictures, bytes and tokens it was 1.04 to 1.07 times on a quiet machine of 2 cores, and 2.1 to 2.9
times beside three programs that came and went."""

WHY = "tuned on this machine"

FOUND = ("workers", "worker_type", "prefetch", "device", "device_transform", "pin_memory")
"""Options of a Loader that are found, or have no part in it."""


@dataclass(frozen=True)
class Trial:
    """Settings that were tried: samples a second, the median, least and most of its rounds."""

    settings: str
    rounds: int
    samples_per_s: float
    low: float
    high: float


@dataclass(frozen=True)
class Tuning:
    """What :func:`tune` found.

    Attributes:
        settings: workers, their type, prefetch. backend: what decodes pictures; None: the fastest
            installed. window_blocks: of ``shuffle="block"``, else None.
        samples_per_s: with these settings. line: of Python, to paste.
        trials: everything that was tried, the fastest first. left_out: what was not, and why.
        cache: whether the data came from memory, ``warm``, from the disk, ``cold``, or from both,
            ``unknown``.
        machine: see :class:`shardkit.measure.machine.Machine`, and ``cpus``, the cores that may be
            used by each process that feeds here.
        step: that was asked about. work: see :func:`shardkit.loading.tuned.work`.
        for_auto: what ``workers="auto"`` is to take: those settings, or if they have no worker the
            best that have one: only they hide loading behind a step. saved: the file that it reads
            them from; None if they were not kept, and ``notes`` says why.
    """

    settings: Settings
    samples_per_s: float
    batch_size: int
    line: str
    trials: list[Trial]
    left_out: list[str]
    cache: str
    machine: dict[str, Any]
    work: dict[str, Any]
    for_auto: Settings
    backend: str | None = None
    window_blocks: int | None = None
    step: Step | None = None
    saved: str | None = None
    notes: list[str] = field(default_factory=list)


def tune(
    dataset: str | Path | Source,
    batch_size: int = 64,
    *,
    seconds: float = 60.0,
    step_ms: float | None = None,
    cold: bool | None = None,
    save: bool = True,
    tell: Callable[[str], None] = lambda words: None,
    **options: Any,
) -> Tuning:
    """Try settings of a :class:`shardkit.Loader` and choose: the fastest, or of those that are as
    fast within 3 % the one with fewer workers, threads before processes, less made ahead.

    What is fast is a loop that does nothing else; with ``step_ms``, one whose steps take so long:
    then whatever makes it wait for less than 1 % of its time, with something to spare, is as good.
    Processes that torchrun started on this machine (LOCAL_WORLD_SIZE) share its cores.

    Args:
        dataset: a path, or anything a Loader takes.
        batch_size, options: as the Loader will have them: ``transform``, ``shuffle`` ...
        seconds: that it may take, about.
        step_ms: of the training step: is the choice fast enough for it?
        cold: drop the dataset's files from memory before each trial. None: if they do not fit.
        save: keep the result for ``workers="auto"``.
        tell: called with a few words on what is being tried.

    Raises:
        UsageError: options that make no sense. DataError: a sample cannot be read.
    """
    positive("seconds", seconds)
    if step_ms is not None:
        positive("step_ms", step_ms)
    for name in FOUND:
        if name in options:
            raise UsageError(f"tune takes no option {name!r}: it finds workers, for any device")
    source = open_dataset(dataset) if isinstance(dataset, str | Path) else check_source(dataset)
    work = Workload(source, integer("batch_size", batch_size, 1), options)
    found, ranks = allowance(), local_ranks()
    work = replace(work, is_cold=_is_cold(work, found, cold))
    search_s = seconds if step_ms is None else SEARCH_SHARE * seconds
    step_s, step = (step_ms or 0.0) / 1e3, None
    tuner = Tuner(work, search_s, found, ranks, step_s, tell)
    with warnings.catch_warnings(), _on_cores(tuner.cpus if ranks > 1 else None):
        # Torch finds more processes than cores "excessive"; whether they are is what we ask.
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        best = tuner.run()
        if step_s:
            tell(f"a loop of {step_ms:g} ms")
            step = try_step(work, best, median(tuner.rates[best]), step_s, seconds - search_s)
    notes, saved = _notes(work, tuner, best, step), None
    if why := unsure(tuner.rates[tuner.hiding], tuner.is_short):
        notes.append(
            f'the choice is unsure, {why}, and not kept for workers="auto": more seconds, or a'
            " quieter machine, would make it surer"
        )
    elif save:
        saved = _keep(work, tuner, best, notes, (found, ranks))
    return Tuning(
        settings=replace(best.settings, why=WHY),
        samples_per_s=median(tuner.rates[best]),
        batch_size=work.batch_size,
        line=python_line(work.batch_size, work.given(best)),
        trials=_trials(tuner.rates),
        left_out=[f"{name}: {reason}" for name, reason in tuner.left_out.items()],
        cache=tuner.caches.pop() if len(tuner.caches) == 1 else "unknown",
        machine={**asdict(machine()), "cpus": tuner.cpus},
        work=tuned.work(work.loader(_AS_GIVEN).maker),
        for_auto=replace(tuner.hiding.settings, why=WHY),
        backend=best.backend,
        window_blocks=best.window_blocks,
        step=step,
        saved=saved,
        notes=notes,
    )


_AS_GIVEN = Candidate(Settings(0))
"""Makes a loader with the user's own options."""


@contextmanager
def _on_cores(num: int | None) -> Iterator[None]:
    """This thread, and all that it starts, on so many cores; None: on all that it has."""
    if num is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:num])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _notes(work: Workload, tuner: Tuner, best: Candidate, step: Step | None) -> list[str]:
    notes = []
    if not best.settings.workers and not step:
        load_ms = 1e3 * work.batch_size / median(tuner.rates[best])
        notes.append(
            f"the loop itself loads, {load_ms:.2g} ms a batch: give the step's time, too, if its"
            " loading should be hidden behind a GPU's work"
        )
    if work.is_cold and tuner.caches != {"cold"}:
        notes.append("not all files could be dropped from memory: some of it was read from there")
    return notes


def _keep(
    work: Workload,
    tuner: Tuner,
    best: Candidate,
    notes: list[str],
    here: tuple[Allowance, int],
) -> str | None:
    """Keep the choice for a loader with the user's own options, and for one with those that were
    found, too. Returns the file; None, and adds a note, if it cannot be written."""
    extra = {"backend": best.backend, "window_blocks": best.window_blocks}
    given = ", ".join(f"{name}={value!r}" for name, value in extra.items() if value is not None)
    if given:
        notes.append(f'workers="auto" takes workers alone from it: give {given}, as above, too')
    try:
        for one in (_AS_GIVEN, best):
            about = tuned.about(work.loader(one).maker, *here)
            path = tuned.save(about, tuner.hiding.settings, median(tuner.rates[tuner.hiding]))
    except OSError as error:
        notes.append(f"the result was not kept: {error.strerror or error}")
        return None
    return show_path(path)


def unsure(rates: Sequence[float], is_short: bool) -> str:
    """Why a choice with these rates says little; empty if it says enough."""
    if is_short and len(rates) < ENOUGH_ROUNDS:
        return f"it had {len(rates)} rounds only"
    found = spread(rates)
    if found.high > WILD * found.low:
        return f"its rounds spread from {min(rates):,.0f} to {max(rates):,.0f} samples/s"
    return ""


def _is_cold(work: Workload, found: Allowance, wished: bool | None) -> bool:
    num_bytes = sum(path.stat().st_size for path in work.files)
    if wished and not num_bytes:
        kind = type(work.source).__name__
        raise UsageError(f"cold: a {kind} does not say which files it reads")
    return num_bytes > found.memory_bytes if wished is None else wished


def _trials(rates: Mapping[Candidate, Sequence[float]]) -> list[Trial]:
    trials = [
        Trial(str(one), len(found), median(found), min(found), max(found))
        for one, found in rates.items()
    ]
    return sorted(trials, key=lambda trial: trial.samples_per_s, reverse=True)
