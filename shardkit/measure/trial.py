"""One trial: how fast a loader is, and how long a loop of a given step waits for it."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast

from shardkit.loading.loader import Loader
from shardkit.measure.tune_space import Footprint
from shardkit.reading.collate import Batch


@dataclass(frozen=True)
class Epoch:
    """When batches came, in seconds after the epoch began.

    Attributes:
        arrivals: of each batch. end_s: of the epoch, its workers ended; None: it was cut short.
    """

    arrivals: Sequence[float]
    end_s: float | None = None


def watch(loader: Loader, seconds: float, least: int, is_once: bool = False) -> list[Epoch]:
    """Run epochs until so many seconds and so many batches are over, or only one.

    Nothing is done with the batches.
    """
    epochs: list[Epoch] = []
    deadline = time.perf_counter() + seconds
    while not epochs or (time.perf_counter() < deadline and not is_once):
        epochs.append(_watch_one(loader, deadline, least))
    return epochs


def _watch_one(loader: Loader, deadline: float, least: int) -> Epoch:
    arrivals: list[float] = []
    began = time.perf_counter()
    with batches_of(loader) as batches:
        for _ in batches:
            now = time.perf_counter()
            arrivals.append(now - began)
            if now >= deadline and len(arrivals) >= least:
                return Epoch(arrivals)
    return Epoch(arrivals, time.perf_counter() - began)


def batches_of(loader: Loader) -> closing[Generator[Batch, None, None]]:
    """An epoch, whose workers end with the block."""
    return closing(cast("Generator[Batch, None, None]", iter(loader)))


def batches_per_s(epochs: Sequence[Epoch], num_batches: int, waiting: int) -> float:
    """The rate of a whole epoch of ``num_batches``, the start of its workers in it.

    Where whole epochs were seen, theirs; else the time to the first batch and the pace after it.
    The first ``waiting`` arrivals are no measure of pace: they were made side by side.
    """
    whole = [epoch.end_s for epoch in epochs if epoch.end_s is not None]
    if whole:
        return num_batches * len(whole) / max(sum(whole), _SHORTEST_S)
    epoch = epochs[0]
    first = min(waiting, len(epoch.arrivals) - 2)
    pace = (epoch.arrivals[-1] - epoch.arrivals[first]) / (len(epoch.arrivals) - 1 - first)
    in_all = epoch.arrivals[0] + pace * (num_batches - 1)
    return num_batches / max(in_all, _SHORTEST_S)


_SHORTEST_S = 1e-9


def least_batches(workers: int) -> int:
    """That make a pace: those made side by side, twice, and some more."""
    return 2 * workers + 3


def loads_per_s(loader: Loader, seconds: float, is_once: bool = False) -> float:
    """Batches a second over whole epochs, measured for about so many seconds."""
    workers = loader.settings.workers
    epochs = watch(loader, seconds, least_batches(workers), is_once)
    return batches_per_s(epochs, len(loader), workers)


@dataclass(frozen=True)
class Feed:
    """A loop that does something with each batch.

    Attributes:
        steps: that were run. wait: the share of the loop's time spent waiting for batches, but
            for the first of each epoch; starting: for those. From 0 to 1.
    """

    steps: int
    wait: float
    starting: float


def feed(loader: Loader, step_s: float, seconds: float) -> Feed:
    """Run a loop that sleeps ``step_s`` a batch, as a step on a GPU leaves the processor free."""
    steps, starting, stats = 0, 0.0, loader.stats
    began = time.perf_counter()
    deadline = began + seconds
    while time.perf_counter() < deadline:
        epoch_began = stats.wait_s
        with batches_of(loader) as batches:
            for number, _ in enumerate(batches):
                if number == 0:
                    starting += stats.wait_s - epoch_began
                time.sleep(step_s)
                steps += 1
                if time.perf_counter() >= deadline:
                    break
    taken = time.perf_counter() - began
    return Feed(steps, (stats.wait_s - starting) / taken, starting / taken)


def footprint(batch: Batch) -> Footprint:
    """What one batch takes in memory, and on its way from a worker process."""
    sizes = [size for value in batch.values() for size in _sizes(value)]
    return Footprint(sum(size for size, _ in sizes), sum(is_tensor for _, is_tensor in sizes))


def _sizes(value: Any) -> Iterator[tuple[int, bool]]:
    if hasattr(value, "nbytes") and hasattr(value, "is_pinned"):
        yield int(value.nbytes), True
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _sizes(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _sizes(each)
    else:
        yield len(value) if isinstance(value, bytes | str) else 64, False
