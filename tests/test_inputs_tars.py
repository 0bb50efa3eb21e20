"""Third-party tars: concatenated, with class folders, and converted again."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from conftest import Run, picture, tree, write

import shardkit
from shardkit.errors import CorpusError, DataError, ResumeError, StorageError
from shardkit.packing import local
from shardkit.packing.job import Receipt, Setup, Written, commit_job

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False}


def tar_of(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def plain(number: int) -> bytes:
    keys = [f"{number}{i}" for i in range(3)]
    images = {f"{key}.jpg": picture(int(key)) for key in keys}
    return tar_of(dict(sorted((images | {f"{key}.cls": b"1" for key in keys}).items())))


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """``a-000000.tar`` to ``a-000003.tar``."""
    for number in range(4):
        write(tmp_path / "tars" / f"a-{number:06d}.tar", plain(number))
    return tmp_path / "tars"


# --- concatenated, in folders, and what lies next to them -----------------------------------


def test_concatenated_tars(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar", plain(1) + plain(2))
    made = shardkit.convert(path, tmp_path / "out", to="npy", **OPTIONS)
    assert made.num_samples == 6 and shardkit.verify(made.dest, against=path).ok


def test_keys_that_repeat(tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar"):
        write(tmp_path / "in" / name, plain(0))
    with pytest.raises(DataError, match="two samples have the key '0"):
        shardkit.convert(tmp_path / "in", tmp_path / "out", to="npy", **OPTIONS)


def test_tars_in_folders_of_splits(tmp_path: Path, run: Run) -> None:
    for number, split in enumerate(("train", "val2017")):
        write(tmp_path / "in" / split / "000.tar", plain(number))
    write(tmp_path / "in" / "train" / "000_stats.json", "{}")
    code, _, err = run("pack", "in", "out", "--to", "npy")
    assert code == 2 and err.endswith("in is a folder of tar files; use: shardkit convert\n")
    result = shardkit.convert(tmp_path / "in", tmp_path / "out", to="npy", **OPTIONS)
    assert result.splits == {"train": 3, "val": 3} and result.ignored == {".json": 1}
    assert shardkit.open(tmp_path / "out", split="val").keys() == ["10", "11", "12"]
    assert shardkit.verify(tmp_path / "out", against=tmp_path / "in").ok


def test_files_beside_tars_are_counted(tmp_path: Path, run: Run) -> None:
    """As img2dataset leaves them; tars in folders below are not read, and it is said."""
    write(tmp_path / "laion" / "x0.tar", plain(0))
    for name in ("0.parquet", "1.parquet", "0_stats.json", ".hidden", "below/z.tar", "README"):
        write(tmp_path / "laion" / name, "x")
    said = "  files passed over: 1 without extension, 1 .json, 2 .parquet, 1 .tar, 1 hidden\n"
    assert said in run("convert", "laion", "a", "--to", "npy", "--workers", 0)[1]
    assert said in run("convert", "laion", "--to", "parquet")[1]
    for i, named in enumerate(("laion/x0.tar", "a")):
        out = run("convert", named, f"c{i}", "--to", "lmdb", "--workers", 0)[1]
        assert "passed over" not in out and out.startswith("converted ")


# --- folders in tars ----------------------------------------------------------------------


SPLITS = "folders in the tars (train, val) are no splits: unpack the tars, and pack the folder"


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"a/1.jpg": b"1", "a/1.cls": b"0", "b/2.jpg": b"2", "b/2.cls": b"1"}, ""),
        (
            {"./a/1.jpg": b"1", "./b/2.jpg": b"2"},
            "no cls: folders in the tars (a, b) tells a class",
        ),
        ({"a/1.jpg": b"1", "a/2.jpg": b"2"}, "no cls: no folder in the tars tells a class; if"),
        ({"a/1.jpg": b"1", "a/1.txt": b"2"}, ""),
        (
            {"a/1.jpg": b"1", "b/2.jpg": b"2", "README.md": b"3"},
            "no cls: folders in the tars (a, b)",
        ),
        ({"train/1.jpg": b"1", "train/1.cls": b"1", "val/2.jpg": b"2", "val/2.cls": b"1"}, SPLITS),
    ],
)
def test_folders_tell_no_class(members: dict[str, bytes], said: str, tmp_path: Path) -> None:
    """A note denies what one might have expected."""
    path = write(tmp_path / "x.tar", tar_of(members))
    result = shardkit.convert(path, tmp_path / "out", to="npy", **OPTIONS)
    assert [note[: len(said)] for note in result.notes] == [said] * bool(said)
    assert shardkit.open(result.dest).info.classes is None
    path = write(tmp_path / "x.tar", tar_of({"n01.tar": b"1", "n02.tar": b"2"}))
    with pytest.raises(CorpusError, match=r"holds tars, not samples: .*, A tar of tars"):
        shardkit.convert(path, tmp_path / "tars", to="npy", **OPTIONS)


# --- resumed, and converted again ---------------------------------------------------------


@pytest.mark.parametrize("change", [None, "bytes", "time", "gone"])
def test_a_started_convert_goes_on_only_from_the_same_tars(
    change: str | None, tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_at_last(written: Written, setup: Setup) -> Receipt:
        if written.finished.receipt.shard == 3:
            raise StorageError("enough")
        return commit_job(written, setup)

    with monkeypatch.context() as patch:
        patch.setattr(local, "commit_job", fail_at_last)
        with pytest.raises(StorageError, match="enough"):
            shardkit.convert(tars, tmp_path / "dest", to="npy", **OPTIONS)
    first = tars / "a-000000.tar"
    if change == "bytes":
        first.write_bytes(first.read_bytes().replace(b"\xff\xd9", b"\xff\xd8"))
    elif change == "time":
        os.utime(first, (5, 5))
    elif change == "gone":
        first.unlink()
    if change is None:
        again = shardkit.convert(tars, tmp_path / "dest", to="npy", **OPTIONS)
        assert again.resumed_shards == 3
    else:
        with pytest.raises(ResumeError, match=r"changed since .*: a-000000.tar is .*; restore"):
            shardkit.convert(tars, tmp_path / "dest", to="npy", **OPTIONS)
        shardkit.convert(tars, tmp_path / "dest", to="npy", overwrite=True, **OPTIONS)
    shardkit.convert(tars, tmp_path / "expected", to="npy", **OPTIONS)
    assert tree(tmp_path / "dest") == tree(tmp_path / "expected")
