"""Which loader settings are the fastest, for this work on this machine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from shardkit.allowance import Allowance, allowance
from shardkit.errors import UsageError
from shardkit.loading import tuned
from shardkit.loading.auto import local_ranks
from shardkit.loading.settings import Settings
from shardkit.measure.machine import machine
from shardkit.measure.paste import python_line
from shardkit.measure.step import Step, try_step
from shardkit.measure.tune_space import Candidate
from shardkit.measure.tuner import Tuner
from shardkit.measure.workload import Workload
from shardkit.readers import open as open_dataset
from shardkit.reading.source import Source, check_source
from shardkit.storage import show_path
from shardkit.whole import whole

SEARCH_SHARE = 0.85
"""Of the time, where a loop with a step is to be run, too."""

ENOUGH_ROUNDS = 4

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
        machine: see :func:`shardkit.measure.machine.machine`, and ``cpus``, the cores that may be
            used by each process that feeds here.
        step: that was asked about.
        saved: the file that ``workers="auto"`` reads; None if there is none, and ``notes`` says
            why.
    """

    settings: Settings
    samples_per_s: float
    batch_size: int
    line: str
    trials: list[Trial]
    left_out: list[str]
    cache: str
    machine: dict[str, Any]
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
    tell: Callable[[str], None] | None = None,
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
    for name, value in (("seconds", seconds), ("step_ms", step_ms)):
        if value is not None and not value > 0:
            raise UsageError(f"{name} must be more than 0, got {value}")
    for name in FOUND:
        if name in options:
            raise UsageError(f"tune takes no option {name!r}: it finds workers, for any device")
    source = open_dataset(dataset) if isinstance(dataset, str | Path) else check_source(dataset)
    work = Workload(source, whole("batch_size", batch_size, 1), options)
    found, ranks, tell = allowance(), local_ranks(), tell or _tell_nobody
    work = replace(work, is_cold=_is_cold(work, found, cold))
    search_s = seconds if step_ms is None else SEARCH_SHARE * seconds
    step_s, step = (step_ms or 0.0) / 1e3, None
    tuner = Tuner(work, search_s, found, ranks, step_s, tell)
    with warnings.catch_warnings():
        # Torch finds more processes than cores "excessive"; whether they are is what we ask.
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        best = tuner.run()
        if step_s:
            tell(f"a loop of {step_ms:g} ms")
            step = try_step(work, best, median(tuner.rates[best]), step_s, seconds - search_s)
    about = tuned.about(work.loader(best).maker, found, ranks) if save else None
    return _tuning(work, tuner, best, step, about)


def _tuning(
    work: Workload,
    tuner: Tuner,
    best: Candidate,
    step: Step | None,
    about: dict[str, Any] | None,
) -> Tuning:
    """In words; the settings are kept if it is known what they are about."""
    settings = replace(best.settings, why="tuned on this machine")
    rates = tuner.rates[best]
    notes = []
    if tuner.is_short and len(rates) < ENOUGH_ROUNDS:
        notes.append(f"the choice had {len(rates)} rounds only: more seconds would make it surer")
    if step is None and not best.settings.workers:
        notes.append(
            f"the loop itself loads, {1e3 * work.batch_size / median(rates):.2g} ms a batch: give"
            " the step's time, too, if its loading should be hidden behind a GPU's work"
        )
    if work.is_cold and tuner.caches != {"cold"}:
        notes.append("not all files could be dropped from memory: some of it was read from there")
    return Tuning(
        settings=settings,
        samples_per_s=median(rates),
        batch_size=work.batch_size,
        line=python_line(work.batch_size, work.given(best)),
        trials=_trials(tuner.rates),
        left_out=[f"{name}: {reason}" for name, reason in tuner.left_out.items()],
        cache=tuner.caches.pop() if len(tuner.caches) == 1 else "unknown",
        machine={**machine(), "cpus": tuner.cpus},
        backend=best.backend,
        window_blocks=best.window_blocks,
        step=step,
        saved=None if about is None else _saved(about, settings, median(rates), notes),
        notes=notes,
    )


def _tell_nobody(words: str) -> None:
    pass


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


def _saved(about: dict[str, Any], settings: Settings, rate: float, notes: list[str]) -> str | None:
    try:
        return show_path(tuned.save(about, settings, rate))
    except OSError as error:
        notes.append(f"the result was not kept: {error.strerror or error}")
        return None
