"""Mirroring some pictures of a batch, in place."""

from __future__ import annotations

from typing import Any

import numpy as np

PIECE_BYTES = 1 << 19
"""Pictures are mirrored by about so many bytes at a time: they stay in the processor's cache."""


def flip_some(
    batch: np.ndarray[Any, np.dtype[np.uint8]], flips: np.ndarray[Any, np.dtype[np.bool_]]
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Mirror pictures left to right where ``flips`` says so.

    One channel at a time: copies of single bytes at a stride of three vectorise in NumPy's loops,
    those of pixels do not (0.2 against 0.5 ms for 256 pictures of 32x32, and 1.2 ms by indexing
    with a negative step and a mask).

    Args:
        batch: (B, H, W, C) uint8, contiguous and writable; changed in place.
        flips: (B,) bool.

    Returns:
        ``batch``.
    """
    if not len(batch) or not batch[0].nbytes:
        return batch
    rows = np.flatnonzero(flips)
    flat = batch.reshape(len(batch), -1)
    step = max(1, PIECE_BYTES // batch[0].nbytes)
    mirrored = np.empty((min(step, len(rows)), *batch.shape[1:]), batch.dtype)
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        pictures = batch.take(some, axis=0)
        out = mirrored[: len(some)]
        for channel in range(batch.shape[3]):
            out[..., channel] = pictures[:, :, ::-1, channel]
        flat[some] = out.reshape(len(some), -1)
    return batch
