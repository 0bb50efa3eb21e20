"""webdataset as its README says: shards in shuffled order, a buffer of 1,000, batches in workers.

Its shards are recommended larger (1 GB); here there must be several for each worker.
"""

from __future__ import annotations

from pathlib import Path

import webdataset
from crop import random_crop
from serve import BATCH, WORKERS, Epoch, files_of, read, serve

NUM_SHARDS = 20


def prepare(folder: Path, store: Path, work: str) -> None:
    files = files_of(folder)
    numbers = range(len(files))
    for shard in range(NUM_SHARDS):
        with webdataset.TarWriter(str(store / f"{shard:05d}.tar")) as tar:
            # Every 20th: neighbours in the folder are of one class.
            for number in numbers[shard::NUM_SHARDS]:
                path, label = files[number]
                tar.write({"__key__": f"{number:08d}", "jpg": read(path), "cls": label})


def load(folder: Path, store: Path, work: str) -> Epoch:
    tars = sorted(map(str, store.iterdir()))
    dataset = (
        webdataset.WebDataset(tars, shardshuffle=NUM_SHARDS)
        .shuffle(1000)
        .to_tuple("jpg", "cls")
        .map_tuple(random_crop if work == "crop" else bytes, int)
        .batched(BATCH)
    )
    loader = webdataset.WebLoader(
        dataset, batch_size=None, num_workers=WORKERS, persistent_workers=True
    )
    epoch: Epoch = loader.__iter__
    return epoch


serve(["webdataset", "torch", "pillow"], prepare, load)
