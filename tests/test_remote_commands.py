"""Commands that go through a whole dataset take it from behind a URL as from a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Run, flip, make_images, thorough, tree
from keepers import cache  # noqa: F401
from range_server import RangeServer, serving
from s3_server import S3, s3, s3_endpoint  # noqa: F401

import shardkit
from shardkit.errors import ChecksumError, DestinationError, StorageError
from shardkit.index.file_names import REJECTED_NAME
from shardkit.inputs.records.packed import DatasetCorpus, dataset_corpus
from shardkit.remote import connection
from shardkit.remote.urls import as_url
from shardkit.shards.locate import locate_place


@pytest.fixture(params=["webdataset", "npy"])
def server(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    forked_keepers: None,
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


def flip_middle(path: Path) -> None:
    flip(path, path.stat().st_size // 2)


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
    flip_middle(shard_of(server))
    found = shardkit.verify(url, progress=False)
    assert any(shard_of(server).name in problem.where for problem in found.problems)


def test_unpacked_files_are_the_originals(server: RangeServer, tmp_path: Path) -> None:
    shardkit.unpack(f"{server.url}/ds", tmp_path / "back", progress=False)
    shardkit.unpack(server.root / "ds", tmp_path / "local", progress=False)
    assert tree(tmp_path / "back") == tree(tmp_path / "local")


def test_a_staged_copy_is_the_dataset(server: RangeServer, tmp_path: Path) -> None:
    shardkit.stage(f"{server.url}/ds", tmp_path / "copy", progress=False)
    assert tree(tmp_path / "copy") == tree(server.root / "ds")


def test_what_is_damaged_there_is_not_staged(server: RangeServer, tmp_path: Path) -> None:
    flip_middle(shard_of(server))
    with pytest.raises(ChecksumError):
        shardkit.stage(f"{server.url}/ds", tmp_path / "copy", progress=False)
    with pytest.raises(shardkit.errors.ShardkitError):
        shardkit.open(tmp_path / "copy")


@pytest.mark.thorough
def test_a_copy_in_a_bucket_of_what_lies_behind_a_url(
    server: RangeServer,
    s3: S3,  # noqa: F811
    tmp_path: Path,
) -> None:
    """By way of this machine, where nothing but the index stays; after an error it goes on."""
    (server.root / "ds" / REJECTED_NAME).write_text('{"path": "a", "reason": "b"}\n')
    shard = shard_of(server)
    before = shard.read_bytes()
    flip_middle(shard)
    with pytest.raises(ChecksumError):
        shardkit.stage(f"{server.url}/ds", f"{s3.url}/copy", progress=False)
    assert "copy/shardkit.json" not in s3.objects("copy/")
    shard.write_bytes(before)
    shardkit.stage(f"{server.url}/ds", f"{s3.url}/copy", progress=False)
    expected = {f"copy/{name}": data for name, data in tree(server.root / "ds").items()}
    assert s3.objects("copy/") == expected
    assert not [*(tmp_path / "cache" / "shardkit" / "staging").glob("*/")]
    again = shardkit.stage(f"{s3.url}/copy", f"{s3.url}/again", progress=False)
    assert again.copied_bytes == again.num_bytes


@pytest.mark.parametrize("dest", ["copy", *thorough("copy/in", "c%6Fpy", "")])
def test_what_would_take_the_place_of_the_source_is_refused(
    server: RangeServer,
    s3: S3,  # noqa: F811
    dest: str,
) -> None:
    """Its shardkit.json would go first, and nobody could open it again after a kill."""
    shardkit.stage(server.root / "ds", f"{s3.url}/copy", progress=False)
    before, target = s3.objects(), f"{s3.url}/{dest}"
    with pytest.raises(DestinationError, match="overlap"):
        shardkit.stage(f"{s3.url}/copy", target, overwrite=True)
    with pytest.raises(DestinationError, match="overlap"):
        shardkit.convert(f"{s3.url}/copy", target, to="lmdb", overwrite=True)
    with pytest.raises(DestinationError, match="overlap"):
        shardkit.pack(f"{s3.url}/copy", target, to="lmdb", overwrite=True)
    assert s3.objects() == before


@pytest.mark.parametrize("workers", [0, 2])
def test_converting_is_as_of_the_folder(server: RangeServer, tmp_path: Path, workers: int) -> None:
    """Also what was not packed is known afterwards."""
    folder = server.root / "ds"
    (folder / REJECTED_NAME).write_text('{"path": "a", "reason": "b"}\n')
    options: dict[str, Any] = {"to": "lmdb", "workers": workers, "progress": False}
    shardkit.convert(f"{server.url}/ds", tmp_path / "ours", **options)
    shardkit.convert(folder, tmp_path / "theirs", **options)
    assert tree(tmp_path / "ours") == tree(tmp_path / "theirs")
    assert (tmp_path / "ours" / REJECTED_NAME).exists()


def test_converting_chooses_a_name_and_goes_on(server: RangeServer, run: Run) -> None:
    for said in ("converted", "complete already"):
        got = run("convert", f"{server.url}/ds", "--to", "hdf5", "--workers", 0)
        assert got.code == 0
        assert said in got.out
    assert shardkit.verify("ds-hdf5", progress=False).ok
    got = run("convert", f"{server.url}/ds", "--to", "parquet")
    assert got.code == 0
    assert list(Path("ds-parquet").rglob("*.parquet"))


def test_another_dataset_in_its_place_is_not_converted(server: RangeServer, tmp_path: Path) -> None:
    """Workers open it anew: half of one and half of another would be worse than none."""
    shardkit.open(f"{server.url}/ds")
    corpus = dataset_corpus(locate_place(as_url(f"{server.url}/ds", "")))
    source = make_images(tmp_path / "others", per_class=7)
    options: dict[str, Any] = {"to": "npy", "workers": 0, "progress": False, "overwrite": True}
    shardkit.pack(source, server.root / "ds", **options)
    with pytest.raises(StorageError, match="has been replaced"):
        DatasetCorpus.from_spec(corpus._located.folder, corpus.spec())


@pytest.mark.thorough
def test_from_one_bucket_to_another(server: RangeServer, s3: S3, tmp_path: Path) -> None:  # noqa: F811
    """Both ends are remote, and nothing of the dataset stays on this machine but the cache."""
    options: dict[str, Any] = {"to": "lmdb", "workers": 2, "progress": False}
    shardkit.convert(f"{server.url}/ds", f"{s3.url}/lmdb", **options)
    shardkit.convert(server.root / "ds", tmp_path / "theirs", **options)
    assert s3.objects("lmdb/") == {f"lmdb/{k}": v for k, v in tree(tmp_path / "theirs").items()}
    again = shardkit.convert(f"{s3.url}/lmdb", f"{s3.url}/back", **{**options, "to": "npy"})
    assert again.num_samples == len(shardkit.open(f"{s3.url}/back"))


def test_bench_from_the_cache_and_from_where_it_lies(server: RangeServer, run: Run) -> None:
    url, folder = f"{server.url}/ds", server.root / "ds"
    warm = run("bench", folder, url, "--workers", 0, "--rounds", 1)
    assert warm.code == 0, warm.err
    assert "targets returned the same" in warm.out
    before = len(server.requests)
    cold = run("bench", url, "--cold", "--workers", 0, "--rounds", 2, "--json", "-")
    assert cold.code == 0, cold.err
    row = json.loads(cold.out)["rows"][0]
    assert (row["path"], row["cache"]) == (url, "cold")
    assert row["device_bytes"] > row["dataset_bytes"] / 2
    assert len(server.requests) >= before + 3
