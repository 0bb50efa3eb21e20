"""Streams in torch's own DataLoader: same batches, epochs that differ, states that resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import CONTAINERS, make_images
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import shardkit
from shardkit.errors import SampleError, UsageError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stream")
    source = make_images(root / "source", per_class=11, classes=5)
    for container in CONTAINERS:
        shardkit.pack(source, root / container, to=container, shard_size="8kB", progress=False)
    return root


def keys(batches: Any) -> list[list[str]]:
    return [batch["__key__"] for batch in batches]


def stream(folder: Path, container: str = "npy", **options: Any) -> shardkit.Stream:
    options = {"batch_size": 4, "shuffle": "full", "with_keys": True, **options}
    return shardkit.open(folder / container).stream(**options)


def loader(what: shardkit.Stream, workers: int = 0, **options: Any) -> DataLoader[Any]:
    return DataLoader(what, batch_size=None, num_workers=workers, **options)


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_are_the_loaders(folder: Path, workers: int, persistent: bool) -> None:
    expected = shardkit.Loader(
        shardkit.open(folder / "npy"), 4, shuffle="full", with_keys=True, workers=0
    )
    torchs = loader(stream(folder), workers, persistent_workers=persistent and workers > 0)
    assert len(torchs) == len(expected) == 13
    for _ in range(3):
        assert keys(torchs) == keys(expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_set_epoch_reaches_workers_that_run(folder: Path, workers: int) -> None:
    what = stream(folder)
    torchs = loader(what, workers, persistent_workers=workers > 0)
    epochs = [keys(torchs) for _ in range(3)]
    assert len({str(epoch) for epoch in epochs}) == 3
    what.set_epoch(1)
    assert [keys(torchs), keys(torchs)] == epochs[1:]
    with pytest.raises(UsageError, match="epoch must be"):
        what.set_epoch(-1)


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("stop", [0, 1, 6, 13, 17])
def test_stateful_loaders_resume(folder: Path, workers: int, persistent: bool, stop: int) -> None:
    options = {"batch_size": None, "num_workers": workers}
    options["persistent_workers"] = persistent and workers > 0
    undisturbed = StatefulDataLoader(stream(folder), **options)
    expected = [batch["__key__"] for _ in range(3) for batch in undisturbed]
    first = StatefulDataLoader(stream(folder), **options)
    got: list[list[str]] = []
    state = None
    while len(got) < stop:
        for batch in first:
            got.append(batch["__key__"])
            if len(got) == stop:
                state = first.state_dict()
                break
    second = StatefulDataLoader(stream(folder), **options)
    if state is not None:
        second.load_state_dict(state)
    while len(got) < 39:
        got += keys(second)
    assert got[:39] == expected


def test_ranks_of_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = keys(stream(folder, batch_size=8))
    rows = list(shardkit.BatchSampler(55, 8, shuffle="full"))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert keys(stream(folder, batch_size=4)) == [batch[4:] for batch in alone]
    assert list(shardkit.BatchSampler(55, 4, shuffle="full")) == [batch[4:] for batch in rows]
    assert list(shardkit.Sampler(55, shuffle="full"))[:4] == rows[0][1::2]


def test_states_of_other_workers_or_runs_are_refused(folder: Path) -> None:
    what = stream(folder)
    next(iter(what))
    state = what.state_dict()
    assert state["next"] == 1
    with pytest.raises(UsageError, match="use as many workers"):
        what.load_state_dict({**state, "num_workers": 2})
    with pytest.raises(UsageError, match="global batches of 4: use the same"):
        stream(folder, batch_size=2).load_state_dict(state)
    with pytest.raises(UsageError, match="next, of the state, must be"):
        what.load_state_dict({**state, "next": -5})
    with pytest.raises(UsageError, match="its seed is 0, here it is 1"):
        stream(folder, seed=1).load_state_dict(state)


def test_a_transform_that_draws_globally_is_seeded(folder: Path) -> None:
    def noisy(sample: dict[str, Any]) -> dict[str, Any]:
        return {"noise": torch.rand(3)}

    def run(workers: int) -> list[Any]:
        what = stream(folder, transform=noisy, with_keys=False)
        return [batch["noise"].tolist() for batch in loader(what, workers)]

    assert run(0) == run(2)


def test_two_iterations_at_once(folder: Path) -> None:
    what = stream(folder)
    first, second = iter(what), iter(what)
    both = [keys(pair) for pair in zip(first, second, strict=True)]
    what.set_epoch(0)
    assert [pair[0] for pair in both] == keys(what)
    assert [pair[1] for pair in both] == keys(what)


def leaves(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["cls"] == 1:
        raise SystemExit(3)
    return {"cls": sample["cls"]}


def test_an_exit_in_a_worker_is_an_error_of_its_batch(tmp_path: Path) -> None:
    shardkit.pack(make_images(tmp_path / "in"), tmp_path / "d", to="npy", workers=0, progress=False)
    stream = shardkit.open(tmp_path / "d").stream(4, transform=leaves)
    loader = DataLoader(stream, batch_size=None, num_workers=1)
    with pytest.raises(SampleError, match=r"raised SystemExit\(3\), in batch 3 of epoch 0"):
        list(loader)
