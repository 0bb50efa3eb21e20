"""What is said of a dataset and a machine before training: rules, made-up machines, this one."""

from __future__ import annotations

import dataclasses
import tarfile
from pathlib import Path
from typing import Any

import pytest
from conftest import make_images, write

import shardkit
from shardkit.errors import DatasetMissingError, UsageError
from shardkit.measure.doctor import preflight as rules
from shardkit.measure.doctor.preflight import Check, Feeding, Found, find, preflight
from shardkit.system.resources import Allowance

DATASET = Found(Path("/data/x"), "dataset", 400, 100_000)
FILES = Found(Path("/data/x"), "files", 0, 9)


def here(**changes: Any) -> Allowance:
    """A machine of 16 cores, 64 GB of memory and a large /dev/shm."""
    plain = Allowance("Some CPU", 16, None, 64 * 10**9, 32 * 10**9, 1000)
    return dataclasses.replace(plain, **changes)


ONE = Feeding(ranks=1, workers=4, batch_bytes=10**6)
"""Up to 12 batches, 12 MB."""


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
    found = rules.shared_memory(free, ONE)
    assert found.state == state
    assert ("--shm-size=1g" in found.why) == (state != "ok")


@pytest.mark.parametrize(
    ("left", "hard", "state", "how"),
    [
        (None, -1, "ok", ""),
        (12 * 2 + 4 * 8 + 100 + 64, 0, "ok", ""),
        (219, -1, "warn", "run `ulimit -n 512` before"),
        (219, 512, "warn", "run `ulimit -n 512` before"),
        (219, 256, "warn", "the limit is 256 here"),
    ],
)
def test_open_files(left: int | None, hard: int, state: str, how: str) -> None:
    """220 are needed: for 24 tensors, 4 workers, 100 shards, and 64 to spare."""
    found = rules.open_files(left, hard, ONE, files=100)
    assert found.state == state and how in found.why


@pytest.mark.parametrize(
    ("allowed", "all_cores", "got", "why"),
    [
        (here(), 16, "16 of 16 cores", ""),
        (here(cpu_quota=4.0), 16, "a quota of 4 on 16 cores", "os.cpu_count() says 16"),
        (here(cpu_quota=32.0), 16, "16 of 16 cores", ""),
        (here(cores=4), 64, "4 of 64 cores", "each 2 at most"),
    ],
)
def test_cpu_quota(allowed: Allowance, all_cores: int, got: str, why: str) -> None:
    found = rules.cpu_quota(allowed, all_cores, ranks=2)
    assert (found.got, found.state) == (got, "warn" if why else "ok")
    assert why in found.why


@pytest.mark.parametrize(
    ("found", "words"), [(DATASET, "shardkit stage /data/x"), (FILES, "shardkit pack")]
)
def test_a_network_file_system(found: Found, words: str) -> None:
    check = rules.file_system(found, "nfs4", is_remote=True)
    assert check.state == "warn" and check.got.startswith("nfs4") and words in check.why
    assert rules.file_system(found, "ext4", is_remote=False).state == "ok"


def test_free_space() -> None:
    assert [rules.free_space(free).state for free in (10**9, 2 * 10**9)] == ["warn", "ok"]


def test_shards_matter_to_loaders_that_deal_shards() -> None:
    """Ours deal rows."""
    tars, ranks = Found(Path("/data/x"), "tars", 31, 9), Feeding(4, 8, 1)
    found = rules.shards(tars, ranks)
    assert found.state == "warn" and "fewer than 32:" in found.why
    assert rules.shards(dataclasses.replace(tars, kind="dataset"), ranks).state == "ok"
    enough = rules.shards(dataclasses.replace(tars, num_shards=32), ranks)
    assert enough == Check("shards", "ok", "32 for 4 ranks with 8 workers each")


def test_a_dataset_of_ours(tmp_path: Path) -> None:
    source, made = make_images(tmp_path / "in"), tmp_path / "made"
    shardkit.pack(source, made, to="npy", shard_size="4kB", progress=False, workers=0)
    found = find(made)
    assert (found.kind, found.sample_bytes) == ("dataset", rules.CROP_BYTES)
    assert found.num_shards > 1
    checks = preflight(made)
    names = ["file system", "free space", "CPU quota", "shared memory", "open files", "shards"]
    assert [check.name for check in checks] == names
    assert all(check.why for check in checks if check.state != "ok")


def test_tars_of_others(tmp_path: Path) -> None:
    for number in range(3):
        with tarfile.open(tmp_path / f"x-{number}.tar", "w") as tar:
            tar.addfile(tarfile.TarInfo("a.jpg"))
    found = find(tmp_path)
    assert (found.kind, found.num_shards) == ("tars", 3)
    assert find(tmp_path / "x-1.tar").num_shards == 1


def test_plain_files(tmp_path: Path) -> None:
    make_images(tmp_path / "p", per_class=4, classes=2)
    write(tmp_path / "p/.hidden/x.jpg", "x")
    (tmp_path / "p/class0/nowhere").symlink_to(tmp_path / "nothing")
    (tmp_path / "p/class0/itself").symlink_to("itself")
    found = find(tmp_path / "p")
    assert (found.kind, found.sample_bytes) == ("files", rules.CROP_BYTES)
    assert find(write(tmp_path / "a.jsonl", "{}\n")).sample_bytes == 3
    assert len([*rules._files(tmp_path / "p")]) == 8


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DatasetMissingError, match=r"nothing at .*gone; give the folder") as caught:
        preflight(tmp_path / "gone")
    assert caught.value.exit_code == 2
    with pytest.raises(DatasetMissingError, match="holds no files"):
        preflight(tmp_path)
    with pytest.raises(UsageError, match="ranks"):
        preflight(tmp_path, 0)


def test_lines() -> None:
    checks = [Check("memory", "ok", "1 GB"), Check("x", "warn", "9", "do " * 40)]
    assert rules.preflight_lines(checks) == [
        "ok    memory  1 GB",
        "warn  x       9",
        "      " + ("do " * 31).strip(),
        "      " + ("do " * 9).strip(),
    ]
