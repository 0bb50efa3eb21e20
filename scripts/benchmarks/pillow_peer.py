"""The usual way to feed pictures: Pillow in a DataLoader. Run by bench_images.py in any Python that
has torch and a Pillow; knows nothing of shardkit.

    python scripts/benchmarks/pillow_peer.py paths.json boxes.npy

Answers each line on stdin with one of JSON: ``versions``, ``epoch`` (its seconds) or ``save FILE``
(the first batch).
"""

from __future__ import annotations

import io
import json
import sys
import time
from typing import Any

import numpy as np
import PIL
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

SIZE = 224


class Pictures(Dataset[Any]):
    """The files in memory, and for each the box (left, top, width, height) and flip to use."""

    def __init__(self, paths: list[str], boxes: Any) -> None:
        self.files = [read(path) for path in paths]
        self.boxes = boxes

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> Any:
        left, top, width, height, flip = self.boxes[i].tolist()
        image = Image.open(io.BytesIO(self.files[i])).convert("RGB")
        image = image.crop((left, top, left + width, top + height))
        image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        if flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.array(image)


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def answer(words: list[str], loader: Any) -> Any:
    if words[0] == "versions":
        return {"pillow": PIL.__version__, "torch": torch.__version__}
    if words[0] == "save":
        np.save(words[1], next(iter(loader)).numpy())
        return None
    started = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - started


def main() -> None:
    paths, boxes, batch, workers = sys.argv[1:]
    with open(paths, encoding="utf-8") as file:
        pictures = Pictures(json.load(file), np.load(boxes))
    # Workers live on: starting them is not on the clock.
    loader = DataLoader(
        pictures, batch_size=int(batch), num_workers=int(workers), persistent_workers=True
    )
    for line in sys.stdin:
        print(json.dumps(answer(line.split(), loader)), flush=True)


if __name__ == "__main__":
    main()
