"""torchvision's RandomResizedCrop, on a picture of Pillow: what all peers in Python use."""

from __future__ import annotations

import io
import math
import random
from typing import Any

import numpy as np
from PIL import Image
from serve import SIZE


def random_crop(file: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Decode and crop: uint8 (224, 224, 3)."""
    image = Image.open(io.BytesIO(file)).convert("RGB")
    image = image.crop(box(image.width, image.height))
    return np.array(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def box(width: int, height: int) -> tuple[int, int, int, int]:
    """Left, top, right and bottom: 0.08 to 1 of the area, 3/4 to 4/3 as wide as high."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            return left, top, left + w, top + h
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
