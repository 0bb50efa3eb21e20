"""One target with one number of workers, as a case to be timed."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.loading.loader import Loader
from shardkit.measure.device import Counter, counter
from shardkit.measure.pagecache import Cache, cache_state, evict
from shardkit.measure.target import Chosen, Target
from shardkit.measure.timing import Work
from shardkit.measure.work import transform_of
from shardkit.reading.permute import Positions
from shardkit.reading.source import Source
from shardkit.storage import os_errors

LEAST_S = 0.3
"""Warm, the samples are read again and again until a case takes about so long."""

LEAST_BATCHES = 6
"""Of each worker, so that little of a case is its first and last batch."""


@dataclass(frozen=True)
class Round:
    """What one call of a case left behind.

    Attributes:
        batch_s: how long the loop waited for each batch.
        seconds: spent on reading, the transform, collating (by all workers) and waiting (by the
            loop).
        device_bytes: read below the page cache; None where nothing counts them.
    """

    batch_s: np.ndarray[Any, np.dtype[np.float64]]
    seconds: tuple[float, float, float, float]
    device_bytes: int | None


class Loading:
    """A case. Each call is one pass through a Loader; the first call finds out how long to make
    those that follow.

    Attributes:
        rounds: one a call.
    """

    def __init__(
        self, target: Target, rows: Positions, sizes: Positions, workers: int, options: Any
    ) -> None:
        self.target = target
        self.workers = workers
        self.rounds: list[Round] = []
        self._rows = rows
        self._sizes = sizes
        self._options = options
        self._files: list[Path] = target.files(rows) if options.cold else []
        self._counter: Counter | None = counter(target.path)
        # Opened once where it stays warm, as in a long epoch: a reader asks at first whether what
        # it reads comes from the disk.
        self._source: Source | None = None
        self._num_batches = LEAST_BATCHES * max(workers, 1)

    def __call__(self) -> Work:
        options = self._options
        cache: Cache = "unknown"
        order = np.arange(len(self._rows))
        if options.cold:
            cache = self._dropped()
        else:
            order = np.resize(order, self._num_batches * options.batch_size)
        before = self._counter() if self._counter else 0
        work = self._pass(order, cache)
        read = self._counter() - before if self._counter else None
        batch_s, seconds = self._last
        self.rounds.append(Round(batch_s, seconds, read))
        self._grow(work)
        return work

    def _dropped(self) -> Cache:
        """Drop all files from the page cache; whether they have gone."""
        self._source = None
        gc.collect()  # a mapped page cannot be dropped
        with os_errors(f"dropping {self.target.name} from the page cache"):
            state = cache_state(evict(self._files))
        return state if state == "cold" else "unknown"

    def _pass(self, order: Positions, cache: Cache) -> Work:
        """Read the samples in this order, shuffled once more, the same for every target."""
        if self._source is None:
            self._source = self.target.open(self._rows)
        options = self._options
        loader = Loader(
            Chosen(self._source, order),
            options.batch_size,
            shuffle="full",
            seed=options.seed,
            transform=transform_of(options.read),
            workers=self.workers,
            worker_type=options.worker_type,
            last="pad",
            rank=0,
            world_size=1,
        )
        times = [time.perf_counter()]
        for _ in loader:
            times.append(time.perf_counter())
        stats = loader.stats
        self._last = (
            np.diff(times),
            (stats.read_s, stats.transform_s, stats.collate_s, stats.wait_s),
        )
        num_bytes = int(self._sizes[order].sum())
        return Work(len(order), num_bytes, times[-1] - times[0], cache)

    def _grow(self, work: Work) -> None:
        """After the first call: as many batches as take :data:`LEAST_S`."""
        if len(self.rounds) > 1:
            return
        batch_s = (work.seconds or 0.0) / self._num_batches
        steps = max(self.workers, 1)
        wanted = max(LEAST_S / max(batch_s, 1e-6), LEAST_BATCHES * steps)
        self._num_batches = ceil(wanted / steps) * steps
