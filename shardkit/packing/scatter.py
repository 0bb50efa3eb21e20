"""Entries of a split in any order: for shuffled packing and for cutting a validation split."""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import xxhash

from shardkit.arrays import Hashes, Integers, Mask
from shardkit.commit.own_files import create
from shardkit.inputs.base import Run
from shardkit.packing.plan import boundaries, draw

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
        """A mask of ``count`` entries drawn by ``seed``."""
        chosen = np.zeros(len(self), bool)
        chosen[_sorted(draw(self._digests, seed, "val"))[:count]] = True
        return chosen

    def order(self, seed: int) -> Integers:
        """All entries in an order drawn by ``seed``."""
        return _sorted(draw(self._digests, seed, "shuffle"))

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
        numbers = self._run[entries]
        starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
        return [
            self._make_run(split, int(numbers[start]), entries[start:stop])
            for start, stop in zip(starts, [*starts[1:], len(entries)], strict=True)
        ]

    def _make_run(self, split: str, number: int, entries: Integers) -> Run:
        base, label = self._heads[number]
        run = Run(split, base, label, sizes=self._sizes[entries].tolist())
        begins = np.where(entries > 0, self._ends[entries - 1], 0)
        for begin, end in zip(begins.tolist(), self._ends[entries].tolist(), strict=True):
            record = self._records[begin:end]
            run.stamps.append(int.from_bytes(record[:_STAMP_BYTES], "little", signed=True))
            locator, _, key = record[_STAMP_BYTES:].partition(b"\0")
            run.locators.append(locator)
            run.keys.append(key)
        return run

    def close(self) -> None:
        self._records.close()
        self._path.unlink()


def _sorted(draws: Hashes) -> Integers:
    return np.argsort(draws, kind="stable")
