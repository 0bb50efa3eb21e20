"""shardkit: packed as LMDB, fed by its Loader with threads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch  # noqa: F401  imported when it is first needed, else: by the first epoch
from serve import BATCH, SIZE, WORKERS, Epoch, serve

import shardkit


def prepare(folder: Path, store: Path, work: str) -> None:
    shardkit.pack(folder, store / "packed", to="lmdb", progress=False)


def load(folder: Path, store: Path, work: str) -> Epoch:
    crop = shardkit.images.train(SIZE, flip=0) if work == "crop" else None
    loader = shardkit.Loader(
        shardkit.open(store / "packed"),
        BATCH,
        shuffle="full",
        transform=crop,
        workers=WORKERS,
        last="pad",
    )
    name = "image" if work == "crop" else "jpg"

    def epoch() -> Iterator[tuple[Any, Any]]:
        for batch in loader:
            num = int(batch["valid"].sum())
            yield batch[name][:num], batch["cls"][:num]

    return epoch


serve(["shardkit", "torch"], prepare, load)
