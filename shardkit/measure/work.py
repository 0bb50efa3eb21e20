"""What is done with every sample, and the most that can be done of it without a loader."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from shardkit import images
from shardkit.errors import UsageError
from shardkit.images.fields import pictures_of
from shardkit.images.naming import IMAGE
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.measure.machine import cold_read, memory_copy
from shardkit.measure.pagecache import Cache
from shardkit.measure.target import Read
from shardkit.measure.timing import Case, Work
from shardkit.reading.transform import Draws, Transform

SIZE = 224
"""Of a crop for training, in pixels."""

MAX_COPIED = 256 << 20
"""Bytes of memory that the copy goes round in: more than any processor's cache."""


class Decode:
    """A transform: all pixels of every picture."""

    def batch(self, columns: Mapping[str, Sequence[Any]], keys: Any) -> dict[str, Any]:
        values, names = pictures_of(columns)
        others = {name: column for name, column in columns.items() if name not in names}
        return {**others, IMAGE: [images.decode(value) for value in values]}

    def __call__(self, sample: Any, rng: Any) -> Any:
        raise NotImplementedError("whole batches only")


def transform_of(read: Read) -> Transform | None:
    if read == "decode":
        return Decode()
    return images.train(SIZE) if read == "train" else None


def refuse_without_pictures(read: Read, name: str, fields: Sequence[str]) -> None:
    """Raises UsageError where pictures are to be decoded and there are none."""
    if read in ("decode", "train") and IMAGE_FIELDS.isdisjoint(fields):
        raise UsageError(
            f"{name} has the fields {', '.join(fields)}: no pictures to {read}; use --read raw"
        )


# --- limits: cases like any other ---------------------------------------------------------


def copying(sizes: Sequence[int], least_s: float = 0.1) -> Case:
    """Copies as many bytes as samples of these sizes have, again and again for ``least_s``."""
    total = max(sum(sizes), 1)
    chunk = max(total // max(len(sizes), 1), 1)
    copy = memory_copy(chunk, min(max(total, chunk), MAX_COPIED) // chunk * chunk, total)

    def case() -> Work:
        started, num = time.perf_counter(), 0
        while num == 0 or time.perf_counter() - started < least_s:
            copy()
            num += 1
        return Work(num * len(sizes), num * total, cache="warm")

    return case


def bare_decoder(
    read: Read, pictures: Sequence[bytes], batch_size: int, num_batches: int, threads: int
) -> Case:
    """The transform alone, called on batches of bytes in memory by so many threads."""
    transform: Any = transform_of(read)
    draws = Draws(0, 0)
    order = np.resize(np.arange(len(pictures)), num_batches * batch_size)
    num_bytes = sum(len(pictures[row]) for row in order.tolist())

    def one(number: int) -> None:
        rows = order[number * batch_size : (number + 1) * batch_size]
        transform.batch({"jpg": [pictures[row] for row in rows.tolist()]}, draws.keys(rows))

    def case() -> Work:
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(one, range(num_batches)):
                pass
        return Work(len(order), num_bytes, cache="warm")

    return case


def in_order(files: Sequence[Path], num_samples: int, num_bytes: int) -> Case:
    """Files read from end to end, one after another, each dropped from the page cache before.

    ``num_samples`` and ``num_bytes`` are those of the samples in them.
    """
    reads = [cold_read(path) for path in files if path.stat().st_size]

    def case() -> Work:
        works = [read() for read in reads]
        states: set[Cache] = {work.cache for work in works}
        seconds = sum(work.seconds or 0.0 for work in works)
        cache: Cache = "cold" if states == {"cold"} else "unknown"
        return Work(num_samples, num_bytes, seconds, cache)

    return case
