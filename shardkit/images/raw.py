"""Pixels that need no decoding: mirroring some pictures of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from shardkit.arrays import Array, Hashes, Mask, Pixels
from shardkit.errors import UsageError
from shardkit.images.crop_boxes import draw_key, uniforms
from shardkit.images.naming import IMAGE, RAW_FIELD
from shardkit.memory import gather

PIECE_BYTES = 3 << 15
"""How many bytes have their channels swapped at once: they fit into the processor's cache."""


def flip_some(batch: Pixels, flips: Mask) -> Pixels:
    """Mirror pictures left to right where ``flips`` says so.

    The compiled module does it; what follows is for where it is not. NumPy has no fast copy of
    pixels of three bytes: ``batch[flips] = batch[flips][:, :, ::-1]`` takes 4.5 us for a picture of
    32x32, and byte by byte, a channel at a time, it is 0.9 us. So all bytes are turned round, eight
    at a time; that mirrors the pictures, but also puts the last line first and blue before red.
    Lines are put in order as they are copied back, and channels by masks, many pixels in one
    instruction: 0.6 us.

    Args:
        batch: (B, H, W, C) uint8, contiguous and writable; changed in place.
        flips: (B,) bool.

    Returns:
        ``batch``.
    """
    if not batch.size or gather.mirror(batch, flips):
        return batch
    rows = np.flatnonzero(flips)
    lines = _lines(batch)
    step = max(1, 4 * PIECE_BYTES // batch[0].nbytes)
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        turned = _turned(batch.take(some, axis=0))
        lines[some[::-1]] = _lines(turned)[:, ::-1]
    return batch


def _lines(pictures: Pixels) -> Array:
    """(B, H): each line of each picture as one element."""
    size = pictures.shape[2] * pictures.shape[3]
    return pictures.reshape(*pictures.shape[:2], size).view(f"V{size}")[..., 0]


def _turned(pictures: Pixels) -> Pixels:
    """All pixels of all pictures, in reverse order."""
    if pictures.shape[3] != 3:
        return np.ascontiguousarray(pictures[::-1, ::-1, ::-1])
    flat = pictures.reshape(-1)
    # Read from the end, as numbers of the other byte order, eight bytes are turned round at once.
    is_whole = flat.size % 8 == 0
    turned = flat.view(">u8")[::-1].astype("<u8").view(np.uint8) if is_whole else flat[::-1].copy()
    for start in range(0, flat.size, PIECE_BYTES):
        _swap_red_and_blue(turned[start : start + PIECE_BYTES])
    return turned.reshape(pictures.shape)


def _swap_red_and_blue(pixels: Pixels) -> None:
    """In place; (N * 3,) bytes, at most :data:`PIECE_BYTES`."""
    first, middle, last = _masks()[:, : len(pixels)]
    to_first, to_last = pixels[2:] & first[:-2], pixels[:-2] & last[2:]
    pixels &= middle
    pixels[:-2] |= to_first
    pixels[2:] |= to_last


@lru_cache(maxsize=1)
def _masks() -> Pixels:
    """(3, PIECE_BYTES): 255 at the first, second or third byte of each pixel."""
    return np.tile(np.eye(3, dtype=np.uint8) * 255, PIECE_BYTES // 3)


@dataclass(frozen=True)
class Flip:
    """For pictures that were packed as pixels (``--image-format raw``): each is mirrored with a
    probability of ``share``, as its key says. The field becomes ``image``; others stay.

    Raises (from :meth:`batch`):
        UsageError: the field is missing, or not (B, H, W, C) uint8.
    """

    share: float = 0.5
    field: str = RAW_FIELD

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UsageError(f"share is a probability, got {self.share}")

    def __call__(self, sample: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """One sample; the key is the first 64 bits that ``rng`` gives."""
        columns: dict[str, Any] = {name: [value] for name, value in sample.items()}
        columns[self.field] = np.stack(columns.get(self.field, []))
        return {name: values[0] for name, values in self.batch(columns, draw_key(rng)).items()}

    def batch(self, columns: Mapping[str, Any], keys: Hashes) -> dict[str, Any]:
        """A whole batch, of (B,) uint64 keys; its pixels are changed in place."""
        pixels = columns.get(self.field)
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 4:
            raise UsageError(
                f"flip wants pictures packed as pixels (--image-format raw) in field"
                f" {self.field!r}, there is {', '.join(columns)}"
            )
        others = {name: values for name, values in columns.items() if name != self.field}
        return others | {IMAGE: flip_some(pixels, uniforms(keys, 1)[:, 0] < self.share)}
