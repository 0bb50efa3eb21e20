"""The same pack again: whether the dataset at the destination is what it would make.

Names, sizes and times of the inputs decide, as they do for make and rsync; no input is read.
Names, sizes and options are in ``packed``, a checksum in shardkit.json. Times may not be in a
dataset, since equal inputs give equal bytes: a checksum of them is in an extended attribute of
shardkit.json. If a copy or a file system has lost that, names and sizes decide.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shardkit.commit.work_folder import is_under_way
from shardkit.errors import DestinationError, ShardkitError
from shardkit.index.manifest import INDEX_NAME, DatasetInfo, read_info, read_rejected
from shardkit.inputs.base import Corpus
from shardkit.inputs.records.packed import DatasetCorpus
from shardkit.packing.finish import Origin, is_of_inputs, made_of, own_origin, with_options
from shardkit.packing.listing import ListedInput, Listing, list_jobs
from shardkit.packing.options import PackOptions
from shardkit.packing.result import COMPLETE, PackResult, result_of
from shardkit.system.paths import show_path, size_fault


def up_to_date(
    dest: Path,
    corpus: Corpus,
    options: PackOptions,
    recipe: dict[str, Any],
    origin: Origin | None,
    started: float,
) -> PackResult | None:
    """Return what the call would make if the dataset at ``dest`` is that; None if it is another.

    Not for a corpus that ``is_read_once``: it cannot be listed without being read. Arguments are
    as of :func:`shardkit.packing.run.run_pack`; ``recipe`` is what decides the result.

    Raises:
        DestinationError: it is of this input, but is not complete, or the input was touched since.
    """
    info = _found(dest, options)
    if info is None or not _is_as_asked(info, options):
        return None
    listing = _listed(corpus, options)
    before = origin or own_origin(corpus.spec(), made_of(recipe, listing.contents))
    num_rejects = read_rejected(dest).count(b"\n") - before.rejected.count(b"\n")
    num_rows = sum(split.num_rows for split in info.splits.values())
    if num_rejects > _most_rejects(options, num_rows + num_rejects):
        return None
    says = info.provenance if not options.makes_tokens else replace(info.provenance, tokens=None)
    if says != with_options(before.provenance, options) or info.classes != corpus.classes:
        return None
    is_same = is_of_inputs(dest, recipe, listing.seen)
    # A converted dataset does not say what it was converted from.
    if origin is not None and not is_same and not _is_a_copy(info, corpus, options):
        return None
    for name, num_bytes in info.file_bytes.items():
        if fault := size_fault(dest / name, num_bytes):
            raise DestinationError(
                f"{show_path(dest)} already holds a dataset of this input, but {show_path(name)}"
                f" {fault}; pass --overwrite to pack again"
            )
    if origin is None and is_same is False:
        raise DestinationError(
            f"{show_path(dest)} already holds a dataset of inputs of these names and sizes, but"
            " some of them were changed or touched since: `shardkit verify --against` says which"
            " contents differ, and --overwrite packs again"
        )
    listed, seconds = ListedInput.of(corpus, listing), time.perf_counter() - started
    result = result_of(dest, dest, listed, info, num_rejects, 0, seconds)
    return replace(result, notes=[COMPLETE], was_complete=True)


def _found(dest: Path, options: PackOptions) -> DatasetInfo | None:
    """Return the dataset there; None if it is to be replaced, or if a pack is under way."""
    if options.overwrite or is_under_way(dest) or not (dest / INDEX_NAME).is_file():
        return None
    try:
        found = read_info(dest)
    except ShardkitError:
        return None
    return None if found.history else found  # it is not what was packed any more


def _is_as_asked(info: DatasetInfo, options: PackOptions) -> bool:
    """Return True if the container is. Of compressed ones nothing says how much they are."""
    splits = info.splits.values()
    encodings = [e for split in splits for layout in split.layouts for e in layout.values()]
    if options.compression is not None or any(e.codec for e in encodings):
        return False
    has_dali = any(name.endswith(".idx") for name in info.file_bytes)
    return info.container == options.to and has_dali == options.dali_index


def _listed(corpus: Corpus, options: PackOptions) -> Listing:
    """Return the listing of the input as it is now."""
    with TemporaryDirectory(prefix="shardkit-") as folder:
        listing, scratch = Listing(Path(folder)), Path(folder, "scratch")
        scratch.mkdir()
        deque(list_jobs(corpus, listing, options, corpus.runs(scratch)), 0)
    return listing


def _most_rejects(options: PackOptions, num_entries: int) -> float:
    return 0 if options.on_error == "fail" else options.max_rejects * num_entries


def _is_a_copy(info: DatasetInfo, corpus: Corpus, options: PackOptions) -> bool:
    """Return True if checksums say that it has the samples of the dataset that was converted."""
    if options.images or not isinstance(corpus, DatasetCorpus):
        return False
    source = corpus.info
    has_checksums = all(split.has_checksums for split in source.splits.values())
    return has_checksums and _samples(info) == _samples(source)


def _samples(info: DatasetInfo) -> dict[str, Any]:
    splits = info.splits.values()
    return {one.name: (one.fingerprint, one.files[one.index_file("names")]) for one in splits}
