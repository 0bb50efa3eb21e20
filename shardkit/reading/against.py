"""Comparing a dataset with the files it was packed from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from shardkit.corpus import open_corpus
from shardkit.corpus.base import Run
from shardkit.errors import CorpusError
from shardkit.index import DatasetInfo
from shardkit.progress import Progress
from shardkit.sample import SampleBatch, unpack_paths
from shardkit.shards import ShardReader

ENTRIES = 256
"""Entries read at a time."""


@dataclass
class Comparison:
    """Samples compared, and (where, what) of every difference."""

    num_compared: int = 0
    differences: list[tuple[str, str]] = field(default_factory=list)


def compare(folder: Path, info: DatasetInfo, source: Path, bar: Progress) -> Comparison:
    """Read the original input again and compare every value that came from a file.

    Raises:
        CorpusError: the input cannot be listed as the kind the dataset was packed from.
    """
    if info.corpus.get("kind") in (None, "dataset", "tars"):
        raise CorpusError(
            "this dataset was not packed from a folder of files: nothing to compare with"
        )
    found = Comparison()
    readers = {name: ShardReader(folder, info, split) for name, split in info.splits.items()}
    seen = {name: np.zeros(split.num_rows, bool) for name, split in info.splits.items()}
    corpus = open_corpus(source, info.corpus["kind"], text_field=info.corpus.get("text_field"))
    rejected = _rejected(folder)
    with TemporaryDirectory(prefix="shardkit-") as scratch:
        for run in _pieces(corpus.runs(Path(scratch))):
            batch = corpus.read(run, Path(scratch))
            for path, reason in batch.rejects:
                if path not in rejected:
                    found.differences.append((path, reason))
            _compare_batch(run.split, batch, readers, seen, info, found)
            bar.add(len(batch), sum(run.sizes))
    for name, reader in readers.items():
        for row in np.flatnonzero(~seen[name]).tolist():
            found.differences.append((reader.where(row), f"has no original in {source}"))
    return found


def _pieces(runs: Iterator[Run]) -> Iterator[Run]:
    for run in runs:
        for start in range(0, len(run), ENTRIES):
            yield run.slice(start, start + ENTRIES)


def _rejected(folder: Path) -> set[str]:
    path = folder / "rejected.jsonl"
    if not path.exists():
        return set()
    return {json.loads(line)["path"] for line in path.read_text().splitlines()}


def _compare_batch(
    split: str,
    batch: SampleBatch,
    readers: dict[str, ShardReader],
    seen: dict[str, np.ndarray[tuple[int], np.dtype[np.bool_]]],
    info: DatasetInfo,
    found: Comparison,
) -> None:
    for i, key in enumerate(batch.keys):
        # --val-fraction moves samples to another split than the input's own.
        names = sorted(readers, key=lambda name: name != split)
        place = next(
            ((name, row) for name in names if (row := readers[name].index.find(key)) is not None),
            None,
        )
        if place is None:
            if "limit" not in info.corpus:
                found.differences.append(
                    (key.decode(errors="backslashreplace"), "is not in the dataset")
                )
            continue
        name, row = place
        seen[name][row] = True
        found.num_compared += 1
        reader = readers[name]
        packed = reader.samples(row, row + 1).fields(0)
        original = batch.fields(i)
        for field_name, _, _ in unpack_paths(key, batch.paths[i], [*original]):
            if packed.get(field_name) != original[field_name]:
                found.differences.append(
                    (reader.where(row), f"its {field_name} differs from the original")
                )
