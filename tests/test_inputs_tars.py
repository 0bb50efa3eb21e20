"""Third-party tars: lists and patterns, compressed, with class folders, and converted again."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard
from conftest import EACH_FORMAT, Run, picture, tree, write
from forked_workers import workers_for

import shardkit
from shardkit.errors import (
    CorpusError,
    DataError,
    FormatError,
    ResumeError,
    StorageError,
)
from shardkit.packing import local
from shardkit.packing.job import Receipt, Setup, Written, commit_job

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False}
NUM_WORKERS = {"lmdb": 0, "hdf5": 1, "webdataset": 0, "npy": 2}
"""Reading a tar does not depend on what is made of it, and processes take time to start."""


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


def compress(name: str, data: bytes) -> bytes:
    if name.endswith(("gz", "gzip")):
        return gzip.compress(data, mtime=0)
    return zstandard.ZstdCompressor().compress(data) if name.endswith("zst") else data


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """``a-000000.tar`` to ``a-000003.tar``."""
    for number in range(4):
        write(tmp_path / "tars" / f"a-{number:06d}.tar", plain(number))
    return tmp_path / "tars"


# --- compressed, in folders, and what lies next to them -----------------------------------


@pytest.mark.parametrize("to", EACH_FORMAT)
def test_compressed_tars(to: str, tars: Path, tmp_path: Path) -> None:
    """Their bytes say what they are compressed by; the first is not."""
    ending = {"lmdb": "tgz", "npy": "tar.zst"}.get(to, "tar.gz")
    packed = tmp_path / "packed"
    for number in range(4):
        data = (tars / f"a-{number:06d}.tar").read_bytes()
        kind = "gzip" if ending == "tgz" else ending
        write(packed / f"a-{number:06d}.{ending}", compress(kind, data) if number else data)
    with workers_for(to):
        shardkit.convert(packed, tmp_path / "one", to=to, workers=NUM_WORKERS[to])
    shardkit.convert(tars, tmp_path / "two", to=to, **OPTIONS)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert sorted(path.name for path in packed.iterdir()) == sorted(tree(packed))
    assert shardkit.convert(packed, tmp_path / "one", to=to, **OPTIONS).was_complete
    one = packed / f"a-000001.{ending}"
    assert shardkit.convert(one, tmp_path / "3", to=to, **OPTIONS).num_samples == 3


def test_concatenated_tars_and_gzip_called_tar(tmp_path: Path) -> None:
    for name, pack in (("x.tar", bytes), ("y.tar.gz", gzip.compress), ("z.tar", gzip.compress)):
        path = write(tmp_path / name, pack(plain(1) + plain(2)))
        made = shardkit.convert(path, tmp_path / f"{name}.out", to="npy", **OPTIONS)
        assert made.num_samples == 6 and shardkit.verify(made.dest, against=path).ok


@pytest.mark.parametrize(
    ("names", "error", "what"),
    [
        (["x.tar.gz"], FormatError, r"x\.tar\.gz is damaged: .*; fetch or compress it"),
        (["y.tar.bz2"], CorpusError, r"y\.tar\.bz2: only .tar.gz and .tar.zst are"),
        (["a.tar", "a.tar.gz"], CorpusError, r"holds a\.tar twice, compressed and not"),
        (["a.tar.gz", "b.tar.gz"], DataError, "two samples have the key '0"),
        (["a.tar", "b.tar"], DataError, "two samples have the key '0"),
    ],
)
def test_tars_that_are_refused(
    names: list[str], error: type[Exception], what: str, tmp_path: Path
) -> None:
    for name in names:
        data = bz2.compress(plain(0)) if name.endswith("bz2") else compress(name, plain(0))
        write(tmp_path / "in" / name, data[:-20] if name == "x.tar.gz" else data)
    with pytest.raises(error, match=what):
        shardkit.convert(tmp_path / "in", tmp_path / "out", to="npy", **OPTIONS)


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_tars_in_folders_of_splits(ending: str, tmp_path: Path, run: Run) -> None:
    for number, split in enumerate(("train", "val2017")):
        write(tmp_path / "in" / split / f"000.{ending}", compress(ending, plain(number)))
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
    for name, pack in (("x.tar", bytes), ("x.tar.gz", gzip.compress)):
        path = write(tmp_path / name, pack(tar_of(members)))
        result = shardkit.convert(path, tmp_path / f"{name}.out", to="npy", **OPTIONS)
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
