"""Changes that are killed: the old version or the new, whole, and the same call ends it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import make_images, picture, write
from dying import dies_before_change, end_of, forked

import shardkit
from shardkit.commit.work_folder import Change as Commit
from shardkit.commit.work_folder import WorkFolder
from shardkit.index.manifest import DatasetInfo, read_info

QUIET: dict[str, Any] = {"workers": 0, "shard_size": 4000, "progress": False}

Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of three versions, what can be appended, and a second dataset."""
    root = tmp_path_factory.mktemp("inputs")
    make_images(root / "first", 3, 3)
    for i in range(8):
        write(root / "more" / f"class{i % 4}" / f"new{i}.jpg", picture(1000 + i))
        write(root / "other" / f"class{i % 2}" / f"other{i}.jpg", picture(2000 + i))
    shardkit.pack(root / "first", root / "dataset", to="webdataset", **QUIET)
    shardkit.edit(root / "dataset", drop_classes=["class1"], progress=False)
    shardkit.edit(root / "dataset", restore=1)
    shardkit.pack(root / "other", root / "second", to="webdataset", **QUIET)
    return root


@pytest.fixture(params=["append", "append a dataset", "edit", "restore", "prune"])
def change(request: pytest.FixtureRequest, inputs: Path) -> Change:
    changes: dict[str, Change] = {
        "append": lambda path: shardkit.append(path, inputs / "more", **QUIET),
        "append a dataset": lambda path: shardkit.append(path, inputs / "second"),
        "edit": lambda path: shardkit.edit(
            path,
            drop_classes=["class0"],
            labels={"class1/img.000": "zebra"},
            val_fraction=0.4,
            progress=False,
        ),
        "restore": lambda path: shardkit.edit(path, restore=2),
        "prune": lambda path: shardkit.prune(path),
    }
    return changes[request.param]


def without_times(info: DatasetInfo) -> DatasetInfo:
    return replace(info, history=[replace(line, when=None) for line in info.history])


def tree(path: Path) -> tuple[DatasetInfo, dict[str, bytes]]:
    """All of a dataset but for the times in its history."""
    files = {p.name: p.read_bytes() for p in path.iterdir() if p.name != "shardkit.json"}
    return without_times(read_info(path)), files


def is_whole(path: Path) -> bool:
    """This version, and those before that are there."""
    versions = [None, *shardkit.info(path).versions[:-1]]
    return all(shardkit.verify(path, version=n, progress=False).ok for n in versions)


def copies(inputs: Path, tmp_path: Path) -> Iterator[Path]:
    while True:
        yield shutil.copytree(inputs / "dataset", tmp_path / "dataset")
        shutil.rmtree(tmp_path / "dataset")


@pytest.mark.thorough
def test_killed_before_any_step(change: Change, inputs: Path, tmp_path: Path) -> None:
    expected = shutil.copytree(inputs / "dataset", tmp_path / "expected")
    change(expected)
    old, new = tree(inputs / "dataset"), tree(expected)
    for number, path in enumerate(copies(inputs, tmp_path)):
        if not dies_before_change(number, lambda: change(path)):  # noqa: B023
            break
        assert without_times(read_info(path)) in (old[0], new[0])
        assert is_whole(path)
        change(path)
        assert tree(path) == new
    assert number > 5


def test_killed_at_any_moment(change: Change, inputs: Path, tmp_path: Path) -> None:
    expected = shutil.copytree(inputs / "dataset", tmp_path / "expected")
    began = time.monotonic()
    change(expected)
    lasts, new = time.monotonic() - began, tree(expected)
    chance, num_killed = random.Random(1), 0
    for path in copies(inputs, tmp_path):
        process = forked(lambda: change(path))  # noqa: B023
        time.sleep(chance.uniform(0, 1.2 * lasts))
        os.kill(process.pid or 0, signal.SIGKILL)
        num_killed += end_of(process) == -signal.SIGKILL
        assert is_whole(path)
        change(path)
        assert tree(path) == new
        if num_killed == 10:
            break


def test_another_change_ends_one_that_was_ready(inputs: Path, tmp_path: Path) -> None:
    """And gives up one that was not."""
    said = set()
    for number, path in enumerate(copies(inputs, tmp_path)):
        if not dies_before_change(number, lambda: shardkit.edit(path, restore=2)):  # noqa: B023
            break
        made = shardkit.edit(path, drop_keys=["class2/img.000"], progress=False)
        said.update(note for note in made.notes if "change" in note)
        assert made.version in (4, 5)
        assert is_whole(path) and not (path / ".packing").exists()
    assert said == {
        "an interrupted change was ended first: edit: restore version 2",
        "another change that was begun, and not ready, is given up",
    }


@pytest.mark.thorough
def test_merged_datasets_killed_before_any_step(inputs: Path, tmp_path: Path) -> None:
    parts = [inputs / "dataset", inputs / "second"]
    trees = [tree(part) for part in parts]
    shardkit.merge(parts, tmp_path / "expected")
    number, dest = 0, tmp_path / "merged"
    while dies_before_change(number, lambda: shardkit.merge(parts, dest)):
        if (dest / "shardkit.json").exists():
            assert is_whole(dest)
        shardkit.merge(parts, dest)
        assert tree(dest) == tree(tmp_path / "expected")
        shutil.rmtree(dest)
        number += 1
    assert [tree(part) for part in parts] == trees


def test_pack_gives_up_no_change_that_is_ready(inputs: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"to": "webdataset", **QUIET}
    for number, path in enumerate(copies(inputs, tmp_path)):
        if not dies_before_change(number, lambda: shardkit.edit(path, restore=2)):  # noqa: B023
            break
        with pytest.raises(shardkit.errors.DestinationError, match="already holds a dataset"):
            shardkit.pack(inputs / "first", path, **options)
        assert is_whole(path)
        shardkit.edit(path, restore=2)
        assert is_whole(path) and shardkit.open(path).version == 4


def test_a_full_disk_leaves_the_old_version(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shutil.copytree(inputs / "dataset", tmp_path / "dataset")
    before = tree(path)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("shardkit.index.assembling.atomic_write", full)
        for call in (
            lambda: shardkit.append(path, inputs / "second"),
            lambda: shardkit.edit(path, restore=None, drop_classes=["class0"], progress=False),
        ):
            with pytest.raises(shardkit.errors.StorageError, match="the disk is full"):
                call()
            assert tree(path) == before and is_whole(path)
    assert shardkit.append(path, inputs / "second").version == 4


def killed_when_ready(change: Callable[[], object]) -> None:
    """A process of its own dies where only the marker is still to be written."""

    def dies() -> None:
        commit = WorkFolder.commit

        def die(self: WorkFolder, made: Commit) -> None:
            os._exit(9) if "do" in made.recipe else commit(self, made)  # what is added comes first

        WorkFolder.commit = die  # type: ignore[method-assign]
        change()

    assert end_of(forked(dies)) == 9


def test_an_append_goes_on_where_it_was(inputs: Path, tmp_path: Path) -> None:
    path = shutil.copytree(inputs / "dataset", tmp_path / "dataset")
    killed_when_ready(lambda: shardkit.append(path, inputs / "more", **QUIET))
    packed = {p: p.stat().st_mtime_ns for p in (path / ".packing" / "added").glob("*.tar")}
    assert packed
    made = shardkit.append(path, inputs / "more", **QUIET)
    assert made.num_added == 8
    assert not any("given up" in note or "anew" in note for note in made.notes)
    kept = {p.stat().st_mtime_ns for p in path.glob("*.tar")}
    assert set(packed.values()) <= kept


def test_an_append_whose_source_changed_meanwhile_is_of_what_is_there(
    inputs: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(inputs / "dataset", tmp_path / "dataset")
    more = shutil.copytree(inputs / "more", tmp_path / "more")
    killed_when_ready(lambda: shardkit.append(path, more, **QUIET))
    write(more / "class0" / "late.jpg", picture(3000))
    (more / "class1" / "new1.jpg").write_bytes(picture(3001))
    made = shardkit.append(path, more, **QUIET)
    assert any("it is packed anew" in note for note in made.notes)
    assert made.num_added == 9
    found = {sample["__key__"]: sample["jpg"] for sample in shardkit.open(path, decode=False)}
    assert found["class1/new1"] == picture(3001)
    assert is_whole(path)


def test_another_function_is_not_taken_for_that_of_a_killed_edit(
    inputs: Path, tmp_path: Path
) -> None:
    """Both are called <lambda>. What was ready is ended, and then this is done."""
    path = shutil.copytree(inputs / "dataset", tmp_path / "dataset")

    def dies_while_it_is_put() -> None:
        WorkFolder._put = lambda *_: os._exit(9)  # type: ignore[method-assign]
        shardkit.edit(path, filter=lambda sample: sample["cls"] < 2, progress=False)

    assert end_of(forked(dies_while_it_is_put)) == 9
    made = shardkit.edit(path, filter=lambda sample: sample["cls"] > 0, progress=False)
    assert any("ended first" in note for note in made.notes)
    assert {sample["cls"] for sample in shardkit.open(path)} == {1}
    assert is_whole(path)


def test_a_killed_edit_leaves_no_split_to_another(inputs: Path, tmp_path: Path) -> None:
    path = shutil.copytree(inputs / "dataset", tmp_path / "dataset")
    shardkit.edit(path, val_fraction=0.3, progress=False)
    val = {*shardkit.open(path, "val").keys()}
    first = next(iter(val))

    def keep(left_out: set[str]) -> object:
        return shardkit.edit(path, filter=lambda s: s["__key__"] not in left_out, progress=False)

    killed_when_ready(lambda: keep({first}))
    keep(val)
    assert is_whole(path)
