"""Whatever a server does: batches are exact, or a clear error comes in time."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import thorough
from keepers import cache as cache
from keepers import keepers
from range_server import FAULTS, RangeServer, serving
from remote_sets import make_set, open_set, plain

from shardkit import Loader
from shardkit.errors import ChecksumError, ShardkitError, StorageError
from shardkit.remote import cached_storage

DOWN_S = 3
"""How long a server is away; 20 was tried, too."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """6 MB in 10 shards."""
    return make_set(tmp_path_factory.mktemp("made"), "arrays", "webdataset", 60, 100_000)


@pytest.fixture
def server(made: Path) -> Iterator[RangeServer]:
    with serving(made.parent) as server:
        server.faults.delays = (0.05, 0.5)
        yield server


def _open(server: RangeServer, made: Path, cache: Path, **options: Any) -> Any:
    return open_set(f"{server.url}/{made.name}", "arrays", cache_dir=cache, **options)


def _shard_bytes(made: Path) -> int:
    return sum(path.stat().st_size for path in made.glob("*.tar"))


@pytest.mark.parametrize("kind", [*thorough(*FAULTS), "mixed"])
def test_a_tenth_fails(server: RangeServer, made: Path, cache: Path, kind: str) -> None:
    server.faults.kind, server.faults.rate = kind, 0.1
    server.faults.first = 1
    got = plain(Loader(_open(server, made, cache), 4, workers=2, worker_type="thread"))
    assert got == plain(Loader(open_set(made, "arrays"), 4, workers=0))
    assert server.failed
    whole = sum(count for _, count in server.requests if count > 100_000)
    # Of so few requests a tenth may be many; what had to be asked for again is not too much.
    assert whole - server.failed_bytes < 1.5 * _shard_bytes(made)


@pytest.mark.parametrize("kind", ["whole body", "wrong bytes", "wrong range"])
def test_what_always_fails_is_a_clear_error(
    server: RangeServer, made: Path, cache: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_storage, "RETRY_S", 2.0)
    remote = _open(server, made, cache)
    server.faults.kind, server.faults.rate = kind, 1.0
    began = time.monotonic()
    with pytest.raises(StorageError if kind != "wrong bytes" else ChecksumError) as caught:
        remote.read([0, 30])
    assert time.monotonic() - began < 4 and f"{server.url}/{made.name}/" in str(caught.value)
    server.faults.kind = ""
    assert plain([remote.read([0, 30])]) == plain([open_set(made, "arrays").read([0, 30])])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["503", "long delay"])
def test_the_error_comes_within_retry_s(
    server: RangeServer, made: Path, cache: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all who wait, however many blocks they want."""
    monkeypatch.setattr(cached_storage, "RETRY_S", 2.0)
    remote = _open(server, made, cache)
    server.faults.kind, server.faults.rate, server.faults.everywhere = kind, 1.0, True
    server.faults.delays = (0.0, 30.0)
    seconds: list[float] = []

    def read(row: int) -> None:
        began = time.monotonic()
        with pytest.raises(StorageError):
            remote.read([row, row + 30])
        seconds.append(time.monotonic() - began)

    threads = [threading.Thread(target=read, args=(row,)) for row in range(0, 30, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seconds) == 10 and max(seconds) < 3.5, seconds


def test_a_server_that_is_down_for_some_seconds(
    server: RangeServer, made: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache is too small to have all by then."""
    monkeypatch.setattr(cached_storage, "RETRY_S", 60.0)
    remote = _open(server, made, cache, cache_bytes=800_000)
    batches = iter(Loader(remote, 4, workers=0, seed=1))
    got = plain([next(batches)])
    server.faults.is_down = True
    began = time.monotonic()
    timer = threading.Timer(DOWN_S, lambda: setattr(server.faults, "is_down", False))
    timer.start()
    got += plain(batches)
    timer.join()
    assert server.failed
    assert time.monotonic() - began < 2 * DOWN_S + 5
    assert got == plain(Loader(open_set(made, "arrays"), 4, workers=0, seed=1))


def test_another_dataset_in_its_place(
    server: RangeServer, made: Path, cache: Path, tmp_path: Path
) -> None:
    """While it is read: what is given is of the first, or it is an error that says so."""
    at = tmp_path / "at" / "ds"
    shutil.copytree(made, at)
    other = make_set(tmp_path / "other", "arrays", "webdataset", 50, 90_000)
    want = open_set(made, "arrays").read(range(60))
    with serving(tmp_path / "at") as mine:
        remote = open_set(f"{mine.url}/ds", "arrays", cache_dir=cache)
        assert plain([remote.read([0])]) == plain([open_set(made, "arrays").read([0])])
        for path in other.iterdir():
            shutil.copy(path, at / path.name)
        with pytest.raises(StorageError, match="has been replaced by another dataset"):
            remote.read(range(60))
        assert plain([remote.read([0])]) == plain([open_set(made, "arrays").read([0])])
        again = open_set(f"{mine.url}/ds", "arrays", cache_dir=cache)
        assert plain([again.read(range(50))]) == plain([open_set(other, "arrays").read(range(50))])
    assert want


def test_an_object_that_is_missing(tmp_path: Path, made: Path, cache: Path) -> None:
    at = tmp_path / "at" / "ds"
    shutil.copytree(made, at)
    gone = sorted(at.glob("*.tar"))[0]
    gone.unlink()
    with serving(at.parent) as mine:
        remote = open_set(f"{mine.url}/ds", "arrays", cache_dir=cache)
        with pytest.raises(ShardkitError, match=f"{gone.name}: there is no such object"):
            remote.read([0])


@pytest.mark.parametrize("kind", ["wrong bytes", "truncated"])
def test_wrong_bytes_of_shardkit_json(
    server: RangeServer, made: Path, cache: Path, kind: str
) -> None:
    """It has its own checksum; one flipped bit could name other bytes, or classes."""
    server.faults.kind, server.faults.first, server.faults.everywhere = kind, 2, True
    remote = _open(server, made, cache)
    assert server.failed == 2
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    assert (folder / "shardkit.json").read_bytes() == (made / "shardkit.json").read_bytes()
    assert plain([remote.read([3])]) == plain([open_set(made, "arrays").read([3])])


def test_a_size_that_is_not_that_of_the_file(tmp_path: Path, made: Path, cache: Path) -> None:
    """Asked for in pieces, it would keep the keeper busy for ever, for all its readers."""
    at = tmp_path / "at" / "ds"
    shutil.copytree(made, at)
    index = json.loads((at / "shardkit.json").read_text())
    index["splits"]["train"]["files"]["train.rows"]["bytes"] = 10**18
    (at / "shardkit.json").write_text(json.dumps(index))
    with serving(at.parent) as mine, pytest.raises(ChecksumError, match=r"train\.rows: its"):
        open_set(f"{mine.url}/ds", "arrays", cache_dir=cache).read([0])


def test_secrets_are_nowhere(
    server: RangeServer, made: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on the disk, in a message, in a repr, in a pickle, or in the keeper's arguments."""
    secret = "wJalrXUtnFEMI7MDENGbPxRfiCY"
    monkeypatch.setattr(cached_storage, "RETRY_S", 2.0)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"id{secret}")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("AWS_SESSION_TOKEN", f"token{secret}")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    server.faults.kind, server.faults.rate, server.faults.everywhere = "500", 1.0, True
    with pytest.raises(StorageError) as caught:
        open_set("s3://bucket/ds", "arrays", cache_dir=cache)
    server.faults.kind = ""
    remote = _open(server, made, cache)
    assert plain([remote.read([0])])
    (keeper,) = keepers(cache)
    said = [str(caught.value), repr(caught.value), repr(remote), str(remote.__dict__)]
    said.append(Path(f"/proc/{keeper}/cmdline").read_text())
    assert secret not in "".join(said)
    for path in cache.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes()
