"""Several ranks, as real processes: what each is given, and what they say to one another."""

from __future__ import annotations

import json
import os
import pickle
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from jobs import free_port, have_torch_imported
from torch.utils.data import DataLoader
from trained import Rows

import shardkit
from shardkit import BatchSampler, Loader, Sampler, Stream
from shardkit.errors import DataError, ShardkitError, TooManyRejectsError, UsageError

WORLD = 3


class Sixes:
    """With 3 ranks and batches of 2, rank 0 meets one bad row a batch, and the others none."""

    def __init__(self, num_rows: int = 600) -> None:
        self.num_rows = num_rows

    def __len__(self) -> int:
        return self.num_rows

    def read(self, rows: Any) -> dict[str, Any]:
        if (rows % 6 == 0).any():
            raise DataError("bad")
        return {"row": rows}


def skipping(num_rows: int = 600, max_skips: int = 10**6, **options: Any) -> Loader:
    source = Sixes(num_rows)
    return Loader(source, 2, on_error="skip", max_skips=max_skips, workers=0, **options)


def error_of(run: Any) -> str:
    try:
        run()
    except ShardkitError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def made_too_early() -> dict[str, Any]:
    return {
        "Loader": Loader(Rows(600), 2, workers=0),
        "Loader with workers": Loader(Rows(600), 2, workers=1, device="cpu"),
        "Stream": Stream(Rows(600), 2),
        "BatchSampler": BatchSampler(600, 2),
        "Sampler": Sampler(600),
    }


def first(batches: Any) -> list[int]:
    return next(iter(batches))["row"].tolist()


def run_rank(rank: int, port: int, folder: str) -> None:
    warnings.simplefilter("ignore")
    early = made_too_early()
    whole = Loader(Rows(600), 2, workers=0, rank=0, world_size=1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    said: dict[str, Any] = {name: error_of(lambda m=m: next(iter(m))) for name, m in early.items()}
    said["pickled"] = error_of(lambda: pickle.dumps(early["Stream"]))
    said["given"] = len(list(whole))
    for kind in ("fork", "spawn") if rank == 1 else ():
        loader = DataLoader(Stream(Rows(600), 2), None, num_workers=1, multiprocessing_context=kind)
        said[kind] = first(loader)
    if rank == 0:  # on its own: nobody else has such a loader
        evaluation = Loader(Sixes(60), 2, on_error="skip", rank=0, world_size=WORLD, workers=0)
        said["alone"] = len(list(evaluation))
        said["warned alone"] = [warned_of(make()) for make in VALIDATING]
    dist.barrier()
    said["warned together"] = [warned_of(make(drop_last=False)) for make in VALIDATING]
    dist.barrier()
    said["fails"] = train(skipping(max_skips=20))
    said["keys"] = keys_of_epochs(skipping(6 * 9), 20)
    said["known"] = known(skipping(seed=1))
    Path(folder, str(rank)).write_text(json.dumps(said))
    dist.barrier()
    survive(rank, Path(folder))


VALIDATING: list[Any] = [
    lambda **options: Loader(Rows(12), 2, workers=0, **options),
    lambda **options: BatchSampler(12, 2, **options),
    lambda **options: Sampler(12, **options),
]


def warned_of(batches: Any) -> list[str]:
    """What is said on an iteration to the end, and on the next."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(batches)
        list(batches)
    assert all(Path(one.filename).name == Path(__file__).name for one in caught)
    return [str(one.message) for one in caught]


def train(loader: Loader) -> tuple[int, str]:
    """Batches of a loop in step, and how it ended."""
    num = 0
    try:
        for _ in loader:
            num += 1
            dist.barrier()
    except TooManyRejectsError as error:
        return num, str(error)
    return num, ""


def keys_of_epochs(loader: Loader, num: int) -> int:
    """How many more keys the store has after some epochs."""
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    before = store.num_keys()
    for _ in range(num):
        list(loader)
        dist.barrier()
    return int(store.num_keys() - before)


def known(loader: Loader) -> list[int]:
    """The count in the state after 5 and after 24 batches of a loop in step."""
    counts = []
    for number, _ in enumerate(loader, 1):
        dist.barrier()
        if number in (5, 24):
            counts.append(loader.state_dict().get("skipped", 0))
        if number == 24:
            break
    return counts


def survive(rank: int, folder: Path) -> None:
    """Rank 1 dies after a few batches, then rank 0, which serves the store, and rank 2 goes on."""
    loader = skipping(seed=2)
    for number, _ in enumerate(loader, 1):
        if rank == 1 and number == 12:
            os._exit(0)
        if rank == 0 and number == 60:
            wait_for(folder / "2.there")
            Path(folder, "0.gone").write_text(str(number))
            os._exit(0)
        if rank == 2 and number == 40:
            Path(folder, "2.there").write_text("")
            wait_for(folder / "0.gone")
            break
    started = time.monotonic()
    error = error_of(lambda: list(loader))
    Path(folder, "2.end").write_text(json.dumps([error, time.monotonic() - started]))
    os._exit(0)


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each of three ranks saw, all in one run of them."""
    folder = tmp_path_factory.mktemp("ranks")
    have_torch_imported()
    args = (free_port(), str(folder))
    options = {"join": False, "start_method": "forkserver"}
    started = torch.multiprocessing.start_processes(run_rank, args, WORLD, **options)
    deadline = time.monotonic() + 120
    try:
        while not started.join(1):
            assert time.monotonic() < deadline, "ranks wait for ever"
    finally:
        for process in started.processes:
            process.kill()
    return folder


def of(ranks: Path, name: str) -> list[Any]:
    return [json.loads((ranks / str(rank)).read_text())[name] for rank in range(WORLD)]


def test_what_was_made_before_the_process_group_is_refused(ranks: Path) -> None:
    for name in [*made_too_early(), "pickled"]:
        for rank, error in enumerate(of(ranks, name)):
            assert "was made as rank 0 of 1, before torch.distributed" in error, (name, error)
            assert f"that this is rank {rank} of 3: make it after init_process_group" in error
    assert of(ranks, "given") == [300] * WORLD


def test_worker_processes_keep_what_their_parent_found(ranks: Path) -> None:
    said = json.loads((ranks / "1").read_text())
    assert said["fork"] == said["spawn"] == [2, 3]


def test_one_rank_may_iterate_alone(ranks: Path) -> None:
    assert json.loads((ranks / "0").read_text())["alone"] == 10


def test_rank_0_alone_is_told_that_it_has_a_part(ranks: Path) -> None:
    said = json.loads((ranks / "0").read_text())["warned alone"]
    for taker, warned in zip(("Loader", "BatchSampler", "Sampler"), said, strict=True):
        (text,) = warned
        assert f"rank 0 has gone through a {taker} that has 1/3 of the samples" in text
        assert f"make the {taker} with rank=0, world_size=1" in text
    assert of(ranks, "warned together") == [[[], [], []]] * WORLD


def test_ranks_in_step_fail_at_one_batch(ranks: Path) -> None:
    # 21 bad rows after 21 batches, published with the 24th, looked at with the 32nd.
    said = "24 samples of this epoch could not be used, max_skips=20; `shardkit verify` names"
    for num, error in of(ranks, "fails"):
        assert num == 31
        assert error.startswith(said)


@pytest.mark.thorough
def test_the_store_is_cleaned(ranks: Path) -> None:
    assert max(of(ranks, "keys")) <= 8


def test_the_state_has_the_count_of_all_ranks_that_is_known(ranks: Path) -> None:
    assert of(ranks, "known")[0] == [5, 24]
    assert all(count[0] == 0 and 16 <= count[1] <= 24 for count in of(ranks, "known")[1:])


def test_nobody_waits_for_a_rank_that_died(ranks: Path) -> None:
    assert (ranks / "0.gone").read_text() == "60"
    error, seconds = json.loads((ranks / "2.end").read_text())
    assert "StorageError: the count of replaced rows cannot be exchanged" in error
    assert seconds < 30


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE"])
def test_a_launch_that_says_no_rank_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "4")
    for made in made_too_early().values():
        with pytest.warns(UserWarning, match=f"{name}=4, but this .* is rank 0 of 1"):
            next(iter(made))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert first(Loader(Rows(600), 2, rank=0, world_size=1)) == [0, 1]
        monkeypatch.setenv(name, "1")
        assert first(Loader(Rows(600), 2)) == [0, 1]


def test_an_environment_that_comes_later_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    early = made_too_early()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for made in early.values():
        with pytest.raises(UsageError, match="before RANK and WORLD_SIZE said that this is rank 1"):
            next(iter(made))
    assert first(shardkit.Loader(Rows(600), 2)) == [2, 3]


def test_keys_of_other_work_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two loaders that run at the same time do not count each other's rows."""
    store = dist.HashStore()
    monkeypatch.setattr("shardkit.loading.skips.default_store", lambda world_size: store)
    loaders = [skipping(96, seed=seed, rank=0, world_size=WORLD) for seed in (0, 1, 0)]
    counts: list[list[int]] = []
    with pytest.warns(UserWarning, match="bad"):
        counts += (
            [one.state_dict()["skipped"] for one in loaders] for _ in zip(*loaders, strict=True)
        )
    assert counts == [[number] * 3 for number in range(1, 17)]
