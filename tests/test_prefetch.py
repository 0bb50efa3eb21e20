"""The prefetcher: what a loop gets, when, and what stays behind. Its CUDA part needs a GPU."""

from __future__ import annotations

import gc
import pickle
import random
import threading
import time
import weakref
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from conftest import run_python
from trained import Rows

import shardkit
from shardkit import CudaPrefetcher
from shardkit.errors import UsageError
from shardkit.loading import background
from shardkit.loading.background import in_background
from shardkit.loading.tensors import map_tensors, move_tensors

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
Pair = namedtuple("Pair", "left right")


@pytest.fixture(autouse=True)
def _needs_a_gpu(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")


@dataclass(frozen=True)
class Box:
    tensor: torch.Tensor
    name: str


class Counting:
    """Batches 0, 1, ...; notes how many were taken, and its state as a loader does."""

    def __init__(self, num: int, fail_at: int = -1) -> None:
        self.num, self.fail_at = num, fail_at
        self.taken = 0
        self.epochs: list[int] = []
        self.closed = 0

    def __len__(self) -> int:
        return self.num

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            for i in range(self.num):
                if i == self.fail_at:
                    raise ValueError(f"batch {i} is bad")
                self.taken = i + 1
                yield {"x": torch.full((4,), i), "name": str(i)}
        finally:
            self.closed += 1

    def state_dict(self) -> dict[str, int]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.taken = state["taken"]

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


def no_thread() -> bool:
    names = [t.name for t in threading.enumerate()]
    return "shardkit-prefetch" not in names


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_batches_come_in_order_epoch_after_epoch(device: str, depth: int) -> None:
    source = Counting(9)
    prefetcher = CudaPrefetcher(
        source, device, depth=depth, transform=lambda b: {**b, "y": b["x"].float() / 2}
    )
    assert len(prefetcher) == 9
    for _ in range(2):
        batches = list(prefetcher)
        assert [int(b["x"][0]) for b in batches] == list(range(9))
        assert [float(b["y"][0]) for b in batches] == [i / 2 for i in range(9)]
        assert [b["name"] for b in batches] == [str(i) for i in range(9)]
        assert {b["y"].device.type for b in batches} == {device}
    assert prefetcher.stats.batches == 18
    assert no_thread()
    assert source.closed == 2


def test_any_iterable_will_do() -> None:
    assert list(CudaPrefetcher([], "cpu")) == []
    out = list(CudaPrefetcher((torch.ones(2) * i for i in range(3)), "cpu"))
    assert [t.tolist() for t in out] == [[0, 0], [1, 1], [2, 2]]
    with pytest.raises(UsageError, match="depth must be"):
        CudaPrefetcher([], "cpu", depth=0)
    with pytest.raises(UsageError, match="no such device"):
        CudaPrefetcher([], "gpu")


def test_a_prefetcher_pickles() -> None:
    prefetcher = CudaPrefetcher(Counting(3), "cpu", transform=shardkit.normalize(field="none"))
    again = pickle.loads(pickle.dumps(CudaPrefetcher(Counting(3), "cpu", depth=3)))
    assert (again.depth, again.device.type, len(list(again))) == (3, "cpu", 3)
    assert pickle.loads(pickle.dumps(prefetcher)).device == prefetcher.device
    with pytest.raises(AttributeError):
        prefetcher.device = "cuda"  # type: ignore[misc]


def test_errors_come_in_their_turn() -> None:
    source = Counting(5, fail_at=3)
    batches = iter(CudaPrefetcher(source, "cpu"))
    seen = [next(batches)["name"] for _ in range(3)]
    with pytest.raises(ValueError, match="batch 3 is bad"):
        next(batches)
    assert seen == ["0", "1", "2"]
    assert no_thread()

    def bad(batch: Any) -> Any:
        raise RuntimeError("device transform")

    with pytest.raises(RuntimeError, match="device transform"):
        list(CudaPrefetcher(Counting(2), "cpu", transform=bad))


def test_the_state_is_that_of_the_batch_handed_over() -> None:
    source = Counting(9)
    prefetcher = CudaPrefetcher(source, "cpu", depth=4)
    batches = iter(prefetcher)
    for i in range(3):
        assert next(batches)["name"] == str(i)
    deadline = time.monotonic() + 10
    while source.taken < 7 and time.monotonic() < deadline:
        time.sleep(0.01)  # it runs ahead: 3 handed over, 4 wait
    assert source.taken >= 7
    assert prefetcher.state_dict() == {"taken": 3}
    batches.close()
    prefetcher.set_epoch(4)
    assert source.epochs == [4]
    prefetcher.load_state_dict({"taken": 5})
    assert prefetcher.state_dict() == {"taken": 5}


def test_no_more_than_depth_wait() -> None:
    source = Counting(50)
    batches = iter(CudaPrefetcher(source, "cpu", depth=2))
    next(batches)
    time.sleep(0.2)
    assert source.taken <= 4  # one handed over, two wait, one in hand
    batches.close()
    assert source.closed == 1
    assert no_thread()


def test_ending_early_ends_the_thread() -> None:
    source = Counting(50)
    for batch in CudaPrefetcher(source, "cpu"):
        if batch["name"] == "3":
            break
    gc.collect()
    assert no_thread()
    batches = iter(CudaPrefetcher(source, "cpu"))
    next(batches)
    gone = weakref.ref(batches)
    del batches
    gc.collect()
    assert gone() is None
    assert no_thread()
    assert source.closed == 2


def test_tensors_are_found_wherever_they_are() -> None:
    one = torch.ones(1)
    batch = {"a": [one, (one, "x")], "b": Pair(one, None), "c": Box(one, "n"), "d": 3}
    out = map_tensors(batch, lambda t: t + 1)
    assert out["a"][0].item() == 2 and out["a"][1][0].item() == 2 and out["a"][1][1] == "x"
    assert out["b"] == Pair(torch.tensor([2.0]), None)
    assert isinstance(out["c"], Box) and out["c"].tensor.item() == 2 and out["c"].name == "n"
    assert out["d"] == 3
    assert one.item() == 1


def test_views_of_one_storage_are_moved_once() -> None:
    buffer = torch.arange(12).reshape(3, 4)
    large = torch.arange(100)
    other = torch.arange(4, dtype=torch.int32)
    batch = {
        "inputs": buffer[:, :-1],
        "labels": [buffer[:, 1:]],
        "parts": (large[:10], large[20:40:2]),
        "twice": [other, other.view(torch.float32)],
        "learnt": torch.ones(2, requires_grad=True),
    }
    moved: list[torch.Tensor] = []

    def move(tensor: torch.Tensor) -> torch.Tensor:
        moved.append(tensor.clone())
        return moved[-1]

    out = move_tensors(batch, move)
    inputs, labels = out["inputs"], out["labels"][0]
    assert inputs.tolist() == batch["inputs"].tolist()  # type: ignore[attr-defined]
    assert labels.tolist() == buffer[:, 1:].tolist()
    assert inputs.untyped_storage().data_ptr() == labels.untyped_storage().data_ptr()
    assert inputs.data_ptr() != buffer.data_ptr()
    # One storage, then five tensors each for itself: the large one is more than what is wanted.
    assert sorted(tensor.numel() for tensor in moved) == [2, 4, 4, 10, 10, 12]
    assert [part.tolist() for part in out["parts"]] == [[*range(10)], [*range(20, 40, 2)]]
    assert out["learnt"].requires_grad
    inputs += 1
    assert labels.ravel()[0] == 2


def test_a_loader_on_a_device_is_the_loader(tmp_path: Any) -> None:
    plain = [b["row"].tolist() for b in shardkit.Loader(Rows(100), 8, shuffle="full")]
    loader = shardkit.Loader(
        Rows(100), 8, shuffle="full", device="cpu",
        device_transform=lambda batch: {"double": batch["row"] * 2},
    )  # fmt: skip
    assert [b["double"].tolist() for b in loader] == [[2 * r for r in rows] for rows in plain]
    wrapped = CudaPrefetcher(shardkit.Loader(Rows(100), 8, shuffle="full"), "cpu", depth=3)
    batches = iter(wrapped)
    first = [next(batches)["row"].tolist() for _ in range(4)]
    state = wrapped.state_dict()
    assert state["position"] == 32
    batches.close()
    resumed = shardkit.Loader(Rows(100), 8, shuffle="full", workers=0)
    resumed.load_state_dict(state)
    assert first + [b["row"].tolist() for b in resumed] == plain


# --- the loop's own random numbers --------------------------------------------------------


class Noisy(Rows):
    """Rows for torch's own loader, too."""

    def __getitem__(self, row: int) -> dict[str, Any]:
        return noisy({"row": row})


def noisy(sample: dict[str, Any]) -> dict[str, Any]:
    """Draws from all three, and takes its time: the loop draws meanwhile."""
    time.sleep(0.0005)
    noise = torch.rand(1) + random.random() + np.random.random()
    return {"row": sample["row"], "noise": noise}


def drawn_in_the_loop(batches: Any) -> tuple[list[float], list[float]]:
    """Numbers the loop draws in its steps, and the noise of its batches."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    own, noise = [], []
    for batch in batches:
        noise += batch["noise"].ravel().tolist()
        for _ in range(10):
            own += [float(torch.rand(1)), random.random(), np.random.random()]
            time.sleep(0.0001)
    return own, noise


def test_a_loader_without_workers_leaves_the_loops_numbers_alone() -> None:
    options: dict[str, Any] = {"shuffle": "full", "workers": 0, "transform": noisy}
    expected = drawn_in_the_loop(shardkit.Loader(Noisy(60), 6, **options))
    alone = drawn_in_the_loop([{"noise": torch.zeros(1)}] * 10)[0]
    assert expected[0] == alone
    for device in ("cpu", *["cuda"] * torch.cuda.is_available()):
        assert (
            drawn_in_the_loop(shardkit.Loader(Noisy(60), 6, device=device, **options)) == expected
        )
        wrapped = CudaPrefetcher(shardkit.Loader(Noisy(60), 6, **options), device)
        assert drawn_in_the_loop(wrapped) == expected
        assert no_thread()


def test_torchs_loader_without_workers_is_asked_in_the_loops_thread() -> None:
    def torchs() -> Any:
        return torch.utils.data.DataLoader(Noisy(60), 6, shuffle=True)  # type: ignore[arg-type]

    expected = drawn_in_the_loop(torchs())
    assert drawn_in_the_loop(CudaPrefetcher(torchs(), "cpu")) == expected


def test_what_draws_in_the_thread_is_refused() -> None:
    def batches() -> Iterator[Any]:
        yield from torch.utils.data.DataLoader(Noisy(60), 6, shuffle=True)  # type: ignore[arg-type]

    with pytest.raises(UsageError, match="the batches draw from the global random generators"):
        next(iter(CudaPrefetcher(batches(), "cpu")))
    options: dict[str, Any] = {"shuffle": "full", "workers": 0, "transform": noisy}
    loader = shardkit.Loader(Noisy(60), 6, **options)
    with pytest.raises(UsageError, match="the transform draws from the global random generators"):
        next(iter(CudaPrefetcher((batch for batch in loader), "cpu")))
    assert no_thread()

    def seeded() -> Iterator[int]:
        yield from sorted(range(9), key=lambda _: random.random())

    assert sorted(CudaPrefetcher(seeded(), "cpu")) == list(range(9))


@pytest.mark.parametrize("device", DEVICES)
def test_a_transform_on_the_device_that_draws_is_refused(device: str) -> None:
    def dropped(batch: Any) -> Any:
        return {**batch, "x": batch["x"] * torch.rand(4, device=batch["x"].device)}

    with pytest.raises(UsageError, match="the transform on the device draws"):
        next(iter(CudaPrefetcher(Counting(4), device, transform=dropped)))
    loader = shardkit.Loader(
        Noisy(60), 6, device=device, device_transform=lambda b: {"row": b["row"] + random.random()}
    )
    with pytest.raises(UsageError, match="the transform on the device draws"):
        next(iter(loader))
    own = torch.Generator(device)
    keyed = CudaPrefetcher(
        Counting(4), device,
        transform=lambda b: {"x": b["x"] * torch.rand(4, generator=own, device=device)},
    )  # fmt: skip
    assert len(list(keyed)) == 4
    assert no_thread()


# --- on a GPU -----------------------------------------------------------------------------


@pytest.mark.gpu
def test_results_equal_the_synchronous_ones_under_memory_pressure() -> None:
    """1,000 batches, freed early, while other tensors come and go on both streams."""
    sizes = torch.randint(1, 1 << 20, (1000,), generator=torch.Generator().manual_seed(0)).tolist()

    def batches() -> Iterator[torch.Tensor]:
        for i, size in enumerate(sizes):
            yield torch.full((size,), i % 251, dtype=torch.uint8)

    expected = [i % 251 * size for i, size in enumerate(sizes)]
    got = []
    for batch in CudaPrefetcher(batches(), "cuda", transform=lambda b: b.to(torch.int64), depth=3):
        total = batch.sum()
        del batch  # its memory may be used again at once, by the side stream
        torch.full((1 << 18,), -1, device="cuda")  # writes over what was freed too early
        got.append(total)
    assert [int(total) for total in got] == expected


# --- an iteration in a thread -------------------------------------------------------------


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "shardkit-prefetch"]


def test_closing_it_closes_the_iteration_in_its_own_thread():
    closed_in = []

    def items() -> Iterator[int]:
        try:
            while True:
                yield 0
        finally:
            closed_in.append(threading.current_thread().name)

    running = in_background(items(), 1)
    next(running)
    running.close()
    assert closed_in == ["shardkit-prefetch"]


def test_an_iteration_that_does_not_end_is_told_to(monkeypatch):
    monkeypatch.setattr(background, "PATIENCE_S", 0.2)
    told = threading.Event()

    def items() -> Iterator[int]:
        yield 0
        told.wait(60)

    running = in_background(items(), 1, give_up=told.set)
    next(running)
    running.close()
    assert told.is_set()
    assert not threads()


LAST_STEP = """
import torch
from shardkit import CudaPrefetcher

def busy(batch):
    for _ in range(200):
        batch = torch.nn.functional.interpolate(batch, (64, 64), mode="bilinear")
    return batch

batches = iter(CudaPrefetcher([torch.zeros(8, 3, 64, 64)] * 50, "cpu", transform=busy))
next(batches)
"""


def test_a_script_may_end_in_mid_epoch() -> None:
    """The thread is in torch's code then, and would abort the process as it asks for the GIL."""
    assert run_python(LAST_STEP) == ""
