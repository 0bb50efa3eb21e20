"""pack again on a dataset it made: complete already, if it is what it would make."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from conftest import Run, make_images, make_pairs, tree, write

import shardkit
from shardkit.errors import DestinationError

OPTIONS: dict[str, Any] = {"to": "npy", "workers": 0, "progress": False}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_images(tmp_path / "source")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True, "val_fraction": 0.2, "limit": 20},
        {"shard_size": "3kB", "resize": 8},
        {"workers": 2, "on_error": "skip", "max_rejects": 0.5},
    ],
    ids=str,
)
def test_the_same_again(source: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    if "on_error" in options:
        write(source / "class0" / "bad.jpg", "no picture")
    given = OPTIONS | options
    first = shardkit.pack(source, tmp_path / "d", **given)
    before = tree(tmp_path / "d")
    again = shardkit.pack(source, tmp_path / "d", **{**given, "workers": 0})
    assert again.notes == ["complete already, from an earlier run"]
    for name, value in vars(first).items():
        is_own = name in ("seconds", "notes", "was_complete")
        assert is_own or vars(again)[name] == value, name
    assert tree(tmp_path / "d") == before
    copied = shardkit.pack(source, tmp_path / "e", **given)
    assert tree(copied.dest) == before, "what it was made of says nothing of when or where"


def test_pairs_and_lines(tmp_path: Path) -> None:
    make_pairs(tmp_path / "pairs")
    write(tmp_path / "in.jsonl", '{"n": 1}\n' * 9)
    for source in ("pairs", "in.jsonl"):
        for notes in (0, 1):
            result = shardkit.pack(tmp_path / source, tmp_path / f"{source}-d", **OPTIONS)
            assert len(result.notes) == notes


def test_tokens(tmp_path: Path) -> None:
    for i in range(40):
        write(tmp_path / "text" / f"{i}.txt", f"some words and number {i}\n" * 9)
    options = {**OPTIONS, "train_tokenizer": 300}
    first = shardkit.pack(tmp_path / "text", tmp_path / "d", **options)
    again = shardkit.pack(tmp_path / "text", tmp_path / "d", **options)
    assert again.notes == ["complete already, from an earlier run"]
    assert (again.num_tokens, again.dataset_bytes) == (first.num_tokens, first.dataset_bytes)
    with pytest.raises(DestinationError, match="already holds a dataset; pass --overwrite"):
        shardkit.pack(tmp_path / "text", tmp_path / "d", **{**options, "train_tokenizer": 290})


def test_another_call_is_refused(source: Path, tmp_path: Path) -> None:
    shardkit.pack(source, tmp_path / "d", **OPTIONS)
    for other in ({"to": "lmdb"}, {"shuffle": True}, {"shard_size": "3kB"}, {"limit": 5}):
        with pytest.raises(DestinationError, match="already holds a dataset; pass --overwrite"):
            shardkit.pack(source, tmp_path / "d", **(OPTIONS | other))
    make_images(source, per_class=13)
    with pytest.raises(DestinationError, match="already holds a dataset; pass --overwrite"):
        shardkit.pack(source, tmp_path / "d", **OPTIONS)


def test_a_younger_input_is_refused(source: Path, tmp_path: Path) -> None:
    shardkit.pack(source, tmp_path / "d", **OPTIONS)
    file = source / "class1" / "img.003.jpg"
    file.write_bytes(file.read_bytes()[::-1])
    said = r"names and sizes, but class1/img\.003\.jpg changed after it was made; see .* --against"
    with pytest.raises(DestinationError, match=said):
        shardkit.pack(source, tmp_path / "d", **OPTIONS)


def test_a_changed_input_whose_time_was_set_back(source: Path, tmp_path: Path) -> None:
    """As rsync and tar do it."""
    shardkit.pack(source, tmp_path / "d", **OPTIONS)
    file = source / "class1" / "img.003.jpg"
    file.write_bytes(file.read_bytes()[::-1])
    os.utime(file, (1, 1))
    with pytest.raises(DestinationError, match=r"class1/img\.003\.jpg changed after it was made"):
        shardkit.pack(source, tmp_path / "d", **OPTIONS)


def test_convert_again(source: Path, tmp_path: Path) -> None:
    shardkit.pack(source, tmp_path / "d", **OPTIONS)
    options: dict[str, Any] = {"to": "lmdb", "workers": 0, "progress": False}
    first = shardkit.convert(tmp_path / "d", tmp_path / "c", **options)
    before = tree(tmp_path / "c")
    again = shardkit.convert(tmp_path / "d", tmp_path / "c", **options)
    assert again.was_complete and not first.was_complete
    assert (again.num_samples, again.num_shards) == (first.num_samples, first.num_shards)
    assert tree(tmp_path / "c") == before
    with pytest.raises(DestinationError, match="overlap"):
        shardkit.convert(tmp_path / "c", tmp_path / "c", **options)
    for other in ({"to": "npy"}, {"resize": 8}):
        with pytest.raises(DestinationError, match="already holds a dataset"):
            shardkit.convert(tmp_path / "d", tmp_path / "c", **(options | other))
    os.truncate(tmp_path / "c" / "train-00000.lmdb", 4096)
    with pytest.raises(DestinationError, match=r"but train-00000\.lmdb has 4096 bytes, not "):
        shardkit.convert(tmp_path / "d", tmp_path / "c", **options)
    shardkit.pack(source, tmp_path / "other", **OPTIONS, limit=20)
    with pytest.raises(DestinationError, match="already holds a dataset"):
        shardkit.convert(tmp_path / "other", tmp_path / "c", **options)


@pytest.mark.parametrize("name", ["train-00000.jpg.npy", "train.names"])
@pytest.mark.parametrize("damage", ["gone", "short"])
def test_a_dataset_that_is_not_whole(name: str, damage: str, source: Path, tmp_path: Path) -> None:
    shardkit.pack(source, tmp_path / "d", **OPTIONS)
    file = tmp_path / "d" / name
    file.unlink() if damage == "gone" else os.truncate(file, 5)
    with pytest.raises(DestinationError, match=rf"but {name} (is missing|has 5 bytes, not \d+);"):
        shardkit.pack(source, tmp_path / "d", **OPTIONS)


def test_a_converted_dataset_is_no_pack_of_its_input(source: Path, tmp_path: Path) -> None:
    shardkit.pack(source, tmp_path / "d", **OPTIONS)
    shardkit.convert(tmp_path / "d", tmp_path / "small", to="npy", resize=8, workers=0)
    with pytest.raises(DestinationError, match="already holds a dataset; pass"):
        shardkit.pack(source, tmp_path / "small", **OPTIONS)


def test_on_the_command_line(run: Run) -> None:
    assert run("pack", "pictures", "--to", "npy").code == 0
    got = run("pack", "pictures", "--to", "npy")
    assert got.code == 0 and got.err == ""
    assert got.out.startswith(
        "complete already, from an earlier run: 36 samples in 1 shard of npy: "
    )
