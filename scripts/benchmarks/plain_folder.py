"""The side that shardkit is compared with: a folder of class folders of JPEG files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.reading.dataset import Dataset

Batches = list[np.ndarray[Any, np.dtype[np.int64]]]


@dataclass(frozen=True)
class PlainFolder:
    """Paths and class indices of all files, in packing order (sorted, class after class)."""

    paths: list[str]
    labels: list[int]

    @classmethod
    def of(cls, folder: Path) -> PlainFolder:
        names = sorted(entry.name for entry in folder.iterdir())
        files = [
            (str(path), label)
            for label, name in enumerate(names)
            for path in sorted((folder / name).iterdir())
        ]
        return cls([path for path, _ in files], [label for _, label in files])

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, rows: np.ndarray[Any, Any]) -> tuple[list[bytes], list[int]]:
        """Contents and labels, as a Dataset of ImageFolder's kind reads them."""
        numbers = rows.tolist()
        return [read_file(self.paths[row]) for row in numbers], [self.labels[r] for r in numbers]

    def batches(self, size: int, seed: int = 0) -> Batches:
        """One shuffled epoch of rows, cut into batches."""
        order = np.random.default_rng(seed).permutation(len(self))
        return [order[start : start + size] for start in range(0, len(order), size)]

    def check_same(self, name: str, dataset: Dataset) -> None:
        """Stop the program unless every row of the dataset is the file, and label, of that row."""
        if len(dataset) != len(self):
            raise SystemExit(f"{name} has {len(dataset)} samples, the folder {len(self)}")
        step = 4096
        for start in range(0, len(self), step):
            rows = np.arange(start, min(start + step, len(self)))
            batch, (pictures, labels) = dataset.read(rows), self.read(rows)
            stored = (bytes(value or b"") for value in batch["jpg"])
            same = all(a == b for a, b in zip(stored, pictures, strict=True))
            if not same or list(batch["cls"]) != labels:
                raise SystemExit(f"{name} does not return the data of the folder, from row {start}")


def read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
