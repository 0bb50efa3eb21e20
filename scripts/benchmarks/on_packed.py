"""A training script over pictures, with its DataLoader replaced by what the doctor advises.

    on_packed.py DATASET SIDE SCRIPT [ARGUMENT ...]

The script's own code stays: the model, the optimizer, what is printed. Its batches are crops of
SIDE pixels, made by shardkit.Loader from what ``shardkit pack`` made of its pictures.
"""

from __future__ import annotations

import importlib
import itertools
import math
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.utils.data

import shardkit


class Packed:
    """Stands for a DataLoader: the same number of batches, of the same form."""

    def __init__(self, dataset: Any, batch_size: int = 1, sampler: Any = None, **_: Any) -> None:
        transform = shardkit.images.train(SIDE)
        self.dataset, self.batch_size = dataset, batch_size
        self._loader = shardkit.Loader(
            shardkit.open(DATASET),
            batch_size,
            shuffle="full",
            transform=transform,
            workers="auto",
            with_keys=True,
        )
        self._is_named = isinstance(dataset[0], dict)
        self._num = None if sampler is None else math.ceil(len(sampler) / batch_size)

    def __len__(self) -> int:
        return len(self._loader) if self._num is None else self._num

    def __iter__(self) -> Iterator[Any]:
        if self._num is None:
            yield from map(self._formed, self._loader)
            return
        epochs = itertools.chain.from_iterable(itertools.repeat(self._loader))
        yield from map(self._formed, itertools.islice(epochs, self._num))

    def _formed(self, batch: dict[str, Any]) -> Any:
        images = batch["image"].permute(0, 3, 1, 2).float() / 255
        labels = batch.get("cls")
        if labels is None:  # a folder without classes: the names begin with them
            labels = torch.tensor([int(key[0]) for key in batch["__key__"]])
        return {"pixel_values": images, "labels": labels} if self._is_named else (images, labels)


if __name__ == "__main__":
    DATASET, SIDE, script = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    sys.argv, sys.path[0] = sys.argv[3:], str(script.parent)
    text = script.read_text()
    if "import lightning" in text:  # what is imported now knows torch's own DataLoader
        importlib.import_module("lightning")
    is_trainers = "transformers import Trainer" in text
    makes = importlib.import_module("transformers.trainer") if is_trainers else torch.utils.data
    setattr(makes, "DataLoader", Packed)  # noqa: B010 - of a module
    runpy.run_path(str(script), run_name="__main__")
