"""Datasets of some MB in every container, to be read by path and by URL; and what they give."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from conftest import picture, write
from token_data import npy

import shardkit

KINDS = ("pictures", "arrays", "tokens")


def make_set(folder: Path, kind: str, container: str, rows: int = 60, size: int = 20_000) -> Path:
    """Each row some 20 kB that cannot be compressed; several shards."""
    source, draws = folder / "source", np.random.default_rng(7)
    for row in range(rows):
        values = draws.integers(0, 50_000, size // 2, np.uint16)
        if kind == "pictures":
            write(source / f"{row:04}.jpg", picture(row))
            write(source / f"{row:04}.bin", values.tobytes())
        else:
            write(source / f"{row:04}.{'npy' if kind == 'arrays' else 'tokens'}", npy(values))
    dest = folder / "at" / f"{kind}-{container}"
    options: dict[str, Any] = {"corpus": "paired", "workers": 0, "progress": False}
    shardkit.pack(source, dest, to=container, shard_size="600kB", **options)
    return dest


def open_set(place: str | Path, kind: str, **options: Any) -> Any:
    if kind == "tokens":
        return shardkit.TokenDataset(place, seq_len=2000, **options)
    return shardkit.open(place, decode=kind == "arrays", **options)


def plain(batches: Iterable[Any]) -> list[Any]:
    """What compares to the bit."""
    return [_plain(batch) for batch in batches]


def _plain(value: Any) -> Any:
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(item) for item in value]
    if isinstance(value, (bytes, memoryview, bytearray)):
        return bytes(value)
    return pickle.dumps(value) if not isinstance(value, (str, int, float)) else value
