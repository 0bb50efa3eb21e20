"""What trainers do to a Loader and a Stream: number epochs, batch batches, split ranks twice.

``tests/test_with_trainers.py`` has the trainers themselves, where these are installed.
"""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler as TorchBatchSampler
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from trained import Rows

from shardkit import BatchSampler, Loader, Sampler, Stream
from shardkit.errors import SamplerMissingError, UsageError

NUM = 4
"""Batches of an epoch."""


def make(**options: Any) -> Loader:
    return Loader(Rows(), 3, shuffle="full", **options)


def rows(batches: Any) -> list[list[int]]:
    return [batch["row"].tolist() for batch in batches]


def epochs(number: int) -> list[list[list[int]]]:
    loader = make(workers=0)
    return [rows(loader) for _ in range(number)]


ORDER = epochs(6)


def state_after(epoch: int, batches: int) -> dict[str, Any]:
    loader = make()
    loader.set_epoch(epoch)
    taken = islice(iter(loader), batches)
    assert len(list(taken)) == batches
    return loader.state_dict()


class Lightning:
    """What a loader sees of Lightning 2.6, by its fit_loop.py and training_epoch_loop.py."""

    def __init__(self, loader: Loader, state: dict[str, Any] | None = None) -> None:
        self.loader = loader
        iter(loader)  # whether it can be iterated over
        if state is not None:
            loader.load_state_dict(state)
        self.batches: Iterator[Any] | None = iter(loader)

    def epoch(self, number: int, batches: int = NUM) -> list[list[int]]:
        """An epoch, which it begins with the iterator that it has, or gets."""
        self.loader.batch_sampler.sampler.set_epoch(number)
        if self.batches is None:
            self.batches = iter(self.loader)
        got = rows(islice(self.batches, batches))
        self.batches = None
        return got


@pytest.mark.parametrize("workers", [0, 2])
def test_its_epochs_are_the_loaders(workers: int) -> None:
    fit = Lightning(make(workers=workers))
    assert [fit.epoch(number) for number in range(3)] == ORDER[:3]
    state = fit.loader.state_dict()
    assert (state["epoch"], state["position"]) == (2, 12)


def test_a_resume_within_an_epoch() -> None:
    fit = Lightning(make(), state_after(1, 3))
    assert fit.epoch(1) == ORDER[1][3:]
    assert fit.epoch(2) == ORDER[2]


def test_a_resume_at_an_epochs_end_that_loads_no_state() -> None:
    fit = Lightning(make())
    assert [fit.epoch(2), fit.epoch(3)] == ORDER[2:4]


def test_a_resume_after_the_last_batch_of_an_epoch() -> None:
    """Saved in ``on_train_batch_end``: the state is loaded, and the next number is said."""
    fit = Lightning(make(), state_after(1, NUM))
    assert [fit.epoch(2), fit.epoch(3)] == ORDER[2:4]


def test_a_resume_after_validation_at_an_epochs_end() -> None:
    """The epoch's own number is said once more, no batch is taken, and the next begins."""
    fit = Lightning(make(), state_after(1, NUM))
    assert fit.epoch(1) == []
    assert [fit.epoch(2), fit.epoch(3)] == ORDER[2:4]


def test_a_resume_at_an_epochs_end_with_max_steps() -> None:
    """Lightning takes one batch for the epoch that had ended; its numbers run ahead from there."""
    fit = Lightning(make(), state_after(1, NUM))
    assert fit.epoch(2, 1) == ORDER[2][:1]
    assert fit.epoch(3) == ORDER[2][1:]
    assert [fit.epoch(4), fit.epoch(5)] == ORDER[3:5]


def test_the_same_with_validation() -> None:
    """It takes none there, and is one ahead from the start."""
    fit = Lightning(make(), state_after(1, NUM))
    assert fit.epoch(2, 0) == []
    assert [fit.epoch(3), fit.epoch(4)] == ORDER[2:4]


@pytest.mark.parametrize("limit", [1, 2])
def test_epochs_of_a_few_batches(limit: int) -> None:
    """``limit_train_batches``: the loaded place is within the loader's epoch, not Lightning's."""
    expected = [batches[:limit] for batches in ORDER]
    fit = Lightning(make())
    assert [fit.epoch(number, limit) for number in range(3)] == expected[:3]
    resumed = Lightning(make(), state_after(1, limit))
    assert [resumed.epoch(number, limit) for number in (2, 3, 4)] == expected[2:5]


def test_validation_is_the_same_in_each_epoch_of_a_number() -> None:
    loader = make()
    number_of = loader.batch_sampler.sampler.set_epoch
    number_of(0)
    assert rows(islice(iter(loader), 2)) == ORDER[0][:2]  # as before the training
    for number in (0, 0, 1, 3):
        number_of(number)
        assert rows(loader) == ORDER[number]


def test_another_fit_is_another_training() -> None:
    fit = Lightning(make())
    for number in range(3):
        fit.epoch(number)
    again = Lightning(fit.loader)
    assert [again.epoch(0), again.epoch(1)] == ORDER[:2]
    more = Lightning(fit.loader)  # of the same Trainer, with more epochs
    assert [more.epoch(2), more.epoch(3)] == ORDER[2:4]


def test_a_loader_that_is_cycled_sees_no_epoch_twice() -> None:
    """The shorter of two, in a CombinedLoader."""
    fit = Lightning(make())
    assert fit.epoch(0, NUM + 1) == ORDER[0]
    assert rows(islice(iter(fit.loader), 2)) == ORDER[1][:2]
    assert fit.epoch(1) == ORDER[2]
    state = fit.loader.state_dict()
    assert Lightning(make(), state).epoch(1) == []
    again = Lightning(make(), state_after(2, 1))
    assert again.epoch(1) == ORDER[2][1:]
    assert again.epoch(2) == ORDER[3]


def test_loaders_that_are_made_anew_for_each_epoch() -> None:
    """``reload_dataloaders_every_n_epochs``: the iterator is asked for again after the number."""
    for number in range(3):
        fit = Lightning(make())
        fit.loader.batch_sampler.sampler.set_epoch(number)
        assert rows(fit.loader) == ORDER[number]


def test_a_copy_of_a_new_loader_believes_the_number() -> None:
    fit = Lightning(pickle.loads(pickle.dumps(make())))
    assert fit.epoch(2) == ORDER[2]


def test_a_state_says_the_epoch_that_waits() -> None:
    loader = make()
    iter(loader)
    batches = iter(loader)
    assert loader.epoch == 1
    loader.batch_sampler.sampler.set_epoch(4)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (4, 0)
    assert next(batches)["row"].tolist() == ORDER[4][0]
    assert loader.state_dict()["position"] == 3
    assert rows(loader) == ORDER[5]  # each iteration is the next epoch, as ever
    with pytest.raises(UsageError, match="epoch must be"):
        loader.batch_sampler.sampler.set_epoch(-1)


def test_a_trainer_comes_after_a_loop_of_ones_own() -> None:
    loader = make()
    loader.load_state_dict(state_after(1, 3))
    assert rows(loader) == ORDER[1][3:]
    fit = Lightning(loader)
    assert [fit.epoch(0), fit.epoch(1), fit.epoch(3)] == [ORDER[2], ORDER[3], ORDER[5]]


# --- what cannot be ----------------------------------------------------------------------


def test_a_loader_has_no_sampler_and_says_why() -> None:
    loader = make()
    assert not hasattr(loader, "sampler")
    assert getattr(loader, "sampler", None) is None
    with pytest.raises(SamplerMissingError, match=r"DataLoaderShard\(dataset\.stream\(batch_size"):
        _ = loader.sampler
    assert issubclass(SamplerMissingError, UsageError) and issubclass(
        SamplerMissingError, AttributeError
    )


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"batch_size": None}, {"num_workers": 1}])
def test_a_dataloader_around_a_loader_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="iterate over it as it is, without a DataLoader around"):
        list(DataLoader(make(), **options))


def stream(**options: Any) -> Stream:
    return Stream(Rows(), 3, shuffle="full", **options)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("loader", "options"),
    [
        (DataLoader, {}),
        (DataLoader, {"batch_size": 16}),
        (DataLoader, {"batch_size": 2, "num_workers": 2}),
        (StatefulDataLoader, {"batch_size": 16}),
    ],
)
def test_batches_of_batches_are_refused(loader: Any, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"write DataLoader\(stream, batch_size=None, \.\.\.\)"):
        list(loader(stream(), **options))


def merged(batches: list[dict[str, Any]]) -> torch.Tensor:
    return torch.cat([batch["row"] for batch in batches])


@pytest.mark.parametrize("workers", [0, 1])
def test_ones_own_collate_may_merge_batches(workers: int) -> None:
    made = list(DataLoader(stream(), batch_size=2, collate_fn=merged, num_workers=workers))
    expected = np.array(ORDER[0]).reshape(2, 6).tolist()
    assert [batch.tolist() for batch in made] == expected


# --- accelerate, by what it does to others' objects -----------------------------------------


class GradientState:
    """accelerate's registry of the loaders that run, which all instances share."""

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
    def __init__(self, batch_sampler: Any, num_processes: int = 2) -> None:
        self.batch_sampler, self.num_processes = batch_sampler, num_processes

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.batch_sampler), 0, None, self.num_processes)


class IterableDatasetShard(IterableDataset[Any]):
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def set_epoch(self, epoch: int) -> None:
        self.dataset.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.dataset), 0, None, 2)


class DataLoaderShard(DataLoader[Any]):
    """It says that it runs, and the epoch; then it is a DataLoader."""

    def __iter__(self) -> Any:
        GradientState()._add_dataloader(self)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(0)
        return super().__iter__()


class DataLoaderDispatcher(DataLoaderShard):
    pass


@pytest.fixture
def accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate.state", sys.modules[__name__])
    monkeypatch.setattr(GradientState, "running", (None,))


TWO = {"rank": 0, "world_size": 2}


def sampled(**options: Any) -> Any:
    shard = BatchSamplerShard(BatchSampler(Numbers(), 3, **options))
    return DataLoaderShard(Numbers(), batch_sampler=shard)


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index


def sampled_one_by_one(**options: Any) -> Any:
    batches = TorchBatchSampler(Sampler(Numbers(), **options), 3, drop_last=False)
    return DataLoaderShard(Numbers(), batch_sampler=BatchSamplerShard(batches))


@pytest.mark.usefixtures("accelerate")
@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (lambda: sampled(**TWO), "this BatchSampler gives rank by rank, and accelerate would"),
        (lambda: sampled_one_by_one(**TWO), "this Sampler gives rank by rank, and accelerate"),
        (
            lambda: DataLoaderDispatcher(Numbers(), batch_size=3, sampler=Sampler(12, **TWO)),
            "make the Sampler with rank=0, world_size=1 and let accelerate split",
        ),
        (
            lambda: DataLoaderShard(IterableDatasetShard(stream(**TWO)), None),
            "among the ranks by itself",
        ),
        (
            lambda: DataLoaderDispatcher(stream(**TWO), None),
            "give accelerate's prepare() a shardkit.Loader",
        ),
        (lambda: DataLoaderDispatcher(stream(with_keys=True), None), "with_keys adds text"),
        (lambda: DataLoaderShard(stream(), 2, collate_fn=Collator()), "give no train_dataset"),
        (lambda: DataLoaderShard(stream(), 2, num_workers=1), "batch_size=None"),
    ],
)
def test_accelerate_splits_nothing_once_more(loader: Any, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as told:
        list(loader())
    assert "\n" not in str(told.value)


class Collator:
    __module__ = "transformers.data.data_collator"

    def __call__(self, features: list[Any]) -> Any:
        return features[0]


@pytest.mark.usefixtures("accelerate")
def test_accelerate_may_split_what_is_not_split_yet() -> None:
    alone = {"rank": 0, "world_size": 1}
    expected = [[0, 1, 2], [6, 7, 8]]
    assert [b.tolist() for b in sampled(**alone)] == expected
    assert [b.tolist() for b in sampled_one_by_one(**alone)] == expected
    assert rows(DataLoaderDispatcher(stream(), None)) == ORDER[0]
    assert rows(DataLoaderShard(stream(**TWO), None)) == rows(stream(**TWO))
    passed_through = BatchSamplerShard(BatchSampler(12, 3, **TWO), num_processes=1)
    batches = DataLoaderShard(Numbers(), batch_sampler=passed_through)
    assert [b.tolist() for b in batches] == [[0, 1, 2], [6, 7, 8]]
    list(Loader(Rows(), 3, workers=0, **TWO))  # not one that splits


@pytest.mark.usefixtures("accelerate")
@pytest.mark.parametrize(
    ("last", "ends", "remainder"),
    [
        ("drop", [False, True], 0),
        ("pad", [False, False, True], 2),
        ("keep", [False] * 2 + [True], 2),
    ],
)
def test_accelerate_finds_the_end_of_a_loader(last: Any, ends: list[bool], remainder: int) -> None:
    loader = Loader(Rows(), 5, workers=0, last=last)
    for _ in range(2):
        seen = []
        for _ in loader:
            assert GradientState().active_dataloader is loader
            seen.append(loader.end_of_dataloader)
        assert (seen, loader.remainder) == (ends, remainder)
        assert GradientState.running == (None,)
    for _ in loader:
        break
    assert GradientState.running == (None,)


class AcceleratedScheduler:
    split_batches: bool

    def __init__(self) -> None:
        self.split_batches = False
        self.gradient_state = GradientState()


@pytest.mark.usefixtures("accelerate")
def test_a_prepared_scheduler_makes_one_step_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate.scheduler", sys.modules[__name__])
    monkeypatch.delattr(AcceleratedScheduler, "split_batches", raising=False)
    before = AcceleratedScheduler()
    for _ in Loader(Rows(), 3, workers=0):
        assert before.split_batches and AcceleratedScheduler().split_batches
    assert not before.split_batches
    for _ in DataLoaderShard(Numbers()):
        assert not before.split_batches
    before.split_batches = True
    assert before.split_batches
    del AcceleratedScheduler.split_batches
