"""Which entry goes where: pure functions from runs to shards.

Nothing here knows of workers, so contents never depend on their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import xxhash

from shardkit.corpus.base import Run
from shardkit.errors import CorpusError
from shardkit.sample import mix64

Integers = np.ndarray[Any, np.dtype[np.int64]]
Digests = np.ndarray[Any, np.dtype[np.uint64]]

SHARD_ENTRIES = 100_000
"""Entries a shard holds at most: each costs some 400 bytes of memory besides its data."""


def cut(runs: Iterable[Run], shard_bytes: int) -> Iterator[list[Run]]:
    """Cut the runs of one split into shards of at most ``shard_bytes`` input bytes.

    A shard has at least one entry, so a single larger one gets a shard to itself, and at most
    :data:`SHARD_ENTRIES`.
    """
    shard: list[Run] = []
    room, places = shard_bytes, SHARD_ENTRIES
    for run in runs:
        ends = np.cumsum(np.array(run.sizes, np.int64))
        start = 0
        while start < len(run):
            before = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, before + room, side="right"))
            stop = min(stop, start + places)
            if stop == start and not shard:
                stop = start + 1
            if stop > start:
                shard.append(run.slice(start, stop))
                room -= int(ends[stop - 1]) - before
                places -= stop - start
            if stop < len(run):
                yield shard
                shard, room, places = [], shard_bytes, SHARD_ENTRIES
            start = stop
    if shard:
        yield shard


def take(runs: Iterable[Run], limit: int | None) -> Iterator[Run]:
    """The first ``limit`` entries."""
    left = limit
    for run in runs:
        if left is None:
            yield run
            continue
        if left:
            yield run.slice(0, min(left, len(run)))
        left -= min(left, len(run))
        if not left:
            return


def num_val(num_entries: int, val_fraction: float) -> int:
    """How many of a split's entries to cut off: the share, rounded, but never none or all.

    Raises:
        CorpusError: there is too little to cut in two.
    """
    if not val_fraction:
        return 0
    if num_entries < 2:
        raise CorpusError(
            f"--val-fraction {val_fraction:g} cuts train in two, but it has {num_entries} of the at"
            " least 2 inputs needed; leave it out"
        )
    return min(max(round(val_fraction * num_entries), 1), num_entries - 1)


def boundaries(sizes: Integers, shard_bytes: int) -> list[int]:
    """Where :func:`cut` cuts entries of these sizes: starts of all shards, and the end."""
    ends = np.cumsum(sizes)
    starts = [0]
    while (start := starts[-1]) < len(ends):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + shard_bytes, side="right"))
        starts.append(min(max(stop, start + 1), start + SHARD_ENTRIES))
    return starts


def draw(digests: Digests, seed: int, purpose: str) -> Digests:
    """One pseudo-random number a key, from the XXH3-64 of each key and from (seed, purpose).

    splitmix64 of their sum: it depends on nothing else, so an order drawn today is drawn again in
    ten years.
    """
    return mix64(digests + np.uint64(xxhash.xxh3_64_intdigest(f"{purpose} {seed}".encode())))
