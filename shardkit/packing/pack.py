"""``pack``: the public call, and what it makes of its arguments."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from shardkit.corpus import open_corpus
from shardkit.errors import UsageError
from shardkit.formats import FOR_TOKENS, FORMATS, get_format
from shardkit.images.choice import ImageChoice
from shardkit.packing.choose_tokenizer import refuse_without_text
from shardkit.packing.options import PackOptions
from shardkit.packing.result import PackResult
from shardkit.packing.run import run_pack
from shardkit.system.byte_sizes import parse_size
from shardkit.system.paths import as_path, show_path

__all__ = ["PackResult", "choose_dest", "pack", "parse_options", "refuse_choice"]

SHARD_SIZES = 4_000_000, 256_000_000
"""Input bytes of the first shards, and of the largest. 50,000 files of 1 KB are 13 shards, enough
for as many cores; one of 256 MB keeps a single core busy, or a single worker of a loader."""

TOKENS_SHARD_SIZES = 1_000_000, 32_000_000
"""Tokenizing takes a hundred times as long as copying, so a worker's share of it is smaller: some 3
seconds, so that few workers are idle at the end, and little is done again after a kill."""


def pack(
    source: str | Path,
    dest: str | Path | None = None,
    *,
    to: str | None = None,
    corpus: str | None = None,
    labels: str | Path | None = None,
    text_field: str | None = None,
    shard_size: str | int | None = None,
    **options: Any,
) -> PackResult:
    """Pack small files into shards that any tool can open.

    Call it again after an interruption, even a kill -9, and it goes on; the result is the same to
    the byte. It does not depend on the number of workers. On a dataset that is what it would make,
    it does nothing but say so in ``notes``.

    Args:
        source: a folder of images, image-text pairs, text or arrays; .jsonl or .parquet files, or
            one; a folder that Hugging Face datasets saved.
        dest: folder to make; default: the source's name and format, in the current folder.
        to: ``lmdb``, ``hdf5``, ``webdataset`` or ``npy``; may be left out for tokens, which go
            to npy then.
        corpus: kind of input, where it should not be detected.
        labels: csv or json of path -> label, where folders do not say.
        text_field: pack this field of each .jsonl line as ``txt``, not the whole line; the column
            of tables that is their text.
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
    src = as_path(source, "the source")
    opened = open_corpus(src, corpus, labels and Path(labels), text_field)
    if not opened.has_pictures:
        refuse_choice(made.images, f"{show_path(src)} is taken for {opened.kind}")
    if made.makes_tokens:
        refuse_without_text(opened, src)
    return run_pack(src, opened, choose_dest(src, dest, made.to), made, started)


def parse_options(
    to: str | None, shard_size: str | int | None, options: dict[str, Any]
) -> PackOptions:
    """What the caller of ``pack`` gave. Raises UsageError."""
    makes_tokens = any(options.get(name) is not None for name in ("tokenizer", "train_tokenizer"))
    if to is None and not makes_tokens:
        raise UsageError(f"to is missing: choose a format, one of {', '.join(FORMATS)}")
    sizes = TOKENS_SHARD_SIZES if makes_tokens else SHARD_SIZES
    given = sizes if shard_size is None else parse_size(shard_size)
    try:
        return PackOptions(to=to or FOR_TOKENS, shard_bytes=given, **options)
    except TypeError as error:
        raise UsageError(f"pack: {error}") from error


def refuse_choice(choice: ImageChoice, why: str) -> None:
    """Raise UsageError if anything was chosen for pictures, where there are none."""
    if choice:
        raise UsageError(f"{why}, and has no pictures: leave out {choice}")


def choose_dest(source: Path, dest: str | Path | None, to: str) -> Path:
    """``dest``, or for none, ``imagenet/`` to lmdb -> ``imagenet-lmdb`` in the current folder."""
    if dest:
        return Path(dest)
    resolved = source.resolve()
    name = resolved.name if resolved.is_dir() else resolved.name.partition(".")[0]
    return Path(f"{name or 'dataset'}-{get_format(to).name}")
