"""The fastest loader settings for some work on this machine."""

from __future__ import annotations

import copy
import json
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

from shardkit import images
from shardkit.arguments import integer, positive
from shardkit.batches.collate import Batch
from shardkit.batches.source import Source, check_source
from shardkit.errors import StorageError, UsageError
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.loading import tuned
from shardkit.loading.auto import local_ranks
from shardkit.loading.loader import Loader
from shardkit.loading.settings import Settings
from shardkit.loading.workers import WorkerType
from shardkit.measure.bench.cases import Read, refuse_without_pictures
from shardkit.measure.machine import machine
from shardkit.measure.race import (
    PREFETCHES,
    Footprint,
    Race,
    between,
    each_kind,
    footprint,
    why_not,
)
from shardkit.measure.timing import Interval, Work, interleave, spread, verdict
from shardkit.readers import open as open_dataset
from shardkit.samples.encoding import TOKENS
from shardkit.system.page_cache import Cache, cache_state, evict
from shardkit.system.paths import show_path
from shardkit.system.resources import Allowance, allowance

# --- the work ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workload:
    """A loader but for its settings.

    Attributes:
        options: of :class:`shardkit.Loader`. is_cold: drop ``files`` from memory before each
            timing.
    """

    source: Source
    batch_size: int
    options: dict[str, Any] = field(default_factory=dict)
    is_cold: bool = False

    def loader(self, settings: Settings) -> Loader:
        """Return a loader. Raises UsageError where the work and the settings do not go together."""
        source = self.source
        if self.is_cold:
            source = copy.copy(source)  # pages that are still mapped cannot be dropped
        return Loader(source, self.batch_size, **self.options, **settings.as_options())

    def timed(self, settings: Settings, seconds: float) -> Work:
        """Load batches for about so many seconds."""
        cache: Cache = "warm"
        if self.is_cold:
            cache = cache_state(evict(self.files))
        loader = self.loader(settings)
        epochs = watch(loader, seconds, least_batches(settings), is_once=self.is_cold)
        batches = batches_per_s(epochs, len(loader), settings)
        return Work(self.batch_size, seconds=1 / batches, cache=cache)

    def first_batch(self, settings: Settings) -> Footprint:
        """Make one batch. Raises what a loader raises."""
        with batches_of(self.loader(settings)) as batches:
            return footprint(next(batches))

    @property
    def files(self) -> list[Path]:
        """Return the files of the dataset, as far as it says where it is."""
        path = getattr(self.source, "path", None)
        if not isinstance(path, Path):
            return []
        return sorted(filter(Path.is_file, path.iterdir() if path.is_dir() else [path]))


@dataclass(frozen=True)
class Epoch:
    """Times at which batches came, in seconds after the epoch began.

    Attributes:
        arrivals: of each batch. end_s: of the epoch, its workers ended; None: it was cut short.
    """

    arrivals: Sequence[float]
    end_s: float | None = None


def watch(loader: Loader, seconds: float, least: int, is_once: bool = False) -> list[Epoch]:
    """Run epochs until so many seconds and so many batches are over, or only one.

    Nothing is done with the batches.
    """
    epochs: list[Epoch] = []
    deadline = time.perf_counter() + seconds
    while not epochs or (time.perf_counter() < deadline and not is_once):
        arrivals: list[float] = []
        began = time.perf_counter()
        with batches_of(loader) as batches:
            for _ in batches:
                now = time.perf_counter()
                arrivals.append(now - began)
                if now >= deadline and len(arrivals) >= least:
                    return [*epochs, Epoch(arrivals)]
        epochs.append(Epoch(arrivals, time.perf_counter() - began))
    return epochs


def batches_of(loader: Loader) -> closing[Generator[Batch, None, None]]:
    """Return an epoch whose workers end with the block."""
    return closing(cast("Generator[Batch, None, None]", iter(loader)))


def num_ahead(how: Settings) -> int:
    """Return how many batches may lie ready when the first is taken: processes make some while
    others are still being started.
    """
    return how.workers * how.prefetch if how.worker_type == "process" else 0


def batches_per_s(epochs: Sequence[Epoch], num_batches: int, how: Settings) -> float:
    """Return the rate of a whole epoch of ``num_batches``, the start of its workers in it.

    Where whole epochs were seen, theirs; else the time to the first batches and the pace after,
    those that may have lain ready left out. N workers that begin together deliver N batches at a
    time: the pace is that from the last of some N to the last of some later N.
    """
    complete = [epoch.end_s for epoch in epochs if epoch.end_s is not None]
    if complete:
        return num_batches * len(complete) / sum(complete)
    arrivals, step = epochs[0].arrivals, max(1, how.workers)
    first = num_ahead(how) + step - 1
    num = (len(arrivals) - 1 - first) // step * step
    pace = (arrivals[first + num] - arrivals[first]) / num
    return num_batches / (arrivals[first] + pace * (num_batches - 1 - first))


def least_batches(how: Settings) -> int:
    """Return how many batches make a pace: those that lay ready, and three times those that come
    together.
    """
    return num_ahead(how) + 3 * max(1, how.workers)


# --- what --read asks for ------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """Work to tune for.

    Attributes:
        options: of a Loader. line: of Python, that opens the source as ``ds``. given: the options
            as Python.
    """

    source: Source
    options: dict[str, Any]
    line: str
    given: str = ""


def reading(
    path: str | Path,
    read: Read | None,
    split: str | None = None,
    size: int = 224,
    seq_len: int = 2048,
) -> Reading:
    """Open a dataset. None: tokens as sequences, pictures as crops for training, else as it is.

    Raises:
        UsageError: there is nothing to read in that way. Else as :func:`shardkit.open`.
    """
    of_split = "" if split is None else f", {json.dumps(split)}"
    if read != "tokens":
        dataset = open_dataset(path, split)
        is_bytes = IMAGE_FIELDS.isdisjoint(dataset.fields)
        read = read or ("tokens" if TOKENS in dataset.fields else "raw" if is_bytes else "train")
    quoted = json.dumps(str(path))
    if read == "tokens":
        from shardkit.sequences.token_dataset import TokenDataset

        line = f"ds = shardkit.TokenDataset({quoted}{of_split}, seq_len={seq_len})"
        return Reading(check_source(TokenDataset(path, split, seq_len=seq_len)), {}, line)
    refuse_without_pictures(read, show_path(path), dataset.fields)
    line = f"ds = shardkit.open({quoted}{of_split})"
    if read == "raw":
        return Reading(dataset, {}, line)
    given = f"transform=shardkit.images.train({size}), "
    return Reading(dataset, {"transform": images.train(size)}, line, given)


# --- the search ----------------------------------------------------------------------------

TRIALS = 100
"""How many a search on a few cores takes, about."""

SHORTEST_TRIAL_S = 0.1

GAIN_ROUNDS = 6
"""Rounds of the choice next to the current settings; fewer have no 95 % interval."""


class Tuner:
    """One search: what is timed, for how long, and what could not be.

    Attributes:
        rates: samples a second of each round of all settings that were timed. left_out: what
            was not, and why. caches: states of the page cache that were met.
            is_short: whether a race was ended by its time.
    """

    def __init__(
        self,
        work: Workload,
        seconds: float,
        found: Allowance,
        ranks: int,
        tell: Callable[[str], None],
    ) -> None:
        self._work, self._seconds, self._tell = work, seconds, tell
        self._found, self._ranks = found, ranks
        self._slice_s = max(SHORTEST_TRIAL_S, seconds / TRIALS)
        self._race = Race(self._time, is_over=self._is_over)
        self._started = self._ends = time.perf_counter()
        self.rates: dict[Settings, list[float]] = {}
        self.left_out: dict[str, str] = {}
        self.caches: set[Cache] = set()
        self.is_short = False

    def run(self) -> Settings:
        """Search for the number and kind of workers, then for how far ahead they work. The choice
        has a worker, which hides loading behind the training step, if any can run.

        Raises:
            ShardkitError: the first batch cannot be made.
        """
        self._tell("the first batch")
        alone = Settings(0)
        self._batch = self._work.first_batch(alone)
        candidates = self._fitting(each_kind(self._types(), self.cpus))
        if not candidates:
            return self._best([alone], 1.0)
        self._work.timed(candidates[-1], 2 * self._slice_s)  # warms up what is read
        best = self._best(candidates, 0.6)
        counts = {one.workers for one in self.rates}
        nearby = between(best.workers, counts)
        best = self._best([best, *(replace(best, workers=num) for num in nearby)], 0.75)
        depths = sorted({best.prefetch, *PREFETCHES})
        return self._best([replace(best, prefetch=num) for num in depths], 0.88)

    def gain(self, best: Settings, current: Settings) -> Interval | None:
        """Return how many times as fast as the current settings the best ones are, measured in
        rounds of both; None if they are the same, or the current ones cannot run.
        """
        if best == current or not self._fitting([current]):
            return None
        rates = self._time([current, best], GAIN_ROUNDS)
        if current not in rates or best not in rates:
            return None
        return spread([new / old for old, new in zip(rates[current], rates[best], strict=True)])

    @property
    def cpus(self) -> int:
        """Cores for one of the processes that feed on this machine."""
        return self._found.share(self._ranks)

    def _is_over(self) -> bool:
        """Return True if the time is spent; it is asked only while there is more to time."""
        is_over = time.perf_counter() > self._ends
        self.is_short |= is_over
        return is_over

    def _types(self) -> list[WorkerType]:
        """Return the kinds of workers that this dataset and transform can be given to."""
        types: list[WorkerType] = []
        kinds: tuple[WorkerType, ...] = ("thread", "process")
        for kind in kinds:
            try:
                self._work.first_batch(Settings(1, kind, prefetch=1))
            except (UsageError, StorageError) as error:
                self.left_out[f"worker_type={kind!r}"] = str(error)
            else:
                types.append(kind)
        return types

    def _fitting(self, candidates: Sequence[Settings]) -> list[Settings]:
        """Return those that the machine has room for; why not the others, is left out."""
        reasons = {one: why_not(one, self._batch, self._found, self._ranks) for one in candidates}
        self.left_out |= {str(one): reason for one, reason in reasons.items() if reason}
        return [one for one, reason in reasons.items() if not reason]

    def _best(self, candidates: Sequence[Settings], share: float) -> Settings:
        """Return the best of these; it is found when this share of all time is spent."""
        self._ends = self._started + share * self._seconds
        fit = self._fitting(candidates)
        if len(fit) == 1 and fit[0] in self.rates:
            return fit[0]
        best = self._race.best(fit or candidates[:1])
        if best is None:
            raise StorageError(f"nothing could be timed: {'; '.join(self.left_out.values())}")
        return best

    def _time(self, candidates: Sequence[Settings], rounds: int) -> dict[Settings, list[float]]:
        """Time them in turn, and leave out those that failed, as where a worker process found no
        memory.
        """
        cases = {str(one): partial(self._try, one) for one in candidates}
        result = interleave(cases, rounds, warmup=0)
        rates = {}
        for one in candidates:
            if str(one) not in self.left_out:
                rates[one] = result[str(one)].rates("samples")
                self.caches.add(result[str(one)].cache)
                self.rates.setdefault(one, []).extend(rates[one])
        return rates

    def _try(self, one: Settings) -> Work:
        self._tell(str(one))
        if str(one) not in self.left_out:
            try:
                return self._work.timed(one, self._slice_s)
            except StorageError as error:
                self.left_out[str(one)] = str(error)
        return Work(samples=1, seconds=1.0)  # which nobody reads


# --- the result ----------------------------------------------------------------------------


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
    """Result of :func:`tune`.

    Attributes:
        settings: workers, their type, prefetch. samples_per_s: with these settings.
        current: what ``workers="auto"`` took before. gain: how many times as fast as those the
            settings are, in paired rounds; None if they are the same or cannot run.
        line: the settings as options of a Loader, to paste.
        trials: everything that was tried, the fastest first. left_out: what was not, and why.
        cache: ``warm`` if the data came from memory, ``cold`` if from the disk, ``unknown`` if
            from both.
        machine: see :class:`shardkit.measure.machine.Machine`, and ``cpus``, the cores that may be
            used by each process that feeds here.
        saved: the file that ``workers="auto"`` reads the settings from; None if they were not kept,
            and ``notes`` says why.
    """

    settings: Settings
    samples_per_s: float
    current: Settings
    gain: Interval | None
    batch_size: int
    line: str
    trials: list[Trial]
    left_out: list[str]
    cache: str
    machine: dict[str, Any]
    saved: str | None = None
    notes: list[str] = field(default_factory=list)


def tune(
    dataset: str | Path | Source,
    batch_size: int = 64,
    *,
    seconds: float = 60.0,
    cold: bool | None = None,
    save: bool = True,
    tell: Callable[[str], None] = lambda words: None,
    **options: Any,
) -> Tuning:
    """Try workers, kinds of workers and prefetch of a :class:`shardkit.Loader` and choose: the
    fastest, or of those that are as fast within 3 % the one with fewer workers, threads before
    processes, less made ahead.

    The rate is that of a loop that does nothing else. Processes that torchrun started on this
    machine (LOCAL_WORLD_SIZE) share its cores.

    Args:
        dataset: a path, or anything a Loader takes.
        batch_size, options: as the Loader will have them: ``transform``, ``shuffle`` ...
        seconds: approximate time budget.
        cold: drop the dataset's files from memory before each trial. None: if they do not fit.
        save: keep the result for ``workers="auto"``.
        tell: called with a few words on what is being tried.

    Raises:
        UsageError: options that make no sense. DataError: a sample cannot be read.
    """
    positive("seconds", seconds)
    for name in FOUND:
        if name in options:
            raise UsageError(f"tune takes no option {name!r}: it finds workers, for any device")
    source = open_dataset(dataset) if isinstance(dataset, str | Path) else check_source(dataset)
    work = Workload(source, integer("batch_size", batch_size, 1), options)
    found, ranks = allowance(), local_ranks()
    work = replace(work, is_cold=_is_cold(work, found, cold))
    current = Loader(source, batch_size, **options, workers="auto")
    tuner = Tuner(work, seconds, found, ranks, tell)
    with warnings.catch_warnings():
        # Torch finds more processes than cores "excessive"; whether they are is what we ask.
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        best = tuner.run()
        gain = tuner.gain(best, current.settings)
    notes, saved = [], None
    if gain is not None and verdict(gain) == "slower":
        notes.append(f"the current settings stay: {best} won, but is slower next to them")
        best, gain = current.settings, None
    rate = median(tuner.rates[best])
    trials = [
        Trial(str(one), len(rates), median(rates), min(rates), max(rates))
        for one, rates in tuner.rates.items()
    ]
    if work.is_cold and tuner.caches != {"cold"}:
        notes.append("not all files could be dropped from memory: some of it was read from there")
    if why := unsure(tuner.rates[best], tuner.is_short):
        notes.append(
            f'the choice is unsure, {why}, and not kept for workers="auto": more seconds, or a'
            " quieter machine, would make it surer"
        )
    elif save:
        try:
            saved = show_path(tuned.save(tuned.about(current.maker, found, ranks), best, rate))
        except OSError as error:
            notes.append(f"the result was not kept: {error.strerror or error}")
    return Tuning(
        settings=replace(best, why=WHY),
        samples_per_s=rate,
        current=current.settings,
        gain=gain,
        batch_size=batch_size,
        line=", ".join(f"{name}={json.dumps(v)}" for name, v in best.as_options().items()),
        trials=sorted(trials, key=lambda trial: trial.samples_per_s, reverse=True),
        left_out=[f"{name}: {reason}" for name, reason in tuner.left_out.items()],
        cache=tuner.caches.pop() if len(tuner.caches) == 1 else "unknown",
        machine={**asdict(machine()), "cpus": tuner.cpus},
        saved=saved,
        notes=notes,
    )


def unsure(rates: Sequence[float], is_short: bool) -> str:
    """Return why a choice with these rates says little; empty if it says enough."""
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
