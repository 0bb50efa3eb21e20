"""The usual way: a folder as torchvision's ImageFolder reads it, Pillow, torch's DataLoader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crop import random_crop
from serve import BATCH, WORKERS, Epoch, files_of, read, serve
from torch.utils.data import DataLoader, Dataset


class Folder(Dataset[Any]):
    def __init__(self, folder: Path, work: str) -> None:
        self.files, self.work = files_of(folder), work

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        path, label = self.files[number]
        return (random_crop(read(path)) if self.work == "crop" else read(path)), label


def prepare(folder: Path, store: Path, work: str) -> None:
    """The folder is the format."""


def load(folder: Path, store: Path, work: str) -> Epoch:
    loader = DataLoader(
        Folder(folder, work), BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    return loader.__iter__


serve(["torch", "pillow", "pillow-simd"], prepare, load)
