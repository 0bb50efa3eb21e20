"""Which part of each picture: crop boxes and flips of a batch, as arithmetic on keys.

A key is 64 bits for a sample, made from seed, epoch and position by whoever calls. Draw number d of
a key is a hash of the two (a counter-based generator, as Salmon et al., "Parallel random numbers:
as easy as 1, 2, 3", SC 2011): the same wherever, whenever and with whichever others it is computed.
"""

from __future__ import annotations

import numpy as np

from shardkit.arrays import Floats, Hashes, Int32s, Mask
from shardkit.samples.checksums import mix64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
TRIES = 10
_PLACE = 2 * TRIES
_FLIP = _PLACE + 2
NUM_DRAWS = _FLIP + 1
"""Draws of a key: area and ratio of each try, two for the place, one for the flip."""


def uniforms(keys: Hashes, num: int) -> Floats:
    """``num`` numbers in [0, 1) for each key: (B,) uint64 to (B, num) float64.

    SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014),
    started at the mixed key, so that keys next to one another have nothing in common.
    """
    steps = np.arange(1, num + 1, dtype=np.uint64) * _GOLDEN
    bits = mix64(mix64(keys)[:, None] + steps)
    return np.ldexp((bits >> np.uint64(11)).astype(np.float64), -53)


def draw_key(rng: np.random.Generator) -> Hashes:
    """(1,) uint64: the key of a sample that comes with a generator instead."""
    return rng.integers(0, 2**64, size=1, dtype=np.uint64)


def random_boxes(
    sizes: Int32s, draws: Floats, scale: tuple[float, float], ratio: tuple[float, float]
) -> Int32s:
    """Crops of random area and aspect ratio, distributed as torchvision's.

    ``torchvision.transforms.RandomResizedCrop.get_params``: ten tries of an area, uniform in
    ``scale`` times that of the picture, and a ratio whose logarithm is uniform; the first that
    fits goes to a uniform place. If none fits: the largest centred crop with a ratio in range.

    Args:
        sizes: (B, 2), widths and heights. draws: (B, 22 or more), of :func:`uniforms`.

    Returns:
        (B, 4) int32: left, top, width, height; inside the picture, at least one pixel.
    """
    width, height = sizes[:, 0].astype(np.float64), sizes[:, 1].astype(np.float64)
    w, h, any_fits = _first_fit(width, height, draws[:, :2], scale, ratio)
    if len(rest := np.flatnonzero(~any_fits)):  # few, mostly: the other tries are for them alone
        tries = draws[rest, 2:_PLACE]
        w[rest], h[rest], any_fits[rest] = _first_fit(
            width[rest], height[rest], tries, scale, ratio
        )
    w_else, h_else = _centred(width, height, ratio)
    w, h = np.where(any_fits, w, w_else), np.where(any_fits, h, h_else)
    x_draw, y_draw = draws[:, _PLACE], draws[:, _PLACE + 1]
    left = np.where(any_fits, np.floor(x_draw * (width - w + 1)), (width - w) // 2)
    top = np.where(any_fits, np.floor(y_draw * (height - h + 1)), (height - h) // 2)
    return np.stack([left, top, w, h], axis=1).astype(np.int32)


def _first_fit(
    width: Floats,
    height: Floats,
    tries: Floats,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> tuple[Floats, Floats, Mask]:
    """Width and height of the first try that fits, and whether there is one; else of any."""
    low, high = np.log(ratio)
    area = (width * height)[:, None] * (scale[0] + (scale[1] - scale[0]) * tries[:, 0::2])
    aspect = np.exp(low + (high - low) * tries[:, 1::2])
    w, h = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (w > 0) & (w <= width[:, None]) & (h > 0) & (h <= height[:, None])
    first = (np.arange(len(width)), fits.argmax(axis=1))
    return w[first], h[first], fits[first]


def _centred(width: Floats, height: Floats, ratio: tuple[float, float]) -> tuple[Floats, Floats]:
    """Width and height of the largest crop whose ratio is in range; at least one pixel,
    where torchvision can round to none."""
    shape = width / height
    w = np.where(shape > ratio[1], np.rint(height * ratio[1]), width)
    h = np.where(shape < ratio[0], np.rint(width / ratio[0]), height)
    return np.clip(w, 1, width), np.clip(h, 1, height)


def flips(draws: Floats, share: float) -> Mask:
    """(B,) bool: which samples are mirrored, with probability ``share``."""
    return draws[:, _FLIP] < share


def centre_boxes(sizes: Int32s, resize: int, size: int) -> Floats:
    """What is left of pictures whose short side is resized to ``resize``, and of which the centre
    ``size`` x ``size`` is cut: in pixels of the original.

    Rounded as torchvision's ``Resize`` (the long side is cut off to whole pixels) and
    ``CenterCrop`` (its left and top to the nearest).

    Returns:
        (B, 4) float64: left, top, width, height.
    """
    lengths = sizes.astype(np.int64)
    resized = resize * lengths // lengths.min(axis=1, keepdims=True)
    first = np.rint((resized - size) / 2.0)
    step = lengths / resized
    return np.concatenate([first * step, size * step], axis=1)
