"""Hugging Face datasets: an ImageFolder saved as Arrow, ``with_transform``, torch's DataLoader."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

from crop import random_crop
from datasets import Image, load_dataset, load_from_disk
from serve import BATCH, WORKERS, Epoch, serve
from torch.utils.data import DataLoader, default_collate


def prepare(folder: Path, store: Path, work: str) -> None:
    """``save_to_disk`` puts the files into the Arrow files; until then there are only paths."""
    made = load_dataset(
        "imagefolder", data_dir=str(folder), split="train", cache_dir=str(store / "cache")
    )
    made.cast_column("image", Image(decode=False)).save_to_disk(str(store / "arrow"))


def load(folder: Path, store: Path, work: str) -> Epoch:
    dataset = load_from_disk(str(store / "arrow"))
    if work == "crop":
        dataset = dataset.with_transform(crops)
    loader = DataLoader(
        dataset,
        BATCH,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=True,
        collate_fn=collate,
    )
    return loader.__iter__


def crops(columns: dict[str, Any]) -> dict[str, Any]:
    return {**columns, "image": [random_crop(image["bytes"]) for image in columns["image"]]}


def collate(samples: list[dict[str, Any]]) -> Any:
    """Raw files come as dicts of bytes and path."""
    images = [s["image"]["bytes"] if isinstance(s["image"], dict) else s["image"] for s in samples]
    return default_collate([(i, s["label"]) for i, s in zip(images, samples, strict=True)])


serve(["datasets", "torch", "pillow"], prepare, load)
