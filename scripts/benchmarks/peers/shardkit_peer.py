"""shardkit: packed as LMDB, fed by its Loader with threads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch  # noqa: F401  imported when it is first needed, else: by the first epoch
from serve import BATCH, SIZE, SMALL_BATCH, TINY, WORKERS, Epoch, serve

import shardkit


def prepare(folder: Path, store: Path, work: str, **options: Any) -> None:
    """``options``: of the pack, for peers that differ in them."""
    corpus = "files" if work.startswith("small") else None
    shardkit.pack(folder, store / "packed", to="lmdb", corpus=corpus, progress=False, **options)


def load(folder: Path, store: Path, work: str) -> Epoch:
    if work.startswith("small"):
        return load_small(store, 0 if work == "small" else WORKERS)
    return load_tiny(store) if work == "tiny" else load_files(store, work)


def load_tiny(store: Path) -> Epoch:
    whole = shardkit.images.train(TINY, scale=(1, 1), ratio=(1, 1), flip=0)
    dataset = shardkit.open(store / "packed")
    options: dict[str, Any] = {"shuffle": "full", "transform": whole, "workers": WORKERS}
    loader = shardkit.Loader(dataset, SMALL_BATCH, **options)
    return lambda: ((batch["image"], batch["cls"]) for batch in loader)


def load_small(store: Path, workers: int) -> Epoch:
    loader = shardkit.Loader(
        shardkit.open(store / "packed"),
        SMALL_BATCH,
        shuffle="full",
        as_buffer=["bin"],
        workers=workers,
    )

    def epoch() -> Iterator[tuple[Any, Any]]:
        for batch in loader:
            labels = batch["cls"]
            yield batch["bin"].numpy().reshape(len(labels), -1), labels

    return epoch


def load_files(store: Path, work: str) -> Epoch:
    """Workers as ``workers="auto"`` takes them here: bytes as they are need one."""
    options: dict[str, Any] = (
        {"transform": shardkit.images.train(SIZE, flip=0), "workers": WORKERS}
        if work == "crop"
        else {"as_buffer": ["jpg"], "workers": 1}
    )
    dataset = shardkit.open(store / "packed")
    loader = shardkit.Loader(dataset, BATCH, shuffle="full", last="pad", **options)

    def epoch() -> Iterator[tuple[Any, Any]]:
        for batch in loader:
            num = int(batch["valid"].sum())
            yield (batch["image"] if work == "crop" else files(batch))[:num], batch["cls"][:num]

    return epoch


def files(batch: dict[str, Any]) -> list[Any]:
    """Each as a view of the buffer that all have in common."""
    buffer, offsets = batch["jpg"].numpy(), batch["jpg.offsets"].tolist()
    return [buffer[start:end] for start, end in pairwise(offsets)]


if __name__ == "__main__":
    serve(["shardkit", "torch"], prepare, load)
