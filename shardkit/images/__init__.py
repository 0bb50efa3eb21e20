"""Pictures: what a file holds, and how it becomes pixels.

:func:`train` and :func:`eval` make transforms for a :class:`shardkit.Loader`; :func:`decode` is
for anything else.
"""

from __future__ import annotations

from typing import Any

from shardkit.images.augment import Eval, Train
from shardkit.images.decode import backends, decode, header, is_pillow_simd
from shardkit.images.raw import Flip

__all__ = [
    "Eval",
    "Flip",
    "Train",
    "backends",
    "decode",
    "eval",
    "flip",
    "header",
    "is_pillow_simd",
    "train",
]


def train(size: int = 224, **options: Any) -> Train:
    """Random crops for training, as torchvision's RandomResizedCrop and RandomHorizontalFlip.

    Args:
        size: width and height of the result. options: ``scale=(0.08, 1.0)``,
            ``ratio=(3/4, 4/3)``, ``flip=0.5``, and those of
            :class:`shardkit.images.augment.Transform`.

    Raises:
        UsageError: options that make no sense, or a backend that is not installed.
    """
    return Train(size=size, **options)


def eval(size: int = 224, **options: Any) -> Eval:
    """Centre crops for evaluation, as torchvision's Resize and CenterCrop.

    Args:
        size: width and height of the result. options: ``resize=``, the short side before the
            cut, by default 8/7 of ``size``, and those of
            :class:`shardkit.images.augment.Transform`.

    Raises:
        UsageError: options that make no sense, or a backend that is not installed.
    """
    return Eval(size=size, **options)


def flip(share: float = 0.5, **options: Any) -> Flip:
    """Random mirroring of pictures that were packed as pixels (``--image-format raw``).

    Args:
        share: probability. options: ``field="image.npy"``.

    Raises:
        UsageError: no probability.
    """
    return Flip(share, **options)
