"""What a pack returns."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shardkit.errors import CorpusError
from shardkit.index.count_tokens import num_tokens
from shardkit.index.manifest import DatasetInfo
from shardkit.index.rows import RowIndex
from shardkit.inputs.corpus import Corpus, Run
from shardkit.packing.options import PackOptions
from shardkit.remote.urls import Url
from shardkit.samples.sample import SampleBatch
from shardkit.storage.local_files import Folder
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.paths import show_path

COMPLETE = "complete already, from an earlier run"
"""The note of a result that this call has not made."""


@dataclass(frozen=True)
class PackResult:
    """What a pack made.

    Attributes:
        dest: the dataset's folder, or its URL as a str. container: its format. kind: kind of input.
        num_samples, num_shards, num_rejects: counts over all splits.
        input_bytes, dataset_bytes: sizes before and after, in bytes.
        resumed_shards: shards found finished from an earlier, interrupted call.
        num_tokens: of all documents, BOS and EOS included; 0 if text was not tokenized.
        seconds: from the first look at the source to the last sync; without starting workers.
        ignored: files passed over, by extension; hidden files and folders under ``hidden``.
        notes: what else there is to know, a line each.
        was_complete: whether an earlier call had made it all, and this one nothing.
        part: which part of the whole this is, as ``3/64``; None for all of it.
    """

    dest: Path | str
    container: str
    kind: str
    splits: dict[str, int]
    num_samples: int
    num_shards: int
    num_rejects: int = 0
    input_bytes: int = 0
    dataset_bytes: int = 0
    resumed_shards: int = 0
    seconds: float = 0.0
    num_tokens: int = 0
    ignored: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    was_complete: bool = False
    part: str | None = None


def result_of(
    dest: Path | str, folder: Path, info: DatasetInfo, kind: str, **others: Any
) -> PackResult:
    """Return what is said of a dataset at ``dest`` whose files are in ``folder``, for now or for
    good. ``others``: attributes that the dataset does not say."""
    splits, tokens = info.splits.values(), info.provenance.tokens
    counts = {split.name: split.num_rows for split in splits}
    indexes = [RowIndex(Folder(folder), info, split) for split in splits if tokens is not None]
    return PackResult(
        dest=dest,
        container=info.container,
        kind=kind,
        splits=counts,
        num_samples=sum(counts.values()),
        num_shards=sum(len(split.shards) for split in splits),
        dataset_bytes=sum(info.file_bytes.values()),
        num_tokens=sum(num_tokens(index, tokens["dtype"]) for index in indexes if tokens),
        **others,
    )


def dry_run(
    source: Path, corpus: Corpus, dest: Path | Url, options: PackOptions, started: float
) -> PackResult:
    """List an input and read its first sample. Of what is read once, only that is read.

    Returns:
        A result without shards; its notes say what was found, and the first sample's fields.

    Raises:
        CorpusError: there is nothing to pack.
    """
    splits, labels = Counter[str](), Counter[int]()
    num_bytes = 0
    first: SampleBatch | None = None
    with TemporaryDirectory(prefix="shardkit-") as folder:
        scratch = Path(folder)
        for run in corpus.runs(scratch):
            splits[run.split] += len(run)
            num_bytes += sum(run.sizes)
            if run.label is not None:
                labels[run.label] += len(run)
            if (first is None or not len(first)) and len(run):
                first = corpus.read(run.slice(0, 1), scratch)
            if corpus.is_read_once:
                break
    if first is None:
        raise CorpusError(f"{show_path(source)} has nothing to pack")
    counts = dict(splits)
    if options.limit is not None:
        counts = {name: min(number, options.limit) for name, number in counts.items()}
    total = sum(counts.values())
    amount = "samples, counted as they come" if corpus.is_read_once else f"{total:,} entries"
    said = [f"{amount} ({corpus.kind}){_classes(corpus.classes, labels)} -> {dest}"]
    said += first_sample(first)
    return PackResult(
        dest=str(dest) if isinstance(dest, Url) else dest,
        container=options.to,
        kind=corpus.kind,
        splits=counts,
        num_samples=total,
        num_shards=0,
        input_bytes=num_bytes,
        seconds=time.perf_counter() - started,
        ignored=dict(corpus.ignored),
        notes=[*said, *corpus.notes],
    )


def found(corpus: Corpus, run: Run, scratch: Path, dest: Path) -> list[str]:
    """Return lines that say before the work what was found, and the first sample of a run."""
    line = f"{corpus.kind}{_classes(corpus.classes, Counter())} -> {show_path(dest)}"
    return [line, *first_sample(corpus.read(run.slice(0, 1), scratch))]


def first_sample(first: SampleBatch) -> list[str]:
    """Return a line on the first sample, or on why it is none."""
    if not len(first):
        return [f"first input rejected: {path}: {reason}" for path, reason in first.rejects]
    fields = [f"{n} ({format_bytes(len(v))})" for n, v in sorted(first.fields(0).items())]
    return [f"first sample: {os.fsdecode(first.keys[0])!r}: {', '.join(fields)}"]


def _classes(classes: list[str] | None, labels: Counter[int]) -> str:
    if not classes:
        return ""
    names = ", ".join([*classes[:3], *(["..."] if len(classes) > 3 else [])])
    least, most = min(labels.values(), default=0), max(labels.values(), default=0)
    each = f": {least:,} each" if least == most else f": {least:,} to {most:,} each"
    return f" in {len(classes):,} classes ({names}{each if labels else ''})"
