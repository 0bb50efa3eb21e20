"""``--dry-run``: what a pack would read, without writing anything."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from shardkit.errors import CorpusError
from shardkit.inputs.base import Corpus, Run
from shardkit.packing.options import PackOptions
from shardkit.packing.result import PackResult
from shardkit.remote.urls import Url
from shardkit.samples.sample import SampleBatch
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.paths import show_path

MAX_CLASSES = 3
"""Classes that are named."""


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
    names = ", ".join(classes[:MAX_CLASSES]) + ", ..." * (len(classes) > MAX_CLASSES)
    least, most = min(labels.values(), default=0), max(labels.values(), default=0)
    each = f": {least:,} each" if least == most else f": {least:,} to {most:,} each"
    return f" in {len(classes):,} classes ({names}{each if labels else ''})"
