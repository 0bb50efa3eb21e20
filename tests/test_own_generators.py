"""Transforms with random generators of their own: the same batches, whoever makes them."""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from trained import Rows

from shardkit import Loader
from shardkit.batches.generators import own_generators
from shardkit.errors import UsageError

ROWS = 48


OF_MODULE = np.random.default_rng(1)
HELPERS = SimpleNamespace(inner=SimpleNamespace(rng=random.Random(3)))


class Attribute:
    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def draw(self) -> float:
        if isinstance(self.rng, torch.Generator):
            return float(torch.rand((), generator=self.rng, dtype=torch.float64))
        return float(self.rng.random())

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "r": self.draw()}

    def other(self, sample: dict[str, Any]) -> dict[str, Any]:
        return self(sample)


class OfClass:
    R = np.random.RandomState(5)  # as MONAI has it

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "r": float(self.R.normal())}


class OfSlots:
    __slots__ = ("rng",)

    def __init__(self) -> None:
        self.rng = np.random.Generator(np.random.Philox(3))

    @property
    def never(self) -> None:
        raise AssertionError("a property was executed")

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "r": self.rng.normal()}


class Compose:
    """Each of its own kind, in a list, a dict and another Compose."""

    def __init__(self, *transforms: Any) -> None:
        self.transforms = [*transforms]

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        for transform in self.transforms:
            sample = transform(sample)
            sample = {**sample, f"r{len(sample)}": sample["r"]}
        return sample


class InUse:
    """Makes its generator where it is first called, in each process anew."""

    def __init__(self) -> None:
        self.rng: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"rng": None}

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if self.rng is None:
            self.rng = np.random.default_rng()
        return {**sample, "r": self.rng.random()}


def of_module(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "r": (lambda: OF_MODULE.random())()}


def of_helper(sample: dict[str, Any]) -> dict[str, Any]:
    return {**of_module(sample), "s": HELPERS.inner.rng.random()}


def default(sample: dict[str, Any], generator: Any = np.random.default_rng(2)) -> dict[str, Any]:  # noqa: B008
    return {**sample, "r": generator.random()}


def given(rng_of_it: Any, sample: dict[str, Any], *, more: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "r": rng_of_it.random() + more["rng"].random()}


def drawn_by(draw: Callable[[], float]) -> Callable[..., Any]:
    @functools.wraps(of_module)
    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "r": draw()}

    return transform


def bits_alone(bits: Any) -> Callable[..., Any]:
    return lambda sample: {**sample, "r": np.random.Generator(bits).random()}


TRANSFORMS: dict[str, Callable[[], Any]] = {
    "numpy Generator": lambda: Attribute(np.random.default_rng(0)),
    "random.Random": lambda: Attribute(random.Random(0)),
    "torch.Generator": lambda: Attribute(torch.Generator()),
    "RandomState": lambda: Attribute(np.random.RandomState(0)),
    "RandomState of PCG64": lambda: Attribute(np.random.RandomState(np.random.PCG64(0))),
    "class": OfClass,
    "slots": OfSlots,
    "module": lambda: of_module,
    "helper of a helper": lambda: of_helper,
    "default": lambda: default,
    "partial": lambda: functools.partial(
        given, random.Random(1), more={"rng": np.random.default_rng(0)}
    ),
    "bound method": lambda: Attribute(np.random.default_rng(0)).other,
    "method of a generator": lambda: drawn_by(np.random.default_rng(0).random),
    "method of Random": lambda: drawn_by(random.Random(0).random),
    "closure": lambda: drawn_by(Attribute(random.Random(0)).draw),
    "bits": lambda: bits_alone(np.random.SFC64(0)),
    "Compose": lambda: Compose(
        Attribute(np.random.default_rng(0)), Compose(OfClass(), Attribute(torch.Generator()))
    ),
    "first use": InUse,
}


def plain(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: values.tolist() for name, values in batch.items()}


def run(transform: Any, **options: Any) -> list[dict[str, Any]]:
    loader = Loader(Rows(ROWS), 6, shuffle="full", transform=transform, **options)
    return [plain(batch) for batch in loader]


@pytest.mark.parametrize("kind", TRANSFORMS)
def test_the_same_whoever_makes_the_batches(kind: str) -> None:
    make = TRANSFORMS[kind]
    one = run(make(), workers=0)
    assert len({each for batch in one for each in batch["r"]}) == ROWS
    assert run(make(), workers=3, worker_type="process") == one
    if kind != "first use":
        for workers in (1, 2):
            with pytest.raises(UsageError, match="of its own, which threads would share: make bat"):
                Loader(Rows(ROWS), 6, transform=make(), workers=workers)


@pytest.mark.usefixtures("start_method")
@pytest.mark.parametrize("start_method", ["spawn"], indirect=True)
def test_the_same_where_processes_are_spawned() -> None:
    transform = Compose(of_helper, InUse(), Attribute(random.Random(0)))
    one = list(islice(Loader(Rows(ROWS), 24, transform=transform, workers=0), 2))
    two = Loader(Rows(ROWS), 24, transform=transform, workers=1, worker_type="process")
    assert [plain(batch) for batch in two] == [plain(batch) for batch in one]


def test_two_generators_of_one_kind_draw_otherwise() -> None:
    pair = Compose(Attribute(np.random.default_rng(0)), Attribute(np.random.default_rng(0)))
    for batch in run(pair, workers=0):
        assert not set(batch["r2"]) & set(batch["r3"])


def test_they_are_as_before_afterwards() -> None:
    """The loop may draw from the same generator: from the module's, say."""
    before = OF_MODULE.bit_generator.state
    run(of_module, workers=0)
    assert OF_MODULE.bit_generator.state == before


class Batched:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def batch(self, columns: dict[str, Any], keys: Any) -> dict[str, Any]:
        return {**columns, "r": self.rng.random(len(keys))}


class OfKeys(Batched):
    def batch(self, columns: dict[str, Any], keys: Any) -> dict[str, Any]:
        return {**columns, "r": keys >> np.uint64(32)}


def test_a_batch_draws_from_its_keys() -> None:
    for options in ({"workers": 0}, {"workers": 1, "worker_type": "process"}, {"workers": 1}):
        with pytest.raises(UsageError, match=r"batch\(\) draws from a numpy Generator, and would"):
            Loader(Rows(ROWS), 6, transform=Batched(), **options)
        assert len(list(Loader(Rows(ROWS), 6, transform=OfKeys(), **options))) == 8


def test_what_nobody_can_seed_is_refused() -> None:
    with pytest.raises(UsageError, match=r"random\.SystemRandom, which cannot be seeded"):
        Loader(Rows(ROWS), 6, transform=Attribute(random.SystemRandom()), workers=0)


def logs_and_draws_globally(sample: dict[str, Any]) -> dict[str, Any]:
    random.shuffle([*range(3)])
    return {**sample, "a": np.random.rand(), "b": torch.rand(()).item(), "c": str(OfSlots.never)}


@pytest.mark.parametrize(
    "transform", [logs_and_draws_globally, random.random, np.random.rand, len, print]
)
def test_the_global_ones_are_nobodys_own(transform: Any) -> None:
    assert own_generators(transform) == {}


def test_what_refers_to_much_is_looked_at_in_no_time() -> None:
    ring: list[Any] = [[[number] for number in range(200_000)]]
    ring.append(ring)
    assert own_generators(Attribute(ring)) == {}
    assert len(own_generators(Attribute([random.Random(0), ring]))) == 1


class Counting:
    calls = 0

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        self.calls += 1
        return {**sample, "r": self.calls}


class Replacing:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        drawn = int(self.rng.integers(1 << 40))
        self.rng = np.random.default_rng(drawn)
        return {**sample, "r": drawn}


class Children:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "r": self.rng.spawn(1)[0].random()}


def of_the_system(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "r": os.urandom(5)}


def of_opencv(sample: dict[str, Any]) -> dict[str, Any]:
    cv2 = pytest.importorskip("cv2")
    return {**sample, "r": float(cv2.randu(np.zeros((2, 2), np.float32), 0, 1000).sum())}


@pytest.mark.parametrize(
    "transform", [Counting(), Replacing(), Children(), of_the_system, of_opencv]
)
def test_a_transform_that_cannot_be_repeated_is_refused(transform: Any) -> None:
    with pytest.raises(UsageError, match=r"something else of the same sample.* named rng"):
        Loader(Rows(ROWS), 8, transform=transform, workers=0)


def test_a_sample_that_is_no_number_is_equal_to_itself() -> None:
    def nowhere(sample: dict[str, Any]) -> dict[str, Any]:
        return {"a": float("nan"), "b": np.full(3, np.nan), "c": torch.full((3,), torch.nan)}

    assert len(list(Loader(Rows(ROWS), 8, transform=nowhere, workers=0))) == ROWS // 8


class OfMetaclass(type):
    RNG = random.Random(1)


class Annotated(metaclass=OfMetaclass):
    def __init__(self) -> None:
        self.boxes = {row: [{"box": each} for each in range(10)] for row in range(3000)}
        inner: Any = Attribute(random.Random(2))
        for _ in range(5):
            inner = SimpleNamespace(inner=inner)
        self.inner = inner


def test_generators_are_found_behind_a_table_and_in_a_metaclass() -> None:
    assert len(own_generators(Annotated())) == 2
