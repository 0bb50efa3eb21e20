"""Which loader settings are the fastest, for this work on this machine."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from shardkit.errors import StorageError, UsageError
from shardkit.loading import tuned
from shardkit.loading.allowance import allowance
from shardkit.loading.auto import local_ranks
from shardkit.loading.loader import Loader
from shardkit.loading.settings import Settings
from shardkit.loading.workers import WorkerType
from shardkit.measure.paste import python_line
from shardkit.measure.timing import Work, interleave
from shardkit.measure.trial import feed
from shardkit.measure.tune_search import Race
from shardkit.measure.tune_space import PREFETCHES, Candidate, between, spread, why_not
from shardkit.measure.workload import Workload
from shardkit.readers import open as open_dataset
from shardkit.reading.source import Source, check_source
from shardkit.storage import show_path
from shardkit.whole import whole

SEARCH_SHARE = 0.85
"""Of the time; the rest is for a loop with a step, where one is given."""

TRIALS = 100
"""That a search on a few cores takes."""

SHORTEST_TRIAL_S = 0.1

ENOUGH_ROUNDS = 4

LEAST_STEPS = 20
"""Of a loop with a step."""

FOUND = ("workers", "worker_type", "prefetch", "device", "device_transform", "pin_memory")
"""Options of a Loader that are found, or have no part in it."""


@dataclass(frozen=True)
class Trial:
    """One candidate: samples a second, the median of its rounds, the least and the most; and how
    many times the chosen one's rate that is, within rounds that both were in."""

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
        cache: whether the data came from memory or from the disk.
        step_ms: that was asked about. margin: how many times as fast as that step needs.
            predicted_wait, wait: share of such a loop's time spent waiting, by the rate and as
            measured. All None without a step.
        saved: the file that ``workers="auto"`` reads; None if there is none, and ``notes`` says
            why.
    """

    settings: Settings
    samples_per_s: float
    line: str
    trials: list[Trial]
    left_out: list[str]
    cache: str
    backend: str | None = None
    window_blocks: int | None = None
    step_ms: float | None = None
    margin: float | None = None
    predicted_wait: float | None = None
    wait: float | None = None
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
    if not seconds > 0:
        raise UsageError(f"seconds must be more than 0, got {seconds}")
    if step_ms is not None and not step_ms > 0:
        raise UsageError(f"step_ms must be more than 0, got {step_ms}")
    for name in FOUND:
        if name in options:
            raise UsageError(f"tune takes no option {name!r}: it finds workers for any device")
    source = open_dataset(dataset) if isinstance(dataset, str | Path) else check_source(dataset)
    work = Workload(source, whole("batch_size", batch_size, 1), options)
    files = sum(path.stat().st_size for path in work.files)
    is_cold = files > allowance().memory_bytes if cold is None else cold
    if is_cold and not files:
        raise UsageError(f"cold: a {type(source).__name__} does not say which files it reads")
    tuner = _Tuner(replace(work, is_cold=is_cold), seconds, tell or (lambda words: None))
    with warnings.catch_warnings():
        # Torch finds more processes than cores "excessive"; whether they are is what we ask.
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        return tuner.run(step_ms, save)


class _Tuner:
    """One search: what is timed, for how long, and what could not be."""

    def __init__(self, work: Workload, seconds: float, tell: Callable[[str], None]) -> None:
        self._work = work
        self._tell = tell
        self._seconds = seconds
        self._slice_s = max(SHORTEST_TRIAL_S, SEARCH_SHARE * seconds / TRIALS)
        self._found = allowance()
        self._ranks = local_ranks()
        self._left_out: dict[str, str] = {}
        self._race = Race(self._time, is_over=self._is_over)
        self._ends = 0.0

    def run(self, step_ms: float | None, save: bool) -> Tuning:
        started = time.perf_counter()
        self._tell("the first batch")
        base = Candidate(Settings(0))
        self._batch = self._work.first_batch(base)
        best = self._search(base, started)
        settings = replace(best.settings, why="tuned on this machine")
        rate = median(self._race.rates[best])
        loader = self._work.loader(best)
        notes = self._notes(best)
        return Tuning(
            settings=settings,
            samples_per_s=rate,
            line=python_line(self._work.batch_size, self._work.given(best)),
            trials=self._trials(),
            left_out=[f"{name}: {reason}" for name, reason in self._left_out.items()],
            cache="cold" if self._work.is_cold else "warm",
            backend=best.backend,
            window_blocks=best.window_blocks,
            saved=self._saved(loader, settings, rate, notes) if save else None,
            notes=notes,
            **self._fed(best, rate, step_ms),
        )

    # --- the search: one dimension after another ------------------------------------------

    def _search(self, base: Candidate, started: float) -> Candidate:
        """What decodes first, since it changes the work; then workers; then how far ahead."""
        cpus = max(1, self._found.cpus // self._ranks)
        types = self._types(base)
        best = base.using(workers=cpus, worker_type=types[0]) if types else base
        self._work.timed(best, 2 * self._slice_s)  # warms up what is read, and the processor

        def race(candidates: Sequence[Candidate], share: float) -> Candidate:
            self._ends = started + share * SEARCH_SHARE * self._seconds
            return self._best(candidates)

        best = race([replace(best, backend=name) for name in self._work.backends], 0.2)
        best = race(spread(best, types, cpus), 0.7)
        counts = {one.settings.workers for one in self._race.rates}
        nearby = between(best.settings.workers, counts)
        best = race([best, *(best.using(workers=num) for num in nearby)], 0.8)
        if best.settings.workers:
            best = race([best.using(prefetch=num) for num in PREFETCHES], 0.9)
        return race([replace(best, window_blocks=num) for num in self._work.windows], 1.0)

    def _best(self, candidates: Sequence[Candidate]) -> Candidate:
        fit = self._that_fit(candidates)
        if len(fit) == 1 and fit[0] in self._race.rates:
            return fit[0]
        best = self._race.best(fit)
        if best is None:
            raise StorageError(f"nothing could be timed: {'; '.join(self._left_out.values())}")
        return best

    def _that_fit(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """All for which there is room; the first of them at least."""
        fit = []
        for one in candidates:
            reason = why_not(one, self._batch, self._found, self._ranks)
            if not reason:
                fit.append(one)
            else:
                self._left_out[str(one)] = reason
        return fit or [*candidates[:1]]

    def _types(self, base: Candidate) -> list[WorkerType]:
        """Kinds of workers that this dataset and transform can be given to."""
        types: list[WorkerType] = []
        kinds: tuple[WorkerType, ...] = ("thread", "process")
        for kind in kinds:
            try:
                self._work.first_batch(base.using(workers=1, worker_type=kind, prefetch=1))
            except (UsageError, StorageError) as error:
                self._left_out[f"worker_type={kind!r}"] = str(error)
            else:
                types.append(kind)
        return types

    # --- timing ---------------------------------------------------------------------------

    def _is_over(self) -> bool:
        return time.perf_counter() > self._ends

    def _time(self, candidates: Sequence[Candidate], rounds: int) -> dict[Candidate, list[float]]:
        """In turn; without those that failed, as where a worker process found no memory."""
        cases = {str(one): partial(self._try, one) for one in candidates}
        result = interleave(cases, rounds, warmup=0)
        return {
            one: result[str(one)].rates("samples")
            for one in candidates
            if str(one) not in self._left_out
        }

    def _try(self, one: Candidate) -> Work:
        self._tell(str(one))
        if str(one) not in self._left_out:
            try:
                return self._work.timed(one, self._slice_s)
            except StorageError as error:
                self._left_out[str(one)] = str(error)
        return Work(samples=1, seconds=1.0)  # which nobody reads

    # --- what is reported -----------------------------------------------------------------

    def _trials(self) -> list[Trial]:
        trials = [
            Trial(str(one), len(rates), median(rates), min(rates), max(rates))
            for one, rates in self._race.rates.items()
        ]
        return sorted(trials, key=lambda trial: trial.samples_per_s, reverse=True)

    def _fed(self, best: Candidate, rate: float, step_ms: float | None) -> dict[str, Any]:
        """What a loop of such a step would have of it: reckoned, and tried."""
        if step_ms is None:
            return {}
        self._tell(f"a loop of {step_ms:g} ms")
        step_s, load_s = step_ms / 1e3, self._work.batch_size / rate
        seconds = max((1 - SEARCH_SHARE) * self._seconds, LEAST_STEPS * max(step_s, load_s))
        return {
            "step_ms": step_ms,
            "margin": step_s / load_s,
            "predicted_wait": max(0.0, 1 - step_s / load_s),
            "wait": feed(self._work.loader(best), step_s, seconds).wait_share,
        }

    def _notes(self, best: Candidate) -> list[str]:
        rounds = len(self._race.rates[best])
        if rounds >= ENOUGH_ROUNDS:
            return []
        return [f"the choice had {rounds} rounds only: more seconds would make it surer"]

    def _saved(
        self, loader: Loader, settings: Settings, rate: float, notes: list[str]
    ) -> str | None:
        try:
            about = tuned.about(loader.maker, self._found, self._ranks)
            return show_path(tuned.save(about, settings, rate))
        except OSError as error:
            notes.append(f"the result was not kept: {error.strerror or error}")
            return None
