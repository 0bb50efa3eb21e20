"""What ``tune`` does with a dataset, as a loader but for its settings, and its rate with some."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from shardkit import images
from shardkit.batches.collate import Batch
from shardkit.batches.source import Source, check_source
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.loading.loader import Loader
from shardkit.loading.settings import Settings
from shardkit.measure.bench.options import Read, refuse_without_pictures
from shardkit.measure.timing import Work
from shardkit.measure.tune.race import Footprint
from shardkit.readers import open as open_dataset
from shardkit.samples.encoding import TOKENS
from shardkit.system.page_cache import Cache, cache_state, evict
from shardkit.system.paths import show_path


@dataclass(frozen=True)
class Workload:
    """A loader but for its settings.

    Attributes:
        options: of :class:`shardkit.Loader`. is_cold: drop ``files`` from memory before each
            timing.
    """

    source: Source
    batch_size: int
    options: dict[str, Any] = field(default_factory=dict)
    is_cold: bool = False

    def loader(self, settings: Settings) -> Loader:
        """Return a loader. Raises UsageError where the work and the settings do not go together."""
        source = self.source
        if self.is_cold:
            source = copy.copy(source)  # pages that are still mapped cannot be dropped
        return Loader(source, self.batch_size, **self.options, **settings.as_options())

    def timed(self, settings: Settings, seconds: float) -> Work:
        """Load batches for about so many seconds."""
        cache: Cache = "warm"
        if self.is_cold:
            cache = cache_state(evict(self.files))
        batches = loads_per_s(self.loader(settings), seconds, is_once=self.is_cold)
        return Work(self.batch_size, seconds=1 / batches, cache=cache)

    def first_batch(self, settings: Settings) -> Footprint:
        """Make one batch. Raises what a loader raises."""
        with batches_of(self.loader(settings)) as batches:
            return footprint(next(batches))

    @property
    def files(self) -> list[Path]:
        """Return the files of the dataset, as far as it says where it is."""
        path = getattr(self.source, "path", None)
        if not isinstance(path, Path):
            return []
        return (
            sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
        )


# --- how fast a loader is ------------------------------------------------------------------


@dataclass(frozen=True)
class Epoch:
    """Times at which batches came, in seconds after the epoch began.

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
        arrivals: list[float] = []
        began = time.perf_counter()
        with batches_of(loader) as batches:
            for _ in batches:
                now = time.perf_counter()
                arrivals.append(now - began)
                if now >= deadline and len(arrivals) >= least:
                    return [*epochs, Epoch(arrivals)]
        epochs.append(Epoch(arrivals, time.perf_counter() - began))
    return epochs


def batches_of(loader: Loader) -> closing[Generator[Batch, None, None]]:
    """Return an epoch whose workers end with the block."""
    return closing(cast("Generator[Batch, None, None]", iter(loader)))


def num_ahead(how: Settings) -> int:
    """Return how many batches may lie ready when the first is taken: processes make some while
    others are still being started.
    """
    is_process = how.worker_type == "process"
    return how.workers * how.prefetch if is_process else 0


def batches_per_s(epochs: Sequence[Epoch], num_batches: int, how: Settings) -> float:
    """Return the rate of a whole epoch of ``num_batches``, the start of its workers in it.

    Where whole epochs were seen, theirs; else the time to the first batches and the pace after,
    those that may have lain ready left out. N workers that begin together deliver N batches at a
    time: the pace is that from the last of some N to the last of some later N.
    """
    complete = [epoch.end_s for epoch in epochs if epoch.end_s is not None]
    if complete:
        return num_batches * len(complete) / max(sum(complete), _SHORTEST_S)
    arrivals, step = epochs[0].arrivals, max(1, how.workers)
    first = num_ahead(how) + step - 1
    num = (len(arrivals) - 1 - first) // step * step
    pace = (arrivals[first + num] - arrivals[first]) / num
    in_all = arrivals[first] + pace * (num_batches - 1 - first)
    return num_batches / max(in_all, _SHORTEST_S)


_SHORTEST_S = 1e-9


def least_batches(how: Settings) -> int:
    """Return how many batches make a pace: those that lay ready, and three times those that come
    together.
    """
    return num_ahead(how) + 3 * max(1, how.workers)


def loads_per_s(loader: Loader, seconds: float, is_once: bool = False) -> float:
    """Return batches a second over whole epochs, measured for about so many seconds."""
    how = loader.settings
    epochs = watch(loader, seconds, least_batches(how), is_once)
    return batches_per_s(epochs, len(loader), how)


def footprint(batch: Batch) -> Footprint:
    """Return what one batch takes in memory, and on its way from a worker process."""
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


# --- what --read asks for ------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """Work to tune for.

    Attributes:
        options: of a Loader. line: of Python, that opens the source as ``ds``. given: the options
            as Python.
    """

    source: Source
    options: dict[str, Any]
    line: str
    given: str = ""


def reading(
    path: str | Path,
    read: Read | None,
    split: str | None = None,
    size: int = 224,
    seq_len: int = 2048,
) -> Reading:
    """Open a dataset. None: tokens as sequences, pictures as crops for training, else as it is.

    Raises:
        UsageError: there is nothing to read in that way. Else as :func:`shardkit.open`.
    """
    of_split = "" if split is None else f", {json.dumps(split)}"
    if read != "tokens":
        dataset = open_dataset(path, split)
        is_bytes = IMAGE_FIELDS.isdisjoint(dataset.fields)
        read = read or ("tokens" if TOKENS in dataset.fields else "raw" if is_bytes else "train")
    quoted = json.dumps(str(path))
    if read == "tokens":
        from shardkit.sequences.dataset import TokenDataset

        line = f"ds = shardkit.TokenDataset({quoted}{of_split}, seq_len={seq_len})"
        return Reading(check_source(TokenDataset(path, split, seq_len=seq_len)), {}, line)
    refuse_without_pictures(read, show_path(path), dataset.fields)
    line = f"ds = shardkit.open({quoted}{of_split})"
    if read == "raw":
        return Reading(dataset, {}, line)
    given = f"transform=shardkit.images.train({size}), "
    return Reading(dataset, {"transform": images.train(size)}, line, given)
