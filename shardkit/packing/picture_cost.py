"""What choices for pictures take of samples: bytes, time, and what compression changes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from shardkit.arrays import Pixels
from shardkit.errors import SampleError
from shardkit.images.choice import ImageChoice
from shardkit.images.decode import decode
from shardkit.images.encode import rewrite
from shardkit.images.naming import RAW_FIELD
from shardkit.images.restarting import without_restarts
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.packing.drawn import Drawn
from shardkit.packing.pictures import rewrite_images, two_pictures
from shardkit.samples.encoding import parse_npy
from shardkit.samples.sample import SampleBatch, Value

MIN_SAMPLES = 16
"""Measured even if time is up."""

KEEP = ImageChoice()


class Cost(NamedTuple):
    """What one choice took of one sample, or on average."""

    num_bytes: float
    num_pictures: float
    rewrite_s: float
    decode_s: float
    square: float
    """Mean square of what compression changes, in levels of 0 to 255."""


class Costs:
    """What choices took of samples.

    Attributes:
        costs: of each choice, one a sample. counts: of each, what became of the pictures.
        bad: why other samples were not measured. left_out: choices that refuse a sample, and why.
    """

    def __init__(self, chosen: ImageChoice, usual: Sequence[ImageChoice]) -> None:
        self.costs: dict[ImageChoice, list[Cost]] = {c: [] for c in (KEEP, chosen, *usual)}
        self.counts = {choice: Counter[str]() for choice in self.costs}
        self.bad: list[str] = []
        self.left_out: dict[ImageChoice, str] = {}
        self._chosen = chosen

    def __len__(self) -> int:
        return len(self.costs[KEEP])

    def add(self, key: str, sample: SampleBatch) -> None:
        """Measure all choices, or none if the sample is bad."""
        held = sorted(_pictures(sample, KEEP))
        if len(held) > 1 and not self._chosen.writes_anew:
            self._leave_out_what_writes_anew(f"{key}: {two_pictures(held)}")
        own = {choice: Counter[str]() for choice in self.costs}
        try:
            if not len(self):  # libraries are loaded before the clock runs
                for choice in own:
                    measure(choice, sample)
            kept = measure(KEEP, sample)
            costs = {choice: measure(choice, sample, kept, own[choice]) for choice in own}
        except SampleError as error:
            self.bad.append(f"{key}: {error}")
            return
        for choice, cost in costs.items():
            self.costs[choice].append(cost)
            self.counts[choice].update(own[choice])

    def _leave_out_what_writes_anew(self, why: str) -> None:
        """The caller's own choice takes such a sample, so its other rows shall be right."""
        for choice in [choice for choice in self.costs if choice.writes_anew]:
            del self.costs[choice], self.counts[choice]
            self.left_out[choice] = why


def measure_all(
    samples: Iterator[Drawn], chosen: ImageChoice, usual: Sequence[ImageChoice], max_s: float
) -> Costs:
    """What was chosen, and the usual choices, of samples until time is up."""
    until = time.perf_counter() + max_s
    measured = Costs(chosen, usual)
    for one in samples:
        if isinstance(one, str):
            measured.bad.append(one)
            continue
        measured.add(*one)
        if len(measured) >= MIN_SAMPLES and time.perf_counter() > until:
            break
    return measured


def measure(
    choice: ImageChoice,
    sample: SampleBatch,
    kept: Cost | None = None,
    counts: Counter[str] | None = None,
) -> Cost:
    """Do to a sample's pictures what was chosen, and decode them.

    ``kept``: what they took as they are. If nothing is done to them, they are not decoded again:
    the same bytes would seem to differ by chance. ``counts`` counts what becomes of them.

    Raises:
        SampleError: they do not decode, or such a sample is refused.
    """
    started = time.perf_counter()
    made = rewrite_images(sample, choice) if choice else sample
    written = time.perf_counter()
    for _, reason in made.rejects:
        raise SampleError(reason)
    if counts is not None:
        counts.update(made.counts)
    stored = _pictures(made, choice)
    before = _pictures(sample, KEEP)
    if kept is not None and all(stored.get(name) is value for name, value in before.items()):
        return kept._replace(rewrite_s=written - started)
    began = time.perf_counter()
    pixels = [parse_npy(v).copy() if choice.is_raw else decode(v) for v in stored.values()]
    decode_s = time.perf_counter() - began
    square = _square(choice, before, stored, pixels[0]) if choice.writes_anew else 0.0
    num_bytes = sum(map(len, made.fields(0).values()))
    return Cost(num_bytes, len(stored), written - started, decode_s, square)


def _pictures(sample: SampleBatch, choice: ImageChoice) -> dict[str, Value]:
    """What is a picture of a sample for which this was chosen."""
    names = {RAW_FIELD} if choice.is_raw else IMAGE_FIELDS
    return {name: value for name, value in sample.fields(0).items() if name in names}


def _square(
    choice: ImageChoice, before: dict[str, Value], stored: dict[str, Value], pixels: Pixels
) -> float:
    """As of :class:`Cost`, of the one picture of a sample."""
    ((kind, value),), ((name, made),) = before.items(), stored.items()
    if name not in ("jpg", "webp") or _is_of(made, value, choice):
        return 0.0
    uncompressed = replace(choice, image_format="raw", quality=None, restarts=False)
    exact = parse_npy(rewrite(value, kind, uncompressed)[1])
    return float(((pixels.astype(np.float32) - exact) ** 2).mean())


def _is_of(stored: Value, value: Value, choice: ImageChoice) -> bool:
    """Whether nothing was done to a picture, but perhaps what can be undone."""
    return stored is value or (choice.restarts and without_restarts(stored) == value)
