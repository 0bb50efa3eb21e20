"""Datasets behind a URL give the batches of the same dataset on this machine, to the bit."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import warnings
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data as tud
from conftest import EACH_FORMAT, picture, write
from keepers import cache as cache
from range_server import RangeServer, serving
from remote_sets import KINDS, make_set, open_set, plain

import shardkit
from shardkit import Loader
from shardkit.operations.cache import clear_cache


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sets")


@pytest.fixture
def server(root: Path) -> Iterator[RangeServer]:
    with serving(root) as server:
        yield server


def _set(root: Path, kind: str, container: str) -> Path:
    path = root / f"of-{kind}-{container}"
    return path / "at" / f"{kind}-{container}" if path.exists() else make_set(path, kind, container)


class Pair:
    """One dataset, by path and by URL."""

    def __init__(self, server: RangeServer, kind: str, container: str) -> None:
        self.kind = kind
        self.path = _set(server.root, kind, container)
        self.url = f"{server.url}/{self.path.relative_to(server.root)}"

    def open(self, **options: Any) -> tuple[Any, Any]:
        return open_set(self.path, self.kind), open_set(self.url, self.kind, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_threads(server: RangeServer, cache: Path, container: str, kind: str) -> None:
    local, remote = Pair(server, kind, container).open(cache_dir=cache)
    for shuffle in ("full", "block", None):
        options: dict[str, Any] = {"shuffle": shuffle, "seed": 3}
        want = plain(Loader(local, 8, workers=0, **options))
        clear_cache(cache_dir=cache)
        for workers in (0, 2):  # cold, then from the cache
            got = plain(Loader(remote, 8, workers=workers, worker_type="thread", **options))
            assert got == want and len(want) > 6


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("kind", ["pictures", "tokens"])
def test_processes_that_start_after_use(
    server: RangeServer, cache: Path, kind: str, method: str
) -> None:
    local, remote = Pair(server, kind, "webdataset").open(cache_dir=cache)
    remote[0]  # this process has a connection, and maps
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(method, force=True)
    try:
        loader = Loader(remote, 8, workers=2, worker_type="process")
        got = plain(loader)
        loader.close() if hasattr(loader, "close") else None
    finally:
        multiprocessing.set_start_method(before, force=True)
    assert got == plain(Loader(local, 8, workers=0))


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_torch_loader(server: RangeServer, cache: Path, method: str) -> None:
    local, remote = Pair(server, "arrays", "hdf5").open(cache_dir=cache)
    remote[0]
    loader = tud.DataLoader(
        remote, 8, num_workers=2, multiprocessing_context=method, collate_fn=list
    )
    assert plain(loader) == plain(tud.DataLoader(local, 8, collate_fn=list))


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_and_resumption(server: RangeServer, cache: Path, kind: str) -> None:
    """In mid-epoch, on one cache."""
    local, remote = Pair(server, kind, "lmdb").open(cache_dir=cache)
    for rank in range(2):
        options: dict[str, Any] = {"rank": rank, "world_size": 2, "workers": 0, "seed": 5}
        want = plain(Loader(local, 4, **options))
        loader = Loader(remote, 4, **options)
        batches = iter(loader)
        first = plain(next(batches) for _ in range(3))
        state = loader.state_dict()
        resumed = Loader(remote, 4, **options)
        resumed.load_state_dict(state)
        assert first + plain(resumed) == want


@pytest.fixture(scope="module")
def large(root: Path) -> Path:
    """20 MB, so that a cache of a tenth holds batches of two workers."""
    return make_set(root / "large", "arrays", "webdataset", rows=200, size=100_000)


@pytest.mark.thorough
@pytest.mark.parametrize("shuffle", ["full", "block"])
@pytest.mark.parametrize("part", [0.1, 0.5, 2.0])
def test_small_caches(
    server: RangeServer, large: Path, cache: Path, part: float, shuffle: Any
) -> None:
    most = int(20_000_000 * part) + (1 << 20)
    local = open_set(large, "arrays")
    url = f"{server.url}/{large.relative_to(server.root)}"
    remote = open_set(url, "arrays", cache_dir=cache, cache_bytes=most)
    for epoch in range(2):
        options: dict[str, Any] = {"shuffle": shuffle, "seed": epoch}
        is_too_small = shuffle == "block" and part < 1
        told = pytest.warns(UserWarning, match="cache_bytes=") if is_too_small else nullcontext()
        with told:
            got = plain(Loader(remote, 2, workers=2, worker_type="thread", **options))
        assert got == plain(Loader(local, 2, workers=0, **options))
    shards = list(cache.rglob("*.tar"))
    pages = 4096 * len(shards)  # the last block of each takes whole ones
    assert sum(path.stat().st_blocks * 512 for path in shards) <= most + pages


@pytest.mark.parametrize("container", EACH_FORMAT)
def test_pickled_found_and_verified(server: RangeServer, cache: Path, container: str) -> None:
    pair = Pair(server, "pictures", container)
    local = shardkit.open(pair.path, decode=False, verify=True)
    remote = shardkit.open(pair.url, decode=False, verify=True, cache_dir=cache)
    again = pickle.loads(pickle.dumps(remote))
    for row in (5, 0, -1):
        assert plain([again[row]]) == plain([local[row]])
    assert plain([remote.read([3, 1, 59])]) == plain([local.read([3, 1, 59])])
    for name in ("keys", "find"):
        if hasattr(local, name):
            had = getattr(local, name)
            assert (had("0007") == getattr(remote, name)("0007")) if name == "find" else True


def test_values_of_no_bytes_need_no_file(tmp_path: Path, cache: Path, container: str) -> None:
    """Nothing of a shard has been fetched when they are read, and in a column there is nothing."""
    for row in range(4):
        write(tmp_path / "source" / f"{row}.txt", b"a" if row == 3 else b"")
        write(tmp_path / "source" / f"{row}.nil", b"")
    options: dict[str, Any] = {"corpus": "paired", "workers": 0, "progress": False}
    local = tmp_path / "at" / "ds"
    shardkit.pack(tmp_path / "source", local, to=container, **options)
    with serving(tmp_path / "at") as server:
        for fields in (["nil"], ["txt"], ["nil", "txt"]):
            remote, here = (
                shardkit.open(place, fields=fields, decode=False, **kept)
                for place, kept in ((f"{server.url}/ds", {"cache_dir": cache}), (local, {}))
            )
            for rows in ([1], [2, 0], [3, 1]):
                assert plain([remote[rows[0]]]) == plain([here[rows[0]]])
                assert plain([remote.read(rows)]) == plain([here.read(rows)])
            clear_cache(cache_dir=cache)


def _epoch(url: str, kind: str, cache: Path, out: Any) -> None:
    out.put(plain(Loader(open_set(url, kind, cache_dir=cache), 8, workers=0)))


def test_two_runs_on_one_cache(server: RangeServer, cache: Path) -> None:
    """Each block is fetched once for both."""
    pair = Pair(server, "pictures", "webdataset")
    context = multiprocessing.get_context("fork")
    out = context.Queue()
    runs = [
        context.Process(target=_epoch, args=(pair.url, pair.kind, cache, out)) for _ in range(2)
    ]
    for run in runs:
        run.start()
    want = plain(Loader(open_set(pair.path, pair.kind), 8, workers=0))
    assert [out.get(timeout=60), out.get(timeout=60)] == [want, want]
    for run in runs:
        run.join()
    out.close()
    out.join_thread()
    shards = sum(count for name, count in server.requests if name.endswith(".tar"))
    assert shards <= sum(path.stat().st_size for path in pair.path.glob("*.tar"))


def test_opening_many_shards_is_three_requests(root: Path, cache: Path) -> None:
    """And the first batch one more, besides its own blocks; what a rank has fetched, all have."""
    for number in range(300):
        write(root / "many" / "source" / f"{number:03}.jpg", picture(number))
    source, dest = root / "many" / "source", root / "many" / "ds"
    shardkit.pack(source, dest, to="webdataset", shard_size="1B", workers=0, progress=False)
    assert len(list(dest.glob("*.tar"))) == 300
    with serving(root / "many") as server:
        remote = shardkit.open(f"{server.url}/ds", cache_dir=cache, decode=False)
        whole = [name for name, _ in server.requests]
        assert whole == ["ds/shardkit.json", "ds/shardkit.json", "ds/train.rows"]
        next(iter(Loader(remote, 8, rank=0, world_size=2, workers=0)))
        del server.requests[:3]
        assert [name for name, _ in server.requests if name[-4:] != ".tar"] == ["ds/train.sums"]
        server.requests.clear()
        again = shardkit.open(f"{server.url}/ds", cache_dir=cache, decode=False)
        next(iter(Loader(again, 8, rank=1, world_size=2, workers=0)))
        assert {name for name, _ in server.requests if name[-4:] != ".tar"} == {"ds/shardkit.json"}


def test_threads_close_what_they_opened(server: RangeServer, cache: Path) -> None:
    pair = Pair(server, "pictures", "webdataset")
    remote = pair.open(cache_dir=cache)[1]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for row in range(5):
            thread = threading.Thread(target=remote.__getitem__, args=(row * 10,))
            thread.start()
            thread.join()
    assert not warned
    sockets = _unix_sockets()
    for _ in range(5):
        thread = threading.Thread(target=pair.open(cache_dir=cache)[1].read, args=([1, 30],))
        thread.start()
        thread.join()
    assert len(_unix_sockets()) <= len(sockets)


def _unix_sockets() -> list[str]:
    """Connections of this process to the cache's server; the bucket's, which keeps connections
    of its own, runs here, too."""
    unix = {line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [link for link in found if link in {f"socket:[{inode}]" for inode in unix}]
