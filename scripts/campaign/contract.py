"""Random configurations of a loader: the sequence of global batches is that of a plain one.

The reference is one rank without workers, over npy, from the beginning to the end. Ranks of a
configuration run one after another in this process; what they give is put together again.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transforms
from cases import Case, Kind, Outcome, Place
from compare import same
from corpora import CONTAINERS
from torch.utils.data import DataLoader

import shardkit

Random = random.Random
Batch = dict[str, Any]

LENGTHS: tuple[str | int, ...] = ("first", "all", 50)

EPOCHS = 3
"""Of each configuration; from the second on it is another permutation."""


@dataclass(frozen=True)
class LoaderSetup:
    """How the batches come; none of this may show in them."""

    container: str
    workers: int
    worker_type: str
    world_size: int
    prefetch: int | None
    readahead: int
    device: str | None


@dataclass(frozen=True)
class Config:
    """What decides the batches, and two ways to feed them: the run goes over from one to the other
    after ``stop`` global batches."""

    data: str
    global_batch: int
    shuffle: str | None
    block_rows: int
    seed: int
    epoch: int
    last: str
    transform: str | None
    on_error: str
    select: str | None
    as_buffer: bool
    with_keys: bool
    boundaries: str
    length: str | int
    setups: tuple[LoaderSetup, ...]
    stop: int
    is_stream: bool


FEWEST = 9
"""Samples of the smallest of the datasets: a larger batch is never full, and must be padded."""

DATA = ("pictures", "pairs", "arrays", "ragged", "tokens", "mix")
DIVISORS = {4: (1, 2, 4), 6: (1, 2, 3, 6), 8: (1, 2, 4, 8), 5: (1, 5), 7: (1, 7), 12: (1, 3, 4)}


def contract(case: Case, place: Place) -> Outcome:
    config, outcome = drawn(case.random()), Outcome()
    torch.set_num_threads(1)
    plain = LoaderSetup("npy", 0, "thread", 1, None, 0, None)
    loader_of = replace(config, is_stream=False)
    expected = [*whole(place.corpora, loader_of, plain)]
    got = stream(place.corpora, config) if config.is_stream else resumed(place.corpora, config)
    for number, (ours, theirs) in enumerate(zip(got, expected, strict=False)):
        if not same(ours, theirs):
            names = [name for name in theirs if not same(ours.get(name), theirs[name])]
            outcome.finding(f"{config}: global batch {number} differs in {names or [*ours]}")
            break
    if len(got) != len(expected):
        outcome.finding(f"{config}: {len(got)} global batches, not {len(expected)}")
    outcome.counts["global batches"] += len(expected)
    if any(setup.worker_type == "process" for setup in config.setups):
        outcome.counts["configurations with processes"] += 1
    if outcome.findings:
        (place.work / "config.json").write_text(json.dumps(asdict(config), indent=1))
    return outcome


# --- what is drawn ------------------------------------------------------------------------


def drawn(rng: Random) -> Config:
    data = rng.choice(DATA)
    is_global = rng.random() < 0.04
    choices = [None, "draw", "draw", "refuse_some"]
    if data in ("pictures", "mix"):
        choices += ["train", "eval", "train"]
    transform = None if data == "tokens" else rng.choice(choices)
    if is_global and data != "tokens":
        transform = "draw_globally"
    global_batch = rng.choice([*DIVISORS])
    is_stream = rng.random() < 0.15
    on_error = "skip" if transform == "refuse_some" else rng.choice(["fail", "skip"])
    setups = [loader_setup(rng, global_batch, transform) for _ in range(rng.choice([1, 2, 2, 3]))]
    return Config(
        data=data,
        global_batch=global_batch,
        shuffle=rng.choice(["full", "block", None]),
        block_rows=rng.choice([1, 2, 4, 256]),
        seed=rng.randrange(-5, 1 << 40),
        epoch=rng.choice([0, 0, 1, 7, 123_456]),
        last=rng.choice(["pad", "keep"] if global_batch > FEWEST else ["drop", "pad", "keep"]),
        transform=transform,
        on_error=on_error,
        select=rng.choice([None, None, "some", "reversed", "class"]),
        as_buffer=data in ("pictures", "pairs") and transform is None and rng.random() < 0.3,
        with_keys=data != "tokens" and rng.random() < 0.7,
        boundaries=rng.choice(["ignore", "mask", "fit"]),
        length=rng.choice(LENGTHS),
        setups=tuple(setups),
        stop=rng.randrange(0, 14),
        is_stream=is_stream,
    )


def loader_setup(rng: Random, global_batch: int, transform: str | None) -> LoaderSetup:
    """Processes cost their start: few have them, and then it is one rank."""
    is_process = rng.random() < 0.06 or transform == "draw_globally"
    world_size = 1 if is_process else rng.choice(DIVISORS[global_batch])
    workers = rng.randrange(1, 3) if is_process else rng.choice([0, 0, 1, 2, 3])
    return LoaderSetup(
        container=rng.choice(CONTAINERS),
        workers=workers,
        worker_type="process" if is_process else "thread",
        world_size=world_size,
        prefetch=rng.choice([None, 1, 3]),
        readahead=rng.choice([0, 1, 4]),
        device=rng.choice([None, None, None, "cpu"]),
    )


# --- what is run --------------------------------------------------------------------------


def source(corpora: Path, config: Config, container: str) -> Any:
    """The dataset, of one container."""

    def opened(kind: str) -> shardkit.Dataset:
        dataset = shardkit.open(corpora / "packed" / f"{kind}-{container}", verify=True)
        match config.select:
            case "some":
                return dataset.select([row for row in range(len(dataset)) if row % 4])
            case "reversed":
                return dataset.select(range(len(dataset) - 1, -1, -1))
            case "class" if "cls" in dataset.info.fields and kind == "pictures":
                return dataset.select(np.flatnonzero(np.asarray(dataset.column("cls")) != 1))
        return dataset

    match config.data:
        case "tokens":
            folder = corpora / "packed" / f"tokens-{container}"
            return shardkit.TokenDataset(folder, seq_len=9, boundaries=config.boundaries)  # type: ignore[arg-type]
        case "mix":
            parts = {"a": opened("pictures"), "b": shardkit.open(corpora / "packed/pictures-lmdb")}
            return shardkit.mix(parts, {"a": 3, "b": 1}, length=config.length)  # type: ignore[arg-type]
    return opened(config.data)


def transform_of(config: Config) -> Any:
    match config.transform:
        case None:
            return None
        case "train":
            return shardkit.images.train(10)
        case "eval":
            return shardkit.images.eval(10)
    return getattr(transforms, config.transform)


def options(config: Config) -> dict[str, Any]:
    """What a loader and a stream are told alike."""
    made: dict[str, Any] = {"shuffle": config.shuffle, "seed": config.seed, "last": config.last}
    made |= {"transform": transform_of(config), "with_keys": config.with_keys}
    made |= {"on_error": config.on_error, "max_skips": 10_000}
    made |= {"as_buffer": ["jpg"] if config.as_buffer else ()}
    if config.shuffle == "block" and (config.data, config.boundaries) != ("tokens", "fit"):
        made |= {"block_rows": config.block_rows, "window_blocks": 3}
    return made


def loaders(corpora: Path, config: Config, setup: LoaderSetup) -> list[shardkit.Loader]:
    """One a rank."""
    return [
        shardkit.Loader(
            source(corpora, config, setup.container),
            config.global_batch // setup.world_size,
            rank=rank,
            world_size=setup.world_size,
            workers=setup.workers,
            worker_type=setup.worker_type,  # type: ignore[arg-type]
            prefetch=setup.prefetch,
            readahead=setup.readahead,
            device=setup.device,
            **options(config),
        )
        for rank in range(setup.world_size)
    ]


def whole(corpora: Path, config: Config, setup: LoaderSetup) -> Iterator[Batch]:
    """All epochs, from the first batch to the last."""
    (loader,) = loaders(corpora, config, setup)
    loader.set_epoch(config.epoch)
    for _ in range(EPOCHS):
        for batch in loader:
            yield together([batch], config)


def resumed(corpora: Path, config: Config) -> list[Batch]:
    """The same by each setup in turn, every ``stop`` global batches; states go through JSON."""
    got: list[Batch] = []
    state: str | None = None
    for number, setup in enumerate(config.setups):
        is_last = number == len(config.setups) - 1
        ranks = loaders(corpora, config, setup)
        ran: list[list[Batch | None]] = []
        states = []
        for loader in ranks:
            if state is None:
                loader.set_epoch(config.epoch)
            else:
                loader.load_state_dict(json.loads(state))
            ran.append(some(loader, config.epoch + EPOCHS, None if is_last else config.stop))
            # Of replaced rows each rank knows its own, unless a process group shares the counts.
            if not ran[-1] or ran[-1][-1] is not None:
                states.append(json.dumps({**loader.state_dict(), "skipped": 0}))
        if len({*states}) != 1 or len({*map(len, ran)}) != 1:
            raise ValueError(f"ranks are not at one place: {states}, {[*map(len, ran)]} batches")
        state = states[0]
        for batches in zip(*ran, strict=True):
            got.append(together([batch for batch in batches if batch is not None], config))
    return got


def some(loader: shardkit.Loader, end: int, stop: int | None) -> list[Batch | None]:
    """Batches up to an epoch, or so many; None for a last one in which this rank has no part."""
    got: list[Batch | None] = []
    while loader.epoch < end and (stop is None or len(got) < stop):
        plan = loader.maker.plan(loader.epoch, loader.state_dict()["position"])
        for batch in loader:
            got.append(batch)
            if stop is not None and len(got) == stop:
                break
        else:
            got += [None] * (plan.num_global_batches - len(plan))
    return got


def stream(corpora: Path, config: Config) -> list[Batch]:
    """By torch's own loader, with worker processes or without."""
    setup = config.setups[0]
    made = shardkit.Stream(
        source(corpora, config, setup.container), config.global_batch, **options(config)
    )
    workers = setup.workers if setup.worker_type == "process" else 0
    loader: Iterable[Batch] = DataLoader(made, batch_size=None, num_workers=workers)
    got = []
    for epoch in range(EPOCHS):
        made.set_epoch(config.epoch + epoch)
        got += [together([batch], config) for batch in loader]
    return got


def together(ranks: list[Batch], config: Config) -> Batch:
    """A global batch of each rank's own, as lists of samples' values."""
    made: Batch = {}
    for name in ranks[0]:
        if name in ("cu_seqlens", "max_seqlen"):
            continue  # of a rank's own batch flattened: they follow from document_ids
        if name.endswith(".offsets"):
            continue
        if config.as_buffer and f"{name}.offsets" in ranks[0]:
            made[name] = [value for batch in ranks for value in _cut(batch, name)]
        else:
            made[name] = [value for batch in ranks for value in batch[name]]
    return made


def _cut(batch: Batch, name: str) -> list[bytes]:
    offsets = batch[f"{name}.offsets"].tolist()
    data = batch[name].numpy().tobytes()
    return [data[a:b] for a, b in itertools.pairwise(offsets)]


KIND = Kind(
    "contract",
    "random configurations of a loader against a plain one",
    contract,
    default=200,
    batch=20,
    deadline_s=120,
    address_space=16 << 30,
)
