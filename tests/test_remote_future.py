"""Loops tell what they will read: what is needed last goes first, which no cache can better."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import settle
from hypothesis import given
from hypothesis import strategies as st
from range_server import RangeServer, serving

import shardkit
from shardkit.order.epochs import Order
from shardkit.remote import connection
from shardkit.remote.cached_split import BlockMap, blocks_of
from shardkit.remote.cached_storage import fitting_window, why_repeated
from shardkit.system.file_io import BLOCK_BYTES

BATCH = 4


@pytest.fixture
def server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked_keepers: None
) -> Iterator[RangeServer]:
    """Of a dataset of 64 blocks, in which a sample lies in one or two."""
    monkeypatch.setattr(connection, "LINGER_S", 0.2)
    source = tmp_path / "source"
    source.mkdir()
    draws = np.random.default_rng(1)
    for number in range(128):
        size = int(draws.integers(90_000, 160_000))
        (source / f"{number}.jpg").write_bytes(b"\xff\xd8\xff" + draws.bytes(size))
    shardkit.pack(source, tmp_path / "at" / "ds", to="webdataset", workers=0, progress=False)
    with serving(tmp_path / "at") as server:
        yield server


def opened(server: RangeServer, tmp_path: Path, part: float) -> tuple[Any, Any, int]:
    """The dataset from behind the URL and from here, and how many blocks the cache holds."""
    local = shardkit.open(tmp_path / "at" / "ds", decode=False)
    num_bytes = sum(path.stat().st_size for path in (tmp_path / "at" / "ds").glob("*.tar"))
    most = int(num_bytes * part) // BLOCK_BYTES
    cache = tmp_path / "cache"
    url = f"{server.url}/ds"
    remote = shardkit.open(url, decode=False, cache_dir=cache, cache_bytes=most * BLOCK_BYTES)
    return remote, local, most


def uses(local: Any, loader: shardkit.Loader, epoch: int) -> list[int]:
    """The blocks of each batch, batch by batch."""
    found: list[int] = []
    rows, blocks = loader.maker.batch_rows(epoch, 0), BlockMap.of(local.info.splits["train"])
    for number in range(rows.num_batches):
        batch = local.reader.gather(rows.rows(number))
        starts, sizes = local.reader.places(batch, "jpg")
        found += blocks_of(blocks.firsts[batch.shards], starts, sizes).tolist()
    return found


def fewest_fetches(uses: list[int], most: int) -> int:
    """By a search of the future at every use."""
    cache: set[int] = set()
    count = 0
    for at, block in enumerate(uses):
        if block not in cache:
            count += 1
            if len(cache) == most:
                after = uses[at:]
                cache.remove(max(cache, key=lambda b: after.index(b) if b in after else len(uses)))
            cache.add(block)
    return count


@pytest.mark.parametrize("workers", [0, 2])
def test_no_cache_of_half_the_dataset_fetches_less(
    server: RangeServer, tmp_path: Path, workers: int
) -> None:
    remote, local, most = opened(server, tmp_path, 0.5)
    options: dict[str, Any] = {"seed": 1, "as_buffer": ["jpg"], "workers": workers}
    loader = shardkit.Loader(remote, BATCH, worker_type="thread", **options)
    expected = shardkit.Loader(local, BATCH, **options)
    told: list[int] = []
    for epoch in range(5):
        for ours, theirs in zip(loader, expected, strict=True):
            assert ours["jpg"].data.equal(theirs["jpg"].data)
        told += uses(local, expected, epoch)
    time.sleep(0.3)  # what is fetched for the next epoch
    num_blocks = server.num_bytes_of(".tar") / BLOCK_BYTES
    assert num_blocks <= 1.05 * fewest_fetches(told + uses(local, expected, 5), most)
    assert num_blocks >= 0.95 * fewest_fetches(told, most)  # the last of a file are shorter


@pytest.mark.parametrize("shuffle", ["full", "block"])
def test_the_first_batch_is_asked_for_before_all_others(
    server: RangeServer, tmp_path: Path, shuffle: str
) -> None:
    """Else it comes as late as all that is fetched ahead, on a line that brings 4 MB a second."""
    remote, local, _ = opened(server, tmp_path, 2.0)
    options: dict[str, Any] = {"seed": 1, "shuffle": shuffle, "as_buffer": ["jpg"]}
    loader = shardkit.Loader(remote, BATCH, workers=0, **options)
    next(iter(loader))
    rows, blocks = loader.maker.batch_rows(0, 0).rows(0), BlockMap.of(local.info.splits["train"])
    batch = local.reader.gather(rows)
    starts, sizes = local.reader.places(batch, "jpg")
    first = blocks_of(blocks.firsts[batch.shards], starts, sizes)
    num_bytes = int(blocks.bytes_of(first).sum())
    assert {asked for sent, asked in server.packets if sent < num_bytes} <= {*range(num_bytes + 1)}


def test_what_two_loops_will_read_is_kept_for_both(server: RangeServer, tmp_path: Path) -> None:
    remote, local, _ = opened(server, tmp_path, 0.5)
    train = shardkit.Loader(remote, BATCH, seed=1, as_buffer=["jpg"])
    few = shardkit.Loader(remote.select(range(16)), BATCH, shuffle=None, as_buffer=["jpg"])
    for _ in range(3):
        assert sum(1 for _ in train) == len(train)
        assert sum(1 for _ in few) == len(few)
    assert remote[5] == local[5]


def test_a_loop_that_goes_on_elsewhere_tells_anew(server: RangeServer, tmp_path: Path) -> None:
    remote, local, _ = opened(server, tmp_path, 0.3)
    options: dict[str, Any] = {"seed": 1, "as_buffer": ["jpg"]}
    ours, theirs = (shardkit.Loader(one, BATCH, **options) for one in (remote, local))
    for loader in (ours, theirs):
        for number, _ in enumerate(loader):
            if number == 5:
                break
    states = ours.state_dict(), theirs.state_dict()
    assert states[0] == states[1]
    for loader, state in zip((ours, theirs), states, strict=True):
        loader.load_state_dict(state)
    got = [batch["jpg"].data.numpy().tobytes() for batch in ours]
    assert got == [batch["jpg"].data.numpy().tobytes() for batch in theirs]


@pytest.mark.parametrize("container", ["webdataset", "npy"])
def test_once_all_is_there_nothing_is_told(
    server: RangeServer, tmp_path: Path, container: str
) -> None:
    """Also what no batch needs, as the small files of npy, which are many blocks of few bytes."""
    if container == "npy":
        shutil.rmtree(tmp_path / "at" / "ds")
        options: dict[str, Any] = {"shard_size": "600kB", "workers": 0, "progress": False}
        shardkit.pack(tmp_path / "source", tmp_path / "at" / "ds", to="npy", **options)
    url = f"{server.url}/ds"
    remote = shardkit.open(url, decode=False, cache_dir=tmp_path / "cache", cache_bytes="100MB")
    loader = shardkit.Loader(remote, BATCH, seed=1, as_buffer=["jpg"])
    for _ in range(2):
        assert sum(1 for _ in loader) == len(loader)
    assert settle(lambda: not remote.is_cold())


def test_block_order_in_a_small_cache(server: RangeServer, tmp_path: Path) -> None:
    """It fetches the dataset several times; what the warning says instead does not."""
    options: dict[str, Any] = {"seed": 1, "shuffle": "block", "as_buffer": ["jpg"], "workers": 0}
    _, _, most = opened(server, tmp_path, 0.3)
    num_bytes = sum(path.stat().st_size for path in (tmp_path / "at" / "ds").glob("*.tar"))

    def fetched(cache_bytes: int | str, **more: int) -> float:
        shutil.rmtree(tmp_path / "cache")
        remote = shardkit.open(
            f"{server.url}/ds",
            decode=False,
            cache_dir=tmp_path / "cache",
            cache_bytes=cache_bytes,
        )
        before = server.num_bytes_of(".tar")
        loader = shardkit.Loader(remote, BATCH, **options, **more)
        assert sum(1 for _ in loader) == len(loader)
        return (server.num_bytes_of(".tar") - before) / num_bytes

    with pytest.warns(UserWarning, match="an epoch fetches up to") as told:
        repeated = fetched(most * BLOCK_BYTES)
    assert len(told) == 1
    assert told[0].filename == __file__
    (size,) = re.findall("cache_bytes='(.*?)'", str(told[0].message))
    window = re.findall(r"(window_blocks|block_rows)=(\d+)", str(told[0].message))
    assert repeated > 1.4
    assert fetched(size) < 1.05
    assert fetched(most * BLOCK_BYTES, **{name: int(number) for name, number in window}) < 1.3


def test_what_a_cache_of_a_tenth_costs() -> None:
    """1,000 files of 110 kB: one window of the default order is all of them."""
    why = why_repeated("s3://b", Order(1000, "block"), 110_000_000, 11_000_000)
    assert why == (
        "s3://b: shuffle='block' mixes 110.0 MB, and the cache holds 11.0 MB, so an epoch fetches"
        " up to 3.0 times the dataset. cache_bytes='111MB' fetches each byte about once, and so"
        " does shuffle='block', window_blocks=4, block_rows=12, which is another order"
    )
    assert why_repeated("s3://b", Order(1000, "full"), 110_000_000, 11_000_000) is None
    small = why_repeated("s3://b", Order(10**6, "full"), 10**9, 10**8)
    assert small is not None and "up to 236.8 times the dataset" in small


@given(
    st.integers(0, 10**9),
    st.integers(1, 10**6),
    st.integers(0, 10**15),
    st.integers(1, 10**4),
    st.integers(1, 100),
)
def test_a_window_that_fits_is_not_warned_of(
    rows: int, each: int, most: int, block_rows: int, window_blocks: int
) -> None:
    order = Order(rows, "block", block_rows=block_rows, window_blocks=window_blocks)
    window = min(rows, block_rows * window_blocks)
    if why_repeated("s3://b", order, rows * each, most) is not None:
        assert most < window * each
        told = dict(part.split("=") for part in fitting_window(each, most, order).split(", "))
        fits = int(told["window_blocks"]) * int(told.get("block_rows", block_rows))
        assert fits <= max(most / 2 / each, 4)


def test_a_few_samples_bring_no_more_than_their_blocks(server: RangeServer, tmp_path: Path) -> None:
    remote, _, _ = opened(server, tmp_path, 2.0)
    few = remote.select(range(0, 128, 16))
    assert sum(1 for _ in shardkit.Loader(few, 2, seed=1, as_buffer=["jpg"])) == 4
    assert server.num_bytes_of(".tar") <= 8 * 2 * BLOCK_BYTES
