"""What the figures of gpu_proof.py share: their data and device, a timed loop, a trace read."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from meter import Meter

import shardkit
from shardkit import images
from shardkit.arrays import Integers
from shardkit.measure.timing import Case, Work, interleave
from shardkit.shards.values import Column

Batch = dict[str, Any]
Step = Callable[[Batch], None]
Span = tuple[float, float]


class LackingError(Exception):
    """Raised by a figure that this machine cannot give; says why."""


@dataclass(frozen=True)
class Row:
    """One line of a figure: medians of the rounds, and the ratio to the first line's rate."""

    name: str
    samples_per_s: float
    bytes_per_s: float = 0.0
    ratio: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Setting:
    """What a figure is given.

    Attributes:
        jpegs: a dataset of JPEG files. raw: one of the same pictures as (size, size, 3) uint8.
        device: a torch device. seconds: how long one turn of a case is timed. is_quick: tiny
            sizes, one round: does it run?
    """

    jpegs: Path
    raw: Path
    device: torch.device
    seconds: float = 1.5
    is_quick: bool = False

    @property
    def size(self) -> int:
        """Width and height of what is trained on, in pixels."""
        return 32 if self.is_quick else 224

    @property
    def batch_size(self) -> int:
        return 4 if self.is_quick else 128

    @property
    def workers(self) -> int:
        """All cores but two, for the loop and for the copies."""
        return max(2, len(os.sched_getaffinity(0)) - 2)

    @property
    def dtype(self) -> torch.dtype:
        """bfloat16 where the GPU computes in it, else float16."""
        is_old = self.is_cuda and torch.cuda.get_device_capability(self.device) < (8, 0)
        return torch.float16 if is_old else torch.bfloat16

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def wait(self) -> None:
        """Until the device has done all that it was given, on every stream."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory() if self.is_cuda else tensor

    def time(self, cases: dict[str, Case]) -> list[Row]:
        """In turn; the first turn is not timed: libraries choose kernels and take memory in it."""
        result = interleave(cases, rounds=1 if self.is_quick else 3)
        first = next(iter(cases))
        return [
            Row(
                name,
                statistics.median(result[name].rates("samples")),
                statistics.median(result[name].rates("bytes")),
                None if name == first else result.ratio(name, first),
            )
            for name in cases
        ]

    def loader(self, path: Path, **options: Any) -> shardkit.Loader:
        """Shuffled batches without end, of decoded crops or of pixels with flips."""
        given: dict[str, Any] = {
            "shuffle": "full",
            "transform": images.flip() if path == self.raw else images.train(self.size),
            "workers": self.workers,
        }
        endless = Endless(shardkit.open(path))
        return shardkit.Loader(endless, self.batch_size, **{**given, **options})


class Endless:
    """A dataset repeated so often that no epoch ends while something is timed: where one ends, a
    loader of few batches would wait for its first again and again."""

    def __init__(self, dataset: shardkit.Dataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset) * (1_000_000 // len(self.dataset) + 1)

    def read(self, rows: Integers, /) -> dict[str, Column]:
        return self.dataset.read(np.asarray(rows) % len(self.dataset))


def steps(setting: Setting, batches: Iterable[Batch], step: Step) -> Work:
    """A step on each of endless batches, for as long as a turn lasts."""
    return watched_steps(setting, batches, step)[0]


def watched_steps(setting: Setting, batches: Iterable[Batch], step: Step) -> tuple[Work, float]:
    """The same, and the share of the time in which the device waited for a batch.

    It first runs for half as long, untimed: then the batches that were made ahead are used up, or
    the loader is ahead for good.
    """
    meter = Meter(setting.device)
    with closing(meter.watch(batches)) as stream:
        steps_for(stream, step, setting.seconds / 2)
        meter.read()  # waits until the device has done all, and begins anew
        started = time.perf_counter()
        num = steps_for(stream, step, setting.seconds)
        _, share = meter.read()
        seconds = time.perf_counter() - started
    return Work(num * setting.batch_size, seconds=seconds), share


def steps_for(batches: Iterator[Batch], step: Step, seconds: float) -> int:
    """Steps for so long, by the host's clock, at least one; how many."""
    until = time.perf_counter() + seconds
    num = 0
    while num == 0 or time.perf_counter() < until:
        step(next(batches))
        num += 1
    return num


# --- traces -------------------------------------------------------------------------------


def copied_meanwhile(profile: Any) -> float:
    """Share of the time of copies to the GPU in which a kernel ran, too.

    Raises:
        LackingError: the trace holds no copy, or no kernel.
    """
    copies: list[Span] = []
    kernels: list[Span] = []
    for event in profile.events():
        if event.device_type.name == "CUDA":
            span = event.time_range.start, event.time_range.end
            if "HtoD" in event.name:
                copies.append(span)
            elif not event.name.startswith(("Memcpy", "Memset")):
                kernels.append(span)
    if not copies or not kernels:
        raise LackingError(
            f"the trace holds {len(copies)} copies to the device and {len(kernels)} kernels: this"
            " needs CUDA, and leave to use its profiler (CUPTI)"
        )
    return covered(copies, kernels)


def covered(spans: Sequence[Span], by: Sequence[Span]) -> float:
    """Share of the length of ``spans`` that lies in the union of ``by``."""
    union: list[Span] = []
    for start, end in sorted(by):
        if union and start <= union[-1][1]:
            union[-1] = union[-1][0], max(end, union[-1][1])
        else:
            union.append((start, end))
    common = sum(
        max(0.0, min(end, last) - max(start, first))
        for start, end in spans
        for first, last in union
    )
    return common / (sum(end - start for start, end in spans) or 1.0)
