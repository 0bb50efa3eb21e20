"""Files of arrays, written by NumPy, h5py, safetensors, and as MNIST's are."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from conftest import write
from safetensors.numpy import save_file

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


def safetensors(path: Path, arrays: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(arrays, path)
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


_IDX = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


def idx(path: Path, array: Any) -> Path:
    """As MNIST's files are; compressed where the name says so."""
    kind = _IDX[array.dtype.str[1:]]
    head = bytes([0, 0, kind, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    data = head + array.astype(array.dtype.newbyteorder(">")).tobytes()
    return write(path, gzip.compress(data) if path.suffix == ".gz" else data)
