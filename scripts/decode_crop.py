"""From a JPEG to the 224x224 pixels of a training sample: Pillow, and nothing of shardkit."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
from PIL import Image

SIZE = 224
AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Box = tuple[float, float, float, float]


def decode_crop(data: bytes | memoryview, rng: np.random.Generator) -> Pixels:
    """(224, 224, 3) uint8: a crop of random area and aspect, resized, flipped one time in two.

    ``draft`` lets libjpeg decode at a half, a quarter or an eighth of the size, as long as the
    crop still has the pixels that it is resized to.
    """
    image: Any = Image.open(io.BytesIO(data))
    width, height = image.size
    left, top, right, bottom = random_crop(width, height, rng)
    wanted = (round(width * SIZE / (right - left)), round(height * SIZE / (bottom - top)))
    image.draft("RGB", wanted)
    x, y = image.size[0] / width, image.size[1] / height
    box = (left * x, top * y, right * x, bottom * y)
    image = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
    if rng.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image)


def random_crop(width: int, height: int, rng: np.random.Generator) -> Box:
    """(left, top, right, bottom), drawn as torchvision's RandomResizedCrop draws it."""
    for _ in range(10):
        area = width * height * rng.uniform(*AREA)
        aspect = math.exp(rng.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return left, top, left + w, top + h
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side
