"""MosaicML Streaming: MDS shards of 64 MB on the local disk, torch's DataLoader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import no_torchvision  # noqa: F401
from crop import random_crop
from serve import BATCH, WORKERS, Epoch, files_of, read, serve
from streaming import MDSWriter, StreamingDataset
from torch.utils.data import DataLoader


class Pictures(StreamingDataset):
    work = "raw"

    def __getitem__(self, index: Any) -> tuple[Any, int]:
        sample = super().__getitem__(index)
        file = sample["jpg"]
        return (random_crop(file) if self.work == "crop" else file), sample["cls"]


def prepare(folder: Path, store: Path, work: str) -> None:
    with MDSWriter(out=str(store / "mds"), columns={"jpg": "bytes", "cls": "int"}) as writer:
        for path, label in files_of(folder):
            writer.write({"jpg": read(path), "cls": label})


def load(folder: Path, store: Path, work: str) -> Epoch:
    dataset = Pictures(local=str(store / "mds"), shuffle=True, batch_size=BATCH)
    dataset.work = work
    loader: DataLoader[Any] = DataLoader(
        dataset, BATCH, num_workers=WORKERS, persistent_workers=True
    )
    return loader.__iter__


if __name__ == "__main__":
    serve(["mosaicml-streaming", "torch", "pillow"], prepare, load)
