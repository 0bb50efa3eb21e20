"""Listing a corpus into shard jobs, on disk, while the first of them may already run."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import numpy as np
import xxhash

from shardkit.corpus.base import Corpus, Run
from shardkit.errors import ResumeError
from shardkit.packing.job import Job
from shardkit.packing.options import PackOptions
from shardkit.packing.plan import cut, draw, take
from shardkit.packing.spool import coalesce, decode_runs, encode_runs, first_difference
from shardkit.storage import atomic_write

VAL = "val"


class Listing:
    """The listing file of one pack: written once, then read by jobs, compared when resumed.

    Attributes:
        num_entries, num_bytes: listed so far. is_complete: whether that is all.
        is_resumed: an earlier call had listed everything.
    """

    def __init__(self, work: Path) -> None:
        self._done = work / "listing.json"
        self._kept = work / "listing"
        self.is_resumed = self._done.exists()
        self._path = work / "listing.new" if self.is_resumed else self._kept
        self._end = 0
        self._hash = xxhash.xxh3_64()
        self.num_entries = 0
        self.num_bytes = 0
        self.is_complete = False
        self.scatter_path = work / "listing.tmp"
        self._old = work / "listing.old"
        if self._kept.exists() and not self.is_resumed:
            self._kept.replace(self._old)
        self._path.write_bytes(b"")

    def add(self, split: str, shard: int, runs: list[Run]) -> Job:
        """Append one shard's entries."""
        segment = encode_runs(runs)
        with self._path.open("ab", buffering=0) as file:
            file.write(segment)
        self._hash.update(segment)
        count = sum(map(len, runs))
        job = Job(split, shard, self._end, len(segment), xxhash.xxh3_64_intdigest(segment), count)
        self._end += len(segment)
        self.num_entries += count
        self.num_bytes += sum(sum(run.sizes) for run in runs)
        return job

    def complete(self) -> None:
        """Everything is listed. Raises ResumeError if an earlier listing was another."""
        self.is_complete = True
        state = {"bytes": self._end, "xxh3": self._hash.hexdigest()}
        if not self.is_resumed:
            atomic_write(self._done, [json.dumps(state).encode()])
            return
        if json.loads(self._done.read_bytes()) != state:
            raise self.changed("shards are cut otherwise")
        self._path.unlink()

    def changed(self, otherwise: str) -> ResumeError:
        """The error that names the first input that is not as an earlier call listed it."""
        before = self._kept if self.is_resumed else self._old
        what = None
        if before.exists():
            old, new = (decode_runs(path.read_bytes()) for path in (before, self._path))
            what = first_difference(old, new)
        return ResumeError(
            f"input files changed since this pack was started: {what or otherwise}; restore them, or"
            " pass --overwrite to start afresh"
        )


def list_jobs(
    corpus: Corpus, listing: Listing, options: PackOptions, scratch: Path
) -> Iterator[Job]:
    """List the corpus and cut it into jobs; each is ready to run when it is yielded.

    Raises:
        ResumeError: an earlier, complete listing was another.
    """
    for split, runs in groupby(corpus.runs(scratch), key=lambda run: run.split):
        for name, own in _divide(split, runs, options, listing.scatter_path):
            if corpus.kind == "dataset":  # shards are converted one to one
                shards: Iterable[list[Run]] = ([run] for run in own)
            else:
                shards = cut(take(own, options.limit), options.shard_bytes)
            for number, shard in enumerate(shards):
                yield listing.add(name, number, shard)
    listing.complete()


def _divide(
    split: str, runs: Iterator[Run], options: PackOptions, scatter_path: Path
) -> Iterator[tuple[str, Iterable[Run]]]:
    """The splits to make of one: itself, reordered on request, less a validation split."""
    val_fraction = options.val_fraction if split == "train" else 0.0
    if not options.shuffle and not val_fraction:
        yield split, runs
        return
    entries = _Entries(runs, scatter_path)
    order = np.arange(len(entries))
    num_val = round(val_fraction * len(entries))
    in_val = np.zeros(len(entries), bool)
    in_val[np.argsort(entries.draws(options.seed, "val"), kind="stable")[:num_val]] = True
    if options.shuffle:
        order = np.argsort(entries.draws(options.seed, "shuffle"), kind="stable")
    yield split, entries.runs(split, order[~in_val[order]])
    if num_val:
        yield VAL, entries.runs(VAL, order[in_val[order]])
    scatter_path.unlink()


class _Entries:
    """Entries of a split on disk, one by one, to be visited in any order."""

    def __init__(self, runs: Iterable[Run], path: Path) -> None:
        self._path = path
        ends = array("q", [0])
        keys = xxhash.xxh3_64_intdigest
        digests = array("Q")
        with path.open("wb") as file:
            for run in runs:
                digests.extend(map(keys, run.keys))
                for i in range(len(run)):
                    record = encode_runs([run.slice(i, i + 1)])
                    file.write(record)
                    ends.append(ends[-1] + len(record))
        self._ends = np.array(ends)
        self._digests = np.array(digests, np.uint64)

    def __len__(self) -> int:
        return len(self._digests)

    def draws(self, seed: int, purpose: str) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        return draw((digest.tobytes() for digest in self._digests), seed, purpose)

    def runs(self, split: str, order: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Iterator[Run]:
        return coalesce(self._read(split, order))

    def _read(self, split: str, order: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Iterator[Run]:
        with self._path.open("rb") as file:
            for start, end in zip(
                self._ends[order].tolist(), self._ends[order + 1].tolist(), strict=True
            ):
                file.seek(start)
                for run in decode_runs(file.read(end - start)):
                    run.split = split
                    yield run
