"""Copies of datasets: the same to the byte, checked, resumed, and never half there."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Ran, Run, flip, make_images, make_pairs, tree, write

import shardkit
from shardkit.errors import (
    ChecksumError,
    DatasetMissingError,
    DestinationError,
    ResumeError,
    ShardMissingError,
    StorageError,
)
from shardkit.operations import stage as stage_module
from shardkit.system.resources import allowance

stage = shardkit.stage


def packed(folder: Path, to: str) -> Path:
    """36 pictures in 9 shards."""
    source = make_images(folder / "images")
    dest = folder / "dataset"
    shardkit.pack(source, dest, to=to, shard_size="3kB", workers=0, progress=False)
    return dest


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return packed(tmp_path, "npy")


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """Tars made by others: ours without their index."""
    made = tmp_path / "made"
    shardkit.pack(make_pairs(tmp_path / "pairs"), made, to="webdataset", workers=0, progress=False)
    folder = tmp_path / "tars"
    folder.mkdir()
    shutil.copy(made / "train-00000.tar", folder / "some-000.tar")
    return folder


def is_nothing(dest: Path) -> bool:
    """Whether nothing there opens as a dataset."""
    try:
        shardkit.open(dest)
    except DatasetMissingError:
        return True
    return False


# --- what is copied -----------------------------------------------------------------------


def test_a_copy_is_the_same_to_the_byte(container: str, tmp_path: Path) -> None:
    dataset = packed(tmp_path, container)
    result = stage(dataset, tmp_path / "copy", progress=False)
    assert tree(tmp_path / "copy") == tree(dataset)
    files = tree(dataset)
    assert result.dest == tmp_path / "copy"
    assert result.num_files == len(files)
    assert result.num_bytes == sum(map(len, files.values())) - len(files["shardkit.json"])
    assert result.copied_bytes == result.num_bytes
    assert shardkit.verify(tmp_path / "copy", progress=False).ok


def test_splits_and_rejects_are_copied(tmp_path: Path) -> None:
    source = tmp_path / "images"
    for split in ("train", "val"):
        make_images(source / split, per_class=3)
    write(source / "train" / "class0" / "bad.jpg", "no picture")
    dest = tmp_path / "dataset"
    shardkit.pack(source, dest, to="npy", on_error="skip", max_rejects=1, workers=0, progress=False)
    stage(dest, tmp_path / "copy", progress=False)
    assert tree(tmp_path / "copy") == tree(dest)
    assert (tmp_path / "copy" / "rejected.jsonl").exists()


def test_tars_made_by_others_come_with_their_index(tars: Path, tmp_path: Path) -> None:
    stage(tars, tmp_path / "copy", progress=False)
    there, here = shardkit.open(tmp_path / "copy"), shardkit.open(tars)
    assert shardkit.info(tmp_path / "copy").splits == shardkit.info(tars).splits
    for own, theirs in zip(there, here, strict=True):
        np.testing.assert_equal(own, theirs)
    assert not any(path.is_symlink() for path in (tmp_path / "copy").iterdir())
    tar = (tmp_path / "copy" / "train-00000.tar").read_bytes()
    assert tar == (tars / "some-000.tar").read_bytes()


# --- refusals -----------------------------------------------------------------------------


def test_too_little_space_is_said_before_anything_is_copied(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DestinationError, match=r"has 100 B free, and [\d.]+ kB are needed"):
        stage(dataset, tmp_path / "copy", progress=False)
    assert not (tmp_path / "copy").exists()


def test_in_memory_the_memory_counts(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_module, "is_in_memory", lambda path: True)
    little = replace(allowance(), memory_bytes=200)
    monkeypatch.setattr(stage_module, "allowance", lambda: little)
    with pytest.raises(DestinationError, match="has 200 B free"):
        stage(dataset, tmp_path / "copy", progress=False)
    monkeypatch.undo()
    assert stage_module.allowance().memory_bytes > 1 << 20


@pytest.mark.parametrize("what", ["dataset", "file", "others"])
def test_what_is_there_stays(dataset: Path, tmp_path: Path, what: str) -> None:
    dest = tmp_path / "copy"
    if what == "dataset":
        shutil.copytree(dataset, dest)
    else:
        write(dest / "mine" if what == "others" else dest, "mine")
    before = tree(tmp_path)
    with pytest.raises(DestinationError):
        stage(dataset, dest, progress=False)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("inner", ["", "within"])
def test_a_copy_into_itself_is_refused(dataset: Path, inner: str) -> None:
    before = tree(dataset)
    with pytest.raises(DestinationError, match="overlap"):
        stage(dataset, dataset / inner, overwrite=True, progress=False)
    assert tree(dataset) == before


def test_overwrite_replaces_a_dataset(dataset: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shardkit.pack(make_pairs(tmp_path / "pairs"), other, to="lmdb", workers=0, progress=False)
    stage(dataset, other, overwrite=True, progress=False)
    assert tree(other) == tree(dataset)


# --- faults -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["shard", "rows", "names", "find", "sums"])
def test_a_damaged_dataset_is_not_copied(dataset: Path, tmp_path: Path, kind: str) -> None:
    shard = next(iter(shardkit.open(dataset).info.splits["train"].shards[1].file_bytes))
    name = shard if kind == "shard" else f"train.{kind}"
    flip(dataset / name, -1)
    with pytest.raises(ChecksumError, match=f"{name} is damaged"):
        stage(dataset, tmp_path / "copy", progress=False)
    assert is_nothing(tmp_path / "copy")


def test_a_shard_that_is_cut_off_is_damaged(dataset: Path, tmp_path: Path) -> None:
    shard = dataset / next(iter(shardkit.open(dataset).info.splits["train"].shards[1].file_bytes))
    os.truncate(shard, shard.stat().st_size - 1)
    with pytest.raises(ChecksumError, match=r"is damaged"):
        stage(dataset, tmp_path / "copy", progress=False)


def test_a_missing_shard_is_named(dataset: Path, tmp_path: Path) -> None:
    shard = dataset / next(iter(shardkit.open(dataset).info.splits["train"].shards[1].file_bytes))
    shard.unlink()
    with pytest.raises(ShardMissingError, match=re.escape(shard.name)):
        stage(dataset, tmp_path / "copy", progress=False)


@pytest.mark.parametrize("source", ["dataset", "tars"])
def test_a_medium_that_changes_bytes_is_found(
    source: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = request.getfixturevalue(source)
    real = stage_module.block_sums

    def rotten(path: Path) -> Any:
        if ".tar" in path.name or "00003" in path.name:
            flip(path, -1)
        return real(path)

    shardkit.open(path)
    monkeypatch.setattr(stage_module, "block_sums", rotten)
    with pytest.raises(ChecksumError, match="the medium is bad"):
        stage(path, tmp_path / "copy", progress=False)
    assert is_nothing(tmp_path / "copy")


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_interrupted_it_goes_on(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Any
) -> None:
    done: list[str] = []
    real = stage_module._copy

    def copy(file: Any, folder: Path) -> None:
        if len(done) == 6 and error:
            raise error
        done.append(file.name)
        real(file, folder)

    monkeypatch.setattr(stage_module, "_copy", copy)
    with pytest.raises((KeyboardInterrupt, StorageError)):
        stage(dataset, tmp_path / "copy", progress=False)
    assert is_nothing(tmp_path / "copy")
    first, error = [*done], None
    result = stage(dataset, tmp_path / "copy", progress=False)
    assert tree(tmp_path / "copy") == tree(dataset)
    assert len(done) == len(set(done)), "copied twice"
    sizes = {name: (dataset / name).stat().st_size for name in first}
    assert result.num_bytes - result.copied_bytes == sum(sizes.values())


def test_what_was_damaged_since_it_was_copied_is_copied_again(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = stage_module._copy_all

    def stop(*args: Any) -> None:
        real(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(stage_module, "_copy_all", stop)
    with pytest.raises(KeyboardInterrupt):
        stage(dataset, tmp_path / "copy", progress=False)
    monkeypatch.undo()
    for name in ("train.names", next(dataset.glob("train-*")).name):
        (copied,) = (tmp_path / "copy").rglob(name)
        flip(copied, copied.stat().st_size // 2)
    result = stage(dataset, tmp_path / "copy", progress=False)
    assert tree(tmp_path / "copy") == tree(dataset)
    assert result.copied_bytes > 0


def test_another_dataset_is_not_mixed_into_one_begun(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    shardkit.pack(make_pairs(tmp_path / "pairs"), other, to="lmdb", workers=0, progress=False)
    real = stage_module._read
    calls = iter([True, True, False])

    def read(file: Any, out: Any) -> Any:
        if not next(calls):
            raise KeyboardInterrupt
        return real(file, out)

    monkeypatch.setattr(stage_module, "_read", read)
    with pytest.raises(KeyboardInterrupt):
        stage(dataset, tmp_path / "copy", progress=False)
    monkeypatch.undo()
    with pytest.raises(ResumeError, match="other options"):
        stage(other, tmp_path / "copy", progress=False)
    stage(other, tmp_path / "copy", overwrite=True, progress=False)
    assert tree(tmp_path / "copy") == tree(other)


SLOWLY = """
import sys, time
import shardkit
from shardkit.operations import stage
real = stage._copy
def slowly(file, folder):
    time.sleep(0.02)
    real(file, folder)
stage._copy = slowly
shardkit.stage(sys.argv[1], sys.argv[2], progress=False)
"""


def started(dataset: Path, dest: Path) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SLOWLY, str(dataset), str(dest)]
    return subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)


def delays() -> Iterator[float]:
    return iter(np.random.default_rng(7).uniform(0, 0.3, 8).tolist())


def test_killed_at_any_moment_nothing_half_done_opens(dataset: Path, tmp_path: Path) -> None:
    dest = tmp_path / "copy"
    for delay in delays():
        process = started(dataset, dest)
        while process.poll() is None and not (dest / ".packing" / "new").is_dir():
            time.sleep(0.001)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        assert process.wait() in (0, -signal.SIGKILL), "it failed by itself"
        if not is_nothing(dest):
            break
    if not (dest / "shardkit.json").exists() or (dest / ".packing").exists():
        stage(dataset, dest, progress=False)
    assert tree(dest) == tree(dataset)


# --- the command line ---------------------------------------------------------------------


def test_output(run: Run, tmp_path: Path) -> None:
    assert run("pack", "pictures", "--to", "npy").code == 0
    got = run("stage", "pictures-npy", "fast")
    line = re.sub(r"[\d.]+ s", "TIME", got.out)
    assert (got.code, got.err) == (0, "")
    assert line == f"copied and checked 10 files, SIZE, in TIME: {tmp_path}/fast\n"
    assert run("stage", "pictures-npy", "fast") == Ran(
        2,
        "",
        f"shardkit: error: {tmp_path}/fast already holds a dataset; pass --overwrite to replace it,"
        " or choose another destination\n",
    )
    found = json.loads(run("stage", "pictures-npy", "fast", "--overwrite", "--json").out)
    assert found.keys() == {"dest", "num_files", "num_bytes", "copied_bytes", "seconds"}


def test_ctrl_c(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("pack", "pictures", "--to", "npy").code == 0

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stage_module, "_read", interrupt)
    got = run("stage", "pictures-npy", "fast")
    assert got.code == 130
    assert got.err.strip() == (
        "shardkit: error: interrupted; what is done is kept, run the same command again to go on"
    )
