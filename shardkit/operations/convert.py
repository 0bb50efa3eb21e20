"""``convert``: a dataset in another container format, or as the files of another tool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardkit.errors import UsageError
from shardkit.operations.export import EXPORTS, export
from shardkit.packing.convert import convert as convert_dataset
from shardkit.packing.result import PackResult
from shardkit.system.refusals import os_errors


@os_errors("converting")
def convert(
    dataset: str | Path | Sequence[str | Path],
    dest: str | Path | None = None,
    *,
    to: str,
    eos: int | None = None,
    stored_dtype: str | None = None,
    **options: Any,
) -> PackResult:
    """Write a dataset, or WebDataset tars made by others, in another container format; or token ids
    of nanoGPT or Megatron as a dataset of tokens; or a dataset as the files of another tool.
    TFRecord, LMDB and HDF5 files of others, and files of arrays, are packed.

    Between container formats nothing is lost: keys, original paths, every byte of every value and
    the cut into shards are kept, so converting there and back gives identical files. Unless
    pictures are to be made smaller, or written in another format. Interrupted, the same call goes
    on where it was.

    Files of other tools are no dataset of ours. They appear under their name when all are whole; an
    interrupted call leaves nothing there, and begins anew. Its ``num_shards`` are files, and its
    ``notes`` say what they do not hold.

    Args:
        dataset: its folder, or the URL of that; or a file of ids; of tars a folder, one tar, a list
            of those in one folder, or a pattern like ``a-{000000..000002}.tar``; also ``.tar.gz``,
            ``.tar.zst``.
        dest: folder to make; default: the name and format, here.
        to: ``lmdb``, ``hdf5``, ``webdataset`` or ``npy``; or ``bin`` (nanoGPT's files of ids),
            ``megatron`` (``.bin`` and ``.idx``) or ``parquet`` (for Hugging Face ``datasets``).
        eos: of files of ids: the id that ends documents. nanoGPT's are cut into documents by it,
            else into pieces of :data:`shardkit.tokens.id_files.PIECE_TOKENS`.
        stored_dtype: of ids without a header: their dtype in the file, by default uint16.
        options: those of :class:`shardkit.packing.options.PackOptions` in
            :data:`shardkit.packing.convert.OPTIONS`; of these, files of other tools take
            ``overwrite`` and ``progress``.

    Raises:
        UsageError: the call or the destination is wrong. DataError: the dataset is damaged.
    """
    if to in EXPORTS:
        if stored_dtype is not None:
            raise UsageError(f"{dataset} is a file of ids: convert it to npy first, that to {to}")
        return export(dataset, dest, to, eos, **options)
    return convert_dataset(dataset, dest, to=to, eos=eos, stored_dtype=stored_dtype, **options)
