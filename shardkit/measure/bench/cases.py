"""Options of a bench and the cases that it times: a target with one number of workers, and limits
that no reader on this machine can pass.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shardkit import images
from shardkit.arguments import integer
from shardkit.arrays import Floats, Integers
from shardkit.batches.source import Source
from shardkit.batches.transform import Draws
from shardkit.errors import UsageError
from shardkit.images.fields import pictures_of
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.loading.loader import Loader
from shardkit.loading.settings import DEFAULT_PREFETCH
from shardkit.loading.workers import WorkerType
from shardkit.measure.bench.targets import Chosen, Target
from shardkit.measure.timing import Case, Work
from shardkit.order.batches import Last
from shardkit.remote.urls import Url
from shardkit.system.page_cache import Cache, cache_state, evict
from shardkit.system.refusals import os_errors

Read = Literal["raw", "train", "tokens"]

SIZE = 224
"""Width and height of a crop for training, in pixels."""

ROUNDS = 20
"""Rounds of a warm bench. Five wild ones on either side change nothing, see
:mod:`shardkit.measure.timing`: with 12, which leave room for two, a slow-down of 1.3 was missed in
every sixth run on two cores that eight processes wanted. More and shorter rounds find more than
fewer and longer ones."""

COLD_ROUNDS = 12
"""Rounds of a cold bench, each a whole epoch from the disk."""

MOST_WORKERS = 512


@dataclass(frozen=True)
class BenchOptions:
    """Options of :func:`bench`; checked when made, raising UsageError.

    Attributes:
        read: ``raw`` samples as :func:`shardkit.open` gives them, pictures as bytes; ``train``:
            random crops of 224 pixels into uint8 batches; ``tokens``: windows of 2,048 tokens.
        workers: counts, each measured with every target. worker_type: ``thread`` or ``process``.
        batch_size: samples a batch. cold: drop the files from the page cache before each case.
        rounds: in each, every case runs once; by default 20, or 12 cold.
        limit: samples to measure, drawn by ``seed``, which orders them, too.
    """

    read: Read = "raw"
    workers: tuple[int, ...] = (0, 2)
    worker_type: WorkerType = "thread"
    batch_size: int = 64
    cold: bool = False
    rounds: int | None = None
    limit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.read not in ("raw", "train", "tokens"):
            raise UsageError(f"read must be raw, train or tokens, got {self.read!r}")
        if self.worker_type not in ("thread", "process"):
            raise UsageError(f"worker_type must be thread or process, got {self.worker_type!r}")
        counts = [integer("workers", count) for count in self.workers]
        if not counts or len(set(counts)) < len(counts):
            raise UsageError(f"workers must be different counts, got {list(self.workers)}")
        if max(counts) > MOST_WORKERS:
            raise UsageError(f"workers: {max(counts):,} are too many, at most {MOST_WORKERS:,}")
        integer("batch_size", self.batch_size, 1)
        usual = COLD_ROUNDS if self.cold else ROUNDS
        rounds = usual if self.rounds is None else integer("rounds", self.rounds, 1)
        object.__setattr__(self, "rounds", rounds)
        integer("seed", self.seed, None)
        if self.limit is not None:
            integer("limit", self.limit, 1)


def refuse_without_pictures(read: Read, name: str, fields: Sequence[str]) -> None:
    """Raise UsageError where pictures are to be cropped and there are none."""
    if read == "train" and IMAGE_FIELDS.isdisjoint(fields):
        raise UsageError(
            f"{name} has the fields {', '.join(fields)}: no pictures to train; use --read raw"
        )


# --- how much a round does -----------------------------------------------------------------

LEAST_S = 0.2
"""About how long a case takes. Shorter ones tell more of the machine's hiccups than of the case."""

LEAST_EACH = 4
"""Pieces for each worker, so that little of a case is its first and its last piece."""


class Pace:
    """Pieces of work in a round: as many as would take :data:`LEAST_S` at the best rate so far.

    The best, since one disturbed round must not leave this case shorter than others: on a busy
    machine short cases seem faster, as they end within their turn at the processor.

    Attributes:
        num: pieces to do, a multiple of the number of workers.
    """

    def __init__(self, workers: int = 1) -> None:
        self._workers = max(workers, 1)
        self.num = LEAST_EACH * self._workers

    def took(self, seconds: float) -> float:
        """Learn how long ``num`` pieces took; return that."""
        wanted = LEAST_S * self.num / max(seconds, 1e-6)
        self.num = max(self.num, pieces(wanted, self._workers))
        return seconds


def pieces(wanted: float, workers: int) -> int:
    """Return at least ``wanted`` pieces, the same number for each worker."""
    return max(ceil(wanted / workers), LEAST_EACH) * workers


# --- a target ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Round:
    """Figures of one call of a case.

    Attributes:
        batch_s: how long the loop waited for each batch.
        seconds: spent on reading, the transform, collating (by all workers) and waiting (by the
            loop).
        device_bytes: read below the page cache; None where nothing counts them.
    """

    batch_s: Floats
    seconds: tuple[float, ...]
    device_bytes: int | None


class Loading:
    """A case. Each call is one pass through a Loader.

    Attributes:
        rounds: one a call. is_cold: whether files are dropped from the page cache before.
    """

    def __init__(
        self,
        target: Target,
        rows: Integers,
        sizes: Integers,
        workers: int,
        options: BenchOptions,
    ) -> None:
        self.target, self.workers, self.is_cold = target, workers, options.cold
        self.rounds: list[Round] = []
        self._rows, self._sizes, self._options = rows, sizes, options
        self._counter = target.counter()
        self._kept: Source | None = None
        self._pace = Pace(workers)

    def __call__(self) -> Work:
        options = self._options
        cache: Cache = "unknown"
        last: Last = "drop"
        if self.is_cold:
            gc.collect()  # a page that is still mapped cannot be dropped
            with os_errors(f"dropping {self.target.name} from the page cache"):
                cache = self.target.drop(self._rows)
        before = self._counter() if self._counter else 0
        if self.is_cold:
            # Every sample once, from newly opened files, by newly started workers.
            source, order, skipped = self.target.open(self._rows), np.arange(len(self._rows)), 0
            last = "pad"
        else:
            # Whole batches, the samples again and again, from a source that is opened once, as in
            # a long epoch: a reader looks in its first batches whether it reads from a disk.
            self._kept = self._kept or self.target.open(self._rows)
            source, skipped = self._kept, self._ahead
            num = self._pace.num + skipped
            order = np.resize(np.arange(len(self._rows)), num * options.batch_size)
        loader = Loader(
            Chosen(source, order),
            options.batch_size,
            shuffle="full",
            seed=options.seed,
            transform=images.train(SIZE) if options.read == "train" else None,
            workers=self.workers,
            worker_type=options.worker_type,
            last=last,
            rank=0,
            world_size=1,
        )
        times = [time.perf_counter()]
        for _ in loader:
            times.append(time.perf_counter())
        seconds = times[-1] - times[skipped]
        if not self.is_cold:
            self._pace.took(seconds)
        read = self._counter() - before if self._counter else None
        stats = loader.stats
        spent = (stats.read_s, stats.transform_s, stats.collate_s, stats.wait_s)
        share = 1 - skipped * options.batch_size / len(order)
        self.rounds.append(Round(np.diff(times[skipped:]), tuple(share * s for s in spent), read))
        num_bytes = round(share * int(self._sizes[order].sum()))
        return Work(round(share * len(order)), num_bytes, seconds, cache)

    @cached_property
    def dataset_bytes(self) -> int:
        """Bytes of all files that are read; of the samples alone, where some are left out."""
        if len(self._rows) < len(self.target):
            return int(self._sizes.sum())
        return sum(path.stat().st_size for path in self.target.files(self._rows))

    @property
    def sample_bytes(self) -> int:
        """Bytes of the different samples that a round reads."""
        return int(self._sizes.sum())

    @property
    def _ahead(self) -> int:
        """Batches, warm, that do not count: starting processes is nothing in a long epoch, and
        what they made meanwhile comes at once."""
        if self._options.worker_type == "thread":
            return 0
        return self.workers * (DEFAULT_PREFETCH + 1) + 1 if self.workers else 0


# --- limits of the machine -----------------------------------------------------------------


MAX_HELD = 256 << 20
"""Bytes of pictures that are held in memory at most: more than any processor's cache."""

IN_ORDER = "sequential read"

READERS = 8
"""Files that are read at once: one after another, files of 100 KB come slower than in a shuffled
epoch of a dataset, and a limit should be one."""


def limits(
    targets: Sequence[Target], rows: Sequence[Integers], sizes: Integers, options: BenchOptions
) -> dict[str, Case]:
    """Return the limits of a bench, by name: see :func:`limits_of`."""
    cases: dict[str, Case] = {}
    if options.read == "train":
        num = max(int(np.searchsorted(np.cumsum(sizes), MAX_HELD)), 1)
        source = targets[0].open(rows[0][:num])
        found: dict[str, Any] = source.read(np.arange(len(source)))
        pictures = [bytes(value) for value in pictures_of(found)[0]]
        for workers in options.workers:
            cases[_decoder(workers)] = _decoding(pictures, options.batch_size, max(workers, 1))
    # Of files of 100 KB some time goes into opening them: shards say more of the medium.
    pairs = sorted(zip(targets, rows, strict=True), key=lambda pair: pair[0].format == "folder")
    for target, own in pairs:
        if IN_ORDER in limits_of(target, 0, options) and IN_ORDER not in cases:
            cases[IN_ORDER] = _in_order(target, own, sizes)
    return cases


def limits_of(target: Target, workers: int, options: BenchOptions) -> list[str]:
    """Return the names of those that hold for a target with so many workers. No file of this
    machine says what a network can do.
    """
    is_on_disk = options.cold and not target.is_in_memory and not isinstance(target.place, Url)
    return [_decoder(workers)] * (options.read == "train") + [IN_ORDER] * is_on_disk


def _decoder(workers: int) -> str:
    return f"bare decoder, {max(workers, 1)} thread{'s' * (workers > 1)}"


def _decoding(pictures: Sequence[bytes], batch_size: int, threads: int) -> Case:
    """Return a case that calls the transform alone on batches, by so many threads."""
    transform, draws, pace = images.train(SIZE), Draws(0, 0), Pace(threads)

    def one(number: int) -> int:
        at = np.arange(number * batch_size, (number + 1) * batch_size) % len(pictures)
        values = [pictures[i] for i in at.tolist()]
        transform.batch({"jpg": values}, draws.keys(at))
        return sum(map(len, values))

    def case() -> Work:
        num, started = pace.num, time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            num_bytes = sum(pool.map(one, range(num)))
        seconds = pace.took(time.perf_counter() - started)
        return Work(num * batch_size, num_bytes, seconds, "warm")

    return case


def _in_order(target: Target, rows: Integers, sizes: Integers) -> Case:
    """Return a case that reads files from end to end, each dropped from the page cache before."""
    files, num_bytes = target.files(rows), int(sizes.sum())
    # Shards hold other samples, too, whose number follows from their bytes.
    is_all = target.format == "folder" or len(rows) == len(target)
    held = 1 if is_all else sum(path.stat().st_size for path in files) / max(num_bytes, 1)

    def case() -> Work:
        is_cold = cache_state(evict(files)) == "cold"
        started = time.perf_counter()
        with ThreadPoolExecutor(READERS) as pool:
            list(pool.map(_read_whole, files))
        seconds = time.perf_counter() - started
        num = max(round(held * len(rows)), 1)
        return Work(num, round(held * num_bytes), seconds, "cold" if is_cold else "unknown")

    return case


def _read_whole(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(1 << 20)
        while file.readinto(buffer):
            pass
