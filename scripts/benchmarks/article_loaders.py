"""The other side of bench_claims.py, as articles on fast loading write it: torch's DataLoader over
a folder of files, and over one LMDB through the library of that name.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
from PIL import Image
from plain_folder import PlainFolder, read_file
from torch.utils.data import DataLoader, Dataset

SIZE = 224

Make = Callable[[bytes, int], Any]
"""What becomes of a file's bytes; the number of the sample chooses the crop."""


@dataclass
class Folder(Dataset[Any]):
    """A file a sample, opened and read when asked for."""

    files: PlainFolder
    make: Make

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> Any:
        return self.make(read_file(self.files.paths[number]), number), self.files.labels[number]

    def close(self) -> None:
        """Nothing is open between two samples."""


@dataclass
class Lmdb(Dataset[Any]):
    """One LMDB file for all; each worker opens it at its first sample.

    ``readahead``: where a page is missing, may the kernel read its neighbours, too? Many turn that
    off, as torchvision's LSUN does.
    """

    files: PlainFolder
    make: Make
    path: Path
    readahead: bool = True
    env: Any = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> Any:
        if self.env is None:
            self.env = lmdb.open(
                str(self.path),
                subdir=False,
                readonly=True,
                lock=False,
                readahead=self.readahead,
                meminit=False,
            )
        with self.env.begin() as transaction:
            value = transaction.get(b"%08d.jpg" % number)
        return self.make(value, number), self.files.labels[number]

    def close(self) -> None:
        if self.env is not None:
            self.env.close()
        self.env = None


def torch_loader(
    dataset: Any, batch_size: int, workers: int, *, persistent: bool, prefetch_factor: int = 2
) -> Iterable[Any]:
    """Any number of epochs, each in another order."""
    return DataLoader(
        dataset,
        batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=persistent and workers > 0,
        prefetch_factor=prefetch_factor if workers else None,
    )


def keep(file: bytes, number: int) -> bytes:
    return file


def resize(file: bytes, number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The whole picture: uint8 (224, 224, 3)."""
    with Image.open(io.BytesIO(file)) as image:
        rgb = image.convert("RGB")
    return np.array(rgb.resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def crop(file: bytes, number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A part of 8 to 100 % of the area, always the same of a sample: uint8 (224, 224, 3)."""
    area, x, y = np.random.default_rng(number).uniform(size=3).tolist()
    side = (0.08 + 0.92 * area) ** 0.5
    with Image.open(io.BytesIO(file)) as image:
        rgb = image.convert("RGB")
    left, top = x * (1 - side) * rgb.width, y * (1 - side) * rgb.height
    box = (left, top, left + side * rgb.width, top + side * rgb.height)
    return np.array(rgb.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box))
