#!/usr/bin/env python3
"""Pictures through NVIDIA DALI, decoded on the GPU where there is one: the example to copy.

    shardkit pack pictures/ pictures-tar --to webdataset --dali-index
    python scripts/examples/dali_pipeline.py pictures-tar                # in shardkit's order
    python scripts/examples/dali_pipeline.py pictures-tar --reader tar   # DALI reads the tars

The first reads any format, in the order of shardkit.Loader: exact, resumable at any batch, alike
for any number of GPUs. The second reads tars alone, in DALI's order, without Python in between.

Needs DALI (pip install nvidia-dali-cuda130, or -cuda120), not torch.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from nvidia.dali import fn, types
from nvidia.dali.backend import GetCUDADeviceCount
from nvidia.dali.pipeline import pipeline_def

import shardkit
from shardkit.errors import ShardkitError

MEAN = [0.485 * 255, 0.456 * 255, 0.406 * 255]
STD = [0.229 * 255, 0.224 * 255, 0.225 * 255]
"""Of ImageNet, in the 0 to 255 that uint8 pixels have."""


@pipeline_def
def from_shardkit(feed: shardkit.dali.ExternalSource, device: str, size: int) -> tuple[Any, Any]:
    """Encoded pictures and labels come from shardkit, in its order."""
    jpegs, labels = fn.external_source(source=feed, num_outputs=2, batch=True, batch_info=True)
    return augmented(jpegs, device, size), labels


@pipeline_def
def from_tars(
    feed: shardkit.dali.ExternalSource, tars: list[Path], device: str, size: int
) -> tuple[Any, Any]:
    """Encoded pictures and labels come from DALI's own reader, by its index beside each tar.

    Of ``feed`` only its rank and fields are used. Labels come as the digits that are in the tar.
    """
    jpegs, digits = fn.readers.webdataset(
        paths=[str(tar) for tar in tars],
        index_paths=[str(tar.with_suffix(".idx")) for tar in tars],
        ext=[";".join(names) for names in feed.outputs],  # "jpg;png", "cls"
        shard_id=feed.maker.ranks.rank,
        num_shards=feed.maker.ranks.world_size,
        random_shuffle=True,
        name="reader",
    )
    return augmented(jpegs, device, size), digits


def augmented(jpegs: Any, device: str, size: int) -> Any:
    """Decode, crop and flip at random, normalise: float (3, size, size) each, on ``device``."""
    images = fn.decoders.image_random_crop(jpegs, device="mixed" if device == "gpu" else "cpu")
    images = fn.resize(images, size=size)
    flip = fn.random.coin_flip(probability=0.5)
    return fn.crop_mirror_normalize(
        images, mirror=flip, mean=MEAN, std=STD, dtype=types.FLOAT, output_layout="CHW"
    )


def build(options: argparse.Namespace) -> tuple[Any, int]:
    """The pipeline, on the GPU of this rank if there is one; batches of an epoch."""
    device = "gpu" if GetCUDADeviceCount() else "cpu"
    common = {
        "batch_size": options.batch_size,
        "num_threads": options.threads,
        "device_id": int(os.environ.get("LOCAL_RANK", "0")) if device == "gpu" else None,
        "seed": options.seed,
        "device": device,
        "size": options.size,
    }
    # Rank and world size are those of the environment.
    dataset = shardkit.open(options.dataset)
    feed = shardkit.dali.source(dataset, options.batch_size, shuffle="full", seed=options.seed)
    if options.reader == "shardkit":
        return from_shardkit(feed, **common), len(feed)
    tars = sorted(options.dataset.glob("train-*.tar"))
    # Packed without --dali-index; or in another format, which it refuses.
    if not tars or not all(tar.with_suffix(".idx").exists() for tar in tars):
        shardkit.dali.write_index(options.dataset)
    return from_tars(feed, tars, **common), len(feed)


def epoch(pipeline: Any, num_batches: int, reader: str) -> Iterator[tuple[Any, list[int]]]:
    """(images, labels) of each batch. DALI's own reader goes round and round; our epochs end."""
    if reader == "tar":
        for _ in range(num_batches):
            images, digits = pipeline.run()
            yield images, [int(bytes(np.asarray(label))) for label in digits]  # b"7"
        return
    try:
        while True:
            images, labels = pipeline.run()
            yield images, np.asarray(labels.as_tensor()).tolist()
    except StopIteration:
        pipeline.reset()


def main(arguments: list[str] | None = None) -> None:
    options = parse_arguments(arguments)
    pipeline, num_batches = build(options)
    pipeline.build()
    for number in range(options.epochs):
        seen, started = 0, time.perf_counter()
        for _images, labels in epoch(pipeline, num_batches, options.reader):
            seen += len(labels)  # here the training step goes
        rate = seen / (time.perf_counter() - started)
        print(f"epoch {number}: {seen} images, {rate:,.0f} images/s", flush=True)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dataset", type=Path, help="a packed dataset of pictures")
    parser.add_argument("--reader", choices=["shardkit", "tar"], default="shardkit")
    parser.add_argument("--batch-size", type=int, default=64, help="(%(default)s)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="(one a core)")
    parser.add_argument("--epochs", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--size", type=int, default=224, help="side of a picture (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    try:
        main()
    except ShardkitError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
