"""Reading inputs again: whether they still give the samples that a dataset holds.

Nothing is written. Jobs are done as in a pack, up to where a shard would be written; checksums of
samples, keys and names of files are then compared with those in the row index.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from shardkit.index.making import hashes, join_names
from shardkit.index.manifest import DatasetInfo, read_rejected
from shardkit.index.rows import RowIndex
from shardkit.inputs.base import Corpus
from shardkit.packing.finish import reject_lines
from shardkit.packing.job import Job, Setup, read_job
from shardkit.samples.sample import SampleBatch, sample_checksums
from shardkit.storage.folder import Folder
from shardkit.system.progress import Progress


def first_difference(
    dest: Path,
    info: DatasetInfo,
    corpus: Corpus,
    jobs: Iterable[Job],
    setup: Setup,
    rejected: bytes,
    progress: Progress,
) -> str | None:
    """What of a dataset is not as its inputs give it now: the first of it, in words.

    Args:
        jobs: all shards, as they are listed now; ``setup`` is how they are made. rejected: the
            lines of rejected.jsonl that do not come from these inputs.

    Raises:
        DataError: an input cannot be read, or is bad and is not to be skipped.
    """
    splits = {
        name: _Split(RowIndex(Folder(dest), info, split)) for name, split in info.splits.items()
    }
    for job in jobs:
        samples = read_job(corpus, job, setup, progress.add)
        rejected += reject_lines(samples.rejects)
        if job.split not in splits:
            return f"split {job.split}"
        if other := splits[job.split].other(samples):
            return other
    for name, split in splits.items():
        if split.num_rows != len(split.index.table):
            return f"split {name}, of {split.num_rows} samples"
    return None if rejected == read_rejected(dest) else "what was rejected"


class _Split:
    """A split of the dataset, and how much of it was compared."""

    def __init__(self, index: RowIndex) -> None:
        self.index = index
        self.num_rows = 0
        self._names_bytes = 0

    def other(self, samples: SampleBatch) -> str | None:
        """Which of the next samples differ from those that are stored."""
        columns = {name: samples.columns[name] for name in sorted(samples.columns)}
        sums = sample_checksums(columns, len(samples)).view(np.int64)
        now = np.stack([sums, hashes(samples.keys)], axis=1)
        names, _ = join_names(samples.keys, samples.paths)
        first, start = self.num_rows, self._names_bytes
        self.num_rows += len(now)
        self._names_bytes += len(names)
        then = self.index.table[first : self.num_rows, :2]
        if len(then) != len(now):
            return f"split {self.index.split.name}, of more than {len(self.index.table)} samples"
        if (differ := (then != now).any(axis=1)).any():
            return f"sample {os.fsdecode(samples.keys[int(np.argmax(differ))])!r}"
        if self.index.names()[start : self._names_bytes] != names:
            return f"names of files from sample {os.fsdecode(samples.keys[0])!r} on"
        return None
