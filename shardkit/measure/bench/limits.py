"""What no reader on this machine can pass: cases to be timed in the same rounds as the targets."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Integers
from shardkit.batches.transform import Draws
from shardkit.errors import BadImageError, DataError
from shardkit.images.fields import pictures_of
from shardkit.measure.bench.options import BenchOptions, Read
from shardkit.measure.bench.pace import Pace
from shardkit.measure.bench.same import sample_name
from shardkit.measure.bench.target import Target
from shardkit.measure.bench.work import transform_of
from shardkit.measure.machine import memory_copy
from shardkit.measure.timing import Case, Work
from shardkit.remote.urls import Url
from shardkit.system.page_cache import cache_state, evict

MAX_HELD = 256 << 20
"""Bytes of samples that a limit holds in memory at most: more than any processor's cache."""


class Limits:
    """The limits of a bench.

    Attributes:
        cases: by name.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        rows: Sequence[Integers],
        sizes: Integers,
        options: BenchOptions,
    ) -> None:
        self.cases: dict[str, Case] = {}
        self._options = options
        has_work = options.read in ("decode", "train")
        if has_work:
            pictures = Pictures(options.read, targets[0], rows[0], sizes)
            for workers in options.workers:
                case = pictures.decoding(options.batch_size, max(workers, 1))
                self.cases[_decoder(workers)] = case
        # Of files of 100 KB some time goes into opening them: shards say more of the medium.
        pairs = sorted(zip(targets, rows, strict=True), key=lambda pair: pair[0].format == "folder")
        for target, own in pairs:
            name = self._of_storage(target)
            if not name or name in self.cases or (has_work and name == COPY):
                continue
            if name == COPY:
                self.cases[name] = copying(sizes.tolist(), options.batch_size)
            else:
                self.cases[name] = in_order(target.files(own), *_in_files(target, own, sizes))

    def of(self, target: Target, workers: int) -> list[str]:
        """The names of those that hold for a target with so many workers."""
        names = [self._of_storage(target), _decoder(workers)]
        return [name for name in names if name in self.cases]

    def _of_storage(self, target: Target) -> str:
        """The limit of reading alone, which is one for all targets on the same medium."""
        if not self._options.cold or target.is_in_memory:
            return COPY
        if isinstance(target.place, Url):
            return ""  # no file of this machine says what a network can do
        return IN_ORDER if target.where is None else f"{IN_ORDER} on {target.where}"


def _in_files(target: Target, rows: Integers, sizes: Integers) -> tuple[int, int]:
    """Samples and bytes in all files that these rows lie in: shards hold others, too, whose number
    follows from their bytes."""
    num, num_bytes = len(rows), int(sizes.sum())
    if target.format == "folder" or num == len(target):
        return num, num_bytes
    file_bytes = sum(path.stat().st_size for path in target.files(rows))
    return max(round(num * file_bytes / max(num_bytes, 1)), 1), file_bytes


_DRAWS = Draws(0, 0)

COPY = "memory copy"
IN_ORDER = "sequential read"


def _decoder(workers: int) -> str:
    return f"bare decoder, {max(workers, 1)} thread{'s' * (workers > 1)}"


def copying(sizes: Sequence[int], batch_size: int) -> Case:
    """Copies as many bytes as samples of these sizes have, a batch in one go: small ones one by one
    would tell how fast Python loops."""
    num, total = len(sizes), max(sum(sizes), 1)
    chunk = max(total * min(batch_size, num) // num, 1)
    copy = memory_copy(chunk, max(min(total, MAX_HELD) // chunk, 1) * chunk, total)
    pace = Pace()

    def case() -> Work:
        times, started = pace.num, time.perf_counter()
        for _ in range(times):
            copy()
        seconds = pace.took(time.perf_counter() - started)
        return Work(times * num, times * total, seconds, "warm")

    return case


class Pictures:
    """The pictures of the first of these samples, as many as may be held in memory."""

    def __init__(self, read: Read, target: Target, rows: Integers, sizes: Integers) -> None:
        num = max(int(np.searchsorted(np.cumsum(sizes), MAX_HELD)), 1)
        source = target.open(rows[:num])
        columns: dict[str, Any] = source.read(np.arange(len(source)))
        values, _ = pictures_of(columns)
        self._values = [bytes(value) for value in values]
        self._target, self._rows = target, rows
        self._transform: Any = transform_of(read)

    def decoding(self, batch_size: int, threads: int) -> Case:
        """The transform alone, called on batches of them by so many threads."""
        sizes = np.array([len(value) for value in self._values], np.int64)
        pace = Pace(threads)

        def one(number: int) -> int:
            at = np.arange(number * batch_size, (number + 1) * batch_size) % len(sizes)
            try:
                self._decode(at)
            except BadImageError:
                self._refuse_damaged()
                raise
            return int(sizes[at].sum())

        def case() -> Work:
            num, started = pace.num, time.perf_counter()
            with ThreadPoolExecutor(threads) as pool:
                num_bytes = sum(pool.map(one, range(num)))
            seconds = pace.took(time.perf_counter() - started)
            return Work(num * batch_size, num_bytes, seconds, "warm")

        return case

    def _decode(self, at: Integers) -> None:
        self._transform.batch({"jpg": [self._values[i] for i in at.tolist()]}, _DRAWS.keys(at))

    def _refuse_damaged(self) -> None:
        """Raises DataError that names the first picture that does not decode."""
        for number in range(len(self._values)):
            try:
                self._decode(np.array([number]))
            except BadImageError as error:
                name = sample_name(self._target, int(self._rows[number]))
                raise DataError(
                    f"{self._target.name}: {name}: {error}; pack with --check-images --on-error"
                    " skip to leave such out"
                ) from error


def in_order(files: Sequence[Path], num_samples: int, num_bytes: int) -> Case:
    """Files read from end to end, one after another, each dropped from the page cache before.

    What comes next is announced to the kernel: without, files of 100 KB come 1.7 times slower than
    in a shuffled epoch of a dataset, and a limit should be one. ``num_samples`` and ``num_bytes``
    are those of the samples in them.
    """

    def case() -> Work:
        cache = cache_state(evict(files))
        started = time.perf_counter()
        read_ahead(files)
        seconds = time.perf_counter() - started
        return Work(num_samples, num_bytes, seconds, cache if cache == "cold" else "unknown")

    return case


CHUNK = 256 << 10
"""Announced at once. Linux shortens more to what the device takes in one go."""

AHEAD = 64
"""Chunks: 16 MB."""


def read_ahead(files: Sequence[Path]) -> int:
    """Read files from end to end, each chunk announced :data:`AHEAD` chunks before; the bytes."""
    buffer, num_bytes = bytearray(CHUNK), 0
    waiting: deque[tuple[int, int]] = deque()
    opened: deque[int] = deque()
    try:
        for path in files:
            opened.append(os.open(path, os.O_RDONLY))
            for start in range(0, os.fstat(opened[-1]).st_size, CHUNK):
                _announce(opened[-1], start)
                waiting.append((opened[-1], start))
                if len(waiting) > AHEAD:
                    num_bytes += _read(waiting, opened, buffer)
        while waiting:
            num_bytes += _read(waiting, opened, buffer)
    finally:
        for fd in opened:
            os.close(fd)
    return num_bytes


def _announce(fd: int, start: int) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, start, CHUNK, os.POSIX_FADV_WILLNEED)


def _read(waiting: deque[tuple[int, int]], opened: deque[int], buffer: bytearray) -> int:
    """Read the next chunk, after closing the files before it."""
    fd, start = waiting.popleft()
    while opened[0] != fd:
        os.close(opened.popleft())
    return os.preadv(fd, [buffer], start)
