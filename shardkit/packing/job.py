"""One shard, start to commit: read its entries, write its files, sync, rename, record."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.commit.durable_files import fsync_path
from shardkit.commit.own_files import remove_own
from shardkit.commit.work_folder import SCRATCH_NAME, STAGE_NAME, WORK_NAME
from shardkit.errors import FormatError, SampleError
from shardkit.formats import get_format
from shardkit.formats.dali_index import dali_index, dali_index_name
from shardkit.formats.member_names import member_keys
from shardkit.images.choice import ImageChoice
from shardkit.images.decode import decode
from shardkit.images.encode import rewrite
from shardkit.images.markers import is_jpeg
from shardkit.images.naming import RAW_FIELD, field_of, renamed
from shardkit.images.restarting import FIELD, left_as_it_is, without_restarts
from shardkit.images.sniff import HEAD_BYTES, IMAGE_FIELDS, image_field
from shardkit.index.file_names import is_field_name
from shardkit.index.journal import FinishedShard, Receipt, journal_path, write_finished
from shardkit.index.making import join_names, make_rows
from shardkit.inputs.corpus import Corpus, join
from shardkit.inputs.detection import from_spec
from shardkit.packing.listing import Job, read_entries
from shardkit.packing.tokenize import reopen, slices, tokenize
from shardkit.samples.checksums import sample_checksums
from shardkit.samples.encoding import parse_npy
from shardkit.samples.sample import SampleBatch, Value, rename_field, unpack_paths
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
        """Open the input, for reading."""
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
    """Return one shard's samples, as they are to be stored.

    Raises:
        SampleError: a bad input, unless the setup says to skip those.
    """
    runs, order = read_entries(setup.work, job)
    if order is not None and corpus.takes_order:
        runs, order = [join(runs).take(order.tolist())], None
    choice = ImageChoice.from_json(setup.images)
    samples = SampleBatch()
    for run in runs if setup.tokens is None else chain.from_iterable(map(slices, runs)):
        batch = corpus.read(run, setup.scratch)
        if setup.numbers is not None and CLS in batch.columns:
            new = {b"%d" % old: b"%d" % number for old, number in enumerate(setup.numbers)}
            values = batch.columns[CLS]
            batch.columns[CLS] = [None if v is None else new[bytes(v)] for v in values]
        if setup.check_images:
            batch = check_images(batch)
        if choice.restarts and corpus.has_restarts:
            batch = remove_restarts(batch)
        if choice:
            batch = rewrite_images(batch, choice)
        if setup.tokens is not None:
            tokenizer = reopen(setup.stage, setup.tokens)
            batch = tokenize(batch, tokenizer, setup.scratch)
        if batch.rejects and not setup.skip_bad:
            path, reason = batch.rejects[0]
            raise SampleError(
                f"{path}: {reason}; pass --on-error skip to leave such inputs out, or mend or"
                " remove it and pass --overwrite"
            )
        samples.extend(batch)
        report(len(run), sum(run.sizes))
    if choice.is_raw:
        require_one_shape(samples)
    if order is None:
        return samples
    row = {key: i for i, key in enumerate(samples.keys)}  # rejected entries have none
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
        file_bytes={
            e.name: e.stat().st_size for e in sorted(os.scandir(folder), key=attrgetter("name"))
        },
        encodings={name: e.encoding.to_json() for name, e in extents.items()},
        num_sums=0,
        names_bytes=len(names),
        rejects=samples.rejects,
        counts=dict(samples.counts),
        num_bytes=job.num_bytes,
    )
    rows = make_rows(samples.keys, entries, extents, checksums, columns)
    return Written(folder, FinishedShard(receipt, rows, names, np.zeros(0, np.uint64)))


def check_images(batch: SampleBatch) -> SampleBatch:
    """Move samples of which a picture (``jpg``, ``mask.png``) does not decode to ``rejects``.

    Raises:
        UsageError: neither pillow-simd nor pillow is installed.
    """

    def check(value: Value) -> Value:
        decode(value)
        return value

    names = [name for name in batch.columns if name.rpartition(".")[2] in IMAGE_FIELDS]
    return _changed(batch, names, check)


def remove_restarts(batch: SampleBatch) -> SampleBatch:
    """Return JPEGs as they were before restart markers were added. Else a file that is given
    markers once more would have them twice, and ``unpack``, which removes them once, would not give
    the original.

    JPEGs that are too damaged for it go to ``rejects``.

    Raises:
        UsageError: what removes them was not built.
    """
    return _changed(batch, [FIELD] if FIELD in batch.columns else [], without_restarts)


def _changed(batch: SampleBatch, names: list[str], change: Callable[[Value], Value]) -> SampleBatch:
    columns: dict[str, list[Value | None]] = {name: [*batch.columns[name]] for name in names}
    reasons: dict[int, tuple[str, str]] = {}
    for name, values in columns.items():
        for i, value in enumerate(values):
            try:
                values[i] = None if value is None else change(value)
            except SampleError as error:
                reasons[i] = name, str(error)
    columns = batch.columns | columns
    made = SampleBatch(batch.keys, batch.paths, columns, batch.rejects, batch.counts)
    return batch.without(made, reasons)


# --- pictures written anew ----------------------------------------------------------------


_IN_FIELD = "in field "
"""Counted of each field that holds pictures and is not looked at."""


def rewrite_images(batch: SampleBatch, choice: ImageChoice) -> SampleBatch:
    """Make of each sample's picture what was chosen; those that do not decode go to ``rejects``.

    A picture is a field that is named by its kind alone, such as ``jpg``: one called ``mask.png``
    is left as it is. A sample with two of them is rejected, since one may be labels of the other's
    pixels, unless nothing is lost of either.

    Raises:
        UsageError: what writes them is not installed.
    """
    names = [name for name in batch.columns if name in IMAGE_FIELDS]
    made: dict[str, list[Value | None]] = {}
    reasons: dict[int, tuple[str, str]] = {}
    paths = [*batch.paths]
    counts = Counter[str]()
    for i in range(len(batch)):
        held = [name for name in names if batch.columns[name][i] is not None]
        own = Counter[str]()
        for name in held:
            try:
                if len(held) > 1 and choice.writes_anew:
                    raise SampleError(
                        f"its sample has two pictures, {' and '.join(held)}, and one may be labels"
                        " of the other's pixels; give that one a name of its own, as in"
                        " x.mask.png, and it is left as it is"
                    )
                field, value, paths[i] = _rewritten(batch, i, name, choice, own)
            except SampleError as error:
                reasons[i] = name, str(error)
                break
            made.setdefault(field, [None] * len(batch))[i] = value
        else:
            # And of pictures in fields not looked at, such as ``jpeg`` of other tars.
            for name, value in batch.fields(i).items():
                if name not in names and choice.restarts and is_jpeg(value):
                    left_as_it_is(value, own)
                if (
                    name not in names
                    and choice.writes_anew
                    and image_field(bytes(value[:HEAD_BYTES]))
                ):
                    own[_IN_FIELD + name] += 1
            counts.update(own)
    others = {name: values for name, values in batch.columns.items() if name not in names}
    done = SampleBatch(batch.keys, paths, others | made, batch.rejects, counts)
    return batch.without(done, reasons)


def told_of_others(counts: Mapping[str, int]) -> str:
    """Return what was counted of pictures that nothing was done to, in words, or ``""``."""
    found = sorted(name for name in counts if name.startswith(_IN_FIELD))
    if not found:
        return ""
    where = ", ".join(f"{counts[name]:,} {name}" for name in found)
    return (
        f"pictures left as they are: {where}; only fields called jpg, png and the like are written"
        " anew"
    )


def _rewritten(
    batch: SampleBatch, i: int, name: str, choice: ImageChoice, counts: Counter[str]
) -> tuple[str, Value, bytes]:
    """Return (field, value, encoded paths) of a sample whose picture is in field ``name``."""
    value = batch.columns[name][i]
    key, packed = batch.keys[i], batch.paths[i]
    kind, value = rewrite(value, name, choice, counts)  # type: ignore[arg-type]  # it is not None
    field = field_of(kind)
    if field == name:
        return field, value, packed
    if field in batch.columns and batch.columns[field][i] is not None:
        raise SampleError(f"its sample has a field {field} already; rename that file")
    fields = [*batch.fields(i)]
    for one, path, _ in unpack_paths(key, packed, fields):
        if one == name:
            packed = rename_field(key, packed, fields, name, field, renamed(path, key, field))
    return field, value, packed


def require_one_shape(batch: SampleBatch) -> None:
    """Raise SampleError unless all raw pictures have the shape of the first."""
    first: tuple[int, ...] | None = None
    for i, value in enumerate(batch.columns.get(RAW_FIELD, [])):
        shape = first if value is None else parse_npy(value).shape
        first = first or shape
        if shape != first:
            raise unequal_shapes(batch.file_of(i, RAW_FIELD), shape or (), first or ())


def unequal_shapes(where: str, shape: Sequence[int], other: Sequence[int]) -> SampleError:
    """Return the error for raw pictures of two shapes (H, W, 3)."""
    sizes = ["x".join(map(str, reversed(s[:2]))) for s in (shape, other)]
    return SampleError(
        f"{where} is {sizes[0]}, and pictures before it are {sizes[1]}: image_format raw stores one"
        " shape; pass --crop N to make all of them NxN, and --overwrite"
    )
