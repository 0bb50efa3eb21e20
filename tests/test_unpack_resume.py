"""unpack, killed or refused at any moment, and the same command again: the same tree."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import make_images, tree, write
from layouts import make_yolo
from test_publish import dies_before_change

import shardkit
from shardkit.commit.own_files import remove_own
from shardkit.errors import DataError, DestinationError, StorageError, UnsafePathError
from shardkit.operations import unpack
from shardkit.operations.unpack import WORK_NAME

OPTIONS: dict[str, Any] = {"to": "npy", "workers": 0, "progress": False}

SLOWLY = """
import sys, time
from shardkit.operations import unpack
write = unpack.write_full
def slowly(*args):
    time.sleep(0.002)
    write(*args)
unpack.write_full = slowly
unpack.unpack(sys.argv[1], sys.argv[2], progress=False)
"""


@pytest.fixture(params=["files", "lines", "mixed lines"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    if request.param == "files":
        return make_images(folder, per_class=30, classes=2)
    for name in "ab":
        text = "".join(f'{{"n": "{name}{i}"}}\n' for i in range(40))
        write(folder / name / "in.jsonl", text)
    return folder


@pytest.fixture
def dataset(source: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    mixed = "mixed lines" in request.node.name
    shardkit.pack(source, tmp_path / "dataset", shuffle=mixed, **OPTIONS)
    return tmp_path / "dataset"


def test_killed_before_any_step_of_what_the_manifest_keeps(tmp_path: Path) -> None:
    """YOLO's data.yaml, which is no part of a sample, comes back to the byte, once."""
    source = make_yolo(tmp_path / "source")
    (source / "labels" / "train.cache").unlink()
    write(source / "data.yaml", b"\xef\xbb\xbf" + (source / "data.yaml").read_bytes() + b"\r\n#")
    shardkit.pack(source, tmp_path / "dataset", **OPTIONS)
    test_killed_before_any_step(source, tmp_path / "dataset", tmp_path)


def test_a_path_that_the_manifest_keeps_leaves_no_folder(tmp_path: Path) -> None:
    shardkit.pack(make_yolo(tmp_path / "source"), tmp_path / "dataset", **OPTIONS)
    manifest = tmp_path / "dataset" / "shardkit.json"
    text = manifest.read_text().replace('"data.yaml"', '"../data.yaml"')
    manifest.write_text(text)
    with pytest.raises(UnsafePathError):
        shardkit.unpack(tmp_path / "dataset", tmp_path / "back")
    assert not (tmp_path / "data.yaml").exists()


@pytest.mark.thorough
def test_kill_at_random_moments(source: Path, dataset: Path, tmp_path: Path) -> None:
    rng = random.Random(source.name)
    expected, interrupted = tree(source), 0
    for number in range(6):
        dest = tmp_path / f"killed{number}"
        run = [sys.executable, "-c", SLOWLY, str(dataset), str(dest)]
        how = signal.SIGKILL if number % 3 else signal.SIGINT
        for _ in range(2):
            process = subprocess.Popen(run, stderr=subprocess.DEVNULL)
            while process.poll() is None and not (dest / WORK_NAME / "lock").exists():
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.12))
            interrupted += process.poll() is None
            process.send_signal(how)
            process.wait()
            visible = tree(dest).items() if dest.exists() else ()
            for name, data in visible:
                assert name.startswith(f"{WORK_NAME}/") or data == expected[name], name
        result = shardkit.unpack(dataset, dest)
        assert result.num_files == len(expected)
        assert result.num_bytes == sum(map(len, expected.values()))
        assert subprocess.run(["diff", "-r", source, dest]).returncode == 0
    assert interrupted >= 6


def test_killed_before_any_step(source: Path, dataset: Path, tmp_path: Path) -> None:
    for number in range(0, 2000, 7):
        dest = tmp_path / f"dest{number}"
        died = dies_before_change(number, lambda dest=dest: shardkit.unpack(dataset, dest))
        if died:
            shardkit.unpack(dataset, dest)
        assert tree(dest) == tree(source) and not (dest / WORK_NAME).exists()
        if not died:
            return
        remove_own(dest)
    raise AssertionError("it never came to its end")


def interrupt(
    after: int, dataset: Path, dest: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Let so many values be written, then raise."""
    write_all, left = unpack.write_full, after

    def stop(*args: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise error
        write_all(*args)

    with monkeypatch.context() as patch:
        patch.setattr(unpack, "write_full", stop)
        with pytest.raises((type(error), StorageError)):
            shardkit.unpack(dataset, dest)


def test_what_is_there_is_not_written_again(
    source: Path, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dest, num = tmp_path / "dest", len(shardkit.open(dataset))
    interrupt(num - 7, dataset, dest, monkeypatch, KeyboardInterrupt())
    assert not (dest / WORK_NAME).exists()
    inodes = {path: path.stat().st_ino for path in dest.rglob("*") if path.is_file()}
    assert len(inodes) in (num - 7, 0), "none of the files that come in parts"
    shardkit.unpack(dataset, dest)
    assert tree(dest) == tree(source)
    assert inodes == {path: path.stat().st_ino for path in inodes}
    before = {path: path.stat().st_ino for path in dest.rglob("*")}
    result = shardkit.unpack(dataset, dest)
    assert (result.num_files, tree(dest)) == (len(tree(source)), tree(source))
    assert before == {path: path.stat().st_ino for path in dest.rglob("*")}


@pytest.mark.parametrize("how", ["longer", "shorter", "others"])
def test_another_file_of_a_name_is_refused(
    how: str, source: Path, dataset: Path, tmp_path: Path
) -> None:
    dest = tmp_path / "dest"
    name, data = next(iter(tree(source).items()))
    mine = {"longer": data + b"x", "shorter": data[:-1], "others": b"x" + data[1:]}[how]
    write(dest / name, mine)
    with pytest.raises(DestinationError, match=f"dest holds another {name} than this dataset"):
        shardkit.unpack(dataset, dest)
    assert (dest / name).read_bytes() == mine
    (dest / name).unlink()
    shardkit.unpack(dataset, dest)
    assert tree(dest) == tree(source)


def test_a_file_of_another_name_is_refused(source: Path, dataset: Path, tmp_path: Path) -> None:
    dest = tmp_path / "dest"
    name, data = next(iter(tree(source).items()))
    write(dest / name, data)
    write(dest / f"{name}.orig", data)
    before = tree(dest)
    with pytest.raises(DestinationError, match=r"\.orig, which is not of this dataset; choose an"):
        shardkit.unpack(dataset, dest)
    assert tree(dest) == before


def test_a_full_disk(
    source: Path, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dest = tmp_path / "dest"
    interrupt(33, dataset, dest, monkeypatch, OSError(28, "No space left on device"))
    shardkit.unpack(dataset, dest)
    assert tree(dest) == tree(source)


def test_the_folder_of_the_work_is_no_place_for_files(tmp_path: Path) -> None:
    with pytest.raises(shardkit.errors.UnsafePathError, match="keeps its own state"):
        unpack.check_path(os.fsencode(f"{WORK_NAME}/x"))


def deep(tmp_path: Path, depth: int) -> Path:
    """A dataset of one text that lies so many folders deep."""
    from test_hostile import forge_names

    write(tmp_path / "source" / "a.txt", "deep down")
    shardkit.pack(tmp_path / "source", tmp_path / "dataset", **OPTIONS)
    forge_names(tmp_path / "dataset", {0: b"k\0=" + b"d/" * depth + b"a.txt"})
    return tmp_path / "dataset"


def test_folders_nested_deep(tmp_path: Path) -> None:
    dataset, dest = deep(tmp_path, 1500), tmp_path / "dest"
    try:
        assert shardkit.unpack(dataset, dest).num_files == 1
        found = (dest / ("d/" * 1500) / "a.txt").read_bytes()
    finally:
        remove_own(dest)  # shutil.rmtree, which pytest uses, recurses
    assert found == b"deep down"


def test_folders_nested_deeper_than_the_system_takes(tmp_path: Path) -> None:
    dataset, dest = deep(tmp_path, 3000), tmp_path / "dest"
    try:
        with pytest.raises(DataError, match=r"6,005 bytes is longer than this system takes") as got:
            shardkit.unpack(dataset, dest)
    finally:
        remove_own(dest)
    assert len(str(got.value)) < 500
