"""Packs of tokens that were interrupted: by kill -9, by a full disk, by another tokenizer."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import tree, write
from test_crash import command, kill_at, start
from text_data import make_awkward, make_tokenizer

import shardkit
from shardkit.commit.records import read_record, write_record
from shardkit.errors import ResumeError, SampleError, StorageError
from shardkit.packing.destination import TOKENIZER_RECORD

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False, "shard_size": "3kB"}
STAMP = (1, 1)
KILLS = 4


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_awkward(tmp_path / "texts")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return make_tokenizer(tmp_path / "tok" / "tokenizer.json")


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["--tokenizer", "--train-tokenizer"])
def test_kill_at_random_moments(how: str, tokenizer: Path, tmp_path: Path) -> None:
    source = make_awkward(tmp_path / "in")
    for i in range(300):
        write(source / "more" / f"{i}.txt", f"text {i} " * 200)
    flags = ["--shard-size", "10kB", how, str(tokenizer) if how == "--tokenizer" else "300"]
    undisturbed = tmp_path / "undisturbed"
    run = [*command(source, undisturbed, *flags), "--workers", "1", "--json"]
    result = json.loads(subprocess.run(run, check=True, capture_output=True).stdout)
    expected = tree(undisturbed)
    rng = random.Random(how)
    interrupted = 0
    for number in range(KILLS):
        dest = tmp_path / f"killed{number}"
        run = command(source, dest, *flags, "--workers", str(number % 3))
        parts = 0 if number < KILLS // 2 else rng.randrange(result["num_shards"])
        delay = rng.uniform(0, result["seconds"] if not parts else 0.05)
        interrupted += kill_at(start(run), dest / ".packing", parts, delay)
        if (dest / ".packing").exists():
            subprocess.run(run, check=True, capture_output=True)
        assert tree(dest) == expected
    assert interrupted >= KILLS // 2, "most kills must hit a running pack"


def started(source: Path, dest: Path, **options: Any) -> None:
    """Leave a pack half done: its last text is not UTF-8, until it is mended."""
    bad = write(source / "z.txt", b"\xff")
    os.utime(bad, STAMP)
    with pytest.raises(SampleError, match=r"z\.txt: is not UTF-8"):
        shardkit.pack(source, dest, **OPTIONS, **options)
    assert list((dest / ".packing").glob("*.part"))
    bad.write_bytes(b"z")
    os.utime(bad, STAMP)


def test_the_same_tokenizer_may_lie_elsewhere(
    source: Path, tokenizer: Path, tmp_path: Path
) -> None:
    dest = tmp_path / "out"
    started(source, dest, tokenizer=tokenizer)
    moved = Path(shutil.move(tokenizer, tmp_path / "moved.json"))
    result = shardkit.pack(source, dest, tokenizer=moved, **OPTIONS)
    assert result.resumed_shards > 0
    shardkit.pack(source, tmp_path / "expected", tokenizer=moved, **OPTIONS)
    assert tree(dest) == tree(tmp_path / "expected")


def test_another_tokenizer_is_refused(source: Path, tokenizer: Path, tmp_path: Path) -> None:
    dest = tmp_path / "out"
    started(source, dest, tokenizer=tokenizer)
    before = tree(dest)
    other = make_tokenizer(tmp_path / "other.json", 300)
    options = "holds a pack started with other options: "
    gone = "this pack was started: the tokenizer is gone; restore"
    for change, said in (
        ({"tokenizer": other}, "this pack was started: the tokenizer is another file; restore"),
        ({"train_tokenizer": 300}, gone),
        ({"to": "npy"}, gone),
        ({"tokenizer": tokenizer, "eos": "none"}, options + "eos was 'auto', now 'none'; use"),
        ({"tokenizer": tokenizer, "invalid_utf8": "replace"}, options + "invalid_utf8 was"),
    ):
        with pytest.raises(ResumeError, match=said):
            shardkit.pack(source, dest, **OPTIONS, **change)
    assert tree(dest) == before
    shardkit.pack(source, dest, tokenizer=other, overwrite=True, **OPTIONS)
    assert shardkit.verify(dest, against=source).ok


def test_a_resumed_pack_trains_and_proves_no_more(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dest, options = tmp_path / "out", {**OPTIONS, "train_tokenizer": 300}
    started(source, dest, train_tokenizer=300)
    for name in ("train", "choose_backend"):
        monkeypatch.setattr(f"shardkit.packing.tokenize.{name}", None)
    result = shardkit.pack(source, dest, **options)
    assert result.resumed_shards > 0 and result.notes[0].startswith("trained a tokenizer")
    monkeypatch.undo()
    assert shardkit.verify(dest, against=source).ok


@pytest.mark.parametrize("piece", ["tokenizer.record", "new/tokenizer.json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_tokenizer_starts_afresh(
    piece: str, damage: str, source: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Shards that were made with it may be of another one then."""
    dest = tmp_path / "out"
    started(source, dest, tokenizer=tokenizer)
    path = dest / ".packing" / piece
    data = path.read_bytes()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    path.unlink() if damage == "gone" else path.write_bytes(
        data[:middle] if damage == "cut" else flipped
    )
    result = shardkit.pack(source, dest, tokenizer=tokenizer, **OPTIONS)
    assert result.resumed_shards == 0
    shardkit.pack(source, tmp_path / "expected", tokenizer=tokenizer, **OPTIONS)
    assert tree(dest) == tree(tmp_path / "expected")


def test_a_tokenizer_that_another_release_recorded_is_chosen_again(
    source: Path, tokenizer: Path, tmp_path: Path
) -> None:
    dest = tmp_path / "out"
    started(source, dest, tokenizer=tokenizer)
    path = dest / ".packing" / TOKENIZER_RECORD
    record = read_record(path)
    assert record is not None
    record["engine"] = record.pop("backend")  # as 0.1.0 called it
    write_record(path, record)
    result = shardkit.pack(source, dest, tokenizer=tokenizer, **OPTIONS)
    assert result.resumed_shards == 0
    assert shardkit.verify(dest, against=source).ok


def test_convert_resumed_with_another_tokenizer_file(
    source: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two datasets of equal ids, one after the other in the same place."""
    data, dest = tmp_path / "data", tmp_path / "out"
    shardkit.pack(source, data, tokenizer=tokenizer, **OPTIONS)
    with monkeypatch.context() as patch:
        patch.setattr("shardkit.packing.finish.assemble_split", _fail)
        with pytest.raises(StorageError):
            shardkit.convert(data, dest, to="lmdb", workers=0)
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()), indent=1))
    shardkit.pack(source, data, tokenizer=tokenizer, overwrite=True, **OPTIONS)
    with pytest.raises(ResumeError, match=r"started: tokenizer\.json is another file; restore"):
        shardkit.convert(data, dest, to="lmdb", workers=0)


def _fail(*args: object, **options: object) -> None:
    raise StorageError("the power went off")


@pytest.mark.thorough
@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small tmpfs needs root")
@pytest.mark.parametrize("large", [8 << 20, 100])
@pytest.mark.parametrize("size", ["16k", "96k", "120k"])
def test_full_disk(
    size: str, large: int, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the tokenizer's own file, under shards, and under large documents' ids."""
    monkeypatch.setattr("shardkit.packing.tokenize.LARGE_BYTES", large)
    source, small = tmp_path / "in", tmp_path / "small"
    for i in range(40):
        write(source / f"{i}.txt", f"some text {i} " * 700)
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this system does not let root mount a tmpfs")
    options = {**OPTIONS, "shard_size": "40kB", "tokenizer": tokenizer}
    try:
        with pytest.raises(StorageError, match="the disk is full") as caught:
            shardkit.pack(source, small / "dest", **options)
        assert "\n" not in str(caught.value)
        del caught  # it holds the ids of large documents, mapped
        subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
        shardkit.pack(source, small / "dest", **options)
        assert shardkit.verify(small / "dest", against=source).ok
        shardkit.pack(source, tmp_path / "dest", **options)
        assert tree(small / "dest") == tree(tmp_path / "dest")
    finally:
        subprocess.run(["umount", str(small)], check=True)
