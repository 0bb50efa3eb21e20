"""Files of arrays, written by NumPy and h5py."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from conftest import write

IMAGES = np.arange(20 * 4 * 3, dtype=np.uint8).reshape(20, 4, 3)
LABELS = np.arange(20) % 7


def npy(path: Path, array: Any, **options: Any) -> Path:
    out = io.BytesIO()
    np.save(out, array, **options)
    return write(path, out.getvalue())


def npz(path: Path, compressed: bool = False, **arrays: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


def hdf5(path: Path, **arrays: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


def folder(root: Path, **arrays: Any) -> Path:
    """One ``.npy`` for each array."""
    for name, array in arrays.items():
        npy(root / f"{name}.npy", array)
    return root
