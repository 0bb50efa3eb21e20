"""FFCV: one file of its own; pictures as in its ImageNet recipe, but all of them JPEG.

It writes every picture anew, 500 pixels at most, at quality 90. (The recipe keeps half of them as
pixels, in a file some five times as large.) Raw files come as rows of one array, padded.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields import BytesField, IntField, RGBImageField
from ffcv.fields.basics import IntDecoder
from ffcv.fields.bytes import BytesDecoder
from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder, SimpleRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.writer import DatasetWriter
from PIL import Image
from serve import BATCH, PICTURES, SIZE, SMALL_BATCH, WORKERS, Epoch, files_of, read, serve


class Samples:
    """What the writer asks for: (image, label), or (file, its length, label)."""

    def __init__(self, folder: Path, work: str) -> None:
        self.files, self.work = files_of(folder), work

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        path, label = self.files[number]
        if self.work in PICTURES:
            return Image.open(path).convert("RGB"), label
        file = np.frombuffer(read(path), np.uint8)
        return file, len(file), label


def prepare(folder: Path, store: Path, work: str) -> None:
    image = RGBImageField(write_mode="jpg", max_resolution=500, jpeg_quality=90)
    fields = {"image": image} if work in PICTURES else {"file": BytesField(), "length": IntField()}
    writer = DatasetWriter(
        str(store / "dataset.beton"), {**fields, "label": IntField()}, num_workers=WORKERS
    )
    writer.from_indexed_dataset(Samples(folder, work))


def load(folder: Path, store: Path, work: str) -> Epoch:
    pipelines: dict[str, list[Any]] = {"file": [BytesDecoder()]}
    if work in PICTURES:
        is_crop = work == "crop"
        crop = RandomResizedCropRGBImageDecoder((SIZE, SIZE))
        pipelines = {"image": [crop if is_crop else SimpleRGBImageDecoder()]}
    loader = Loader(
        str(store / "dataset.beton"),
        batch_size=BATCH if work in ("crop", "raw") else SMALL_BATCH,
        num_workers=WORKERS,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={**pipelines, "label": [IntDecoder()]},
    )

    def raw_epoch() -> Iterator[tuple[Any, Any]]:
        for files, lengths, labels in loader:
            sizes = lengths.ravel().tolist()
            yield [row[:size] for row, size in zip(files, sizes, strict=True)], labels

    def small_epoch() -> Iterator[tuple[Any, Any]]:
        return ((files, labels) for files, _, labels in loader)

    pictures: Epoch = loader.__iter__
    others: dict[str, Epoch] = {"crop": pictures, "tiny": pictures, "raw": raw_epoch}
    return others.get(work, small_epoch)


if __name__ == "__main__":
    serve(["ffcv", "torch", "pillow"], prepare, load)
