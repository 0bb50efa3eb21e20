"""Which entry goes where: pure functions from runs to shards.

Nothing here knows of workers, so contents never depend on their number.
"""

from __future__ import annotations

import math
import mmap
from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import xxhash

from shardkit.arrays import Hashes, Integers, Mask
from shardkit.commit.own_files import create
from shardkit.errors import CorpusError
from shardkit.inputs.corpus import Run
from shardkit.samples.checksums import mix64

SHARD_ENTRIES = 100_000
"""Entries a shard holds at most: each costs some 400 bytes of memory besides its data."""


GROWTH = 32
"""Where shards grow, each has this part of the input before it: of any amount no shard is more than
3 %, and there are 32 of the least size before they grow."""


def cut(runs: Iterable[Run], most: int, least: int | None = None) -> Iterator[list[Run]]:
    """Cut the runs of one split into shards of at most ``most`` input bytes.

    Given the ``least``, a shard is full at so many bytes, and later ones at more, the more there is
    before them: the total is not known while the first shards are packed, and few files should
    still make many shards. So only the last has fewer than ``least``, or one before an entry that
    would make it more than ``most``. A shard has at least one entry, so a single larger one gets a
    shard to itself, and at most :data:`SHARD_ENTRIES`.
    """
    cutter = Cutter(most, least)
    for run in runs:
        yield from cutter.add(run)
    yield from cutter.end()


class Cutter:
    """:func:`cut`, run by run."""

    def __init__(self, most: int, least: int | None = None, begin: int = 0) -> None:
        """``begin``: input bytes of the split's shards before."""
        self._limits = most, least
        self._shard: list[Run] = []
        self._begin = self._done = begin
        self._held = 0
        """Bytes before the shard, and before the entry; entries of the shard."""

    def add(self, run: Run) -> Iterator[list[Run]]:
        """Yield the shards that are full."""
        for start, stop, is_full in self.pieces(np.array(run.sizes, np.int64)):
            if stop > start:
                self._shard.append(run.slice(start, stop))
            if is_full:
                yield self._shard
                self._shard = []

    def pieces(self, sizes: Integers) -> Iterator[tuple[int, int, bool]]:
        """Yield (start, stop) of what each shard gets of entries, and whether it is full then."""
        most, least = self._limits
        ends = self._done + np.cumsum(sizes)
        start = 0
        while start < len(ends):
            fits = int(np.searchsorted(ends, self._begin + most, side="right"))
            goal = most if least is None else min(max(self._begin // GROWTH, least), most)
            full = len(ends) + 1
            if goal < most:
                full = int(np.searchsorted(ends, self._begin + goal, side="left")) + 1
            stop = min(max(fits, start), full, start + SHARD_ENTRIES - self._held, len(ends))
            stop = stop if self._held else max(stop, start + 1)
            is_full = stop < len(ends) or full <= stop
            yield start, stop, is_full
            self._held += stop - start
            self._done = int(ends[stop - 1]) if stop > start else self._done
            if is_full:
                self._held, self._begin = 0, self._done
            start = stop

    def end(self) -> Iterator[list[Run]]:
        """Yield the last shard, if there is anything left."""
        if self._shard:
            yield self._shard


def take(runs: Iterable[Run], limit: int | None) -> Iterator[Run]:
    """Yield the first ``limit`` entries."""
    left = math.inf if limit is None else limit
    for run in runs:
        first = run.slice(0, int(min(left, len(run))))
        yield first
        left -= len(first)
        if not left:
            return


def num_val(num_entries: int, val_fraction: float) -> int:
    """Return how many of a split's entries to cut off: the share, rounded, never none or all.

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


def boundaries(sizes: Integers, most: int, least: int | None = None) -> list[int]:
    """Return where :func:`cut` cuts entries of these sizes: starts of all shards, and the end."""
    return [0, *(stop for _, stop, _ in Cutter(most, least).pieces(sizes))]


def draw(digests: Hashes, seed: int, purpose: str) -> Hashes:
    """Return a pseudo-random number a key, from the XXH3-64 of each key and (seed, purpose).

    splitmix64 of their sum: it depends on nothing else, so an order drawn today is drawn again in
    ten years.
    """
    return mix64(digests + np.uint64(xxhash.xxh3_64_intdigest(f"{purpose} {seed}".encode())))


Shard = tuple[list[Run], Integers | None]
"""Runs, and the order of their samples where it is another."""

_STAMP_BYTES = 8


class ScatteredEntries:
    """Holds 36 bytes an entry in memory and the rest in a file, to pick entries from.

    A shard of shuffled entries is stored as runs, grouped by folder, and an order: so that its
    files are read folder by folder all the same.
    """

    def __init__(self, runs: Iterable[Run], path: Path) -> None:
        self._path = path
        self._heads: list[tuple[str, int | None]] = []
        sizes, record_sizes, digests = array("q"), array("q"), array("Q")
        lengths = array("q")
        with create(path) as file:
            for run in runs:
                self._heads.append((run.base, run.label))
                lengths.append(len(run))
                records = [
                    stamp.to_bytes(_STAMP_BYTES, "little", signed=True) + locator + b"\0" + key
                    for stamp, locator, key in zip(run.stamps, run.locators, run.keys, strict=True)
                ]
                sizes.extend(run.sizes)
                record_sizes.extend(map(len, records))
                digests.extend(map(xxhash.xxh3_64_intdigest, run.keys))
                file.write(b"".join(records))
        self._sizes = np.frombuffer(sizes, np.int64)
        self._digests = np.frombuffer(digests, np.uint64)
        self._run = np.repeat(np.arange(len(lengths), dtype=np.int32), np.array(lengths))
        self._ends = np.cumsum(np.frombuffer(record_sizes, np.int64))
        with path.open("rb") as file:
            self._records = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._sizes)

    def choose(self, count: int, seed: int) -> Mask:
        """Return a mask of ``count`` entries drawn by ``seed``."""
        chosen = np.zeros(len(self), bool)
        chosen[np.argsort(draw(self._digests, seed, "val"), kind="stable")[:count]] = True
        return chosen

    def order(self, seed: int) -> Integers:
        """Return all entries in an order drawn by ``seed``."""
        return np.argsort(draw(self._digests, seed, "shuffle"), kind="stable")

    def shards(
        self, split: str, order: Integers, most: int, least: int | None = None
    ) -> Iterator[Shard]:
        """Cut entries, in the given order, into shards, as :func:`shardkit.packing.plan.cut`."""
        cuts = boundaries(self._sizes[order], most, least)
        for start, stop in pairwise(cuts):
            wanted = order[start:stop]
            listed = np.sort(wanted)
            same = np.array_equal(wanted, listed)
            yield self._runs(split, listed), None if same else np.searchsorted(listed, wanted)

    def _runs(self, split: str, entries: Integers) -> list[Run]:
        runs, numbers = [], self._run[entries]
        starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
        for start, stop in pairwise([*starts, len(entries)]):
            own = entries[start:stop]
            base, label = self._heads[int(numbers[start])]
            run = Run(split, base, label, sizes=self._sizes[own].tolist())
            begins = np.where(own > 0, self._ends[own - 1], 0)
            for begin, end in zip(begins.tolist(), self._ends[own].tolist(), strict=True):
                record = self._records[begin:end]
                run.stamps.append(int.from_bytes(record[:_STAMP_BYTES], "little", signed=True))
                locator, _, key = record[_STAMP_BYTES:].partition(b"\0")
                run.locators.append(locator)
                run.keys.append(key)
            runs.append(run)
        return runs

    def close(self) -> None:
        self._records.close()
        self._path.unlink()
