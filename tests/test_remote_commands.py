"""Commands that go through a whole dataset take it from behind a URL as from a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Run, make_images, tree
from range_server import RangeServer, serving

import shardkit
from shardkit.errors import ChecksumError, UsageError
from shardkit.remote import connection


@pytest.fixture(params=["webdataset", "npy"])
def server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[RangeServer]:
    """Of a dataset of pictures, ``ds``, made from ``source``."""
    monkeypatch.setattr(connection, "LINGER_S", 0.2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = make_images(tmp_path / "source")
    shardkit.pack(source, tmp_path / "at" / "ds", to=request.param, workers=0, progress=False)
    with serving(tmp_path / "at") as server:
        yield server


def shard_of(server: RangeServer) -> Path:
    return max((server.root / "ds").glob("train-*"), key=lambda path: path.stat().st_size)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_verify_says_what_it_says_of_the_folder(server: RangeServer, run: Run) -> None:
    url, folder = f"{server.url}/ds", server.root / "ds"
    ours, theirs = run("verify", url), run("verify", folder)
    assert ours.code == theirs.code == 0
    assert ours.out.replace(url, "") == theirs.out.replace(str(folder), "")
    source = folder.parent.parent / "source"
    assert shardkit.verify(url, source, progress=False).num_compared == len(shardkit.open(folder))


def test_verify_fetches_anew_what_the_cache_has(server: RangeServer) -> None:
    url = f"{server.url}/ds"
    dataset = shardkit.open(url, decode=False)
    dataset.read(range(len(dataset)))
    assert shardkit.verify(url, progress=False).ok
    flip(shard_of(server))
    found = shardkit.verify(url, progress=False)
    assert any(shard_of(server).name in problem.where for problem in found.problems)


def test_verify_sees_a_damaged_index(server: RangeServer) -> None:
    flip(server.root / "ds" / "train.rows")
    found = shardkit.verify(f"{server.url}/ds", progress=False)
    assert [problem.where for problem in found.problems] == ["train.rows"]


def test_unpacked_files_are_the_originals(server: RangeServer, tmp_path: Path) -> None:
    shardkit.unpack(f"{server.url}/ds", tmp_path / "back", progress=False)
    shardkit.unpack(server.root / "ds", tmp_path / "local", progress=False)
    assert tree(tmp_path / "back") == tree(tmp_path / "local")


def test_a_staged_copy_is_the_dataset(server: RangeServer, tmp_path: Path) -> None:
    shardkit.stage(f"{server.url}/ds", tmp_path / "copy", progress=False)
    assert tree(tmp_path / "copy") == tree(server.root / "ds")


def test_what_is_damaged_there_is_not_staged(server: RangeServer, tmp_path: Path) -> None:
    flip(shard_of(server))
    with pytest.raises(ChecksumError):
        shardkit.stage(f"{server.url}/ds", tmp_path / "copy", progress=False)
    with pytest.raises(shardkit.errors.ShardkitError):
        shardkit.open(tmp_path / "copy")


def test_from_one_url_to_another_is_refused(server: RangeServer) -> None:
    with pytest.raises(UsageError, match="one of both must be a folder"):
        shardkit.stage(f"{server.url}/ds", "s3://bucket/copy")
