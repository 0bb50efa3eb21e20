"""One trial: how fast a loader is, and how long a loop of a given step waits for it."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast

from shardkit.batches.collate import Batch
from shardkit.loading.loader import Loader
from shardkit.loading.settings import Settings
from shardkit.measure.tune.space import Footprint


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


def num_ahead(how: Settings) -> int:
    """Batches that may lie ready when the first is taken: processes make some while others are
    still being started."""
    is_process = how.worker_type == "process"
    return how.workers * how.prefetch if is_process else 0


def batches_per_s(epochs: Sequence[Epoch], num_batches: int, how: Settings) -> float:
    """The rate of a whole epoch of ``num_batches``, the start of its workers in it.

    Where whole epochs were seen, theirs; else the time to the first batches and the pace after,
    those that may have lain ready left out. N workers that begin together deliver N batches at a
    time: the pace is that from the last of some N to the last of some later N.
    """
    whole = [epoch.end_s for epoch in epochs if epoch.end_s is not None]
    if whole:
        return num_batches * len(whole) / max(sum(whole), _SHORTEST_S)
    arrivals, step = epochs[0].arrivals, max(1, how.workers)
    first = num_ahead(how) + step - 1
    num = (len(arrivals) - 1 - first) // step * step
    pace = (arrivals[first + num] - arrivals[first]) / num
    in_all = arrivals[first] + pace * (num_batches - 1 - first)
    return num_batches / max(in_all, _SHORTEST_S)


_SHORTEST_S = 1e-9


def least_batches(how: Settings) -> int:
    """That make a pace: those that lay ready, and three times those that come together."""
    return num_ahead(how) + 3 * max(1, how.workers)


def loads_per_s(loader: Loader, seconds: float, is_once: bool = False) -> float:
    """Batches a second over whole epochs, measured for about so many seconds."""
    how = loader.settings
    epochs = watch(loader, seconds, least_batches(how), is_once)
    return batches_per_s(epochs, len(loader), how)


@dataclass(frozen=True)
class Feed:
    """A loop that does something with each batch.

    Attributes:
        steps: that were run. wait: the share of the loop's time spent waiting for batches, but
            for the first of each epoch; starting: for those. From 0 to 1.
        work_s: seconds that workers spent on each kind of work: read, transform, collate.
    """

    steps: int
    wait: float
    starting: float
    work_s: dict[str, float]


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
    work_s = {"read": stats.read_s, "transform": stats.transform_s, "collate": stats.collate_s}
    return Feed(steps, (stats.wait_s - starting) / taken, starting / taken, work_s)


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
