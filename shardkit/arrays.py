"""Names for NumPy arrays, by what is in them. Shapes are said where they are used, as in (B,)."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
"""Of any dtype and shape."""

Integers = np.ndarray[Any, np.dtype[np.int64]]
"""int64, mostly (N,): numbers of rows, shards and documents, positions, places and sizes."""

Offsets = np.ndarray[tuple[int], np.dtype[np.int64]]
"""(N + 1,) int64: where each of N things that lie end to end begins, and the last one ends."""

Hashes = np.ndarray[Any, np.dtype[np.uint64]]
"""uint64, mostly (N,): hashes and checksums, and numbers that are drawn by hashing."""

Mask = np.ndarray[Any, np.dtype[np.bool_]]
"""bool, mostly (N,): of which of N things something is true."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
"""uint8, mostly (N,): bytes of files, and memory for them."""

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
"""uint8, (H, W, 3) or (B, H, W, 3): pictures, red first."""

Tokens = np.ndarray[Any, np.dtype[Any]]
"""Integers of 8 to 64 bits, mostly (T,): token ids."""

Int32s = np.ndarray[Any, np.dtype[np.int32]]
"""int32: what the kernel takes."""

Floats = np.ndarray[Any, np.dtype[np.float64]]
"""float64."""
