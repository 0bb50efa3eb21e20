"""One shard, start to commit: read its entries, write its files, sync, rename, record."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Integers
from shardkit.commit.durable_files import fsync_path
from shardkit.commit.own_files import remove_own
from shardkit.commit.work_folder import SCRATCH_NAME, STAGE_NAME, WORK_NAME
from shardkit.errors import FormatError, SampleError
from shardkit.formats import get_format
from shardkit.formats.dali_index import dali_index, dali_index_name
from shardkit.formats.member_names import member_keys
from shardkit.images.choice import ImageChoice
from shardkit.index.journal import FinishedShard, Receipt, journal_path, write_finished
from shardkit.index.making import join_names, make_rows
from shardkit.index.manifest import is_field_name
from shardkit.inputs.base import Corpus, Run, join
from shardkit.inputs.open import from_spec
from shardkit.packing.listing import LISTING_NAME, Job, decode_shard, read_segment
from shardkit.packing.pictures import (
    check_images,
    remove_restarts,
    require_one_shape,
    rewrite_images,
)
from shardkit.packing.tokenize import reopen, slices, tokenize
from shardkit.samples.sample import SampleBatch, sample_checksums
from shardkit.system.file_io import block_sums
from shardkit.system.refusals import os_errors

CLS = "cls"

OnProgress = Callable[[int, int], None]
"""Called with (entries, input bytes) as they are read."""


@dataclass(frozen=True)
class Setup:
    """What all jobs of a pack are told, besides their own place in the listing; plain values, so
    that it travels as a pickle or as JSON.

    Attributes:
        source, dest: absolute paths of the input and of the dataset's folder.
        corpus: the kind of input, as :meth:`Corpus.spec` has it.
        to: the format. compression: as of :class:`shardkit.packing.options.PackOptions`.
        skip_bad: whether bad inputs become rejects.
        images: what to make of pictures, as :class:`ImageChoice` has it in JSON.
        tokens: what makes tokens of text, as
            :class:`shardkit.packing.tokenize.ChosenTokenizer` has it.
        numbers: what each class number of the input becomes; None: what it is.
        objects: as of :meth:`Corpus.objects`.
    """

    source: str
    dest: str
    corpus: dict[str, Any]
    to: str
    compression: int | None = None
    skip_bad: bool = False
    check_images: bool = False
    dali_index: bool = False
    images: dict[str, Any] = field(default_factory=dict)
    tokens: dict[str, Any] | None = None
    numbers: list[int] | None = None
    objects: bytes = b""

    @property
    def work(self) -> Path:
        return Path(self.dest, WORK_NAME)

    @property
    def stage(self) -> Path:
        return self.work / STAGE_NAME

    @property
    def scratch(self) -> Path:
        return self.work / SCRATCH_NAME

    def open_corpus(self) -> Corpus:
        """The input, for reading."""
        more = {"objects": self.objects} if self.objects else {}
        return from_spec(Path(self.source), {**self.corpus, **more})


@dataclass(frozen=True)
class Written:
    """A shard whose files are written, in a folder of their own, but neither synced nor where they
    belong."""

    folder: Path
    finished: FinishedShard


def write_job(
    corpus: Corpus, job: Job, setup: Setup, report: OnProgress, folder: Path | None = None
) -> Written:
    """Read one shard's entries and write its files, into an empty folder; by default into one for
    this job, of which no other process must do it meanwhile.

    Raises:
        SampleError: a bad input, unless the setup says to skip those.
        StorageError: the disk is full, or the system refused otherwise.
    """
    with os_errors(f"packing shard {job.stem}"):
        return _write(read_job(corpus, job, setup, report), job, setup, folder)


def commit_job(written: Written, setup: Setup) -> Receipt:
    """Sync the files, move them to the stage, and record the shard as done.

    Mostly waits for the disk, so it runs beside the next shard's :func:`write_job`.
    """
    finished, receipt = written.finished, written.finished.receipt
    with os_errors(f"committing shard {receipt.stem}"):
        sync_files(written)
        stage_files(written.folder, receipt, setup)
        written.folder.rmdir()
        write_finished(journal_path(setup.work, receipt.split, receipt.shard), finished)
    return receipt


def sync_files(written: Written) -> None:
    """Have a shard's files on the disk, and take the checksums of their blocks. Raises OSError."""
    finished = written.finished
    files = [written.folder / name for name in sorted(finished.receipt.file_bytes)]
    sums = [block_sums(path) for path in files]
    finished.sums = np.concatenate([np.zeros(0, np.uint64), *sums])
    finished.receipt.num_sums = len(finished.sums)
    for path in files:
        fsync_path(path)


def stage_files(folder: Path, receipt: Receipt, setup: Setup) -> None:
    """Move a shard's synced files to where finished ones lie. Raises OSError."""
    for name in sorted(receipt.file_bytes):
        (folder / name).replace(setup.stage / name)
    fsync_path(setup.stage)


def read_job(corpus: Corpus, job: Job, setup: Setup, report: OnProgress) -> SampleBatch:
    """One shard's samples, as they are to be stored.

    Raises:
        SampleError: a bad input, unless the setup says to skip those.
    """
    runs, order = decode_shard(read_segment(setup.work / LISTING_NAME, job))
    if order is not None and corpus.takes_order:
        runs, order = [join(runs).take(order.tolist())], None
    choice = ImageChoice.from_json(setup.images)
    samples = SampleBatch()
    for run in runs if setup.tokens is None else chain.from_iterable(map(slices, runs)):
        batch = corpus.read(run, setup.scratch)
        if setup.numbers is not None:
            _renumber(batch, setup.numbers)
        if setup.check_images:
            batch = check_images(batch)
        if choice.restarts and corpus.has_restarts:
            batch = remove_restarts(batch)
        if choice:
            batch = rewrite_images(batch, choice)
        if setup.tokens is not None:
            tokenizer = reopen(setup.stage, setup.tokens)
            batch = tokenize(batch, tokenizer, setup.scratch)
        refuse_bad(batch, setup)
        samples.extend(batch)
        report(len(run), sum(run.sizes))
    if choice.is_raw:
        require_one_shape(samples)
    return samples if order is None else _reorder(samples, runs, order)


def _renumber(batch: SampleBatch, numbers: list[int]) -> None:
    if CLS in batch.columns:
        new = {b"%d" % old: b"%d" % number for old, number in enumerate(numbers)}
        values = batch.columns[CLS]
        batch.columns[CLS] = [None if v is None else new[bytes(v)] for v in values]


def refuse_bad(batch: SampleBatch, setup: Setup) -> None:
    """Raise SampleError if there is a bad input, unless the setup says to skip those."""
    if batch.rejects and not setup.skip_bad:
        path, reason = batch.rejects[0]
        raise SampleError(
            f"{path}: {reason}; pass --on-error skip to leave such inputs out, or mend or"
            " remove it and pass --overwrite"
        )


def _reorder(samples: SampleBatch, runs: list[Run], order: Integers) -> SampleBatch:
    """Samples in the order of the listing's entries; rejected entries have none."""
    row = {key: i for i, key in enumerate(samples.keys)}
    keys = [key for run in runs for key in run.keys]
    return samples.take([row[keys[i]] for i in order.tolist() if keys[i] in row])


def _write(samples: SampleBatch, job: Job, setup: Setup, folder: Path | None) -> Written:
    columns = {name: samples.columns[name] for name in sorted(samples.columns)}
    for name in columns:
        if not is_field_name(name):
            raise FormatError(f"{job.stem}: {name!r} cannot be a field name; rename those files")
    if folder is None:
        folder = setup.work / f"tmp-{job.stem}"
        remove_own(folder)
        folder.mkdir()
    container = get_format(setup.to)
    extents = container.write(folder, job.stem, samples.keys, columns, setup.compression)
    if setup.dali_index:
        lines = dali_index(member_keys(samples.keys), extents)
        (folder / dali_index_name(job.stem)).write_bytes(lines)
    names, entries = join_names(samples.keys, samples.paths)
    checksums = sample_checksums(columns, len(samples))
    receipt = Receipt(
        split=job.split,
        shard=job.shard,
        segment=job.digest,
        seen=job.seen,
        num_rows=len(samples),
        file_bytes={e.name: e.stat().st_size for e in sorted(os.scandir(folder), key=_name)},
        encodings={name: e.encoding.to_json() for name, e in extents.items()},
        num_sums=0,
        names_bytes=len(names),
        rejects=samples.rejects,
        counts=dict(samples.counts),
        num_bytes=job.num_bytes,
    )
    rows = make_rows(samples.keys, entries, extents, checksums, columns)
    return Written(folder, FinishedShard(receipt, rows, names, np.zeros(0, np.uint64)))


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name
