"""The same pack again: whether the dataset at the destination is what it would make.

Names, sizes and times of the inputs decide, as they do for make and rsync; no input is read.
Names, sizes and options are in ``packed``, a checksum in shardkit.json. Times may not be in a
dataset, since equal inputs give equal bytes: a checksum of them is in an extended attribute of
shardkit.json. If a copy or a file system has lost that, names and sizes decide.
"""

from __future__ import annotations

import json
import os
from collections import deque
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import xxhash

from shardkit.errors import DestinationError, ShardkitError
from shardkit.images.choice import ImageChoice
from shardkit.index.manifest import INDEX_NAME, WORK_NAME, DatasetInfo, read_info, read_rejected
from shardkit.index.provenance import Provenance
from shardkit.inputs.base import Corpus
from shardkit.inputs.records.packed import DatasetCorpus
from shardkit.packing.listing import Listing, list_jobs
from shardkit.packing.options import PackOptions
from shardkit.packing.publish import is_marked
from shardkit.system.paths import show_path, size_fault

SEEN = "user.shardkit.seen"
"""The extended attribute of shardkit.json that tells with which inputs it was packed."""


@dataclass(frozen=True)
class UpToDate:
    """A dataset that is what a pack would make, and the listing of its input. ``num_rejects``:
    lines of rejected.jsonl."""

    info: DatasetInfo
    listing: Listing
    num_rejects: int


@dataclass(frozen=True)
class Asked:
    """What a call of pack or convert asks for.

    Attributes:
        recipe: what decides the result, as plain values.
        provenance: what the dataset is to say, but for ``packed``.
        is_new: whether it is a pack, and no convert, so that ``packed`` is said.
        rejected: the lines of rejected.jsonl before the call's own.
    """

    corpus: Corpus
    options: PackOptions
    recipe: dict[str, Any]
    provenance: Provenance
    is_new: bool
    rejected: bytes


_OF_DATASET = {"to", "compression", "dali_index", *(field.name for field in fields(ImageChoice))}
"""Told by the dataset itself, and not by ``packed``: converted, it is, to the byte, what packing
with these would have made."""


def made_of(recipe: dict[str, Any], contents: str) -> str:
    """Return ``packed`` for that checksum of the listing: 16 hexadecimal digits."""
    options = {name: v for name, v in recipe["options"].items() if name not in _OF_DATASET}
    text = json.dumps([recipe | {"options": options}, contents], sort_keys=True)
    return xxhash.xxh3_64_hexdigest(text.encode())


def remember_inputs(dest: Path, recipe: dict[str, Any], seen: str) -> None:
    """Keep what the inputs of a finished dataset were: ``seen`` of its listing."""
    try:
        # Not of a link's target, which is not ours.
        os.setxattr(dest / INDEX_NAME, SEEN, _digest(recipe, seen), follow_symlinks=False)
    except (OSError, AttributeError):
        pass  # not every file system and not every system has them


def up_to_date(dest: Path, asked: Asked) -> UpToDate | None:
    """Return the dataset at ``dest`` if the call would make the same; None if it asks for another.

    Not for a corpus that ``is_read_once``: it cannot be listed without being read.

    Raises:
        DestinationError: it is of this input, but is not complete, or the input was touched since.
    """
    info = _found(dest, asked.options)
    if info is None or not _is_as_asked(info, asked.options):
        return None
    listing = _listed(asked)
    num_rejects = read_rejected(dest).count(b"\n") - asked.rejected.count(b"\n")
    num_rows = sum(split.num_rows for split in info.splits.values())
    if num_rejects > _most_rejects(asked.options, num_rows + num_rejects):
        return None
    was, now = _seen(dest), _digest(asked.recipe, listing.seen)
    if not _is_of(info, asked, listing):
        return None
    # A converted dataset does not say what it was converted from.
    if not asked.is_new and was != now and not _is_a_copy(info, asked):
        return None
    for name, num_bytes in info.file_bytes.items():
        if fault := size_fault(dest / name, num_bytes):
            raise DestinationError(
                f"{show_path(dest)} already holds a dataset of this input, but {show_path(name)}"
                f" {fault}; pass --overwrite to pack again"
            )
    if asked.is_new and was not in (None, now):
        raise DestinationError(
            f"{show_path(dest)} already holds a dataset of inputs of these names and sizes, but"
            " some of them were changed or touched since: `shardkit verify --against` says which"
            " contents differ, and --overwrite packs again"
        )
    return UpToDate(info, listing, num_rejects)


def _found(dest: Path, options: PackOptions) -> DatasetInfo | None:
    """Return the dataset there; None if it is to be replaced, or if a pack is under way."""
    is_under_way = (dest / WORK_NAME).exists() or is_marked(dest)
    if options.overwrite or is_under_way or not (dest / INDEX_NAME).is_file():
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


def _listed(asked: Asked) -> Listing:
    """Return the listing of the input as it is now."""
    with TemporaryDirectory(prefix="shardkit-") as folder:
        listing, scratch = Listing(Path(folder)), Path(folder, "scratch")
        scratch.mkdir()
        deque(list_jobs(asked.corpus, listing, asked.options, asked.corpus.runs(scratch)), 0)
    return listing


def _most_rejects(options: PackOptions, num_entries: int) -> float:
    return 0 if options.on_error == "fail" else options.max_rejects * num_entries


def _is_of(info: DatasetInfo, asked: Asked, listing: Listing) -> bool:
    """Return True if it says that it was made of this input, in this way."""
    wanted, says = asked.provenance, info.provenance
    if asked.is_new:
        wanted = replace(wanted, packed=made_of(asked.recipe, listing.contents))
    if asked.options.makes_tokens:
        says = replace(says, tokens=None)
    return says == wanted and info.classes == asked.corpus.classes


def _is_a_copy(info: DatasetInfo, asked: Asked) -> bool:
    """Return True if checksums say that it has the samples of the dataset that was converted."""
    if asked.options.images or not isinstance(asked.corpus, DatasetCorpus):
        return False
    source = asked.corpus.info
    has_checksums = all(split.has_checksums for split in source.splits.values())
    return has_checksums and _samples(info) == _samples(source)


def _samples(info: DatasetInfo) -> dict[str, Any]:
    splits = info.splits.values()
    return {one.name: (one.fingerprint, one.files[one.index_file("names")]) for one in splits}


def _seen(dest: Path) -> bytes | None:
    try:
        return os.getxattr(dest / INDEX_NAME, SEEN)
    except (OSError, AttributeError):
        return None


def _digest(recipe: dict[str, Any], seen: str) -> bytes:
    return xxhash.xxh3_128_hexdigest(json.dumps([recipe, seen], sort_keys=True).encode()).encode()
