"""``convert``: a dataset into another container, sample for sample, shard for shard."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from shardkit.corpus.dataset import DatasetCorpus
from shardkit.errors import UsageError
from shardkit.indexing.locate import locate
from shardkit.packing.options import PackOptions
from shardkit.packing.pack import Origin, PackResult, default_dest, run_pack
from shardkit.packing.settle import REJECTED_NAME
from shardkit.storage import os_errors


def convert(
    dataset: str | Path, dest: str | Path | None = None, *, to: str, **options: Any
) -> PackResult:
    """Write a dataset, or WebDataset tars made by others, in another container format.

    Lossless: keys, original paths, every byte of every value and the cut into shards are kept, so
    converting there and back gives identical files.

    Args:
        dataset: its folder. dest: folder to make; default: the name and format, here.
        to: ``lmdb``, ``hdf5``, ``webdataset`` or ``npy``.
        options: ``workers``, ``compression``, ``overwrite``, ``progress``.

    Raises:
        UsageError: the call or the destination is wrong. DataError: the dataset is damaged.
    """
    unknown = options.keys() - {"workers", "compression", "overwrite", "progress"}
    if unknown:
        raise UsageError(f"convert takes no option {sorted(unknown)[0]!r}")
    started = time.perf_counter()
    source = Path(dataset)
    place = locate(source)
    made = PackOptions(to=to, **options)
    corpus = DatasetCorpus(place.folder, place.info)
    target = Path(dest) if dest else default_dest(source, made.to)
    rejected = place.folder / REJECTED_NAME
    with os_errors(f"reading {rejected}"):
        origin = Origin(place.info.corpus, rejected.read_bytes() if rejected.exists() else b"")
    return run_pack(source, corpus, target, made, started, origin)
