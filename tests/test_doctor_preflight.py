"""What is said of a dataset and a machine before training: rules, made-up machines, this one."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from conftest import make_images, write

import shardkit
from shardkit.errors import DatasetMissingError, UsageError
from shardkit.formats import FORMATS
from shardkit.index.manifest import SIGNPOSTS
from shardkit.measure.doctor.preflight import machine, storage
from shardkit.measure.doctor.preflight.check import Check
from shardkit.measure.doctor.preflight.checks import preflight, preflight_lines
from shardkit.measure.doctor.preflight.dataset import Found, find
from shardkit.system.file_systems import Mount
from shardkit.system.resources import Allowance

GB = 10**9
TARS = FORMATS["webdataset"]


def here(**changes: Any) -> Allowance:
    """A machine of 16 cores, 64 GB of memory and a large /dev/shm."""
    plain = Allowance("Some CPU", 16, None, 64 * GB, 32 * GB, 1000)
    return dataclasses.replace(plain, **changes)


def dataset(**changes: Any) -> Found:
    """A packed one of 1,000,000 samples."""
    plain = Found(Path("/data/x"), "dataset", FORMATS["lmdb"], 400, 100 * GB, 400, 1_000_000, 1e5)
    return dataclasses.replace(plain, **changes)


def files(num: int, mean: float, **changes: Any) -> Found:
    plain = Found(Path("/data/x"), "files", None, num, int(num * mean), value_bytes=mean)
    return dataclasses.replace(plain, **changes)


# --- the machine --------------------------------------------------------------------------

ONE = machine.Feeding(ranks=1, workers=4, batch_bytes=10**6)
"""Up to 12 batches, 12 MB."""


def test_the_usual_script() -> None:
    pictures = machine.usual_feeding(dataset(has_pictures=True), here(), 2)
    assert pictures == machine.Feeding(2, 8, 64 * 3 * 224 * 224 * 4)
    assert pictures.waiting == 48
    assert machine.usual_feeding(dataset(), here(), 1).batch_bytes == 6_400_000


@pytest.mark.parametrize(
    ("free", "state"),
    [
        (None, "fail"),
        (3_999_999, "fail"),
        (4_000_000, "warn"),
        (14_999_999, "warn"),
        (15 * 10**6, "ok"),
    ],
)
def test_shared_memory(free: int | None, state: str) -> None:
    """It fails where not even one batch of each worker fits, and 20 % are left to others."""
    found = machine.shared_memory(free, ONE)
    assert found.state == state
    assert ("--shm-size=1g" in found.why) == (state != "ok" and free is not None)


def test_dockers_shared_memory_is_too_little_for_pictures() -> None:
    feeding = machine.usual_feeding(dataset(has_pictures=True), here(), 1)
    found = machine.shared_memory(64 << 20, feeding)
    assert found.state == "fail"
    assert "16 workers, batches of 64 (38.5 MB) take up to 1.8 GB of it" in found.why


@pytest.mark.parametrize(
    ("left", "hard", "state", "how"),
    [
        (None, None, "ok", ""),
        (12 * 2 + 4 * 8 + 100 + 64, 0, "ok", ""),
        (219, None, "warn", "run `ulimit -n 512` before"),
        (219, 512, "warn", "run `ulimit -n 512` before"),
        (219, 256, "warn", "cannot be raised beyond 256 here"),
    ],
)
def test_open_files(left: int | None, hard: int | None, state: str, how: str) -> None:
    """220 are needed: for 24 tensors, 4 workers, 100 shards, and 64 to spare."""
    found = machine.open_files(left, hard, ONE, files=100)
    assert found.state == state and how in found.why


@pytest.mark.parametrize(
    ("allowed", "all_cores", "ranks", "got", "why"),
    [
        (here(), 16, 8, "16 of 16", ""),
        (here(), 16, 9, "16 of 16", "9 ranks share them"),
        (here(cores=1), 1, 1, "1 of 1", "the loop and its workers share them"),
        (here(cpu_quota=4.0), 16, 1, "a quota of 4 on 16", "os.cpu_count() says 16"),
        (here(cpu_quota=32.0), 16, 1, "16 of 16", ""),
        (here(cores=4), 64, 2, "4 of 64", "each 2 at most"),
    ],
)
def test_cores(allowed: Allowance, all_cores: int, ranks: int, got: str, why: str) -> None:
    found = machine.cores(allowed, all_cores, ranks)
    assert (found.got, found.state) == (got, "warn" if why else "ok")
    assert why in found.why


# --- what it lies on ----------------------------------------------------------------------


def test_many_small_files_want_to_be_packed() -> None:
    found = storage.layout(files(200_000, 12_000, is_at_least=True))
    assert found.got == "more than 200,000 files, 12.0 kB each, 2.4 GB"
    assert found.state == "warn" and "`shardkit pack /data/x`" in found.why
    assert storage.layout(files(9_999, 12_000)).state == "ok"
    assert storage.layout(files(20_000, 5e6)).state == "ok"
    assert storage.layout(dataset()).got == "lmdb, 1,000,000 samples, 100.0 GB"


@pytest.mark.parametrize(
    ("found", "words"), [(dataset(), "shardkit stage /data/x"), (files(9, 9), "shardkit pack")]
)
def test_a_network_file_system(found: Found, words: str) -> None:
    mount = Mount("/data", "nfs4", "0:44", "server:/export")
    check = storage.file_system(found, mount, is_remote=True)
    assert check.state == "warn" and check.got.startswith("nfs4") and words in check.why
    assert storage.file_system(found, mount, is_remote=False).state == "ok"
    assert storage.file_system(found, None, is_remote=False).got == "unknown"


def test_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, found, state in (
        (10 * GB, files(10, 2e9, path=tmp_path), "warn"),
        (30 * GB, files(10, 2e9, path=tmp_path), "ok"),
        (10 * GB, dataset(path=tmp_path), "ok"),
        (GB, dataset(path=tmp_path), "warn"),
    ):
        usage = type("Usage", (), {"free": free})
        monkeypatch.setattr(storage.shutil, "disk_usage", lambda _, usage=usage: usage)
        assert storage.free_space(found).state == state


def test_shards_matter_to_loaders_that_deal_shards() -> None:
    """Ours deal rows; only tars are read by loaders that do not."""
    tars = dataset(kind="tars", container=TARS, num_shards=31)
    found = storage.shards(tars, ranks=4, workers=8)
    assert found is not None and found.state == "warn" and "fewer than 32 some" in found.why
    ours = storage.shards(dataclasses.replace(tars, kind="dataset"), 4, 8)
    assert ours is not None and ours.state == "ok" and "deal rows" in ours.why
    enough = storage.shards(dataclasses.replace(tars, num_shards=32), 4, 8)
    assert enough == Check("shards", "ok", "32 for 4 ranks with 8 workers each")
    assert storage.shards(dataset(num_shards=1), 1, 1) == Check("shards", "ok", "1 for 1 worker")
    assert storage.shards(files(9, 9), 1, 1) is None


# --- what lies at a path ------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_a_dataset_of_ours(tmp_path: Path, name: str) -> None:
    source, made = make_images(tmp_path / "in"), tmp_path / "made"
    shardkit.pack(source, made, to=name, shard_size="4kB", progress=False, workers=0)
    found = find(made)
    assert (found.kind, found.container, found.num_samples) == ("dataset", FORMATS[name], 36)
    assert found.num_shards > 1 and found.has_pictures
    beside = {"shardkit.json", *SIGNPOSTS}
    on_disk = sum(p.stat().st_size for p in made.iterdir() if p.name not in beside)
    assert found.num_bytes == on_disk


def test_tars_of_others_are_not_indexed(tmp_path: Path) -> None:
    for number in range(3):
        with tarfile.open(tmp_path / f"x-{number}.tar", "w") as tar:
            for key in range(4):
                for ending, size in ((".JPG", 700), (".seg.png", 200), (".cls", 100)):
                    member = tarfile.TarInfo(f"a/{key}{ending}")
                    member.size = size
                    tar.addfile(member, io.BytesIO(bytes(size)))
    before = sorted(os.listdir(tmp_path))
    found = find(tmp_path)
    assert (found.kind, found.num_shards, found.value_bytes) == ("tars", 3, 1000)
    assert found.has_pictures
    assert sorted(os.listdir(tmp_path)) == before
    assert find(tmp_path / "x-1.tar").num_shards == 1


def test_a_tar_that_is_none(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", b"no tar at all")
    found = find(tmp_path)
    assert (found.kind, found.num_bytes, found.value_bytes) == ("tars", 13, 0)


def test_plain_files(tmp_path: Path) -> None:
    make_images(tmp_path / "p", per_class=4, classes=2)
    write(tmp_path / "p/.hidden/x.jpg", "x")
    (tmp_path / "p/class0/again").symlink_to(tmp_path / "p")
    (tmp_path / "p/class0/nowhere").symlink_to(tmp_path / "nothing")
    (tmp_path / "p/class0/itself").symlink_to("itself")
    found = find(tmp_path / "p")
    assert (found.kind, found.num_files, found.container) == ("files", 8, None)
    assert found.has_pictures and not found.is_at_least
    assert found.num_bytes == sum(p.stat().st_size for p in (tmp_path / "p").glob("class*/*.jpg"))


def test_more_files_than_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(9):
        write(tmp_path / f"{number}.txt", "12345")
    monkeypatch.setattr("shardkit.measure.doctor.preflight.dataset.NAMES", 6)
    monkeypatch.setattr("shardkit.measure.doctor.preflight.dataset.SIZED", 2)
    found = find(tmp_path)
    assert (found.num_files, found.num_bytes, found.is_at_least) == (6, 30, True)


def test_one_file(tmp_path: Path) -> None:
    found = find(write(tmp_path / "a.jsonl", "{}\n"))
    assert (found.kind, found.num_files, found.num_bytes) == ("files", 1, 3)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DatasetMissingError, match=r"nothing at .*gone; give the folder") as caught:
        preflight(tmp_path / "gone")
    assert caught.value.exit_code == 2
    with pytest.raises(DatasetMissingError, match="holds no files"):
        preflight(tmp_path)
    with pytest.raises(UsageError, match="ranks"):
        preflight(tmp_path, 0)


# --- all of it, here ----------------------------------------------------------------------


def test_a_whole_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_images(tmp_path / "in")
    shardkit.pack(source, tmp_path / "out", to="npy", progress=False, workers=0)
    checks = preflight(tmp_path / "out")
    names = [check.name for check in checks]
    expected = ["dataset", "file system", "free space", "cores", "shared memory", "open files"]
    assert names == [*expected, "shards"]
    assert all(check.why for check in checks if check.state != "ok")
    assert json.loads(json.dumps([dataclasses.asdict(check) for check in checks]))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "512")
    assert "512 ranks" in {check.name: check for check in preflight(tmp_path / "out")}["cores"].why


def test_lines_for_a_terminal() -> None:
    checks = [Check("memory", "ok", "1 GB free"), Check("open files", "fail", "9", "do " * 40)]
    lines = preflight_lines(checks)
    assert lines[:2] == ["ok    memory      1 GB free", "fail  open files  9"]
    assert lines[2].startswith("      do do") and len(lines) == 4
    assert max(map(len, lines)) <= 100
    command = f"`{'word ' * 9}`"
    lines = preflight_lines([Check("x", "warn", "", f"{'do ' * 25} {command} it")])
    assert lines[1:] == ["      " + ("do " * 25).strip(), f"      {command} it"]
