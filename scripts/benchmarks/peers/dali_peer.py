"""NVIDIA DALI on the CPU: its file reader and its decoder that decodes only the crop.

Runs are scheduled by hand, so that nothing is made ahead between two epochs, off the clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from nvidia.dali import fn
from nvidia.dali.pipeline import Pipeline
from serve import BATCH, SIZE, WORKERS, Epoch, files_of, serve

DEPTH = 2


def prepare(folder: Path, store: Path, work: str) -> None:
    """The folder is the format."""


def load(folder: Path, store: Path, work: str) -> Epoch:
    with Pipeline(BATCH, WORKERS, device_id=None, prefetch_queue_depth=DEPTH) as pipeline:
        files, labels = fn.readers.file(
            file_root=str(folder), shuffle_after_epoch=True, pad_last_batch=True
        )
        images = crops(files) if work == "crop" else files
        pipeline.set_outputs(images, labels)
    pipeline.build()
    num = len(files_of(folder))

    def epoch() -> Iterator[tuple[Any, Any]]:
        num_batches = -(-num // BATCH)
        for _ in range(min(DEPTH, num_batches)):
            pipeline.schedule_run()
        for number in range(num_batches):
            images, labels = pipeline.share_outputs()
            real = min(BATCH, num - number * BATCH)
            yield batch(images, work, real), np.asarray(labels.as_tensor())[:real]
            pipeline.release_outputs()
            if number + DEPTH < num_batches:
                pipeline.schedule_run()

    return epoch


def crops(files: Any) -> Any:
    """Area and ratio as torchvision's RandomResizedCrop has them; these are DALI's defaults."""
    images = fn.decoders.image_random_crop(
        files, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
    )
    return fn.resize(images, size=[SIZE, SIZE])


def batch(images: Any, work: str, real: int) -> Any:
    """Views of DALI's memory, good until the next batch."""
    if work == "crop":
        return np.asarray(images.as_tensor())[:real]
    return [np.asarray(images[number]) for number in range(real)]


serve(["nvidia-dali-cuda130"], prepare, load)
