"""From the work folder to the dataset: killed before any step, nothing in between looks whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import make_images, tree, write
from dying import dies_before_change

import shardkit
from shardkit.commit.records import write_record
from shardkit.errors import DestinationError, ResumeError
from shardkit.index.file_names import INDEX_KINDS
from shardkit.packing.destination import files_to_replace


def killed(dest: Path, pack: Callable[[], object], before: Path | None) -> Iterator[int]:
    """``dest`` as a pack leaves it that was killed before its first, second, ... change."""
    number = 0
    while True:
        shutil.rmtree(dest, ignore_errors=True)
        if before:
            shutil.copytree(before, dest)
        if not dies_before_change(number, pack):
            assert number > 30
            return
        yield number
        number += 1


def dataset(dest: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree(dest).items() if not name.startswith(".packing")}


OPTIONS = {"to": "npy", "shard_size": "4kB", "workers": 0}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_images(tmp_path / "source", per_class=4)


@pytest.fixture
def expected(source: Path, tmp_path: Path) -> dict[str, bytes]:
    shardkit.pack(source, tmp_path / "expected", **OPTIONS)
    return tree(tmp_path / "expected")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A dataset of other shards, one more split, and some names that the new one has, too."""
    made = make_images(tmp_path / "old source", per_class=4)
    old = tmp_path / "old"
    shardkit.pack(made, old, to="npy", shard_size="2kB", val_fraction=0.3, workers=0)
    return old


def test_killed_before_any_step(source: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    dest = tmp_path / "dest"
    found_complete, num_shards = 0, sum(name.endswith(".jpg.npy") for name in expected)
    for number in killed(dest, lambda: shardkit.pack(source, dest, **OPTIONS), None):
        if (dest / "shardkit.json").exists():
            assert dataset(dest) == expected
        result = shardkit.pack(source, dest, **OPTIONS)
        found_complete += bool(result.notes)
        assert tree(dest) == expected, number
        assert not (dest / ".packing").exists()
        assert (result.num_samples, result.num_shards) == (12, num_shards)
    assert found_complete > 5


@pytest.mark.thorough
@pytest.mark.parametrize(("damage", "again"), [("none", True), ("none", False), ("index", True)])
def test_overwriting_killed_before_any_step(
    damage: str, again: bool, source: Path, old: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    if damage == "index":
        (old / "shardkit.json").write_bytes(b"{")
    dest, was = tmp_path / "dest", tree(old)
    for number in killed(dest, lambda: shardkit.pack(source, dest, overwrite=True, **OPTIONS), old):
        if (dest / "shardkit.json").exists():
            assert dataset(dest) in (was, expected), number
        try:
            shardkit.pack(source, dest, overwrite=again, **OPTIONS)
        except DestinationError:
            assert not again and tree(dest) == was, number
        else:
            assert tree(dest) == expected, number
        assert not (dest / ".packing").exists()


def test_a_failed_overwrite_leaves_the_old(source: Path, old: Path, tmp_path: Path) -> None:
    before = tree(old)
    bad = write(source / "class2" / "z.jpg", "no picture")
    with pytest.raises(shardkit.errors.SampleError):
        shardkit.pack(source, old, overwrite=True, **{**OPTIONS, "shard_size": "1MB"})
    assert tree(old) == before
    with pytest.raises(shardkit.errors.SampleError):
        shardkit.pack(source, old, overwrite=True, **OPTIONS)
    assert dataset(old) == before and (old / ".packing").is_dir()
    bad.unlink()
    shardkit.pack(source, old, overwrite=True, **OPTIONS)
    assert shardkit.verify(old, against=source).ok and "val.rows" not in tree(old)


@pytest.mark.thorough
def test_what_is_complete_is_another_call(source: Path, old: Path, tmp_path: Path) -> None:
    dest = tmp_path / "dest"
    for _ in killed(dest, lambda: shardkit.pack(source, dest, **OPTIONS), None):
        if (dest / "shardkit.json").exists():
            break
    with pytest.raises(DestinationError, match="already holds a dataset"):
        shardkit.pack(source, dest, to="lmdb", workers=0)
    assert not (dest / ".packing").exists()
    assert shardkit.verify(dest, against=source).ok


@pytest.mark.thorough
def test_what_is_complete_is_of_another_input(source: Path, tmp_path: Path) -> None:
    """Packed with the same options, so that only what is listed tells the two apart."""
    dest, other = tmp_path / "dest", make_images(tmp_path / "other", per_class=5)
    for _ in killed(dest, lambda: shardkit.pack(source, dest, **OPTIONS), None):
        if (dest / "shardkit.json").exists():
            break
    with pytest.raises(DestinationError, match="already holds a dataset"):
        shardkit.pack(other, dest, **OPTIONS)
    assert shardkit.verify(dest, against=source).ok


def test_names_that_are_not_ours_stay(tmp_path: Path) -> None:
    ours = ["a-00000.jpg.npy", "a-00001.tar", "b-00007.lmdb", "rejected.jsonl"]
    ours += [f"{split}.{kind}" for split in ("a", "c") for kind in INDEX_KINDS]
    others = ["notes.rows", "a-0.tar", "a-00000.txt", "d.tar", "README", "-00000.tar"]
    for name in (*ours, *others):
        write(tmp_path / name, "x")
    (tmp_path / "a-00002.tar").mkdir()
    assert files_to_replace(tmp_path) == sorted(ours)


def test_a_folder_in_the_way(source: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    dest = tmp_path / "dest"
    shardkit.pack(source, dest, to="lmdb", workers=0)
    (dest / "train-00001.jpg.npy").mkdir()
    with pytest.raises(DestinationError, match=r"train-00001.jpg.npy is a folder"):
        shardkit.pack(source, dest, overwrite=True, **OPTIONS)
    (dest / "train-00001.jpg.npy").rmdir()
    assert shardkit.verify(dest, against=source).ok
    shardkit.pack(source, dest, **OPTIONS)
    assert tree(dest) == expected


@pytest.mark.parametrize("name", [".packing", ".packing/new", ".packing/scratch"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_linked_work_folder(name: str, overwrite: bool, source: Path, tmp_path: Path) -> None:
    outside = write(tmp_path / "outside" / "file", "x").parent
    dest = tmp_path / "dest"
    (dest / name).parent.mkdir(parents=True)
    (dest / name).symlink_to(outside)
    with pytest.raises(DestinationError, match=rf"{name} is a symbolic link"):
        shardkit.pack(source, dest, overwrite=overwrite, **OPTIONS)
    assert tree(outside) == {"file": b"x"}
    (dest / name).unlink()
    shardkit.pack(source, dest, overwrite=overwrite, **OPTIONS)


@pytest.mark.parametrize("forged", [{}, {"removes": ["../outside"]}])
def test_a_damaged_record(forged: dict[str, Any], source: Path, old: Path, tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", "x")
    write(old / ".packing" / "new" / "shardkit.json", "{}")
    recipe = {"inputs": {}, "corpus": {}, "options": {}}
    write_record(old / ".packing" / "change.json", {"recipe": recipe, **forged})
    with pytest.raises(ResumeError, match=r"change.json, the record of a change, is damaged, or"):
        shardkit.pack(source, old, **OPTIONS)
    assert outside.exists()
    shardkit.pack(source, old, overwrite=True, **OPTIONS)
    assert shardkit.verify(old, against=source).ok and "val.rows" not in tree(old)
