"""One shard, start to commit: read its entries, write its files, sync, rename, record."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardkit.corpus.base import Corpus, Run
from shardkit.errors import FormatError, SampleError, StorageError
from shardkit.formats import get_format
from shardkit.formats.dali_index import dali_index, dali_index_name
from shardkit.formats.member_names import member_keys
from shardkit.images.choice import ImageChoice
from shardkit.index.making import join_names, make_rows
from shardkit.index.manifest import is_field_name
from shardkit.index.parts import Part, PartHead, part_path, write_part
from shardkit.packing.settle import SCRATCH_NAME
from shardkit.packing.spool import Order, decode_shard, read_segment
from shardkit.packing.tokenize import slices, tokenize
from shardkit.packing.tokenizer import reopen
from shardkit.packing.transform import check_images, require_one_shape, rewrite_images
from shardkit.samples.sample import SampleBatch, sample_checksums
from shardkit.system.blocks import block_sums
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors
from shardkit.system.writing import fsync_path

Report = Callable[[int, int], None]
"""Called with (entries, input bytes) as they are read."""


@dataclass(frozen=True)
class Job:
    """One shard to make: where its entries stand in the listing, and how many input bytes."""

    split: str
    shard: int
    start: int
    size: int
    digest: int
    num_entries: int
    num_bytes: int = 0

    @property
    def stem(self) -> str:
        return f"{self.split}-{self.shard:05d}"


@dataclass(frozen=True)
class JobContext:
    """What all jobs of a pack share; plain values, so that it travels to workers as JSON.

    ``images`` is what to make of pictures, as :class:`ImageChoice` has it in JSON, and ``tokens``
    what makes tokens of text, as :class:`shardkit.packing.tokenizer.Chosen` has it.
    """

    work: str
    stage: str
    to: str
    compression: int | None
    skip_bad: bool
    check_images: bool
    images: dict[str, Any] = field(default_factory=dict)
    dali_index: bool = False
    tokens: dict[str, Any] | None = None

    @property
    def scratch(self) -> Path:
        return Path(self.work) / SCRATCH_NAME

    @property
    def listing(self) -> Path:
        return Path(self.work) / "listing"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Written:
    """A shard whose files are written, in a folder of their own, but neither synced nor named."""

    folder: Path
    part: Part


def write_job(corpus: Corpus, job: Job, context: JobContext, report: Report) -> Written:
    """Read one shard's entries and write its files.

    Raises:
        SampleError: a bad input, unless the context says to skip those.
        StorageError: the disk is full, or the system refused otherwise.
    """
    with os_errors(f"packing shard {job.stem}"):
        return _write(_read(corpus, job, context, report), job, context)


def commit_job(written: Written, context: JobContext) -> PartHead:
    """Sync the files, give them their final names, and record the shard as done.

    Mostly waits for the disk, so it runs beside the next shard's :func:`write_job`.
    """
    part = written.part
    with os_errors(f"committing shard {part.head.stem}"):
        files = sorted(entry.name for entry in os.scandir(written.folder))
        sums = [block_sums(written.folder / name) for name in files]
        part.sums = np.concatenate([np.zeros(0, np.uint64), *sums])
        part.head.num_sums = len(part.sums)
        _publish(written.folder, Path(context.stage), files)
        written.folder.rmdir()
        write_part(part_path(Path(context.work), part.head.split, part.head.shard), part)
    return part.head


def _read(corpus: Corpus, job: Job, context: JobContext, report: Report) -> SampleBatch:
    segment = read_segment(context.listing, job.start, job.size)
    if xxhash.xxh3_64_intdigest(segment) != job.digest:
        raise StorageError(
            f"{show_path(context.listing)} is not as it was written, at shard {job.stem}; run the"
            " same command again"
        )
    runs, order = decode_shard(segment)
    choice = ImageChoice.from_json(context.images)
    samples = SampleBatch()
    for run in runs if context.tokens is None else chain.from_iterable(map(slices, runs)):
        batch = corpus.read(run, context.scratch)
        if context.check_images:
            batch = check_images(batch)
        if choice:
            batch = rewrite_images(batch, choice)
        if context.tokens is not None:
            tokenizer = reopen(Path(context.stage), context.tokens)
            batch = tokenize(batch, tokenizer, context.scratch)
        if batch.rejects and not context.skip_bad:
            path, reason = batch.rejects[0]
            raise SampleError(
                f"{path}: {reason}; pass --on-error skip to leave such inputs out, or mend or"
                " remove it and pass --overwrite"
            )
        samples.extend(batch)
        report(len(run), sum(run.sizes))
    if choice.is_raw:
        require_one_shape(samples)
    return samples if order is None else _reorder(samples, runs, order)


def _reorder(samples: SampleBatch, runs: list[Run], order: Order) -> SampleBatch:
    """Samples in the order of the listing's entries; rejected entries have none."""
    row = {key: i for i, key in enumerate(samples.keys)}
    keys = [key for run in runs for key in run.keys]
    return samples.take([row[keys[i]] for i in order.tolist() if keys[i] in row])


def _write(samples: SampleBatch, job: Job, context: JobContext) -> Written:
    columns = {name: samples.columns[name] for name in sorted(samples.columns)}
    for name in columns:
        if not is_field_name(name):
            raise FormatError(f"{job.stem}: {name!r} cannot be a field name; rename those files")
    folder = Path(context.work) / f"tmp-{job.stem}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    container = get_format(context.to)
    extents = container.write(folder, job.stem, samples.keys, columns, context.compression)
    if context.dali_index:
        lines = dali_index(member_keys(samples.keys), extents)
        (folder / dali_index_name(job.stem)).write_bytes(lines)
    names, entries = join_names(samples.keys, samples.paths)
    checksums = sample_checksums(columns, len(samples))
    head = PartHead(
        split=job.split,
        shard=job.shard,
        segment=job.digest,
        num_rows=len(samples),
        file_bytes={e.name: e.stat().st_size for e in sorted(os.scandir(folder), key=_name)},
        encodings={name: e.encoding.to_json() for name, e in extents.items()},
        num_sums=0,
        names_bytes=len(names),
        rejects=samples.rejects,
    )
    rows = make_rows(samples.keys, entries, extents, checksums, columns)
    return Written(folder, Part(head, rows, names, np.zeros(0, np.uint64)))


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


def _publish(folder: Path, stage: Path, files: list[str]) -> None:
    for name in files:
        fsync_path(folder / name)
    for name in files:
        (folder / name).replace(stage / name)
    fsync_path(stage)
