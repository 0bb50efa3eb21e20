"""Random configurations under what other libraries do to samplers and datasets on several ranks:
each sample is seen as often as ``last`` says, or the configuration is refused in one line.

accelerate's and Lightning's rules are written down here again, so neither is needed. The ranks run
one after another in this process.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from types import ModuleType
from typing import Any
from unittest import mock

from cases import Case, Kind, Outcome, Place
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset

import shardkit
from shardkit.errors import UsageError


class Rows(Dataset[Any]):
    """Rows that are their own numbers, for torch's loaders and for shardkit's."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, int]:
        if not 0 <= index < self.size:
            raise IndexError(index)
        return {"row": index}

    def read(self, rows: Any) -> dict[str, Any]:
        return {"row": rows}


# --- accelerate 1.15, data_loader.py and state.py -------------------------------------------


class GradientState:
    _shared_state = "initialized"
    running: tuple[Any, ...] = (None,)

    @property
    def dataloader_references(self) -> list[Any]:
        return list(GradientState.running)

    @property
    def active_dataloader(self) -> Any:
        return GradientState.running[-1]

    def _add_dataloader(self, loader: Any) -> None:
        GradientState.running = (*GradientState.running, loader)

    def _remove_dataloader(self, loader: Any) -> None:
        GradientState.running = tuple(one for one in GradientState.running if one != loader)


class BatchSamplerShard:
    """Each process has every ``num_processes``-th batch, or its part of each."""

    def __init__(self, batch_sampler: Any, num_processes: int, index: int, *, split: bool) -> None:
        self.batch_sampler, self.num_processes = batch_sampler, num_processes
        self.process_index, self.split_batches = index, split

    def __iter__(self) -> Iterator[Any]:
        if not self.split_batches:
            yield from islice(self.batch_sampler, self.process_index, None, self.num_processes)
            return
        for batch in self.batch_sampler:
            size = -(-len(batch) // self.num_processes)
            if part := batch[size * self.process_index : size * (self.process_index + 1)]:
                yield part


class IterableDatasetShard(IterableDataset[Any]):
    def __init__(self, dataset: Any, num_processes: int, index: int) -> None:
        self.dataset, self.num_processes, self.process_index = dataset, num_processes, index

    def set_epoch(self, epoch: int) -> None:
        self.dataset.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        yield from islice(self.dataset, self.process_index, None, self.num_processes)


class DataLoaderShard(DataLoader[Any]):
    def __iter__(self) -> Any:
        GradientState()._add_dataloader(self)
        try:
            if hasattr(self.dataset, "set_epoch"):
                self.dataset.set_epoch(0)
            yield from super().__iter__()
        finally:
            GradientState()._remove_dataloader(self)


class DataLoaderDispatcher(DataLoaderShard):
    """Process 0 reads, and each has a part of that."""

    world: tuple[int, int] = (1, 0)

    def __iter__(self) -> Any:
        num_processes, index = self.world
        yield from islice(super().__iter__(), index, None, num_processes)


def accelerated(loader: DataLoader[Any], rank: int, config: Config) -> Any:
    """prepare() of a process."""
    dataset, world = loader.dataset, config.world_size
    if config.mode == "dispatch":
        # Rank 0's objects are what is read, so that rank's loader is what is given for all.
        made = DataLoaderDispatcher(dataset, **_how(loader))
        made.world = (world, rank)
        return made
    if isinstance(dataset, IterableDataset):
        return DataLoaderShard(IterableDatasetShard(dataset, world, rank), batch_size=None)
    split = config.mode == "split"
    shard = BatchSamplerShard(loader.batch_sampler, world, rank, split=split)
    return DataLoaderShard(dataset, batch_sampler=shard)


def _how(loader: DataLoader[Any]) -> dict[str, Any]:
    if isinstance(loader.dataset, IterableDataset):
        return {"batch_size": None}
    return {"batch_sampler": loader.batch_sampler}


def lightning(loader: DataLoader[Any], rank: int, config: Config) -> Any:
    """Lightning 2.6: a DistributedSampler takes the place of another sampler."""
    sampler, dataset = loader.sampler, loader.dataset
    if isinstance(sampler, DistributedSampler) or isinstance(dataset, IterableDataset):
        return loader
    if type(loader.batch_sampler) is not BatchSampler:
        raise UsageError("Lightning can't inject a (distributed) sampler into your batch sampler")
    return DataLoader(dataset, loader.batch_size, sampler=DistributedSampler(dataset))


# --- what is drawn, and run ---------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    size: int
    batch_size: int
    world_size: int
    shuffle: str | None
    seed: int
    last: str
    given: str
    library: str
    mode: str
    is_whole: bool
    """It is made as rank 0 of 1, on each rank."""


def drawn(rng: random.Random) -> Config:
    return Config(
        size=rng.randrange(1, 80),
        batch_size=rng.randrange(1, 7),
        world_size=rng.randrange(1, 5),
        shuffle=rng.choice(["full", "block", None]),
        seed=rng.randrange(100),
        last=rng.choice(["drop", "pad", "keep"]),
        given=rng.choice(["Loader", "Stream", "Sampler", "BatchSampler"]),
        library=rng.choice(["none", "accelerate", "accelerate", "lightning"]),
        mode=rng.choice(["shard", "split", "dispatch"]),
        is_whole=rng.random() < 0.25,
    )


def made(config: Config, rank: int) -> Any:
    """What a user gives to the library."""
    rows, batch = Rows(config.size), config.batch_size
    world = (0, 1) if config.is_whole else (rank, config.world_size)
    options: dict[str, Any] = {"shuffle": config.shuffle, "seed": config.seed}
    options |= {"last": config.last, "rank": world[0], "world_size": world[1]}
    match config.given:
        case "Loader":
            return shardkit.Loader(rows, batch, workers=0, **options)
        case "Stream":
            return DataLoader(shardkit.Stream(rows, batch, **options), batch_size=None)
        case "Sampler":
            return DataLoader(rows, batch, sampler=shardkit.Sampler(rows, **options))
    return DataLoader(rows, batch_sampler=shardkit.BatchSampler(rows, batch, **options))


def seen(config: Config, rank: int) -> list[int]:
    """The rows that a rank is given."""
    given = made(config, rank)
    prepare: dict[str, Callable[..., Any]] = {"accelerate": accelerated, "lightning": lightning}
    if config.library in prepare and isinstance(given, DataLoader) and config.world_size > 1:
        given = prepare[config.library](given, rank, config)
    found = []
    for batch in given:
        valid = batch["valid"].tolist() if "valid" in batch else [True] * len(batch["row"])
        found += [row for row, is_real in zip(batch["row"].tolist(), valid, strict=True) if is_real]
    return found


def splitters(case: Case, place: Place) -> Outcome:
    config, outcome = drawn(case.random()), Outcome()
    state = ModuleType("accelerate.state")
    state.GradientState = GradientState  # type: ignore[attr-defined]
    with mock.patch.dict(sys.modules, {"accelerate.state": state}):
        try:
            ranks = [seen(config, rank) for rank in range(config.world_size)]
        except UsageError as error:
            outcome.counts["refused"] += 1
            if "\n" in str(error):
                outcome.finding(f"{config}: several lines: {error}")
            return outcome
    finding = objection(config, ranks)
    outcome.counts["right" if finding is None else "wrong"] += 1
    if finding is not None:
        outcome.finding(f"{config}: {finding}")
        (place.work / "config.json").write_text(json.dumps(asdict(config), indent=1))
    return outcome


def objection(config: Config, ranks: list[list[int]]) -> str | None:
    times = Counter(row for rank in ranks for row in rank)
    # On each rank the whole, as was asked for, unless the library splits that.
    is_split = config.library == "accelerate" and config.given != "Loader"
    each = config.world_size if config.is_whole and not is_split else 1
    unit = 1 if config.given == "Sampler" else config.batch_size
    unit *= 1 if config.is_whole else config.world_size
    lost = config.size % unit if config.last == "drop" else 0
    is_padded = config.last == "pad" and "Sampler" in config.given  # it has no mask
    if len(times) != config.size - lost:
        return f"{len(times)} of {config.size} samples were seen, {lost} may be dropped"
    if not is_padded and set(times.values()) - {each}:
        return f"samples were seen {sorted(set(times.values()))} times, not {each}"
    return None


KIND = Kind(
    "splitters",
    "samplers, Streams and Loaders under what accelerate and Lightning do to them",
    splitters,
    default=2000,
    batch=200,
    deadline_s=30,
)
