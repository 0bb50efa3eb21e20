"""Transforms that take a whole batch: keys by position, errors that name the sample."""

from __future__ import annotations

import functools
import json
import random
import re
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_images
from hypothesis import given
from hypothesis import strategies as st

import shardkit
from shardkit import Loader
from shardkit.batches.transform import Randomised
from shardkit.errors import SampleError, UsageError
from shardkit.order.permutation import derive, derive_each


class Keyed:
    """Gives the keys back. ``bad``: the label of samples it cannot use."""

    def __init__(self, state: str = "v1", bad: int | None = None) -> None:
        self.state = state
        self.bad = bad

    def batch(self, columns: dict[str, Any], keys: Any) -> dict[str, Any]:
        for slot, label in enumerate(columns["cls"]):
            if label == self.bad:
                error = ValueError("no good")
                error.slot = slot  # type: ignore[attr-defined]
                raise error
        return {"key": keys.view(np.int64), "cls": columns["cls"]}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> shardkit.Dataset:
    root: Path = tmp_path_factory.mktemp("keyed")
    make_images(root / "source", per_class=9, classes=3)
    return shardkit.open(shardkit.pack(root / "source", root / "packed", to="npy", workers=0).dest)


def batches(loader: Any) -> list[tuple[list[int], list[int]]]:
    return [(batch["key"].tolist(), batch["cls"].tolist()) for batch in loader]


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**60), min_size=1))
def test_keys_are_derived_alike_one_by_one_and_together(key, numbers):
    together = derive_each(key, np.array(numbers, np.int64)).tolist()
    assert together == [derive(key, number) for number in numbers]


def test_keys_depend_on_seed_epoch_and_position_alone(dataset: shardkit.Dataset) -> None:
    options: dict[str, Any] = {"shuffle": "full", "seed": 5, "transform": Keyed()}
    whole = batches(Loader(dataset, 4, workers=0, **options))
    keys = [key for some, _ in whole for key in some]
    assert len(set(keys)) == len(keys) == 24
    for workers, kind in ((3, "thread"), (2, "process")):
        assert batches(Loader(dataset, 4, workers=workers, worker_type=kind, **options)) == whole
    ranks = [
        batches(Loader(dataset, 2, rank=rank, world_size=2, workers=0, **options))
        for rank in (0, 1)
    ]
    joined = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(*ranks, strict=True)]
    assert joined == whole
    loader = Loader(dataset, 4, workers=1, **options)
    received = iter(loader)
    assert (next(received)["key"].tolist(), next(received)["key"].tolist()) == (keys[:4], keys[4:8])
    resumed = Loader(dataset, 4, workers=0, **options)
    resumed.load_state_dict(loader.state_dict())
    received.close()  # type: ignore[attr-defined]
    assert batches(resumed) == whole[2:]
    assert batches(resumed) != whole  # the next epoch draws anew
    stream = torch.utils.data.DataLoader(dataset.stream(4, **options), batch_size=None)
    assert batches(stream) == whole


def test_an_error_names_the_sample_in_its_slot(dataset: shardkit.Dataset) -> None:
    first = dataset.column("cls").tolist().index(2)
    loader = Loader(dataset, 27, workers=0, transform=Keyed(bad=2))
    with pytest.raises(SampleError, match=rf"\(row {first}, .*failed: ValueError: no good"):
        next(iter(loader))


def test_bad_slots_are_replaced_one_by_one(dataset: shardkit.Dataset) -> None:
    loader = Loader(dataset, 27, workers=0, transform=Keyed(bad=2), on_error="skip", shuffle="full")
    with pytest.warns(UserWarning, match="no good"):
        ((keys, labels),) = batches(loader)
    assert 2 not in labels
    assert loader.stats.skipped == 9
    ((good, all_labels),) = batches(
        Loader(dataset, 27, workers=0, transform=Keyed(), shuffle="full")
    )
    # A position keeps its key; a row that stands in for another has one of its own.
    kept = [key == other for key, other in zip(keys, good, strict=True)]
    assert kept == [label != 2 for label in all_labels]
    assert len(set(keys)) == 27


def test_what_is_no_dict_is_refused(dataset: shardkit.Dataset) -> None:
    transform = Keyed()
    transform.batch = lambda columns, keys: keys  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="must return a dict of fields, got ndarray"):
        next(iter(Loader(dataset, 4, workers=0, transform=transform)))


def test_resuming_with_another_decoder_warns(dataset: shardkit.Dataset) -> None:
    saved = Loader(dataset, 4, transform=Keyed("kernel 1")).state_dict()
    assert saved["transform"] == "kernel 1"
    other = Loader(dataset, 4, transform=Keyed("pillow 12"))
    said = re.escape("made by kernel 1, here it is pillow 12: they may differ by a rounding")
    with pytest.warns(UserWarning, match=said):
        other.load_state_dict(saved)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Loader(dataset, 4, transform=Keyed("kernel 1")).load_state_dict(saved)


def crop(sample: dict[str, Any], size: int = 32) -> dict[str, Any]:
    return {"cls": sample["cls"]}


@dataclass(frozen=True)
class Cropped:
    size: int
    model: Any = None

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {"cls": sample["cls"]}


class Own:
    """With a repr of its own, as torch's modules have; and an address in it."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {"cls": sample["cls"]}

    def __repr__(self) -> str:
        return f"Own({self.size}, {object()!r})"


TRANSFORMS: list[Callable[[], Any]] = [
    lambda: shardkit.images.train(32),
    lambda: shardkit.images.train(32, scale=(0.5, 1.0)),
    lambda: shardkit.images.eval(32),
    lambda: shardkit.images.eval(32, resize=40),
    lambda: shardkit.images.flip(),
    lambda: crop,
    lambda: functools.partial(crop, size=48),
    lambda: functools.partial(crop, size=np.arange(3)),
    lambda: Cropped(32),
    lambda: Cropped(48),
    lambda: Cropped(48, object()),
    lambda: Own(32),
    lambda: Own(32).__call__,
    lambda: Keyed(),
    lambda: functools.partial(crop, size=[*range(1000)]),
    lambda: functools.partial(crop, size=[*range(999), 0]),
    lambda: functools.partial(crop, size={*range(1000)}),
    lambda: functools.partial(crop, size=torch.arange(2000)),
    lambda: functools.partial(crop, size=torch.arange(2000).index_fill(0, torch.tensor([5]), 0)),
    lambda: functools.partial(crop, size=torch.tensor([0.48512345])),
    lambda: functools.partial(crop, size=torch.tensor([0.48514999])),
    lambda: functools.partial(crop, size=torch.tensor([0.48514999], dtype=torch.bfloat16)),
    lambda: functools.partial(crop, size=np.array(["".join(("a", "b")), 1], dtype=object)),
]


@pytest.mark.filterwarnings("ignore:the state's samples")
def test_a_state_is_of_one_transform_and_its_options(dataset: shardkit.Dataset) -> None:
    """Each is equal to itself, made anew, and to no other."""
    loaders = [Loader(dataset, 4, workers=0, transform=make()) for make in TRANSFORMS]
    states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
    assert len({state["made_by"] for state in states}) == len(TRANSFORMS)
    assert not any("0x" in state["made_by"] for state in states)
    assert max(len(state["made_by"]) for state in states) < 350
    for number, make in enumerate(TRANSFORMS):
        again = Loader(dataset, 4, workers=0, transform=make())
        again.load_state_dict(states[number])
        other = states[number - 1]
        with pytest.raises(UsageError, match=re.escape(f"made_by) is {other['made_by']!r}")):
            again.load_state_dict(other)
        other.pop("made_by")  # as older states lack it
        again.load_state_dict(other)
        states[number - 1] = {**other, "made_by": loaders[number - 1].state_dict()["made_by"]}


def test_how_pixels_are_made_may_differ(dataset: shardkit.Dataset) -> None:
    saved = Loader(dataset, 4, transform=shardkit.images.train(32, threads=2)).state_dict()
    assert "size=32" in saved["made_by"]
    other = shardkit.images.train(32, backend="pillow", max_pixels=10**6)
    saved["transform"] = "another decoder"
    with pytest.warns(UserWarning, match="may differ by a rounding"):
        Loader(dataset, 4, transform=other).load_state_dict(saved)


def test_a_stream_checks_its_transform_too(dataset: shardkit.Dataset) -> None:
    saved = dataset.stream(4, transform=Cropped(32)).state_dict()
    dataset.stream(4, transform=Cropped(32)).load_state_dict(saved)
    for options in ({"transform": Cropped(48)}, {"transform": Cropped(32), "last": "pad"}):
        with pytest.raises(UsageError, match="the state is of another run"):
            dataset.stream(4, **options).load_state_dict(saved)


def test_a_slot_that_is_none_does_not_hide_the_error(dataset: shardkit.Dataset) -> None:
    transform = Keyed()

    def batch(columns: dict[str, Any], keys: Any) -> dict[str, Any]:
        error = ValueError("the real one")
        error.slot = 99  # type: ignore[attr-defined]
        raise error

    transform.batch = batch  # type: ignore[method-assign]
    with pytest.raises(SampleError, match=r"one of the 3 with it: .*the real one"):
        next(iter(Loader(dataset, 4, workers=0, transform=transform)))


def test_a_batch_of_another_length_is_refused(dataset: shardkit.Dataset) -> None:
    transform = Keyed()
    transform.batch = lambda columns, keys: {"key": keys[:3]}  # type: ignore[method-assign]
    with pytest.raises(UsageError, match=r"made 3 values of field 'key' for 4 samples"):
        next(iter(Loader(dataset, 4, workers=0, transform=transform)))


class DrawsGlobally:
    def batch(self, columns: dict[str, Any], keys: Any) -> dict[str, Any]:
        return {"v": np.random.rand(len(keys))}


def test_a_batch_that_draws_globally_is_refused(tmp_path: Path) -> None:
    shardkit.pack(make_images(tmp_path / "in"), tmp_path / "d", to="npy", workers=0, progress=False)
    ds = shardkit.open(tmp_path / "d")
    before = np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    for options in ({"workers": 0}, {"workers": 2}, {"workers": 1, "worker_type": "process"}):
        with pytest.raises(UsageError, match=r"batch\(\) draws from the global random generators"):
            Loader(ds, 4, transform=DrawsGlobally(), **options)  # type: ignore[arg-type]
    assert np.random.get_state()[1].tolist() == before  # type: ignore[union-attr]


class Halves:
    """Takes even batches alone, and those of four and more: it was once tried on three samples."""

    def batch(self, columns: dict[str, Any], keys: Any) -> dict[str, Any]:
        if len(keys) % 2:
            raise ValueError("an even batch")
        return {"v": keys * 0 + random.getrandbits(16)}


def later(sample: dict[str, Any]) -> dict[str, Any]:
    """Draws for the second half of the samples only."""
    return {"v": random.random() if sample["cls"] else 0.5}


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": 1, "worker_type": "process"}])
def test_what_draws_later_is_refused_then(options: dict[str, Any], tmp_path: Path) -> None:
    shardkit.pack(make_images(tmp_path / "in"), tmp_path / "d", to="npy", workers=0, progress=False)
    ds = shardkit.open(tmp_path / "d")
    with pytest.raises(UsageError, match=r"batch\(\) draws from the global random generators"):
        Loader(ds, 4, transform=Halves(), **options)
    loader = Loader(ds, 4, transform=later, **options)
    with pytest.raises(UsageError, match="though not for the first 3 samples, on which it was"):
        list(loader)


def test_another_thread_may_draw_beside_a_transform(dataset: shardkit.Dataset) -> None:
    drawn = threading.Event()

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        if not drawn.is_set():
            thread = threading.Thread(target=lambda: (random.random(), drawn.set()))
            thread.start()
            thread.join()
        return {"cls": sample["cls"]}

    watched = Randomised(transform, is_global=False)
    assert watched.watched(lambda: transform({"cls": 1})) == {"cls": 1} and drawn.is_set()
