"""The same pack again: whether the dataset that stands at the destination is what it would make.

A dataset says in ``packed`` what it was made of, as one checksum: of the options that decide the
result, and of names and sizes of all inputs. Times are not part of it, since equal inputs must give
equal bytes; so an input that changed after the dataset was made might be another one. When a file
changed last, its ctime says, which nobody can set back as ``touch`` and ``rsync`` do the mtime.

A converted dataset says by its fingerprints that it is of the same samples.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import xxhash

from shardkit.corpus.base import Corpus
from shardkit.corpus.dataset import DatasetCorpus
from shardkit.corpus.files import walk
from shardkit.corpus.names import join
from shardkit.errors import DestinationError, ShardkitError
from shardkit.images.choice import ImageChoice
from shardkit.index.manifest import INDEX_NAME, WORK_NAME, DatasetInfo, read_info, read_rejected
from shardkit.packing.listing import Listing, list_jobs
from shardkit.packing.options import PackOptions
from shardkit.packing.settle import is_marked
from shardkit.system.storage import file_size, show_path


@dataclass(frozen=True)
class Standing:
    """A dataset that is what a pack would make, and the listing of its input."""

    info: DatasetInfo
    listing: Listing
    num_rejects: int


_OF_DATASET = {"to", "compression", "dali_index", *(field.name for field in fields(ImageChoice))}
"""Told by the dataset itself, and not by ``packed``: converted, it is, to the byte, what packing
with these would have made."""


def made_of(lasting: dict[str, Any], listing: Listing) -> str:
    """What ``packed`` of ``corpus`` says: 16 hexadecimal digits."""
    options = {name: v for name, v in lasting["options"].items() if name not in _OF_DATASET}
    text = json.dumps([lasting | {"options": options}, listing.contents], sort_keys=True)
    return xxhash.xxh3_64_hexdigest(text.encode())


def standing(
    source: Path, corpus: Corpus, dest: Path, options: PackOptions, lasting: dict[str, Any]
) -> Standing | None:
    """The dataset at ``dest``, if packing would make the same; None if it would not, or might not.

    Raises:
        DestinationError: it is of this input, but is not whole, or the input may have changed.
    """
    info = _found(dest, options)
    if info is None or "packed" not in info.corpus or not _is_as_asked(info, options):
        return None
    num_rejects = read_rejected(dest).count(b"\n")
    if num_rejects and options.on_error == "fail":
        return None
    listing = listed(corpus, options)
    if made_of(lasting, listing) != info.corpus["packed"]:
        return None
    _refuse_broken(dest, info)
    _refuse_younger(source, dest, info)
    return Standing(info, listing, num_rejects)


def standing_copy(corpus: DatasetCorpus, dest: Path, options: PackOptions) -> Standing | None:
    """As :func:`standing`, of a convert: samples are known by their fingerprints. None, too, where
    pictures are to be made anew, and of tars made by others, whose values nobody has looked at.

    Raises:
        DestinationError: it is of these samples, but is not whole.
    """
    source = corpus.info
    info = _found(dest, options)
    if info is None or options.images or not _is_container(info, options):
        return None
    are_equal = (info.corpus, info.classes) == (source.corpus, source.classes)
    if not are_equal or _samples(info) != _samples(source):
        return None
    if not all(split.has_checksums for split in source.splits.values()):
        return None
    _refuse_broken(dest, info)
    return Standing(info, listed(corpus, options), 0)


def _samples(info: DatasetInfo) -> dict[str, Any]:
    return {
        name: (split.fingerprint, [shard.num_rows for shard in split.shards])
        for name, split in info.splits.items()
    }


def _found(dest: Path, options: PackOptions) -> DatasetInfo | None:
    """A dataset that nobody is to replace, and nobody is at."""
    is_under_way = (dest / WORK_NAME).exists() or is_marked(dest)
    if options.overwrite or is_under_way or not (dest / INDEX_NAME).is_file():
        return None
    try:
        return read_info(dest)
    except ShardkitError:
        return None


def listed(corpus: Corpus, options: PackOptions) -> Listing:
    """What a pack would list, without a work folder."""
    with TemporaryDirectory(prefix="shardkit-") as scratch:
        listing = Listing(Path(scratch))
        for _ in list_jobs(corpus, listing, options, Path(scratch)):
            pass
    return listing


def _is_as_asked(info: DatasetInfo, options: PackOptions) -> bool:
    """Whether pictures and containers are."""
    images = [options.images.to_json()] if options.images else []
    return info.corpus.get("images", []) == images and _is_container(info, options)


def _is_container(info: DatasetInfo, options: PackOptions) -> bool:
    """Of compressed ones nothing says how much they are."""
    splits = info.splits.values()
    encodings = [e for split in splits for layout in split.layouts for e in layout.values()]
    if options.compression is not None or any(e.codec for e in encodings):
        return False
    has_dali = any(name.endswith(".idx") for name in _files(info))
    return info.container == options.to and has_dali == options.dali_index


def _refuse_broken(dest: Path, info: DatasetInfo) -> None:
    for name, num_bytes in _files(info).items():
        if (found := file_size(dest / name)) != num_bytes:
            state = "is missing" if found < 0 else f"has {found} bytes, not {num_bytes}"
            raise DestinationError(
                f"{show_path(dest)} already holds a dataset of this input, but {show_path(name)}"
                f" {state}; pass --overwrite to pack again"
            )


def _refuse_younger(source: Path, dest: Path, info: DatasetInfo) -> None:
    """By the oldest file of the dataset: what changed after that, may have after it was read."""
    packed = min((dest / name).stat().st_mtime_ns for name in _files(info))
    for name, stamp in _stamps(source):
        if stamp > packed:
            raise DestinationError(
                f"{show_path(dest)} already holds a dataset of files of these names and sizes, but"
                f" {show_path(name)} changed after it was made; see what differs with `shardkit"
                " verify --against`, or pass --overwrite to replace it"
            )


def _stamps(source: Path) -> Iterator[tuple[str, int]]:
    """(name, when it changed last, in ns) of all files of the input, whatever is packed of them."""
    if not source.is_dir():
        yield source.name, _changed(source)
        return
    for folder in walk(source):
        for name in folder.names:
            path = join(folder.base, name)
            yield path, _changed(source / path)


def _changed(path: Path) -> int:
    status = os.stat(path)
    return max(status.st_mtime_ns, status.st_ctime_ns)


def _files(info: DatasetInfo) -> dict[str, int]:
    """Name -> bytes of all files of a dataset but shardkit.json and what was rejected."""
    found: dict[str, int] = {}
    for split in info.splits.values():
        found |= {name: num_bytes for name, (num_bytes, _) in split.files.items()}
        for shard in split.shards:
            found |= shard.file_bytes
    if info.tokenizer_file is not None:
        found[info.tokenizer_file] = info.corpus["tokens"]["bytes"]
    return found
