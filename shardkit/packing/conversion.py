"""``convert``: a dataset into another container, sample for sample, shard for shard."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import xxhash

from shardkit.arguments import unknown_option
from shardkit.errors import UsageError
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.index.assembling import check_unique_keys
from shardkit.index.manifest import SplitInfo, read_rejected
from shardkit.index.provenance import Provenance
from shardkit.index.rows import RowIndex
from shardkit.inputs.detection import container_at
from shardkit.inputs.records.packed import TokenFileCorpus, dataset_corpus
from shardkit.packing.finish import Origin
from shardkit.packing.options import PackOptions
from shardkit.packing.pack import choose_dest, pack, refuse_choice
from shardkit.packing.result import PackResult
from shardkit.packing.run import run_pack
from shardkit.remote.urls import Url, as_place, refuse_overlap, show_place
from shardkit.shards.locate import Located, locate, locate_place
from shardkit.system.paths import as_path, show_path
from shardkit.system.refusals import os_errors
from shardkit.system.stamps import size_and_stamp
from shardkit.tars.find import count_beside
from shardkit.tars.patterns import in_one_folder, is_pattern
from shardkit.tokens.id_evidence import told
from shardkit.tokens.id_files import is_token_file, open_token_file
from shardkit.tokens.load import open_tokenizer
from shardkit.tokens.spec import MAX_VOCABULARY, TokenizerSpec, smallest_dtype

OPTIONS = (
    "workers",
    "engine",
    "address",
    "resize",
    "max_side",
    "crop",
    "quality",
    "image_format",
    "restarts",
    "on_error",
    "max_rejects",
    "compression",
    "dali_index",
    "overwrite",
    "progress",
    "staging",
    "staging_bytes",
)
"""Options of a pack that make sense for what is packed already."""


def convert(
    dataset: str | Path | Sequence[str | Path],
    dest: str | Path | None = None,
    *,
    to: str,
    eos: int | None = None,
    stored_dtype: str | None = None,
    **options: Any,
) -> PackResult:
    """Write a dataset, tars of others, or files of token ids, in a container format: the part of
    :func:`shardkit.convert` that makes datasets. Arguments and errors are as of that.
    """
    if unknown := options.keys() - set(OPTIONS):
        raise unknown_option("convert", unknown)
    started = time.perf_counter()
    source, tars = source_of(dataset)
    made = PackOptions(to=to, **options)
    if isinstance(source, Path) and is_token_file(source, stored_dtype):
        made_at = choose_dest(source, dest, to)
        return _convert_token_file(source, made_at, made, eos, stored_dtype, started)
    for name, value in (("eos", eos), ("stored_dtype", stored_dtype)):
        if value is not None:
            raise UsageError(f"{name} is for files of token ids; {show_place(source)} is none")
    if isinstance(source, Url):
        target = choose_dest(source, dest, to)
        refuse_overlap(target, source)
        return _convert_located(source, None, target, made, started)
    if tars is None and (kind := container_at(source)) is not None:
        return pack(source, dest, to=to, corpus=kind, **options)
    made_at = choose_dest(_named(source, tars), dest, to)
    result = _convert_located(source, tars, made_at, made, started)
    if tars is None and not result.was_complete:
        count_beside(source, result.ignored)
    return result


def _convert_located(
    source: Path | Url,
    tars: list[str] | None,
    dest: Path | Url,
    options: PackOptions,
    started: float,
) -> PackResult:
    """Pack what has an index: a dataset, or tars made by others that are not compressed.

    Raises:
        UsageError: the destination is wrong. DataError: the dataset is damaged, or keys repeat.
    """
    located = locate(source, tars=tars) if isinstance(source, Path) else locate_place(source)
    origin = _origin(located)
    for split in _scanned(located):
        check_unique_keys(RowIndex(located.storage, located.info, split))
    if options.images and IMAGE_FIELDS.isdisjoint(located.info.fields):
        raise UsageError(
            f"{show_place(source)} holds {', '.join(located.info.fields)}, and has no pictures in"
            f" fields called jpg, png and the like: leave out {options.images}"
        )
    made = located.info.provenance.images
    if options.restarts and not options.images.writes_anew and made and made[-1].get("restarts"):
        raise UsageError(
            f"{show_place(source)} was packed with --restarts already: leave it out, and what is"
            " there is kept"
        )
    corpus = dataset_corpus(located, tars)
    folder = source if isinstance(source, Path) else located.folder
    return run_pack(folder, corpus, dest, options, started, origin)


def _origin(located: Located) -> Origin:
    """Return what the copy says of where it came from, and what tells that this has changed.

    Raises:
        DataError: the file of the dataset's tokenizer is damaged.
    """
    found = located.info.provenance
    # What was passed over in tars stays with the tars.
    spec = {name: value for name, value in found.spec.items() if name != "passed"}
    files, inputs = dict[str, bytes](), dict[str, list[int]]()
    if found.tokenizer_file is not None:
        tokenizer = open_tokenizer(located.folder, TokenizerSpec.from_json(found.tokens))
        files[found.tokenizer_file] = tokenizer.file
        inputs[found.tokenizer_file] = [xxhash.xxh3_64_intdigest(tokenizer.file)]
    shards = [shard for split in _scanned(located) for shard in split.shards]
    for name in (name for shard in shards for name in shard.file_bytes):
        # Of tars made by others no checksum tells that their bytes changed.
        tar = located.tars.get(name, located.folder / name)
        with os_errors(f"looking at {show_path(tar)}"):
            named = os.path.relpath(tar, located.folder_of_tars) if located.tars else tar.name
            inputs[named] = [*size_and_stamp(tar)]
    rejected = read_rejected(located.folder)
    return Origin(replace(found, spec=spec), rejected, inputs, files)


def source_of(dataset: str | Path | Sequence[str | Path]) -> tuple[Path | Url, list[str] | None]:
    """Return the source; of a list of tars, one of them and the names of all.

    Raises:
        UsageError: they lie in several folders.
    """
    if isinstance(dataset, str | os.PathLike) or len(dataset) == 1:
        only = dataset if isinstance(dataset, str | os.PathLike) else dataset[0]
        return as_place(only, "the dataset"), None
    folder, names = in_one_folder([as_path(path, "a tar") for path in dataset])
    return folder / names[0], names


def _named(source: Path, tars: list[str] | None) -> Path:
    """Return the path that the destination is named after by default."""
    if tars is None and not is_pattern(source):
        return source
    if tars is not None:
        # By characters: a-000 and a-001 are both of a.
        name = os.path.commonprefix(tars)  # noqa: RUF071
        name = name.partition(".")[0].rstrip("0123456789-_")
    else:
        name = re.split(r"[.{*?\[]", source.name)[0].rstrip("-_")
    return source.with_name(name) if name else source.parent


def _scanned(located: Located) -> list[SplitInfo]:
    """Return the splits whose index was made by scanning tars of others, in their place or staged:
    values have no checksums, and keys may repeat."""
    return [split for split in located.info.splits.values() if not split.has_checksums]


def _convert_token_file(
    source: Path,
    dest: Path | Url,
    options: PackOptions,
    eos: int | None,
    stored_dtype: str | None,
    started: float,
) -> PackResult:
    """Pack the documents of a file of ids, as :func:`open_token_file` opens it.

    The file is read once before, for its largest id: the smallest dtype that holds the vocabulary
    is that of the result.

    Raises:
        UsageError: the call or the destination is wrong. DataError: the file is damaged.
    """
    refuse_choice(options.images, f"{show_path(source)} holds tokens")
    if eos is not None and not 0 <= eos < MAX_VOCABULARY:
        raise UsageError(f"eos is an id from 0 to {MAX_VOCABULARY - 1}, got {eos}")
    with os_errors(f"reading {show_path(source)}"):
        file = open_token_file(source, eos, stored_dtype)
        largest = file.largest_id()
        inputs = {path.name: [*size_and_stamp(path)] for path in file.files}
    vocab_size = max(largest, -1 if eos is None else eos) + 1
    dtype = smallest_dtype(vocab_size)
    spec = TokenizerSpec(vocab_size=vocab_size, dtype=dtype, eos=eos)
    origin = Origin(Provenance({"kind": file.kind}, tokens=spec.to_json()), inputs=inputs)
    corpus = TokenFileCorpus(source, dtype, file, stored_dtype)
    if file.is_guess:
        corpus.notes = [told(file.files[0], len(file.data), largest)]
    return run_pack(source, corpus, dest, options, started, origin)
