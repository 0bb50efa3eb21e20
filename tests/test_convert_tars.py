"""Converting tars made by others: what must not be gone on from, and what is refused at once."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from itertools import product
from pathlib import Path

import pytest
from conftest import CONTAINERS, Run, make_pairs, tree, write

import shardkit
from shardkit.errors import ChecksumError, DataError, ResumeError, StorageError
from shardkit.packing import local
from shardkit.packing.job import Receipt, Setup, Written, commit_job


def make_tars(folder: Path, *keys: str) -> Path:
    """One tar for each string, a sample for each of its letters."""
    folder.mkdir()
    for number, letters in enumerate(keys):
        with tarfile.open(folder / f"x{number}.tar", "w") as tar:
            for letter in letters:
                member = tarfile.TarInfo(f"{letter}.txt")
                member.size = 3
                tar.addfile(member, io.BytesIO(letter.encode() * 3))
    return folder


@pytest.fixture
def half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tars of which the last could not be converted into ``dest``."""
    tars = make_tars(tmp_path / "tars", "ab", "cd", "ef")

    def fail_at_last(written: Written, setup: Setup) -> Receipt:
        if written.finished.receipt.shard == 2:
            raise StorageError("enough")
        return commit_job(written, setup)

    with monkeypatch.context() as patch:
        patch.setattr(local, "commit_job", fail_at_last)
        with pytest.raises(StorageError, match="enough"):
            shardkit.convert(tars, tmp_path / "dest", to="npy", workers=0)
    assert len(list((tmp_path / "dest" / ".packing").glob("*.part"))) == 2
    return tars


def test_unchanged_tars_are_gone_on_from(half_done: Path, tmp_path: Path) -> None:
    result = shardkit.convert(half_done, tmp_path / "dest", to="npy", workers=0)
    assert result.resumed_shards == 2
    shardkit.convert(half_done, tmp_path / "expected", to="npy", workers=0)
    assert tree(tmp_path / "dest") == tree(tmp_path / "expected")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tar: tar.write_bytes(tar.read_bytes().replace(b"aaa", b"AAA")), "is another file"),
        (lambda tar: os.utime(tar, (5, 5)), "is another file"),
        (lambda tar: tar.unlink(), "is gone"),
        (lambda tar: tar.rename(tar.with_name("x9.tar")), "is gone"),
    ],
)
def test_changed_tars_are_not(change: object, said: str, half_done: Path, tmp_path: Path) -> None:
    change(half_done / "x0.tar")  # type: ignore[operator]
    with pytest.raises(ResumeError, match=rf"changed since .*: x0.tar {said}; restore them, or"):
        shardkit.convert(half_done, tmp_path / "dest", to="npy", workers=0)
    shardkit.convert(half_done, tmp_path / "dest", to="npy", workers=0, overwrite=True)
    shardkit.convert(half_done, tmp_path / "expected", to="npy", workers=0)
    assert tree(tmp_path / "dest") == tree(tmp_path / "expected")


def test_repeated_keys_are_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tars = make_tars(tmp_path / "tars", "ab", "bc")
    monkeypatch.setattr(local, "write_job", None)
    with pytest.raises(DataError, match=r"two samples have the key 'b' \(rows 1 and 2\)"):
        shardkit.convert(tars, tmp_path / "dest", to="npy", workers=0)
    assert not (tmp_path / "dest").exists()


# --- what was converted from tars is a dataset as any other -------------------------------------


@pytest.fixture(scope="module")
def pairs_in_tars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tars of the tar command, and the files they were made of."""
    root = tmp_path_factory.mktemp("tars")
    make_pairs(root / "source")
    (root / "tars").mkdir()
    names = sorted(path.name for path in (root / "source").iterdir())
    for number in (0, 1):
        some = [name for name in names if (name < "0006") == (number == 0)]
        tar = root / "tars" / f"x{number}.tar"
        subprocess.run(["tar", "cf", tar, "--sort=name", "-C", root / "source", *some], check=True)
    return root


def flip(folder: Path) -> None:
    """Damage the first picture of a dataset, wherever it lies."""
    jpg = bytes(shardkit.open(folder, decode=False)[0]["jpg"])
    shard = next(p for p in sorted(folder.glob("train-*")) if jpg in p.read_bytes())
    data = bytearray(shard.read_bytes())
    data[data.index(jpg) + 40] ^= 1
    shard.write_bytes(data)


@pytest.mark.parametrize("pair", [*product(CONTAINERS, CONTAINERS)], ids="-".join)
def test_tars_to_x_to_y(pair: tuple[str, str], pairs_in_tars: Path, tmp_path: Path) -> None:
    source = tree(pairs_in_tars / "source")
    x, y = tmp_path / "x", tmp_path / "y"
    shardkit.convert(pairs_in_tars / "tars", x, to=pair[0], workers=0)
    shardkit.convert(x, y, to=pair[1], workers=0)
    for made in (x, y):
        result = shardkit.verify(made)
        assert result.ok and result.has_checksums
        shardkit.unpack(made, tmp_path / f"from {made.name}")
        assert tree(tmp_path / f"from {made.name}") == source
    shardkit.convert(y, tmp_path / "z", to=pair[0], workers=0)
    assert tree(tmp_path / "z") == tree(x)
    for made in (x, y):
        flip(made)
        assert not shardkit.verify(made).ok
        with pytest.raises(ChecksumError, match="its bytes differ from those packed"):
            shardkit.unpack(made, tmp_path / f"damaged {made.name}")
        with pytest.raises(ChecksumError, match="its bytes differ from those packed"):
            shardkit.convert(made, tmp_path / f"damaged {made.name} 2", to="npy", workers=0)


@pytest.mark.parametrize("to", CONTAINERS)
def test_a_staged_copy_of_tars(to: str, pairs_in_tars: Path, tmp_path: Path) -> None:
    """Its shards are files, not links, and it has no checksums either."""
    shardkit.stage(pairs_in_tars / "tars", tmp_path / "staged", progress=False)
    shardkit.convert(tmp_path / "staged", tmp_path / "x", to=to, workers=0)
    shardkit.convert(pairs_in_tars / "tars", tmp_path / "direct", to=to, workers=0)
    assert tree(tmp_path / "x") == tree(tmp_path / "direct")


def test_files_beside_tars_are_counted(tmp_path: Path, run: Run) -> None:
    """As img2dataset leaves them; tars in folders below are not read, and it is said."""
    tars = make_tars(tmp_path / "laion", "ab", "cd")
    for name in ("0.parquet", "1.parquet", "0_stats.json", ".hidden", "below/z.tar", "README"):
        write(tars / name, "x")
    _, out, _ = run("convert", "laion", "a", "--to", "npy", "--workers", 0)
    said = "  files passed over: 1 without extension, 1 .json, 2 .parquet, 1 .tar, 1 hidden\n"
    assert said in out
    assert said in run("convert", "laion", "--to", "parquet")[1]
    (tars / "x0.tar").write_bytes(b"")
    subprocess.run(["gzip", "x1.tar"], cwd=tars, check=True)
    (tars / "x0.tar").unlink()
    assert said in run("convert", "laion", "b", "--to", "npy", "--workers", 0)[1]
    for named in (["laion/x1.tar.gz"], ["a"]):
        out = run("convert", *named, f"c{len(named[0])}", "--to", "lmdb", "--workers", 0)[1]
        assert "passed over" not in out and out.startswith("converted ")
