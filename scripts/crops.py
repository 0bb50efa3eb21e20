"""From JPEG bytes to float batches: a loader's ``transform`` and its ``device_transform``."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import torch
from PIL import Image

Batch = dict[str, Any]
Box = tuple[float, float, float, float]


def random_box(width: int, height: int, rng: np.random.Generator) -> Box:
    """8 to 100 % of the picture in a shape near a square, as torchvision's RandomResizedCrop."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if w <= width and h <= height:
            left, top = rng.uniform(0, width - w), rng.uniform(0, height - h)
            return left, top, left + w, top + h
    return centre_box(width, height, 1.0)


def centre_box(width: int, height: int, share: float = 0.875) -> Box:
    side = min(width, height) * share
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def pixels(image: Image.Image, box: Box, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """(size, size, 3) uint8, of a box in the whole picture."""
    width, height = image.size
    shrink = max(1.0, min(box[2] - box[0], box[3] - box[1]) / size)
    # A JPEG is decoded at 1/2, 1/4 or 1/8 where the crop keeps enough pixels: up to 3x faster.
    image.draft("RGB", (int(width / shrink), int(height / shrink)))
    if image.mode != "RGB":
        image = image.convert("RGB")
    x, y = image.width / width, image.height / height
    right, bottom = min(box[2] * x, image.width), min(box[3] * y, image.height)
    box = (box[0] * x, box[1] * y, right, bottom)
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box))


def open_picture(sample: Batch) -> Image.Image:
    return Image.open(io.BytesIO(sample.get("jpg") or sample["png"]))


def train_sample(sample: Batch, rng: np.random.Generator, size: int) -> Batch:
    """``rng`` is the loader's: of this seed, epoch and position, whichever worker or rank calls."""
    image = open_picture(sample)
    picture = pixels(image, random_box(*image.size, rng), size)
    if rng.random() < 0.5:
        picture = picture[:, ::-1]
    return {"image": picture, "cls": sample["cls"]}


def val_sample(sample: Batch, size: int) -> Batch:
    image = open_picture(sample)
    return {"image": pixels(image, centre_box(*image.size), size), "cls": sample["cls"]}


class Normalise:
    """On the device. (B, H, W, 3) seen as (B, 3, H, W) *is* channels_last: nothing is moved."""

    def __init__(self, device: torch.device) -> None:
        self.mean = torch.tensor([123.7, 116.3, 103.5], device=device).view(3, 1, 1)
        self.std = torch.tensor([58.4, 57.1, 57.4], device=device).view(3, 1, 1)

    def __call__(self, batch: Batch) -> Batch:
        images = batch["image"].permute(0, 3, 1, 2).float()
        return {**batch, "image": images.sub_(self.mean).div_(self.std)}
