"""What a choice for pictures takes of one: bytes, time, and what compression changes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from shardkit.errors import SampleError
from shardkit.images.choice import ImageChoice
from shardkit.images.decode import decode
from shardkit.images.encode import rewrite
from shardkit.images.restarting import without_restarts
from shardkit.packing.drawn import Picture
from shardkit.samples.encoding import parse_npy
from shardkit.samples.sample import Value

MIN_PICTURES = 16
"""Measured even if time is up."""

KEEP = ImageChoice()


class Cost(NamedTuple):
    """What one choice took of one sample, or on average."""

    num_bytes: float
    rewrite_s: float
    decode_s: float
    square: float
    """Mean square of what compression changes, in levels of 0 to 255."""


def measure_all(
    pictures: Iterator[Picture],
    choices: Sequence[ImageChoice],
    until: float,
    counts: Sequence[Counter[str]],
) -> tuple[list[list[Cost]], list[str]]:
    """For each picture what each choice took, and why others are bad; ``counts``, one a choice,
    say what became of them."""
    measured: list[list[Cost]] = []
    bad: list[str] = []
    for picture in pictures:
        if isinstance(picture, str):
            bad.append(picture)
            continue
        key, kind, value, other_bytes = picture
        try:
            if not measured:  # libraries are loaded before the clock runs
                for choice in choices:
                    measure(choice, kind, value, other_bytes)
            kept = measure(KEEP, kind, value, other_bytes)
            own = [Counter[str]() for _ in choices]
            measured.append(
                [
                    measure(one, kind, value, other_bytes, kept, became)
                    for one, became in zip(choices, own, strict=True)
                ]
            )
            for total, became in zip(counts, own, strict=True):
                total.update(became)
        except SampleError as error:
            bad.append(f"{key}: {error}")
        if len(measured) >= MIN_PICTURES and time.perf_counter() > until:
            break
    return measured, bad


def measure(
    choice: ImageChoice,
    kind: str,
    value: Value,
    other_bytes: int,
    kept: Cost | None = None,
    counts: Counter[str] | None = None,
) -> Cost:
    """Do to a picture what was chosen, and decode it. Raises SampleError if it does not decode.

    ``kept``: what it took as it is. If nothing is done to it, it is not decoded again: the same
    bytes would seem to differ by chance. ``counts`` counts what becomes of it.
    """
    started = time.perf_counter()
    made, stored = rewrite(value, kind, choice, counts) if choice else (kind, value)
    written = time.perf_counter()
    if kept is not None and stored is value:
        return kept._replace(rewrite_s=written - started)
    pixels = parse_npy(stored).copy() if made == "npy" else decode(stored)
    ended = time.perf_counter()
    square = 0.0
    if made in ("jpg", "webp") and not _is_of(stored, value, choice):
        uncompressed = replace(choice, image_format="raw", quality=None, restarts=False)
        exact = parse_npy(rewrite(value, kind, uncompressed)[1])
        square = float(((pixels.astype(np.float32) - exact) ** 2).mean())
    return Cost(len(stored) + other_bytes, written - started, ended - written, square)


def _is_of(stored: Value, value: Value, choice: ImageChoice) -> bool:
    """Whether nothing was done to a picture, but perhaps what can be undone."""
    return stored is value or (choice.restarts and without_restarts(stored) == value)
