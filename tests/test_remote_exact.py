"""Without a cache of blocks: samples are fetched alone, and compared with their own checksums."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keepers import cache  # noqa: F401
from range_server import FAULTS, RangeServer, serving
from remote_sets import make_set, open_set, plain

import shardkit
from shardkit.errors import ChecksumError, ShardMissingError, StorageError, UsageError
from shardkit.order.epochs import Order
from shardkit.remote import storage
from shardkit.remote.exact import GAP_BYTES, REQUEST_BYTES, _groups
from shardkit.remote.exact_files import (
    REPEATED,
    WORSE,
    fitting_window,
    times_too_much,
    why_exact,
    why_repeated,
)

CONTAINERS = ("webdataset", "hdf5", "lmdb", "npy")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets of every container, and one of 3,000 samples of 500 bytes."""
    folder = tmp_path_factory.mktemp("made")
    for container in CONTAINERS:
        make_set(folder, "pictures", container)
    make_set(folder / "tokens", "tokens", "npy")
    source, draws = folder / "small", np.random.default_rng(1)
    source.mkdir()
    for number in range(3000):
        (source / f"{number:04}.bin").write_bytes(draws.bytes(500))
    options: dict[str, Any] = {"corpus": "paired", "workers": 0, "progress": False}
    shardkit.pack(source, folder / "at" / "small", to="npy", **options)
    return folder / "at"


@pytest.fixture
def server(made: Path) -> Iterator[RangeServer]:
    with serving(made) as server:
        yield server


def kept(cache: Path) -> int:  # noqa: F811
    return sum(path.stat().st_blocks for path in cache.glob("*/*-0*"))


def batches(dataset: Any, **options: Any) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return plain(shardkit.Loader(dataset, 8, seed=3, shuffle="full", **options))


@pytest.mark.parametrize("container", CONTAINERS)
def test_the_same_batches_and_nothing_kept(
    server: RangeServer,
    cache: Path,  # noqa: F811
    made: Path,
    container: str,
) -> None:
    name = f"pictures-{container}"
    local = open_set(made / name, "pictures")
    remote = open_set(f"{server.url}/{name}", "pictures", cache_dir=cache, cache_bytes=0)
    server.requests.clear()
    assert batches(remote, workers=2) == batches(local)
    assert batches(remote, workers=2, worker_type="process") == batches(local)
    assert kept(cache) == 0
    payload = sum(path.stat().st_size for path in (made / name).glob("train-0*"))
    assert server.num_bytes < 2 * 1.1 * payload + 200_000
    assert remote.find(local.keys([7])[0]) == 7
    assert plain([remote.read([5, 5, 0])]) == plain([local.read([5, 5, 0])])
    assert plain([remote.read([])]) == plain([local.read([])])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [*FAULTS, "mixed"])
def test_faults(server: RangeServer, cache: Path, made: Path, kind: str) -> None:  # noqa: F811
    name = "pictures-webdataset"
    server.faults.kind, server.faults.rate, server.faults.first = kind, 0.1, 1
    server.faults.delays = (0.05, 0.2)
    remote = open_set(f"{server.url}/{name}", "pictures", cache_dir=cache, cache_bytes=0)
    assert batches(remote, workers=2) == batches(open_set(made / name, "pictures"))
    assert server.failed


def test_what_is_always_wrong_is_an_error(
    server: RangeServer,
    cache: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storage, "RETRY_S", 2.0)
    url = f"{server.url}/pictures-npy"
    remote = open_set(url, "pictures", cache_dir=cache, cache_bytes=0)
    server.faults.kind, server.faults.rate = "wrong bytes", 1.0
    with pytest.raises(ChecksumError, match="its bytes differ from those packed"):
        remote.read([1, 2])
    server.faults.kind, server.root = "", server.root / "nowhere"
    with pytest.raises(ShardMissingError):
        remote.read([1, 2])


def test_another_dataset_in_its_place(cache: Path, tmp_path: Path) -> None:  # noqa: F811
    first = make_set(tmp_path / "first", "arrays", "npy", rows=8)
    second = make_set(tmp_path / "second", "arrays", "npy", rows=9)
    with serving(first.parent) as server:
        url = f"{server.url}/{first.name}"
        remote = open_set(url, "arrays", cache_dir=cache, cache_bytes=0)
        server.root = second.parent
        for path in second.glob("train-0*"):  # of the same names and sizes, at least at the front
            path.write_bytes(bytes(path.stat().st_size))
        with pytest.raises(StorageError, match="has been replaced by another dataset"):
            remote.read([1, 2])


def test_small_samples_in_full_order_are_fetched_alone(
    server: RangeServer,
    cache: Path,  # noqa: F811
    made: Path,
) -> None:
    """With a cache of a tenth; block order goes on with blocks, and says nothing."""
    most, url = 160_000, f"{server.url}/small"
    local = shardkit.open(made / "small")
    remote = shardkit.open(url, cache_dir=cache, cache_bytes=most)
    with pytest.warns(
        UserWarning, match=r"shuffle='block', window_blocks=4, block_rows=\d+ fetches each"
    ) as said:
        loader = shardkit.Loader(remote, 100, seed=1, shuffle="full")
    assert len(said) == 1
    assert said[0].filename == __file__
    assert loader.dataset is not remote
    server.requests.clear()
    assert plain(loader) == plain(shardkit.Loader(local, 100, seed=1, shuffle="full"))
    assert server.num_bytes_of(".bin.values") + server.num_bytes_of(".npy") < 8_000_000
    assert kept(cache) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        roomy = shardkit.open(url, cache_dir=cache, cache_bytes=10_000_000)
        ours = shardkit.Loader(roomy, 100, seed=1, shuffle="block")
        assert plain(ours) == plain(shardkit.Loader(local, 100, seed=1, shuffle="block"))
        shardkit.Loader(roomy, 100, seed=1, shuffle="full")
        shardkit.Loader(remote, 100, seed=1)


def test_tokens_need_blocks(server: RangeServer, cache: Path, made: Path) -> None:  # noqa: F811
    with serving(made.parent / "tokens" / "at") as other, pytest.raises(UsageError, match="pieces"):
        open_set(f"{other.url}/tokens-npy", "tokens", cache_dir=cache, cache_bytes=0)


@given(st.integers(1, 10**12), st.integers(1, 10**6), st.integers(0, 10**15))
def test_blocks_are_left_only_where_they_cost_more(rows: int, each: int, most: int) -> None:
    num_bytes = rows * each
    why = why_exact("s3://b", rows, num_bytes, most)
    assert (why is None) == (times_too_much(rows, num_bytes, most) < WORSE)
    if most >= num_bytes or each > 262_144:
        assert why is None


def test_a_block_order_in_a_cache_of_a_tenth() -> None:
    """1,000 files of 110 kB: one window of the default order is all of them."""
    why = why_repeated("s3://b", Order(1000, "block"), 110_000_000, 11_000_000)
    assert why == (
        "s3://b: shuffle='block' mixes windows of 110.0 MB, and the cache holds 11.0 MB, so an"
        " epoch fetches up to 3.0 times the dataset. cache_bytes='111MB' fetches each byte about"
        " once, and so does window_blocks=4, block_rows=12, which is another order"
    )


@given(
    st.integers(0, 10**9),
    st.integers(1, 10**6),
    st.integers(0, 10**15),
    st.integers(1, 10**4),
    st.integers(1, 100),
)
def test_a_block_order_whose_window_fits_is_not_warned_of(
    rows: int, each: int, most: int, block_rows: int, window_blocks: int
) -> None:
    order = Order(rows, "block", block_rows=block_rows, window_blocks=window_blocks)
    window = min(rows, block_rows * window_blocks)
    why = why_repeated("s3://b", order, rows * each, most)
    assert (why is None) == (times_too_much(window, window * each, most) < REPEATED)
    if why is not None:
        assert most < window * each
        said = dict(part.split("=") for part in fitting_window(each, most, order).split(", "))
        fits = int(said["window_blocks"]) * int(said.get("block_rows", block_rows))
        assert fits <= max(most / 2 / each, 4)


RANGE = st.tuples(st.integers(0, 3), st.integers(0, 10**7), st.integers(0, 10**5))


@given(st.lists(RANGE, max_size=60))
def test_near_ranges_are_one_request(asked: list[tuple[int, int, int]]) -> None:
    numbers, starts, sizes = np.array(asked, np.int64).reshape(-1, 3).T
    groups = _groups(numbers, starts, sizes)
    told = sorted(one for group in groups for one in group.tolist())
    assert told == [one for one, size in enumerate(sizes.tolist()) if size]
    for group in groups:
        assert len(set(numbers[group].tolist())) == 1
        ends = np.maximum.accumulate(starts[group] + sizes[group])
        assert (starts[group][1:] - ends[:-1] <= GAP_BYTES).all()
        assert ends[-1] - starts[group][0] <= max(REQUEST_BYTES, sizes[group].max())
