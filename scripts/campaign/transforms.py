"""Transforms of samples, at the top of a module so that worker processes can be given them."""

from __future__ import annotations

import random
import zlib
from typing import Any

import numpy as np

Sample = dict[str, Any]


def draw(sample: Sample, rng: np.random.Generator) -> Sample:
    """Numbers that depend on the sample and on its generator, of a shape of their own."""
    mixed = np.frombuffer(rng.bytes(8), np.uint8) ^ np.uint8(_digest(sample) & 255)
    return {"mixed": mixed, "drawn": float(rng.random()), "size": _digest(sample)}


def draw_globally(sample: Sample) -> Sample:
    """From the generators that torchvision's transforms use; refused in threads."""
    return {"a": random.random(), "b": float(np.random.rand()), "size": _digest(sample)}


def refuse_some(sample: Sample, rng: np.random.Generator) -> Sample:
    """Refuses one sample of nine, always the same."""
    if _digest(sample) % 9 == 0:
        raise ValueError("a sample of no use")
    return draw(sample, rng)


def _digest(sample: Sample) -> int:
    """A number of the sample's values, whatever they are."""
    total = 0
    for name in sorted(sample):
        value = sample[name]
        is_buffer = isinstance(value, bytes | bytearray | memoryview | np.ndarray)
        total = zlib.crc32(bytes(value) if is_buffer else repr(value).encode(), total)
    return total
