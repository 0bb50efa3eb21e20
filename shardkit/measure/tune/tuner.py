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
from shardkit.measure.tune.search import NEAR, NEAR_A_STEP, Race
from shardkit.measure.tune.space import PREFETCHES, Candidate, between, each_kind, that_fit
from shardkit.measure.tune.step import loops_per_s
from shardkit.measure.tune.workload import Workload
from shardkit.system.page_cache import Cache
from shardkit.system.resources import Allowance

TRIALS = 100
"""How many a search on a few cores takes, about."""

SHORTEST_TRIAL_S = 0.1


class Tuner:
    """One search: what is timed, for how long, and what could not be.

    Attributes:
        rates: samples a second of each round of each candidate that was timed. left_out: what
            was not, and why. caches: states of the page cache that were met.
            is_short: whether a race was ended by its time. hiding: the best of those that load
            beside the loop, not in it; where a step is given, the best of all.
    """

    def __init__(
        self,
        work: Workload,
        seconds: float,
        found: Allowance,
        ranks: int,
        step_s: float,
        tell: Callable[[str], None],
    ) -> None:
        self._work = work
        self._seconds = seconds
        self._found = found
        self._ranks = ranks
        self._step_s = step_s
        self._tell = tell
        self._slice_s = max(SHORTEST_TRIAL_S, seconds / TRIALS)
        near = NEAR_A_STEP if step_s else NEAR
        self._race = Race(self._time, near, is_over=self._is_over)
        self._started = self._ends = time.perf_counter()
        self.rates: dict[Candidate, list[float]] = {}
        self.left_out: dict[str, str] = {}
        self.caches: set[Cache] = set()
        self.is_short = False
        self.hiding = Candidate(Settings(0))

    def run(self) -> Candidate:
        """Search for the decoder first, since it changes the work; then for the number and kind of
        workers; then for how far ahead they work.

        Raises:
            ShardkitError: the first batch cannot be made.
        """
        self._tell("the first batch")
        base = Candidate(Settings(0))
        self._batch = self._work.first_batch(base)
        types = self._types(base)
        best = self._begin(base, types)
        self._work.timed(best, 2 * self._slice_s)  # warms up what is read, and the processor
        best = self._best([replace(best, backend=name) for name in self._work.backends], 0.2)
        best = self._best(each_kind(best, types, self.cpus), 0.7)
        counts = {one.settings.workers for one in self.rates}
        nearby = between(best.settings.workers, counts)
        best = self._best([best, *(best.using(workers=num) for num in nearby)], 0.8)
        if best.settings.workers:
            depths = {best.settings.prefetch, *PREFETCHES}
            best = self._best([best.using(prefetch=num) for num in sorted(depths)], 0.9)
        self.hiding = self._hiding(best)
        return self._best([replace(best, window_blocks=num) for num in self._work.windows], 1.0)

    def _hiding(self, best: Candidate) -> Candidate:
        """The best with a worker: a loop that trains needs one, even if one that does nothing is
        fastest without."""
        others = [
            one
            for one in self.rates
            if one.settings.workers
            and one.backend == best.backend
            and str(one) not in self.left_out
        ]
        if best.settings.workers or self._step_s or not others:
            return best
        return self._best(others, 0.95)

    def _is_over(self) -> bool:
        """Whether the time is spent; it is asked only while there is more to time."""
        is_over = time.perf_counter() > self._ends
        self.is_short |= is_over
        return is_over

    @property
    def cpus(self) -> int:
        """Cores for one of the processes that feed on this machine."""
        return self._found.share(self._ranks)

    def _types(self, base: Candidate) -> list[WorkerType]:
        """Kinds of workers that this dataset and transform can be given to."""
        types: list[WorkerType] = []
        kinds: tuple[WorkerType, ...] = ("thread", "process")
        for kind in kinds:
            try:
                self._work.first_batch(base.using(workers=1, worker_type=kind, prefetch=1))
            except (UsageError, StorageError) as error:
                self.left_out[f"worker_type={kind!r}"] = str(error)
            else:
                types.append(kind)
        return types

    def _begin(self, base: Candidate, types: Sequence[WorkerType]) -> Candidate:
        """To begin with: as many workers as cores, if there is room for them."""
        wished = [base.using(workers=self.cpus, worker_type=kind) for kind in types]
        fit, _ = that_fit(wished, self._batch, self._found, self._ranks)
        return fit[0] if fit else base

    def _best(self, candidates: Sequence[Candidate], share: float) -> Candidate:
        """The best of these; it is found when this share of all time is spent."""
        self._ends = self._started + share * self._seconds
        fit, reasons = that_fit(candidates, self._batch, self._found, self._ranks)
        self.left_out |= reasons
        if len(fit) == 1 and fit[0] in self.rates:
            return fit[0]
        best = self._race.best(fit or candidates[:1])
        if best is None:
            raise StorageError(f"nothing could be timed: {'; '.join(self.left_out.values())}")
        return best

    def _time(self, candidates: Sequence[Candidate], rounds: int) -> dict[Candidate, list[float]]:
        """Time them in turn, and leave out those that failed, as where a worker process found no
        memory."""
        cases = {str(one): partial(self._try, one) for one in candidates}
        result = interleave(cases, rounds, warmup=0)
        judged = {}
        for one in candidates:
            if str(one) not in self.left_out:
                rates = result[str(one)].rates("samples")
                self.caches.add(result[str(one)].cache)
                self.rates.setdefault(one, []).extend(rates)
                judged[one] = [self._judge(one, rate) for rate in rates]
        return judged

    def _judge(self, one: Candidate, samples_per_s: float) -> float:
        """Steps a second."""
        load_s = self._work.batch_size / samples_per_s
        return loops_per_s(load_s, self._step_s, one.settings.workers)

    def _try(self, one: Candidate) -> Work:
        self._tell(str(one))
        if str(one) not in self.left_out:
            try:
                return self._work.timed(one, self._slice_s)
            except StorageError as error:
                self.left_out[str(one)] = str(error)
        return Work(samples=1, seconds=1.0)  # which nobody reads
