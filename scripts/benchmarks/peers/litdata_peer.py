"""LitData: ``optimize`` into chunks of 64 MB, then StreamingDataset and StreamingDataLoader.

The files are stored as they are: a PIL image in a sample would be decoded by torchvision.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crop import random_crop
from litdata import StreamingDataLoader, StreamingDataset, optimize
from serve import BATCH, WORKERS, Epoch, files_of, read, serve


class Pictures(StreamingDataset):
    work = "raw"

    def __getitem__(self, index: Any) -> tuple[Any, int]:
        file, label = super().__getitem__(index)
        return (random_crop(file) if self.work == "crop" else bytes(file)), label


def sample(entry: tuple[str, int]) -> tuple[bytes, int]:
    path, label = entry
    return read(path), label


def prepare(folder: Path, store: Path, work: str) -> None:
    optimize(
        fn=sample,
        inputs=files_of(folder),
        output_dir=str(store / "chunks"),
        chunk_bytes="64MB",
        num_workers=1,
    )


def load(folder: Path, store: Path, work: str) -> Epoch:
    dataset = Pictures(str(store / "chunks"), shuffle=True)
    dataset.work = work
    loader = StreamingDataLoader(
        dataset, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True
    )
    epoch: Epoch = loader.__iter__
    return epoch


if __name__ == "__main__":
    serve(["litdata", "torch", "pillow"], prepare, load)
