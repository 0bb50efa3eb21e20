"""``convert``: a dataset into another container, sample for sample, shard for shard."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import xxhash

from shardkit.corpus.dataset import DatasetCorpus
from shardkit.corpus.token_files import is_token_file, open_token_file
from shardkit.corpus.tokens import TokenFileCorpus, largest_id
from shardkit.errors import UsageError
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.index.assembling import check_unique_keys
from shardkit.index.manifest import SplitInfo, read_rejected
from shardkit.index.provenance import Provenance
from shardkit.index.rows import RowIndex
from shardkit.packing.finish import Origin
from shardkit.packing.options import PackOptions
from shardkit.packing.pack import choose_dest, refuse_choice
from shardkit.packing.result import PackResult
from shardkit.packing.run import run_pack
from shardkit.shards.locate import Located, locate
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors
from shardkit.system.stamps import size_and_stamp
from shardkit.tokens.load import open_tokenizer
from shardkit.tokens.spec import MAX_VOCABULARY, TokenizerSpec, smallest_dtype

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
        return _convert_token_file(source, choose_dest(source, dest, to), made, eos, started)
    if eos is not None:
        raise UsageError(f"eos is for files of token ids; {show_path(source)} is none")
    located = locate(source)
    stamps = _tar_stamps(located)
    for split in _scanned(located):
        check_unique_keys(RowIndex(located.storage, located.info, split))
    if IMAGE_FIELDS.isdisjoint(located.info.fields):
        refuse_choice(made.images, f"{show_path(source)} holds {', '.join(located.info.fields)}")
    corpus = DatasetCorpus(located.folder, located.info)
    files = _tokenizer_file(located)
    stamps |= {name: [xxhash.xxh3_64_intdigest(data)] for name, data in files.items()}
    origin = Origin(located.info.provenance, read_rejected(located.folder), stamps, files)
    return run_pack(source, corpus, choose_dest(source, dest, to), made, started, origin)


def _tokenizer_file(located: Located) -> dict[str, bytes]:
    """The file of a dataset's tokenizer, under its name. Raises DataError if it is damaged."""
    provenance = located.info.provenance
    if provenance.tokenizer_file is None:
        return {}
    spec = TokenizerSpec.from_json(provenance.tokens)
    return {provenance.tokenizer_file: open_tokenizer(located.folder, spec).file}


def _tar_stamps(located: Located) -> dict[str, list[int]]:
    """Sizes and stamps of tars made by others: no checksum tells that their bytes changed."""
    stamps = {}
    for split in _scanned(located):
        for name in (name for shard in split.shards for name in shard.file_bytes):
            tar = located.tars.get(name, located.folder / name)
            with os_errors(f"looking at {show_path(tar)}"):
                stamps[tar.name] = [*size_and_stamp(tar)]
    return stamps


def _scanned(located: Located) -> list[SplitInfo]:
    """The splits whose index was made by scanning tars of others: values have no checksums, and
    keys may repeat. So it is of tars where they lie, and of a staged copy."""
    return [split for split in located.info.splits.values() if not split.has_checksums]


def _convert_token_file(
    source: Path, dest: Path, options: PackOptions, eos: int | None, started: float
) -> PackResult:
    """Pack the documents of a file of ids; ``eos`` as of :func:`open_token_file`.

    The file is read once before, for its largest id: the smallest dtype that holds the vocabulary
    is that of the result.

    Raises:
        UsageError: the call or the destination is wrong. DataError: the file is damaged.
    """
    refuse_choice(options.images, f"{show_path(source)} holds tokens")
    if eos is not None and not 0 <= eos < MAX_VOCABULARY:
        raise UsageError(f"eos is an id from 0 to {MAX_VOCABULARY - 1}, got {eos}")
    with os_errors(f"reading {show_path(source)}"):
        file = open_token_file(source, eos)
        vocab_size = max(largest_id(file), -1 if eos is None else eos) + 1
        inputs = {path.name: [*size_and_stamp(path)] for path in file.files}
    dtype = smallest_dtype(vocab_size)
    spec = TokenizerSpec(vocab_size=vocab_size, dtype=dtype, eos=eos)
    origin = Origin(Provenance({"kind": file.kind}, tokens=spec.to_json()), inputs=inputs)
    corpus = TokenFileCorpus(source, dtype, file)
    return run_pack(source, corpus, dest, options, started, origin)
