"""``pack``: the public call, and what it makes of its arguments."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shardkit.errors import UsageError
from shardkit.formats import get_format
from shardkit.images.choice import ImageChoice
from shardkit.inputs.corpus import Input
from shardkit.inputs.detection import open_corpus
from shardkit.packing.options import PackOptions, parse_fields, parse_options
from shardkit.packing.remote_destination import refuse_taken, staging_of
from shardkit.packing.result import PackResult
from shardkit.packing.run import run_pack
from shardkit.packing.spool import (
    Spool,
    are_tables,
    is_hugging_face,
    local_source,
    name_of,
    splits_of,
)
from shardkit.packing.tokenize import refuse_without_text
from shardkit.remote.urls import Url, as_place, refuse_overlap
from shardkit.system.paths import as_path, show_path
from shardkit.system.refusals import os_errors


@os_errors("packing")
def pack(
    source: Any,
    dest: str | Path | None = None,
    *,
    to: str | None = None,
    corpus: str | None = None,
    labels: str | Path | None = None,
    text_field: str | None = None,
    fields: str | Sequence[str] | None = None,
    fn: Callable[[Any], Any] | str | None = None,
    names: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    shard_size: str | int | None = None,
    **options: Any,
) -> PackResult:
    """Pack small files, or what Python objects hold, into shards that any tool can open.

    Call it again after an interruption, even a kill -9, and it goes on; the result is the same to
    the byte. It does not depend on the number of workers. On a dataset that is what it would make,
    by names, sizes and times of the inputs, it does nothing but say so in ``notes``.

    Args:
        source: a folder of images, image-text pairs, images with annotations, text, arrays, sound
            or film; .jsonl, .parquet or TFRecord files, or arrays of rows, or one such file; a
            folder that Hugging Face datasets saved, or a dataset of that library itself, one or
            several splits, stored or streamed: see :mod:`shardkit.packing.spool`; any files, with
            ``corpus="files"``. Or an object: a map-style dataset (``__len__`` and ``__getitem__``),
            a table (pyarrow, pandas, polars), a dict of splits of such, or what can be iterated
            over again: an iterable dataset, or a function that returns an iterator. A sample is a
            dict of fields, or a tuple: see :mod:`shardkit.inputs.objects.sample_forms`.
        dest: folder to make, or the URL of one in a bucket, but not for a dataset of that library;
            default: the source's name and format, in the current folder.
        to: ``lmdb``, ``hdf5``, ``webdataset`` or ``npy``; may be left out for tokens, which go
            to npy then.
        corpus: kind of input, where it should not be detected.
        labels: a table that names files and their labels, where folders do not say: ``.csv``,
            ``.tsv``, ``.txt`` or ``.json``. Of more than two columns, ``"train.csv:breed"`` says
            which holds the labels, by title or number.
        text_field: pack this field of each .jsonl line as ``txt``, not the whole line; the column
            of tables that is their text.
        fields: columns of tables, or keys of .jsonl lines, to pack, as a list or as text with
            commas; default: all columns, and whole lines. What is left out is in ``notes``.
        fn: function that returns a sample for each input of ``source``, or yields several; or where
            it is: ``"reader.py:make"``. Inputs are a list of anything, or the files of a folder,
            or the lines of a file.
        names: fields of the values of samples that are tuples; ``("image", "cls")`` is understood.
        classes: names of the classes of ``cls``, in order; default: ``source.classes``.
        shard_size: input bytes a shard, as ``"256MB"`` or a number; default: 4 MB at first, then a
            32nd of what came before, up to 256 MB; 1 MB to 32 MB of text to tokenize. So shards are
            many if there is enough for many.
        options: the fields of :class:`shardkit.packing.options.PackOptions`.

    Raises:
        UsageError: the call or the destination is wrong; nothing was written.
        DataError: an input is bad, or the disk refused; the state is kept, call again to go on.
    """
    made = parse_options(to, shard_size, options)
    started = time.perf_counter()
    chosen = parse_fields(fields)
    is_table = is_hugging_face(source) or (fn is None and are_tables(source))
    if not is_table and fn is None and isinstance(source, (str, os.PathLike)):
        if names is not None or classes is not None:
            raise UsageError("names and classes are for Python objects, and the source is a path")
        return _pack_files(source, dest, made, (corpus, labels, text_field), chosen, started)
    what = "a dataset" if is_table else "an object"
    for_files = {"corpus": corpus, "labels": labels}
    for name, value in (for_files if is_table else for_files | {"text_field": text_field}).items():
        if value is not None:
            raise UsageError(f"{name} is for files, and the source is {what}: leave it out")
    if dest is None:
        raise UsageError(f"dest is missing: {what} has no name to choose one by")
    if is_table:
        return _pack_spooled(source, as_path(dest, "dest"), made, text_field, chosen, started)
    from shardkit.packing.objects import pack_objects

    return pack_objects(source, dest, made, fn, names, chosen, classes, started)


def _pack_files(
    source: str | os.PathLike[str],
    dest: str | Path | None,
    made: PackOptions,
    taken_for: tuple[str | None, str | Path | None, str | None],
    fields: list[str] | None,
    started: float,
) -> PackResult:
    """Pack what lies on this machine, or what is fetched from a bucket first.

    Args:
        taken_for: corpus, labels and text_field, as of :func:`pack`.
    """
    if taken_for[1] is not None:
        as_path(taken_for[1], "labels")  # before anything is fetched

    def pack_folder(folder: Path, target: Path | Url | None) -> PackResult:
        opened = open_corpus(folder, *taken_for, fields, made.makes_tokens)
        target = target or choose_dest(folder, dest, made.to)
        return _pack_corpus(folder, opened, target, made, started)

    place = as_place(source, "the source")
    if isinstance(place, Url):
        place = local_source(place) or place
    if isinstance(place, Path):
        return pack_folder(place, None)
    target = choose_dest(place, dest, made.to)
    refuse_overlap(target, place)
    if isinstance(target, Url):
        refuse_taken(target, made.staging, made.overwrite)
    at = staging_of(target, made.staging) if isinstance(target, Url) else target
    with Spool(at) as spool:
        return pack_folder(spool.fetch(place), target)


def _pack_spooled(
    source: Any,
    dest: Path,
    made: PackOptions,
    text_field: str | None,
    fields: list[str] | None,
    started: float,
) -> PackResult:
    from shardkit.inputs.tables.tabular import SpooledCorpus

    splits = splits_of(source)
    # Of a part that is drawn from all rows, all are needed.
    limit = None if made.shuffle or made.val_fraction else made.limit
    with Spool(dest) as spool:
        notes = spool.fill(splits, limit, made.progress)
        opened = SpooledCorpus(spool.folder, [*splits], text_field, fields, made.makes_tokens)
        opened.notes = [*opened.notes, *notes]
        return _pack_corpus(spool.folder, opened, dest, made, started)


def _pack_corpus(
    source: Path, opened: Input, dest: Path | Url, made: PackOptions, started: float
) -> PackResult:
    if not opened.has_pictures:
        refuse_choice(made.images, f"{show_path(source)} is taken for {opened.kind}")
    if made.makes_tokens:
        refuse_without_text(opened, source)
    return run_pack(source, opened, dest, made, started)


def refuse_choice(choice: ImageChoice, why: str) -> None:
    """Raise UsageError if anything was chosen for pictures, where there are none."""
    if choice:
        raise UsageError(f"{why}, and has no pictures: leave out {choice}")


def choose_dest(source: Path | Url, dest: str | Path | None, to: str) -> Path | Url:
    """Return ``dest``; for none, of ``imagenet/`` to lmdb, ``imagenet-lmdb`` in this folder."""
    if dest:
        return as_place(dest, "the destination")
    return Path(f"{name_of(source)}-{get_format(to).name}")
