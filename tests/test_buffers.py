"""Memory is given out again when nothing refers to it any more, and never before."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import write
from hypothesis import given
from hypothesis import strategies as st
from token_data import npy

import shardkit
from shardkit.memory import buffers
from shardkit.memory.buffers import LEAST_BYTES, MOST_KEPT, WASTE, empty, keep, keeping

LEAST = LEAST_BYTES


@pytest.fixture(autouse=True)
def _keeping() -> Iterator[None]:
    assert buffers._kept.state.users == 0
    with keeping():
        yield


def kept() -> list[Any]:
    return buffers._kept.state.buffers


def address(array: Any) -> int:
    return int(np.asarray(array).__array_interface__["data"][0])


HOLDERS: list[Callable[[Any], Any]] = [
    lambda array: array,
    lambda array: array[5:9],
    lambda array: array.reshape(2, -1).T,
    lambda array: memoryview(array),
    torch.from_numpy,
    lambda array: torch.from_numpy(array)[100:200],
    lambda array: torch.from_numpy(array).view(torch.int16),
    lambda array: torch.from_numpy(array).numpy()[:1],
    lambda array: {"image": [torch.from_numpy(array)]},
]
"""What may be left of an array."""


@pytest.mark.parametrize("hold", HOLDERS)
def test_what_is_held_is_not_given_out_again(hold: Callable[[Any], Any]) -> None:
    first = empty(2 * LEAST, np.uint8)
    place, held = address(first), hold(first)
    del first
    others = [address(empty(2 * LEAST, np.uint8)) for _ in range(3)]
    assert place not in others
    del held
    assert address(empty(2 * LEAST, np.uint8)) == place


@given(
    st.lists(
        st.tuples(
            st.integers(LEAST // 2, 6 * LEAST), st.integers(0, 40), st.integers(0, len(HOLDERS) - 2)
        ),
        max_size=60,
    )
)
def test_live_memory_never_overlaps(steps: list[tuple[int, int, int]]) -> None:
    live: list[tuple[int, int, Any]] = []
    for size, dropped, holder in steps:
        num = size // 8 * 8
        array = empty(num, np.uint8)
        assert array.shape == (num,) and array.flags.writeable and array.flags.c_contiguous
        start = address(array)
        for other, length, _ in live:
            assert start + num <= other or other + length <= start
        live.append((start, num, HOLDERS[holder](array)))
        del array
        if live and dropped < len(live):
            live.pop(dropped)
    assert len(kept()) <= MOST_KEPT


def test_small_ones_and_those_without_a_gil_are_numpys_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert empty(LEAST - 1, np.uint8).base is None
    assert empty(LEAST, np.uint8).base is not None
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert empty(LEAST, np.uint8).base is None


def test_sizes_that_differ_a_little_share_one_buffer() -> None:
    places = {
        address(empty(size, np.uint8)) for size in (4 * LEAST, 5 * LEAST, 3 * LEAST, 4 * LEAST + 7)
    }
    assert len(places) == 1
    small = empty(4 * LEAST // (WASTE + 1), np.uint8)
    assert address(small) not in places


def test_no_more_are_kept_than_so_many() -> None:
    held = [empty(LEAST, np.uint8) for _ in range(MOST_KEPT + 5)]
    assert len(kept()) == MOST_KEPT
    assert len({address(array) for array in held}) == len(held)
    del held
    large = empty(WASTE * 2 * LEAST, np.uint8)  # takes the place of one that is not used
    assert len(kept()) == MOST_KEPT
    assert any(large.base is buffer for buffer in kept())


def test_a_threads_memory_goes_with_it() -> None:
    """But for what others still hold, which they may."""
    got: list[Any] = []

    def work() -> None:
        keep()
        got.append(empty(LEAST, np.uint8))
        empty(LEAST, np.uint8)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (array,) = got
    num_references = sys.getrefcount(array.base)
    assert num_references == 2  # the array's, and that of the call
    array[:] = 1


def test_nothing_is_kept_but_for_those_who_asked() -> None:
    got = []
    thread = threading.Thread(target=lambda: got.append(empty(LEAST, np.uint8)))
    thread.start()
    thread.join()
    assert got[0].base is None
    with keeping():
        empty(LEAST, np.uint8)
    assert len(kept()) == 1, "the fixture still asks"


def test_two_that_end_crosswise_and_in_another_thread() -> None:
    first, second = keeping(), keeping()
    first.__enter__()
    second.__enter__()
    empty(LEAST, np.uint8)
    first.__exit__(None, None, None)
    thread = threading.Thread(target=second.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    assert buffers._kept.state.users == 1 and len(kept()) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_uses_memory_again_and_leaves_none(tmp_path: Path, workers: int) -> None:
    for number in range(64):
        write(tmp_path / "files" / f"{number:02d}.npy", npy(np.full(200_000, number, np.int32)))
    dataset = shardkit.open(
        shardkit.pack(tmp_path / "files", tmp_path / "out", to="npy", workers=0).dest
    )
    loader = shardkit.Loader(dataset, 2, shuffle="full", workers=workers)
    places, before = set(), buffers._kept.state.users
    for batch in chain.from_iterable(loader for _ in range(3)):  # 96 batches
        assert batch["npy"].shape == (2, 200_000)
        assert (batch["npy"] == batch["npy"][:, :1]).all()
        places.add(batch["npy"].data_ptr() >> 20)
    assert len(places) < 40, "some more in flight on a busy machine, but far from all"
    assert buffers._kept.state.users == before


def test_batches_that_are_kept_keep_their_values(tmp_path: Path) -> None:
    for number in range(64):
        write(tmp_path / "files" / f"{number:02d}.npy", npy(np.full(200_000, number, np.int32)))
    dataset = shardkit.open(
        shardkit.pack(tmp_path / "files", tmp_path / "out", to="npy", workers=0).dest
    )
    for workers in (0, 2):
        held = [batch["npy"] for batch in shardkit.Loader(dataset, 2, workers=workers)]
        assert [int(tensor[row, -1]) for tensor in held for row in (0, 1)] == [*range(64)]
