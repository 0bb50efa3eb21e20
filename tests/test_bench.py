"""bench: the same samples everywhere, ratios that find what is slower, and what it says of it."""

from __future__ import annotations

import io
import shutil
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benches import bench, make_folder, packed, quick, shorten  # noqa: F401
from clocks import SimulatedClock
from conftest import (
    make_arrays,
    make_images,
    make_jsonl,
    make_pairs,
    make_texts,
    nothing_left_open,
    write,
)
from token_data import documents, pack_tokens

from shardkit.arrays import Integers
from shardkit.errors import DataError, UsageError
from shardkit.measure.bench import benchmark as bench_module
from shardkit.measure.bench import cases
from shardkit.measure.bench.bench_report import Row
from shardkit.measure.bench.benchmark import align, check_same, find_difference
from shardkit.measure.bench.cases import ROUNDS, BenchOptions, Loading
from shardkit.measure.bench.targets import FolderTarget, PackedTarget, name_apart
from shardkit.system.file_systems import counter
from shardkit.system.page_cache import cache_state, evict

# --- the report ---------------------------------------------------------------------------


@quick
@pytest.mark.parametrize("read", ["raw", "train"])
def test_a_report_says_all(images: Path, read: str) -> None:
    report = bench(images, packed(images), read=read, workers=[0, 2], rounds=3)
    assert report["version"] == 2
    assert report["checked"].startswith("2 targets returned the same 36 samples of cls, jpg, ")
    assert report["options"]["read"] == read
    assert [(row["target"], row["workers"]) for row in report["rows"]] == [
        ("folder", 0), ("npy", 0), ("folder", 2), ("npy", 2),
    ]  # fmt: skip
    names = ["bare decoder, 1 thread", "bare decoder, 2 threads"] if read == "train" else []
    assert [limit["name"] for limit in report["limits"]] == names
    for row in report["rows"]:
        assert [*row] == [one.name for one in fields(Row)]
        for name in ("samples_per_s", "bytes_per_s"):
            assert 0 < row[name]["low"] <= row[name]["median"] <= row[name]["high"]
        assert row["verdict"] == "reference" if row["ratio"] is None else "unclear"
        assert row["batch_ms"]["p50"] <= row["batch_ms"]["p99"] <= row["batch_ms"]["max"]
        assert row["seconds"]["read"] > 0
        assert row["cache"] in ("warm", "unknown")
        assert row["samples"] == 2 * 8 * max(row["workers"], 1)
        assert (row["limit"] in names and row["of_limit"] > 0) if names else row["limit"] is None


@quick
def test_bytes_and_samples_are_those_of_the_originals(images: Path) -> None:
    sizes = [path.stat().st_size for path in images.rglob("*.jpg")]
    report = bench(images, packed(images), batch_size=len(sizes))
    for row in report["rows"]:
        per_sample = row["bytes_per_s"]["median"] / row["samples_per_s"]["median"]
        assert per_sample == pytest.approx(sum(sizes) / len(sizes))
    assert report["rows"][0]["dataset_bytes"] == sum(sizes)
    dataset = images.parent / "dataset"
    files = [*dataset.glob("train-*.jpg.npy"), dataset / "train.rows", dataset / "shardkit.json"]
    assert report["rows"][1]["dataset_bytes"] == sum(path.stat().st_size for path in files)


@quick
def test_processes(images: Path) -> None:
    (row,) = bench(images, workers=[2], worker_type="process")["rows"]
    assert row["worker_type"] == "process"
    assert row["samples"] == 4 * 8, "batches that were made while processes started are not"


@quick
def test_the_limit_draws_samples(images: Path) -> None:
    report = bench(images, packed(images), limit=5, batch_size=5)
    assert "same 5 samples" in report["checked"]
    other = bench(images, packed(images, "other"), limit=5, batch_size=5, seed=1)
    assert report["checked"] != other["checked"]  # the sizes differ, too


@quick
def test_tokens(tmp_path: Path) -> None:
    docs = documents([3000] * 10)
    one, other = pack_tokens(tmp_path / "a", docs), pack_tokens(tmp_path / "b", docs, to="lmdb")
    report = bench(one, other, read="tokens")
    assert "14 samples of inputs, labels" in report["checked"]
    assert [row["target"] for row in report["rows"]] == ["npy", "lmdb"]
    for row in report["rows"]:
        assert row["bytes_per_s"]["median"] / row["samples_per_s"]["median"] == 2048 * 2
    with pytest.raises(UsageError, match="plain folder, which holds no tokens"):
        bench(make_images(tmp_path / "images"), read="tokens")
    short = pack_tokens(tmp_path / "c", docs[:5])
    with pytest.raises(DataError, match=r"has 14 samples, .* 7: they do not hold the same"):
        bench(one, short, read="tokens")


# --- the same samples ---------------------------------------------------------------------


@quick
@pytest.mark.parametrize("make", [make_images, make_pairs, make_arrays, make_texts])
def test_a_folder_gives_what_any_dataset_of_it_gives(make: Any, tmp_path: Path) -> None:
    source = make(tmp_path / "source")
    datasets = [packed(source, to, to) for to in ("lmdb", "hdf5", "npy", "webdataset")]
    report = bench(source, *datasets, batch_size=4, rounds=1)
    assert report["checked"].startswith("5 targets returned the same")
    tars = tmp_path / "tars"
    tars.mkdir()
    for tar in datasets[3].glob("*.tar"):
        shutil.copy(tar, tars)
    assert bench(datasets[3], tars, batch_size=4)["checked"].startswith("2 targets")


@quick
def test_samples_of_the_smallest_are_found_by_key(images: Path) -> None:
    """In whatever order they were packed."""
    shuffled = packed(images, "shuffled", shuffle=True)
    part = packed(images, "part", val_fraction=0.5)
    report = bench(shuffled, part, images)
    assert "3 targets returned the same 18 samples" in report["checked"]
    assert [row["target"] for row in report["rows"]] == ["shuffled", "part", "folder"]
    less = packed(images, "less", limit=5)
    sorted(images.rglob("*.jpg"))[0].unlink()
    with pytest.raises(DataError, match=r"folder has no sample 'class\d/img.\d+', which is to be"):
        bench(images, less)


def test_a_value_that_differs_is_named(images: Path) -> None:
    """What is checked is what is measured: values are read through the files of a dataset."""
    dataset = packed(images, shard_size="1MB")
    shard = dataset / "train-00000.jpg.npy"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    targets = [FolderTarget(images), PackedTarget(dataset)]
    with pytest.raises(
        DataError,
        match=r"npy does not return the samples of folder: jpg of sample '\w+/img.\d+' differs",
    ):
        check_same(targets, align(targets[0], targets, np.arange(36)))


@pytest.mark.parametrize(
    ("own", "theirs", "what"),
    [
        ({"a": [b"x"]}, {"a": [b"x"]}, None),
        ({"a": [b"x", b"y"]}, {"a": [b"x", b"z"]}, (1, "a")),
        ({"a": [b"x", None]}, {"a": [b"x", b""]}, (1, "a")),
        ({"a": [b"x"], "b": [b""]}, {"a": [b"x"]}, (0, "b")),
        ({"a": [1]}, {"a": [1.0]}, (0, "a")),
        ({"a": [{"n": float("nan")}]}, {"a": [{"n": float("nan")}]}, None),
        ({"a": [np.array([np.nan])]}, {"a": [np.array([np.nan])]}, None),
        ({"a": [np.zeros(2, "<i4")]}, {"a": [np.zeros(2, "<f4")]}, (0, "a")),
        ({"a": [np.zeros((2, 1))]}, {"a": [np.zeros((1, 2))]}, (0, "a")),
    ],
)
def test_differences(own: Any, theirs: Any, what: Any) -> None:
    assert find_difference(own, theirs) == what


# --- slow and equal -----------------------------------------------------------------------


class Busy(PackedTarget):
    """A dataset whose reader also does ``units`` of work for each batch, of about 0.2 ms each."""

    units = 10

    def open(self, rows: Integers) -> Any:
        return Working(super().open(rows), self.units)


class Working:
    """A source that is not quick."""

    def __init__(self, source: Any, units: int) -> None:
        self._source = source
        self._units = units

    def __len__(self) -> int:
        return len(self._source)

    def read(self, rows: Integers) -> Any:
        time.sleep(self._units * 2e-4)
        return self._source.read(rows)


@pytest.mark.parametrize(("slow", "verdict"), [(1.3, "slower"), (1.0, "no difference")])
def test_what_is_slower_by_1_3_is_found_and_copies_do_not_differ(
    images: Path, monkeypatch: pytest.MonkeyPatch, slow: float, verdict: str
) -> None:
    """On a clock on which nothing else takes time and each batch a tenth more or less; default
    rounds, and cases half as long as usual."""
    monkeypatch.setattr(cases, "pieces", lambda wanted, workers: max(round(wanted / 2), 6))
    SimulatedClock(monkeypatch, spread=0.1)
    first, second = Busy(packed(images, "first")), Busy(packed(images, "second"))
    second.units = round(first.units * slow)
    name_apart([first, second])
    options = BenchOptions(workers=(0,), batch_size=8)
    rows = [np.arange(len(first))] * 2
    found = bench_module._measure([first, second], rows, options, print).rows[1]
    assert (found.verdict, found.rounds) == (verdict, ROUNDS)
    assert found.ratio is not None
    assert found.ratio.median == pytest.approx(1 / slow, rel=0.02)


# --- cold ---------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """60 files of 100 kB, which are no pictures; skips where nothing can be cold."""
    rng = np.random.default_rng(0)
    for i in range(60):
        out = io.BytesIO()
        np.save(out, rng.integers(0, 256, 100_000, np.uint8))
        write(tmp_path / "arrays" / f"{i:03d}.npy", out.getvalue())
    probe = tmp_path / "arrays" / "000.npy"
    if cache_state(evict(probe)) != "cold" or counter(probe) is None:
        pytest.skip("nothing here can be cold, or nobody counts it")
    return tmp_path / "arrays"


@pytest.mark.parametrize(
    "container", ["lmdb", pytest.param("hdf5", marks=pytest.mark.thorough)]
)  # mapped, and read by its library
def test_cold_is_cold(large: Path, container: str) -> None:
    """Each epoch reads from the device what it reads at all, and hardly more."""
    dataset = packed(large, to=container, shard_size="1MB")
    report = bench(large, dataset, cold=True, batch_size=16)
    num_bytes = sum(path.stat().st_size for path in large.iterdir())
    for row in report["rows"]:
        assert row["cache"] == "cold"
        assert row["samples"] == 60
        assert row["device_bytes"] >= num_bytes - 60 * 128  # their headers lie elsewhere in npy
        assert row["device_bytes"] <= 1.15 * row["dataset_bytes"]
        assert row["limit"] == "sequential read"
    assert report["notes"][0].startswith("cold: files were written out and dropped")
    assert report["notes"][1].startswith("folder: its files, opened and read one by one")
    assert len(report["notes"]) == 2, "there are no pictures to decode"


def test_what_stays_in_the_cache_is_not_called_cold(large: Path) -> None:
    dataset = packed(large, shard_size="10MB")
    shard = np.load(dataset / "train-00000.npy.npy", mmap_mode="r")
    assert shard.sum() > 0  # mapped and touched: cannot be dropped
    report = bench(dataset, packed(large, "other"), cold=True, batch_size=16, rounds=6)
    assert [row["cache"] for row in report["rows"]] == ["unknown", "cold"]
    assert [row["verdict"] for row in report["rows"]] == ["reference", "unclear"]
    assert report["notes"][1].startswith("not cold: dataset: some stayed in the page cache")
    assert [limit["cache"] for limit in report["limits"]] == ["unknown"]
    assert [row["limit"] for row in report["rows"]] == [None] * 2, "what is in memory is no limit"
    del shard


def test_a_sequential_read_counts_whole_shards(large: Path) -> None:
    """Else a few samples of large shards would pass the limit."""
    target = PackedTarget(packed(large, shard_size="10MB"))
    rows = np.arange(6)
    with nothing_left_open():
        work = cases._in_order(target, rows, np.full(6, 100_000))()
    assert work.bytes == sum(path.stat().st_size for path in target.files(rows))
    assert work.samples == round(work.bytes / 100_000)


def test_what_the_device_did_not_give_is_not_called_cold(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a host's cache serves a file system of its own; and memory is never cold."""
    monkeypatch.setattr("shardkit.measure.bench.targets.counter", lambda path: lambda: 0)
    report = bench(large, cold=True, batch_size=16)
    assert report["rows"][0]["cache"] == "unknown"
    monkeypatch.setattr("shardkit.measure.bench.targets.is_in_memory", lambda path: True)
    report = bench(large, cold=True, batch_size=16)
    assert report["rows"][0]["cache"] == "warm"
    assert report["rows"][0]["limit"] is None
    assert report["notes"][1] == "not cold: folder: in memory, whatever is dropped"


# --- refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"read": "fast"}, "read must be raw, train or tokens, got 'fast'"),
        ({"worker_type": "fibre"}, "worker_type must be thread or process, got 'fibre'"),
        ({"workers": []}, r"workers must be different counts, got \[\]"),
        ({"workers": [1, 1]}, r"workers must be different counts, got \[1, 1\]"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"speed": 1}, "bench: .*unexpected keyword argument 'speed'"),
    ],
)
def test_options(images: Path, options: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        bench(images, **options)


def test_targets(images: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name at least one"):
        bench()
    with pytest.raises(UsageError, match="no such folder"):
        bench(tmp_path / "none")
    with pytest.raises(UsageError, match="a sample is a line, not a file"):
        bench(make_jsonl(tmp_path / "lines"))
    dataset = packed(images)
    for targets in ([images, dataset], [dataset]):
        with pytest.raises(UsageError, match="--formats packs a sample of one plain folder"):
            bench(*targets, formats="all")
    with pytest.raises(UsageError, match="folder has the fields txt: no pictures to train"):
        bench(make_texts(tmp_path / "texts"), read="train")
    both = make_images(tmp_path / "split" / "test").parent
    make_images(both / "val")
    with pytest.raises(UsageError, match="has splits test, val: name the folder of one"):
        bench(both)


@quick
def test_files_that_are_no_samples(images: Path) -> None:
    dataset = packed(images)
    path = images / "class1" / "img.003.jpg"
    data = path.read_bytes()
    path.write_bytes(data[:-300])
    with pytest.raises(DataError, match=r"img\.003"):
        bench(images, read="train", batch_size=36)
    path.write_bytes(data)
    write(images / "class0" / "bad.jpg", "no picture")
    with pytest.raises(DataError, match=r"class0/bad.jpg is no sample: move it away, or name a"):
        bench(images)
    assert bench(images, dataset, rounds=1)["checked"].startswith("2 targets")


def test_names(images: Path, tmp_path: Path) -> None:
    one, two = packed(images, "one"), packed(images, "two")
    three = tmp_path / "deeper" / "two"
    shutil.copytree(two, three)

    def names(*paths: Path) -> list[str]:
        targets = [PackedTarget(path) for path in paths]
        name_apart(targets)
        return [target.name for target in targets]

    assert names(one) == ["npy"]
    assert names(one, two) == ["one", "two"]
    assert names(one, two, three) == ["one", str(two), str(three)]
    assert names(two, two) == [f"{two} (1)", f"{two} (2)"]


# --- the page cache, files, packs ---------------------------------------------------------


@quick
def test_no_file_stays_open(images: Path) -> None:
    dataset = packed(images)
    with nothing_left_open():
        bench(images, dataset, rounds=1)


def test_warm_cases_are_as_long_as_they_should_be() -> None:
    own = cases.Pace(workers=2)
    assert own.num == 8
    assert own.took(0.008) == 0.008
    assert own.num == 200
    own.took(0.1)
    assert own.num == 400
    own.took(100.0)
    assert own.num == 400, "a disturbed round makes no case shorter"


def test_a_batch_is_no_larger_than_an_epoch_and_a_warm_epoch_is_not_all(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_module, "MOST", 21)
    targets = [FolderTarget(images)]
    rows = bench_module._choose(targets, BenchOptions())
    assert len(rows[0]) == 21 == len(set(rows[0].tolist()))
    assert len(bench_module._choose(targets, BenchOptions(cold=True))[0]) == 36
    assert bench(images, batch_size=10**11)["options"]["batch_size"] == 21


def test_every_target_is_read_in_one_order(images: Path) -> None:
    """And the same samples in every round."""
    seen: dict[int, list[list[int]]] = {0: [], 1: []}

    class Watched(PackedTarget):
        number = 0

        def open(self, rows: Integers) -> Any:
            source: Any = super().open(rows)
            read = source.read

            def watched(rows: Integers) -> Any:
                seen[self.number].append(rows.tolist())
                return read(rows)

            source.read = watched
            return source

    dataset = packed(images)
    options = BenchOptions(workers=(0,), batch_size=8)
    for number in (0, 1):
        target = Watched(dataset)
        target.number = number
        case = Loading(target, np.arange(36), np.ones(36, np.int64), 0, options)
        case()
        first = [*seen[number]]
        seen[number].clear()
        case._pace.num = 4
        case()
        assert seen[number] == first
    assert seen[0] == seen[1]
    assert sorted(row for rows in seen[0] for row in rows)[:36] != list(range(36))
