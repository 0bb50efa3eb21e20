"""Limits that no reader on this machine can pass: cases timed in the same rounds as the targets."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from shardkit import images
from shardkit.arrays import Integers
from shardkit.batches.transform import Draws
from shardkit.images.fields import pictures_of
from shardkit.measure.bench.options import SIZE, BenchOptions
from shardkit.measure.bench.pace import Pace
from shardkit.measure.bench.target import Target
from shardkit.measure.timing import Case, Work
from shardkit.remote.urls import Url
from shardkit.system.page_cache import cache_state, evict

MAX_HELD = 256 << 20
"""Bytes of pictures that are held in memory at most: more than any processor's cache."""

IN_ORDER = "sequential read"

READERS = 8
"""Files that are read at once: one after another, files of 100 KB come slower than in a shuffled
epoch of a dataset, and a limit should be one."""

CHUNK = 1 << 20


def limits(
    targets: Sequence[Target], rows: Sequence[Integers], sizes: Integers, options: BenchOptions
) -> dict[str, Case]:
    """Return the limits of a bench, by name."""
    cases: dict[str, Case] = {}
    if options.read == "train":
        pictures = _pictures(targets[0], rows[0], sizes)
        for workers in options.workers:
            threads = max(workers, 1)
            cases[_decoder(workers)] = decoding(pictures, options.batch_size, threads)
    # Of files of 100 KB some time goes into opening them: shards say more of the medium.
    pairs = sorted(zip(targets, rows, strict=True), key=lambda pair: pair[0].format == "folder")
    for target, own in pairs:
        if IN_ORDER in limits_of(target, 0, options):
            cases.setdefault(IN_ORDER, in_order(target.files(own), *_in_files(target, own, sizes)))
    return cases


def limits_of(target: Target, workers: int, options: BenchOptions) -> list[str]:
    """Return the names of those that hold for a target with so many workers. No file of this
    machine says what a network can do.
    """
    is_on_disk = options.cold and not target.is_in_memory and not isinstance(target.place, Url)
    decoders = [_decoder(workers)] if options.read == "train" else []
    return decoders + [IN_ORDER] * is_on_disk


def _in_files(target: Target, rows: Integers, sizes: Integers) -> tuple[int, int]:
    """Return samples and bytes in all files that these rows lie in: shards hold others, too, whose
    number follows from their bytes.
    """
    num, num_bytes = len(rows), int(sizes.sum())
    if target.format == "folder" or num == len(target):
        return num, num_bytes
    file_bytes = sum(path.stat().st_size for path in target.files(rows))
    return max(round(num * file_bytes / max(num_bytes, 1)), 1), file_bytes


def _decoder(workers: int) -> str:
    return f"bare decoder, {max(workers, 1)} thread{'s' * (workers > 1)}"


def _pictures(target: Target, rows: Integers, sizes: Integers) -> list[bytes]:
    """Return the pictures of the first of these samples, as many as may be held in memory."""
    num = max(int(np.searchsorted(np.cumsum(sizes), MAX_HELD)), 1)
    source = target.open(rows[:num])
    columns: dict[str, Any] = source.read(np.arange(len(source)))
    return [bytes(value) for value in pictures_of(columns)[0]]


def decoding(pictures: Sequence[bytes], batch_size: int, threads: int) -> Case:
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


def in_order(files: Sequence[Path], num_samples: int, num_bytes: int) -> Case:
    """Return a case that reads files from end to end, each dropped from the page cache before.
    ``num_samples`` and ``num_bytes`` are those of the samples in them.
    """

    def case() -> Work:
        cache = cache_state(evict(files))
        started = time.perf_counter()
        with ThreadPoolExecutor(READERS) as pool:
            sum(pool.map(read_whole, files))
        seconds = time.perf_counter() - started
        return Work(num_samples, num_bytes, seconds, cache if cache == "cold" else "unknown")

    return case


def read_whole(path: Path) -> int:
    """Read a file from end to end; return its bytes."""
    num_bytes = 0
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(min(CHUNK, os.fstat(file.fileno()).st_size))
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while num := file.readinto(buffer):
            num_bytes += num
    return num_bytes
