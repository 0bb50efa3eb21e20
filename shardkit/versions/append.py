"""``append``: more samples for a dataset, in shards of their own; no old one is touched."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from shardkit.commit.own_files import remove_own
from shardkit.errors import DestinationError, ResumeError, UsageError
from shardkit.index.manifest import INDEX_NAME, REJECTED_NAME, DatasetInfo, read_info
from shardkit.inputs.base import Input
from shardkit.inputs.open import open_corpus
from shardkit.operations.detokenize import spec_of
from shardkit.packing.options import PackOptions, parse_fields, parse_options
from shardkit.packing.run import run_pack
from shardkit.packing.tokenize import refuse_without_text
from shardkit.remote.urls import Url, as_place, refuse_overlap
from shardkit.shards.locate import locate
from shardkit.system.paths import as_path, show_path
from shardkit.system.refusals import os_errors
from shardkit.tokens.load import open_tokenizer
from shardkit.versions.adopt import adopt, adopt_into
from shardkit.versions.reconcile import joined_classes
from shardkit.versions.revision import ADDED_NAME, Revision, VersionResult


@os_errors("appending")
def append(
    dataset: str | Path,
    source: str | Path,
    *,
    corpus: str | None = None,
    labels: str | Path | None = None,
    text_field: str | None = None,
    fields: str | Sequence[str] | None = None,
    workers: int | None = None,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    shard_size: str | int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    val_fraction: float = 0.0,
    on_error: Literal["fail", "skip"] = "fail",
    max_rejects: float = 0.01,
    check_images: bool = False,
    compression: int | None = None,
    limit: int | None = None,
    progress: bool | None = None,
) -> VersionResult:
    """Add the samples of ``source`` to a dataset, as its next version.

    What was packed stays as it is, and so does what others have open. Format, what becomes of
    pictures, and the tokenizer are the dataset's; known classes keep their numbers, and new ones
    follow. Call it again after an interruption, even a kill -9, and it goes on.

    Args:
        dataset: its folder. source: as of :func:`shardkit.pack`, on this machine; or another
            dataset, whose shards are linked, or else copied.
        corpus, labels, text_field, fields, shard_size: as of :func:`shardkit.pack`; default of the
            fields: what the dataset was packed with. The others as of
            :class:`shardkit.packing.options.PackOptions`.

    Raises:
        UsageError: the call is wrong, the source has other fields or no classes, or was appended
            before; nothing was written.
        DestinationError: another process changes the dataset.
        DataError: an input is bad, a key is there already, or the disk refused.
    """
    started = time.perf_counter()
    folder, place = as_path(dataset, "the dataset"), as_place(source, "the source")
    if isinstance(place, Url):
        raise UsageError(f"append adds what is on this machine, and {place} is not: fetch it first")
    if (place / INDEX_NAME).is_file():
        _refuse_options(corpus=corpus, labels=labels, text_field=text_field, fields=fields)
        return adopt(folder, place, started)
    given = {
        "workers": workers,
        "engine": engine,
        "address": address,
        "shuffle": shuffle,
        "seed": seed,
        "val_fraction": val_fraction,
        "on_error": on_error,
        "max_rejects": max_rejects,
        "check_images": check_images,
        "compression": compression,
        "limit": limit,
        "progress": progress,
    }
    with os_errors(f"appending to {show_path(folder)}"):
        refuse_overlap(folder.resolve(), place.resolve())
        info = read_info(folder)
        made = _options(info, folder, shard_size, given)
        opened = _open(place, info, corpus, labels, text_field, parse_fields(fields), made)
        _refuse_unfit(opened, place, made)
        recipe = {
            "do": "append",
            "source": str(place.absolute()),
            "corpus": opened.spec(),
            "options": made.lasting(),
        }
        with Revision(folder, recipe) as revision:
            if revision.finished is not None:
                return revision.finished
            return _append(revision, recipe, place, opened, made, started)


def _open(
    source: Path,
    info: DatasetInfo,
    corpus: str | None,
    labels: str | Path | None,
    text_field: str | None,
    fields: list[str] | None,
    made: PackOptions,
) -> Input:
    """Open what is appended, by default with the fields that the dataset was packed with."""
    opened = open_corpus(source, corpus, labels, text_field, fields, made.makes_tokens)
    own = info.provenance
    if own.kind == opened.kind and text_field is None and fields is None:
        found = own.text_field, own.fields
        if any(found):
            opened = open_corpus(source, corpus, labels, *found, made.makes_tokens)
    return opened


def _refuse_options(**given: object) -> None:
    """Raise UsageError for what is of files, where the source is a dataset."""
    named = [name for name, value in given.items() if value is not None]
    if named:
        raise UsageError(f"append: {named[0]} is for files, and the source is a dataset")


def _options(
    info: DatasetInfo, folder: Path, shard_size: str | int | None, given: dict[str, Any]
) -> PackOptions:
    """What the dataset was packed with, and what is asked for besides.

    Raises:
        UsageError: that makes no sense; or pictures of it were written anew more than once.
    """
    own: dict[str, Any] = {}
    choices = info.provenance.images
    if len(choices) > 1:
        raise UsageError(
            f"pictures of {show_path(folder)} were written anew {len(choices)} times, and what is"
            " appended would be once: convert what you append likewise, and append that dataset"
        )
    if choices:
        own |= choices[0]
    if any(name.endswith(".idx") for name in info.file_bytes):
        own["dali_index"] = True
    spec = spec_of(info)
    if spec is not None:
        if spec.file is None:
            raise UsageError(
                f"{show_path(folder)} holds ids of a tokenizer that is not known: nothing can be"
                " tokenized alike"
            )
        own |= {"tokenizer": str(folder / spec.file), "invalid_utf8": spec.invalid_utf8}
    return parse_options(info.container, shard_size, own | given)


def _append(
    revision: Revision,
    recipe: dict[str, Any],
    source: Path,
    opened: Input,
    options: PackOptions,
    started: float,
) -> VersionResult:
    info = revision.place.info
    classes = joined_classes(info, opened.classes, show_path(source))
    added, spec = revision.work / ADDED_NAME, spec_of(info)
    tokenizer = None if spec is None else open_tokenizer(revision.dest, spec)

    def pack_it() -> list[str]:
        packed = run_pack(
            source, opened, added, options, started, classes=classes, tokenizer=tokenizer
        )
        notes = [] if packed.was_complete else packed.notes
        if packed.num_rejects:
            notes = [*notes, f"inputs rejected, see {REJECTED_NAME}: {packed.num_rejects:,}"]
        if packed.ignored:
            endings = sorted(packed.ignored.items())
            listed = ", ".join(f"{n:,} {show_path(e) or 'without extension'}" for e, n in endings)
            notes = [*notes, f"files passed over: {listed}"]
        return notes

    try:
        notes = pack_it()  # and go on, if an earlier call was interrupted
    except (DestinationError, ResumeError):
        if not added.exists():
            raise
        remove_own(added)
        revision.notes.append("the source changed since an interrupted call: it is packed anew")
        notes = pack_it()
    what = f"append {source.resolve().name}"
    made = adopt_into(
        revision, recipe, locate(added), what, started, moved_from=ADDED_NAME, notes=notes
    )
    if made.was_complete:
        remove_own(added)
    return made


def _refuse_unfit(opened: Input, source: Path, made: PackOptions) -> None:
    if made.images and not opened.has_pictures:
        raise UsageError(
            f"{show_path(source)} is taken for {opened.kind}, and has no pictures, which the"
            " dataset has"
        )
    if made.makes_tokens:
        refuse_without_text(opened, source)
