"""A search for the best settings: one dimension after another, each a race."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from shardkit.errors import StorageError, UsageError
from shardkit.loading.settings import Settings
from shardkit.loading.workers import WorkerType
from shardkit.measure.timing import Work, interleave
from shardkit.measure.tune.search import Race
from shardkit.measure.tune.space import PREFETCHES, between, each_kind, why_not
from shardkit.measure.tune.workload import Workload
from shardkit.measure.verdict import Spread, spread
from shardkit.system.page_cache import Cache
from shardkit.system.resources import Allowance

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
        self._work = work
        self._seconds = seconds
        self._found = found
        self._ranks = ranks
        self._tell = tell
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

    def gain(self, best: Settings, current: Settings) -> Spread | None:
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
