"""``convert``: a dataset into another container, sample for sample, shard for shard."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import xxhash

from shardkit.corpus.dataset import DatasetCorpus
from shardkit.corpus.token_files import is_token_file
from shardkit.errors import UsageError
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.index.assembling import check_unique_keys
from shardkit.index.manifest import SplitInfo, read_rejected
from shardkit.index.rows import RowIndex
from shardkit.packing.convert_tokens import convert_token_file
from shardkit.packing.options import PackOptions
from shardkit.packing.pack import Origin, PackResult, choose_dest, refuse_choice, run_pack
from shardkit.shards.locate import Located, locate
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors
from shardkit.tokens.load import open_tokenizer
from shardkit.tokens.spec import TokenizerSpec

OPTIONS = (
    "workers",
    "resize",
    "max_side",
    "crop",
    "quality",
    "image_format",
    "on_error",
    "max_rejects",
    "compression",
    "dali_index",
    "overwrite",
    "progress",
)
"""Options of a pack that make sense for what is packed already."""


def convert(
    dataset: str | Path,
    dest: str | Path | None = None,
    *,
    to: str,
    eos: int | None = None,
    **options: Any,
) -> PackResult:
    """Write a dataset, or WebDataset tars made by others, in another container format; or token ids
    of nanoGPT or Megatron as a dataset of tokens.

    Lossless: keys, original paths, every byte of every value and the cut into shards are kept, so
    converting there and back gives identical files. Unless pictures are to be made smaller, or
    written in another format.

    Args:
        dataset: its folder, or a file of ids. dest: folder to make; default: the name and format,
            here.
        to: ``lmdb``, ``hdf5``, ``webdataset`` or ``npy``.
        eos: of files of ids: the id that ends documents. nanoGPT's are cut into documents by it,
            else into pieces of :data:`shardkit.corpus.tokens.PIECE_TOKENS`.
        options: those of :class:`shardkit.packing.options.PackOptions` in :data:`OPTIONS`.

    Raises:
        UsageError: the call or the destination is wrong. DataError: the dataset is damaged.
    """
    unknown = options.keys() - set(OPTIONS)
    if unknown:
        raise UsageError(f"convert takes no option {sorted(unknown)[0]!r}")
    started = time.perf_counter()
    source = Path(dataset)
    made = PackOptions(to=to, **options)
    if is_token_file(source):
        return convert_token_file(source, choose_dest(source, dest, to), made, eos, started)
    if eos is not None:
        raise UsageError(f"eos is for files of token ids; {show_path(source)} is none")
    place = locate(source)
    stamps = _tar_stamps(place)
    for split in _scanned(place):
        check_unique_keys(RowIndex(place.storage, place.info, split))
    if IMAGE_FIELDS.isdisjoint(place.info.fields):
        refuse_choice(made.images, f"{show_path(source)} holds {', '.join(place.info.fields)}")
    corpus = DatasetCorpus(place.folder, place.info)
    files = _tokenizer_file(place)
    stamps |= {name: [xxhash.xxh3_64_intdigest(data)] for name, data in files.items()}
    origin = Origin(place.info.corpus, read_rejected(place.folder), stamps, files)
    return run_pack(source, corpus, choose_dest(source, dest, to), made, started, origin)


def _tokenizer_file(place: Located) -> dict[str, bytes]:
    """The file of a dataset's tokenizer, under its name. Raises DataError if it is damaged."""
    tokens = place.info.corpus.get("tokens")
    if tokens is None or place.info.tokenizer_file is None:
        return {}
    spec = TokenizerSpec.from_json(tokens)
    return {place.info.tokenizer_file: open_tokenizer(place.folder, spec).file}


def _tar_stamps(place: Located) -> dict[str, list[int]]:
    """Size and mtime_ns of tars made by others: no checksum tells that their bytes changed."""
    stamps = {}
    for split in _scanned(place):
        for name in (name for shard in split.shards for name in shard.file_bytes):
            tar = place.tars.get(name, place.folder / name)
            with os_errors(f"looking at {show_path(tar)}"):
                found = tar.stat()
            stamps[tar.name] = [found.st_size, found.st_mtime_ns]
    return stamps


def _scanned(place: Located) -> list[SplitInfo]:
    """The splits whose index was made by scanning tars of others: values have no checksums, and
    keys may repeat. So it is of tars where they lie, and of a staged copy."""
    return [split for split in place.info.splits.values() if not split.has_checksums]
