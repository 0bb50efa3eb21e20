"""The loader: one sequence of global batches, whatever the format, the workers or the ranks."""

from __future__ import annotations

import copy
import functools
import io
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import uuid
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from conftest import (
    CONTAINERS,
    children,
    examples,
    make_pairs,
    nothing_left_open,
    pack_all,
    settle,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobs import MARK, members, on_ranks
from PIL import Image
from trained import Rows

import shardkit
from shardkit import Loader
from shardkit.batches.request import Request
from shardkit.errors import DataError, SampleError, TooManyRejectsError, UsageError
from shardkit.loading.processes import Processes
from shardkit.loading.workers import _make

WORKERS = [(0, "thread"), (1, "thread"), (3, "thread"), (2, "process")]


def crop(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A random crop, flipped or not: pixels that depend on the generator."""
    pixels = np.asarray(Image.open(io.BytesIO(sample["jpg"])))
    y, x = rng.integers(0, 5, 2)
    pixels = pixels[y : y + 12, x : x + 12]
    if rng.random() < 0.5:
        pixels = pixels[:, ::-1]
    return {"image": np.ascontiguousarray(pixels), "cls": sample["cls"]}


def crop_globally(sample: dict[str, Any]) -> dict[str, Any]:
    y, x = random.randrange(5), int(np.random.randint(5))
    pixels = np.asarray(Image.open(io.BytesIO(sample["jpg"])))[y : y + 12, x : x + 12]
    return {"image": np.ascontiguousarray(pixels), "noise": torch.rand(2)}


def crop_both_ways(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Given a generator of its own, it calls something that draws globally all the same."""
    return {**crop(sample, rng), **crop_globally(sample)}


class HalfBad:
    """Rank 0 of 2 with batches of 2 meets all of the bad rows: those of position 0 of 4."""

    def __len__(self) -> int:
        return 1000

    def read(self, rows: Any) -> dict[str, Any]:
        if (rows % 4 == 0).any():
            raise DataError("bad")
        return {"row": rows}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One corpus of 55 pictures, in all formats."""
    return pack_all(tmp_path_factory.mktemp("loader"))


@pytest.fixture
def dataset(folders: dict[str, Path]) -> shardkit.Dataset:
    return shardkit.open(folders["npy"])


def plain(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch that can be compared."""
    return {
        name: value.tolist() if isinstance(value, torch.Tensor) else value
        for name, value in batch.items()
    }


def run(dataset: Any, *args: Any, epochs: int = 1, **options: Any) -> list[dict[str, Any]]:
    loader = Loader(dataset, *args, **options)
    return [plain(batch) for _ in range(epochs) for batch in loader]


def together(ranks: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Global batches, from each rank's own."""
    return [
        {name: [v for batch in batches for v in batch[name]] for name in batches[0]}
        for batches in zip(*ranks, strict=True)
    ]


# --- one contract -------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
@pytest.mark.parametrize("shuffle", ["full", "block", None])
def test_workers_do_not_matter(
    dataset: shardkit.Dataset, workers: int, worker_type: Any, shuffle: Any
) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "transform": crop, "with_keys": True}
    expected = run(dataset, 8, workers=0, epochs=2, **options)
    got = run(dataset, 8, workers=workers, worker_type=worker_type, epochs=2, **options)
    assert got == expected
    assert len(got) == 12
    assert (got[:6] != got[6:]) or shuffle is None


def test_every_sample_once_an_epoch_and_padding_said(dataset: shardkit.Dataset) -> None:
    batches = run(dataset, 8, shuffle="full", last="pad", with_keys=True)
    keys = [key for b in batches for key, ok in zip(b["__key__"], b["valid"], strict=True) if ok]
    assert sorted(keys) == sorted(dataset.keys())
    assert [sum(b["valid"]) for b in batches] == [8] * 6 + [7]
    assert "valid" not in run(dataset, 8)[0]


def test_transforms_that_draw_globally_are_seeded(dataset: shardkit.Dataset) -> None:
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    options: dict[str, Any] = {"shuffle": "full", "transform": crop_globally}
    expected = run(dataset, 8, workers=0, **options)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert before == after
    assert run(dataset, 8, workers=2, worker_type="process", **options) == expected
    assert len({str(noise) for batch in expected for noise in batch["noise"]}) == 48
    for transform in (crop_globally, crop_both_ways):
        with pytest.raises(UsageError, match="a parameter named rng"):
            Loader(dataset, 8, workers=2, worker_type="thread", transform=transform)
    options["transform"] = crop_both_ways
    expected = run(dataset, 8, workers=0, **options)
    assert run(dataset, 8, workers=2, worker_type="process", **options) == expected


# --- resume -------------------------------------------------------------------------------


@settings(
    examples(0.25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    stop=st.integers(0, 12),
    worlds=st.tuples(st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 3, 4])),
    workers=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    shuffle=st.sampled_from(["full", "block", None]),
    kind=st.sampled_from(["dataset", "mix"]),
    device=st.sampled_from([None, "cpu"]),
    formats=st.tuples(st.sampled_from(CONTAINERS), st.sampled_from(CONTAINERS)),
)
def test_a_run_resumes_anywhere(
    folders: dict[str, Path],
    stop: int,
    worlds: tuple[int, int],
    workers: tuple[int, int],
    shuffle: Any,
    kind: str,
    device: str | None,
    formats: tuple[str, str],
) -> None:
    """Three epochs, stopped after ``stop`` batches, resumed with other ranks and another format;
    with ``device`` a prefetcher holds batches when the state is taken."""
    options: dict[str, Any] = {"shuffle": shuffle, "seed": 9, "transform": crop}
    options |= {"block_rows": 4, "window_blocks": 3}

    def source(container: str) -> Any:
        whole = shardkit.open(folders[container])
        if kind == "dataset":
            return whole
        parts = {"a": whole.select(range(30)), "b": whole.select(range(30, 55))}
        return shardkit.mix(parts, {"a": 2, "b": 1}, length=70)

    def loaders(turn: int) -> list[Loader]:
        world_size = worlds[turn]
        return [
            Loader(source(formats[turn]), 12 // world_size, rank=rank, world_size=world_size,
                   workers=workers[turn], device=device, **options)
            for rank in range(world_size)
        ]  # fmt: skip

    expected = run(source("npy"), 12, workers=0, epochs=3, **options)
    first = loaders(0)
    ran, states = [], []
    for loader in first:
        batches: list[dict[str, Any]] = []
        while len(batches) < stop:
            for batch in loader:
                batches.append(plain(batch))
                if len(batches) == stop:
                    break
        ran.append(batches)
        states.append(loader.state_dict())
    assert all(state == states[0] for state in states)
    text = json.dumps(states[0])
    assert len(text) < 1024
    rest = []
    for loader in loaders(1):
        loader.load_state_dict(json.loads(text))
        batches = []
        while loader.epoch < 3:
            batches += [plain(batch) for batch in loader]
        rest.append(batches)
    assert together(ran) + together(rest) == expected


def test_each_iteration_is_the_next_epoch_unless_told(dataset: shardkit.Dataset) -> None:
    loader = Loader(dataset, 8, shuffle="full")
    first = [plain(b) for b in loader]
    second = [plain(b) for b in loader]
    assert loader.epoch == 2
    loader.set_epoch(0)
    assert [plain(b) for b in loader] == first
    assert [plain(b) for b in loader] == second
    # Left early, too, an epoch is over.
    third = plain(next(iter(loader)))
    assert plain(next(iter(loader))) != third
    # set_epoch of the loaded epoch keeps the place in it.
    loader.set_epoch(0)
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.state_dict()
    loader.load_state_dict(state)
    loader.set_epoch(0)
    assert [plain(b) for b in loader] == first[2:]
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match=r"forgets the loaded position 16 of epoch 0"):
        loader.set_epoch(1)
    assert [plain(b) for b in loader] == second
    with pytest.warns(UserWarning, match="global batches of 8, here they have 4"):
        Loader(dataset, 4, shuffle="full").load_state_dict(state)


def test_a_state_after_the_last_batch_ends_the_epoch(dataset: shardkit.Dataset) -> None:
    loader = Loader(dataset, 8, shuffle="full")
    for _ in loader:
        last = loader.state_dict()
    assert (last["epoch"], last["position"]) == (0, 48)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (1, 0)
    loader.load_state_dict(last)
    assert list(loader) == []
    assert len(list(loader)) == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "its seed is 1, here it is 0"),
        ({"fingerprint": "x"}, "its fingerprint is 'x'"),
        ({"order": {"shuffle": "block"}}, "its order is"),
        ({"last": "pad"}, "its last is 'pad', here it is 'drop'; to go on with other samples"),
        (
            {"made_by": "crop"},
            r"its transform \(made_by\) is 'crop', here it is None; .* delete its 'made_by'",
        ),
        ({"version": 1}, "no loader state of version 2"),
        ({"position": -1}, "at least 0, got -1"),
        ({"epoch": None}, "must be a whole number, got None"),
        ({"epoch": 2**70}, "at most"),
        ({"worker": 0}, "of a Stream's worker"),
        ({"position": 56}, "position 56 is outside 0..55"),
    ],
)
def test_states_of_other_runs(
    dataset: shardkit.Dataset, change: dict[str, Any], message: str
) -> None:
    loader = Loader(dataset, 8, shuffle="full")
    with pytest.raises(UsageError, match=message):
        loader.load_state_dict({**loader.state_dict(), **change})
    assert loader.state_dict()["position"] == 0


# --- batches ------------------------------------------------------------------------------


@pytest.mark.usefixtures("_gathering")
@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_fields_become_tensors_or_lists(tmp_path: Path, worker_type: Any) -> None:
    shardkit.pack(make_pairs(tmp_path / "s"), tmp_path / "d", to="lmdb", workers=0, progress=False)
    dataset = shardkit.open(tmp_path / "d")
    (batch,) = Loader(dataset, 13, worker_type=worker_type, as_buffer=["jpg"])
    assert batch["jpg"].dtype == torch.uint8
    offsets = batch["jpg.offsets"]
    assert offsets.dtype == torch.int64
    assert offsets.shape == (14,)
    values = dataset.read(np.arange(13))
    for i in range(13):
        start, end = offsets[i : i + 2].tolist()
        assert bytes(batch["jpg"][start:end].numpy()) == bytes(values["jpg"][i])
    assert batch["cls"] == values["cls"]  # the last sample has none
    assert batch["txt"] == values["txt"]
    assert batch["json"] == values["json"]
    assert [type(v) for v in batch["feat.npy"]].count(torch.Tensor) == 3
    with pytest.raises(UsageError, match="no field 'png'"):
        list(Loader(dataset, 5, as_buffer=["png"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"batch_size": 56}, "55 samples do not fill one batch of 56"),
        ({"workers": -1}, "workers must be"),
        ({"workers": True}, "workers must be a whole number, got True"),
        ({"seed": "a"}, "seed must be a whole number"),
        ({"with_keys": True, "dataset": HalfBad()}, "has no keys"),
        ({"batch_size": 2.0}, "batch_size must be a whole number"),
        ({"prefetch": 0}, "prefetch must be"),
        ({"worker_type": "fiber"}, "worker_type must be"),
        ({"shuffle": "random"}, "shuffle must be"),
        ({"last": "some"}, "last must be"),
        ({"on_error": "ignore"}, "on_error must be"),
        ({"rank": 1}, "rank and world_size together"),
        ({"rank": 2, "world_size": 2}, "rank must be"),
        ({"device": "tpu-9"}, "no such device"),
        ({"device_transform": print}, "give device="),
        ({"block_rows": 0, "shuffle": "block"}, "block_rows"),
        ({"drop_last": 2}, "drop_last must be True or False, got 2"),
        ({"drop_last": True, "last": "pad"}, "give last='pad' or drop_last=True, not both"),
        ({"dataset": [1, 2, 3]}, "list cannot be fed from"),
    ],
)
def test_options_that_make_no_sense(
    dataset: shardkit.Dataset, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Loader(**{"dataset": dataset, "batch_size": 8, **options})


def test_ranks_of_the_environment(
    dataset: shardkit.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = run(dataset, 8, with_keys=True)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(dataset, 4, with_keys=True)[0]["__key__"] == alone[0]["__key__"][4:]
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(UsageError, match="no numbers"):
        Loader(dataset, 4)


# --- errors -------------------------------------------------------------------------------


def fails_at(label: int, sample: dict[str, Any]) -> dict[str, Any]:
    if sample["cls"] == label:
        raise ValueError("not this one")
    return {"cls": sample["cls"], "size": len(sample["jpg"])}


@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
def test_errors_arrive_at_their_batch(
    dataset: shardkit.Dataset, workers: int, worker_type: Any
) -> None:
    loader = Loader(
        dataset, 5, workers=workers, worker_type=worker_type,
        transform=functools.partial(fails_at, 3),
    )  # fmt: skip
    batches = iter(loader)
    good = [next(batches) for _ in range(6)]
    assert len(good) == 6
    with pytest.raises(SampleError, match="not this one") as caught:
        next(batches)
    message = str(caught.value)
    assert "sample 'class3/img.000'" in message and "train-0000" in message
    assert "batch 6 after position 0 of epoch 0" in message
    assert {0: "no worker"}.get(workers, f"worker {worker_type}") in message and "\n" not in message
    assert loader.state_dict()["position"] == 30


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize(("workers", "worker_type"), [(0, "thread"), (2, "process")])
def test_bad_rows_are_replaced_alike(
    dataset: shardkit.Dataset, world_size: int, workers: int, worker_type: Any
) -> None:
    options: dict[str, Any] = {"shuffle": "full", "on_error": "skip", "with_keys": True}
    options |= {"transform": functools.partial(fails_at, 3), "max_skips": 60}

    def all_ranks(world_size: int, **options: Any) -> list[list[dict[str, Any]]]:
        return [
            run(dataset, 24 // world_size, rank=rank, world_size=world_size, **options)
            for rank in range(world_size)
        ]

    with pytest.warns(UserWarning, match="replaced by the next good sample: sample 'class3"):
        (expected,) = all_ranks(1, workers=0, **options)
    with pytest.warns(UserWarning, match="replaced by the next good sample: sample 'class3"):
        ranks = all_ranks(world_size, workers=workers, worker_type=worker_type, **options)
    assert together(ranks) == expected
    assert 3 not in [label for batch in expected for label in batch["cls"]]
    # Each bad row gave way to the first good one after it in the order of the epoch.
    positions = np.arange(48)
    rows = shardkit.Order(55, "full").rows(np.arange(55))
    labels = dataset.column("cls")
    good = [next(r for r in np.roll(rows, -p) if labels[r] != 3) for p in positions]
    assert [k for b in expected for k in b["__key__"]] == dataset.keys(good)


class OneBad(HalfBad):
    """Rows 5 and 6, neighbours, are bad; every other row is good."""

    def read(self, rows: Any) -> dict[str, Any]:
        if ((rows == 5) | (rows == 6)).any():
            raise DataError("bad")
        return {"row": rows}


def test_each_bad_position_counts_once() -> None:
    for batch_size in (1, 2, 10):
        loader = Loader(OneBad(), batch_size, on_error="skip", max_skips=2, workers=0)
        with pytest.warns(UserWarning, match="bad") as warned:
            rows = [row for batch in loader for row in batch["row"].tolist()]
        assert len(warned) == loader.stats.skipped == 2
        assert rows == [*range(5), 7, 7, *range(7, 1000)]


def test_padding_counts_nowhere() -> None:
    options: dict[str, Any] = {"on_error": "skip", "workers": 0, "last": "pad"}
    loader = Loader(OneBad(), 991, max_skips=2, **options)
    with pytest.warns(UserWarning, match="bad"):
        last = list(loader)[-1]
    assert last["row"][9 : 9 + 7].tolist() == [0, 1, 2, 3, 4, 7, 7]
    assert loader.stats.skipped == 2


def test_a_resumed_run_goes_on_counting() -> None:
    options: dict[str, Any] = {"on_error": "skip", "max_skips": 20, "workers": 0}
    loader = Loader(HalfBad(), 4, **options)  # one bad row a batch
    batches = iter(loader)
    with pytest.warns(UserWarning, match="bad"):
        assert len([next(batches) for _ in range(12)]) == 12
    state = loader.state_dict()
    assert state["skipped"] == 12
    resumed = Loader(HalfBad(), 4, **options)
    resumed.load_state_dict(state)
    with (
        pytest.warns(UserWarning, match="bad"),
        pytest.raises(TooManyRejectsError, match="21 samples of this epoch could not be used"),
    ):
        list(resumed)
    assert resumed.stats.batches == 8
    resumed.set_epoch(1)
    assert "skipped" not in resumed.state_dict()
    old = {name: value for name, value in state.items() if name != "skipped"}
    resumed.load_state_dict(old)
    assert "skipped" not in resumed.state_dict()
    with pytest.raises(UsageError, match="skipped, of the state, must be at least 0"):
        resumed.load_state_dict({**state, "skipped": -1})


def fails_by_chance(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    draw = rng.random()
    if draw < 0.5:
        raise ValueError("out of luck")
    return {"row": sample["row"], "draw": draw}


class FailsByChance:
    """The same for whole batches."""

    def batch(self, columns: dict[str, Any], keys: Any) -> dict[str, Any]:
        for slot, key in enumerate(keys.tolist()):
            if key % 2:
                error = ValueError("out of luck")
                error.slot = slot  # type: ignore[attr-defined]
                raise error
        return {"row": columns["row"], "draw": keys.view(np.int64)}


@pytest.mark.parametrize("transform", [fails_by_chance, FailsByChance()])
def test_a_failure_by_chance_does_not_follow_the_position(transform: Any) -> None:
    """Each row that is tried has a draw of its own: half of all positions keep theirs."""
    options: dict[str, Any] = {"on_error": "skip", "max_skips": 1000, "shuffle": "full"}

    def made(world_size: int, **more: Any) -> list[dict[str, Any]]:
        return together(
            [
                run(Many(), 24 // world_size, transform=transform, rank=rank,
                    world_size=world_size, **options, **more)
                for rank in range(world_size)
            ]
        )  # fmt: skip

    class Many(Rows):
        def __len__(self) -> int:
            return 240

    with pytest.warns(UserWarning, match="out of luck"):
        expected = made(1, workers=0)
    rows = [row for batch in expected for row in batch["row"]]
    own = shardkit.Order(240, "full").rows(np.arange(240)).tolist()
    assert 80 < sum(a == b for a, b in zip(rows, own, strict=True)) < 160
    draws = [draw for batch in expected for draw in batch["draw"]]
    assert len(set(draws)) == 240
    with pytest.warns(UserWarning, match="out of luck"):
        assert made(2, workers=2) == expected


def fail_together() -> None:
    """One rank of a job."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    num = 0
    try:
        for _ in Loader(HalfBad(), 2, on_error="skip", max_skips=20):
            num += 1
            dist.barrier()
    except TooManyRejectsError as error:
        print(num, error, sep="|")
    dist.destroy_process_group()


def test_all_ranks_fail_together() -> None:
    """One rank meets too many bad rows: all raise, at the same batch, and none waits for ever."""
    outs = on_ranks(2, fail_together).splitlines()
    # 21 bad rows after 21 batches, published with the 24th, looked at with the 32nd, which is not
    # handed over.
    assert outs == [outs[0]] * 2
    assert outs[0].startswith("31|24 samples of this epoch could not be used, max_skips=20;")


class Torn(Rows):
    """A source of one's own that fails in its own way."""

    def read(self, rows: Any) -> dict[str, Any]:
        if 7 in rows:
            raise KeyError("seven")
        return super().read(rows)


def test_errors_of_ones_own_source() -> None:
    with pytest.raises(SampleError, match="row 6 or one of the 2 with it: reading failed: KeyErr"):
        list(Loader(Torn(), 3))
    with pytest.warns(UserWarning, match="row 7: reading failed"):
        batches = run(Torn(), 3, on_error="skip")
    assert batches[2]["row"] == [6, 8, 8]


def unsendable(sample: dict[str, Any]) -> dict[str, Any]:
    return {"row": sample["row"], "odd": threading.Lock()}


def with_gradient(sample: dict[str, Any]) -> dict[str, Any]:
    return {"x": torch.ones(2, requires_grad=True) * sample["row"]}


def test_what_cannot_leave_a_process_is_said() -> None:
    with pytest.raises(UsageError, match="field 'odd' cannot be sent from a worker process"):
        list(Loader(Rows(), 3, worker_type="process", transform=unsendable))
    (batch,) = Loader(Rows(), 12, worker_type="process", transform=with_gradient, workers=1)
    assert batch["x"].sum() == 2 * 66


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_the_global_generators_are_left_alone(worker_type: Any) -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    list(Loader(Rows(), 3, worker_type=worker_type))
    assert torch.rand(1) == expected


def test_the_newest_iteration_says_where_we_are() -> None:
    def rows(batches: Any) -> list[list[int]]:
        return [batch["row"].tolist() for batch in batches]

    loader = Loader(Rows(), 3)
    one, two = iter(loader), iter(loader)
    next(one), next(two), next(one)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (1, 3)
    assert len(rows(one)) == 2
    assert loader.epoch == 1
    loader.set_epoch(5)
    next(two)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (5, 0)
    for _ in range(2):  # without a loaded state, it is the whole epoch again
        loader.set_epoch(5)
        assert next(iter(loader))["row"].tolist() == [0, 1, 2]


def doubled(batch: dict[str, Any]) -> dict[str, Any]:
    return {"row": batch["row"] * 2}


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))]
)
def test_a_copy_goes_on_from_where_the_loader_is(copied: Any, device: str | None) -> None:
    def rows(batches: Any) -> list[list[int]]:
        return [batch["row"].tolist() for batch in batches]

    more = {"device": device, "device_transform": doubled} if device else {}
    loader = Loader(Rows(), 3, shuffle="full", **more)
    expected = [rows(loader) for _ in range(3)]
    loader.set_epoch(1)
    batches = iter(loader)
    assert [next(batches)["row"].tolist()] == expected[1][:1]
    other = copied(loader)
    assert other.state_dict() == loader.state_dict()
    assert rows(other) == expected[1][1:]
    assert rows(other) == expected[2]
    assert rows(batches) == expected[1][1:]  # and neither moves the other
    assert (loader.epoch, other.epoch) == (2, 3)
    assert other.stats.batches == 7
    assert rows(copied(Loader(Rows(), 3, shuffle="full", **more))) == expected[0]


def test_what_was_given_can_be_looked_at_but_not_set() -> None:
    loader = Loader(Rows(), 3, workers=0)
    assert (loader.batch_size, loader.num_workers, len(loader.dataset)) == (3, 0, 12)
    for name in ("batch_size", "dataset", "epoch", "stats", "seed", "drop_last"):
        with pytest.raises(UsageError, match=f"{name} of a Loader that is made cannot be set"):
            setattr(loader, name, 2)


# --- ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_an_early_break_leaves_nothing(
    dataset: shardkit.Dataset, worker_type: Any, device: str | None
) -> None:
    list(Loader(dataset, 4, worker_type=worker_type, device=device))  # opens what stays open
    before = {thread.ident for thread in threading.enumerate()}, children()
    with nothing_left_open():
        loader = Loader(dataset, 4, worker_type=worker_type, workers=2, device=device)
        for _ in range(2):
            batch = next(iter(loader))
        del batch  # it is in memory shared with the worker that made it
    assert settle(lambda: {thread.ident for thread in threading.enumerate()} <= before[0])
    assert settle(lambda: children() <= before[1])


CTRL_C = """
import sys, time, shardkit
loaders = []
for kind in sys.argv[2:]:
    worker_type, _, device = kind.partition(" ")
    loaders.append(shardkit.Loader(shardkit.open(sys.argv[1]), 4, worker_type=worker_type,
                                   workers=2, device=device or None))
    try:
        while True:
            for batch in loaders[-1]:
                print("batch", flush=True)
                time.sleep(0.02)
    except KeyboardInterrupt:
        del batch
        print("stopped", flush=True)
        sys.stdin.readline()
"""


def test_ctrl_c_leaves_nothing(folders: dict[str, Path]) -> None:
    """Neither while the process goes on, nor at its end, when all four loaders are there still."""
    kinds = ["thread", "thread cpu", "process", "process cpu"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), MARK: (mark := uuid.uuid4().hex)}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", CTRL_C, str(folders["npy"]), *kinds]
    process = subprocess.Popen(command, env=env, text=True, start_new_session=True, **pipes)
    assert process.stdin is not None and process.stdout is not None
    for _ in kinds:
        for _ in range(20):
            assert process.stdout.readline() == "batch\n"
        os.killpg(process.pid, signal.SIGINT)
        assert "stopped\n" in iter(process.stdout.readline, "")
        assert settle(lambda: [*members(mark)] == [process.pid])
        process.stdin.write("\n")
        process.stdin.flush()
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0
    assert settle(lambda: not members(mark))


def dies(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["cls"] == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"cls": sample["cls"]}


def test_workers_may_be_killed_while_they_shut_down(dataset: shardkit.Dataset) -> None:
    """The thread that is told to end may be doing so: under load it took longer than patience."""
    maker = Loader(dataset, 4).maker
    requests = [Request(0, 0, number) for number in range(9)]
    processes = Processes(_make, maker, requests, 2, 1)
    batches = iter(processes)
    assert len(next(batches).batch["cls"]) == 4
    processes.shut_down()
    processes.kill()
    processes.kill()
    batches.close()


def test_a_worker_that_is_killed_is_said(dataset: shardkit.Dataset) -> None:
    before = children()
    loader = Loader(dataset, 4, worker_type="process", transform=dies)
    with pytest.raises(DataError, match=r"a worker process ended by itself"):
        list(loader)
    assert settle(lambda: children() <= before)


# --- sources of one's own -----------------------------------------------------------------
