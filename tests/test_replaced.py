"""Datasets that are replaced while they are open: whoever opens more of them later says so."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write
from torch.utils.data import DataLoader

import shardkit
from shardkit import Loader
from shardkit.errors import ShardkitError, StorageError
from shardkit.storage.local_files import Folder

SAID = "this dataset was replaced, moved or removed while it was open: open it again"


@pytest.fixture(params=["npy", "lmdb", "webdataset", "tars"])
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with datasets ``a`` and ``b`` of files of one size, and a link ``now`` to ``a``."""
    for name in "ab":
        for number in range(24):
            write(tmp_path / f"in-{name}" / f"{number:02}.txt", f"{name}{number:02}".encode())
        to = "webdataset" if request.param == "tars" else request.param
        shardkit.pack(
            tmp_path / f"in-{name}", tmp_path / name, to=to, workers=0, progress=False,
            corpus="files", shard_size=60,
        )  # fmt: skip
        if request.param == "tars":
            for path in (tmp_path / name).iterdir():
                if path.suffix != ".tar":
                    path.unlink()
    (tmp_path / "now").symlink_to("a")
    return tmp_path


def switch(folder: Path) -> None:
    (folder / "next").symlink_to("b")
    os.replace(folder / "next", folder / "now")


def rename(folder: Path) -> None:
    (folder / "a").rename(folder / "old")
    (folder / "b").rename(folder / "a")


def texts(batch: dict[str, Any]) -> list[str]:
    return sorted(bytes(value).decode() for value in batch["txt"])


CHANGES = [switch, rename]


@pytest.mark.thorough
@pytest.mark.parametrize("change", CHANGES)
def test_workers_of_the_next_epoch(two: Path, change: Callable[[Path], None]) -> None:
    ds = shardkit.open(two / "now", decode=False)
    loader = Loader(ds, 24, workers=1, worker_type="process")
    torchs = DataLoader(ds.stream(24), batch_size=None, num_workers=1)
    ours = [f"a{number:02}" for number in range(24)]
    assert [texts(batch) for batch in loader] == [ours] == [texts(batch) for batch in torchs]
    change(two)
    for each in (loader, torchs):
        with pytest.raises(Exception, match=SAID):
            list(each)


@pytest.mark.parametrize("change", CHANGES)
def test_one_that_is_unpickled_later(two: Path, change: Callable[[Path], None]) -> None:
    ds = shardkit.open(two / "now")
    data = pickle.dumps(ds)
    assert len(pickle.loads(data)[3]) == 2
    change(two)
    with pytest.raises((StorageError, ShardkitError), match=SAID):
        pickle.loads(data)[3]


def test_what_was_opened_before_stays_as_it_was(two: Path) -> None:
    ds = shardkit.open(two / "now", decode=False)
    before = texts(ds.read(range(24)))
    switch(two)
    assert texts(ds.read(range(24))) == before
    assert texts(shardkit.open(two / "now", decode=False).read(range(24)))[0] == "b00"


@pytest.mark.parametrize("two", ["npy"], indirect=True)
def test_the_same_dataset_elsewhere_is_the_same(two: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(two)
    ds = shardkit.open("a", decode=False)
    monkeypatch.chdir("b")
    shutil.copytree(two / "a", two / "copy", symlinks=True, copy_function=shutil.copy2)
    (two / "a").rename(two / "old")
    (two / "copy").rename(two / "a")
    assert texts(ds.read(range(24)))[0] == "a00"


def test_a_newer_version_is_no_replacement(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / name / f"{name}.txt", name.encode())
    shardkit.pack(tmp_path / "a", tmp_path / "d", to="npy", workers=0, corpus="files")
    ds = shardkit.open(tmp_path / "d")
    data = pickle.dumps(ds)
    shardkit.append(tmp_path / "d", tmp_path / "b", workers=0)
    assert len(shardkit.open(tmp_path / "d")) == 2
    assert [len(each) for each in (ds, pickle.loads(data))] == [1, 1]
    assert ds[0]["txt"] == pickle.loads(data)[0]["txt"] == "a"
    shutil.rmtree(tmp_path / "d")
    with pytest.raises(ShardkitError, match=SAID):
        pickle.loads(data)[0]


def test_a_file_of_ids(tmp_path: Path) -> None:
    path = tmp_path / "ids.bin"
    np.arange(100, dtype="<u2").tofile(path)
    ds = shardkit.TokenDataset(path, seq_len=8)
    data = pickle.dumps(ds)
    np.arange(500, 600, dtype="<u2").tofile(tmp_path / "next")
    os.replace(tmp_path / "next", path)
    assert ds[0]["inputs"].tolist() == [*range(8)]
    loader = Loader(ds, 4, workers=1, worker_type="process")
    assert next(iter(loader))["inputs"][0].tolist() == [*range(8)]
    with pytest.raises(StorageError, match=SAID):
        pickle.loads(data)[0]


def test_folders_are_compared_by_their_path() -> None:
    assert Folder(Path("a")) == Folder(Path("a"), print)
