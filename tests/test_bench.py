"""bench: the same samples everywhere, ratios that find what is slower, and what it says of it."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clocks import SimulatedClock
from conftest import (
    Run,
    make_arrays,
    make_images,
    make_jsonl,
    make_pairs,
    make_texts,
    nothing_left_open,
    write,
)
from token_data import documents, pack_tokens

import shardkit
from shardkit.arrays import Integers
from shardkit.errors import DataError, DestinationError, UsageError
from shardkit.formats import FORMATS
from shardkit.measure.bench import benchmark as bench_module
from shardkit.measure.bench import pace, scratch
from shardkit.measure.bench.folder import FolderTarget
from shardkit.measure.bench.limits import Limits, read_ahead
from shardkit.measure.bench.loading import Loading
from shardkit.measure.bench.options import ROUNDS, BenchOptions
from shardkit.measure.bench.same import align, check_same, find_difference
from shardkit.measure.bench.target import PackedTarget, name_apart
from shardkit.measure.report.data import BatchTimes, Histogram, Row, Seconds, from_json
from shardkit.measure.report.words import in_words
from shardkit.measure.verdict import Interval
from shardkit.system.disk_reads import counter
from shardkit.system.page_cache import cache_state, evict

Report = dict[str, Any]


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches a worker are enough to see that all works."""
    monkeypatch.setattr(pace, "LEAST_EACH", 2)
    monkeypatch.setattr(pace, "pieces", lambda wanted, workers: 2 * workers)


quick = pytest.mark.usefixtures("_quick")


def bench(*targets: Path, **options: Any) -> Report:
    given = {"workers": [0], "batch_size": 8, "rounds": 2, **options}
    found = shardkit.bench(*targets, **given)
    return dict(json.loads(json.dumps(found.to_json(), allow_nan=False)))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images")


def words_of(report: Report) -> list[str]:
    return in_words(from_json(report).rows, report["notes"])


def packed(source: Path, name: str = "dataset", to: str = "npy", **options: Any) -> Path:
    dest = source.parent / name
    given = {"shard_size": "3kB", "workers": 0, "progress": False, **options}
    shardkit.pack(source, dest, to=to, **given)
    return dest


# --- the report ---------------------------------------------------------------------------


@quick
@pytest.mark.parametrize(
    ("container", "read"),
    [*product(FORMATS, ["raw"]), ("lmdb", "decode"), ("npy", "train")],
)
def test_a_report_says_all(images: Path, container: str, read: str) -> None:
    report = bench(images, packed(images, to=container), read=read, workers=[0, 2], rounds=3)
    assert report["version"] == 1
    assert report["checked"].startswith("2 targets returned the same 36 samples of cls, jpg, ")
    assert report["options"]["read"] == read
    assert [(row["target"], row["workers"]) for row in report["rows"]] == [
        ("folder", 0),
        (container, 0),
        ("folder", 2),
        (container, 2),
    ]
    limits = {limit["name"] for limit in report["limits"]}
    bare = {"bare decoder, 1 thread", "bare decoder, 2 threads"}
    assert limits == ({"memory copy"} if read == "raw" else bare)
    for row in report["rows"]:
        check_row(row)
        assert row["limit"] in limits
        assert row["samples"] == 2 * 8 * max(row["workers"], 1)


def check_row(row: dict[str, Any]) -> None:
    assert [*row] == [one.name for one in fields(Row)]
    for name in ("samples_per_s", "bytes_per_s"):
        assert 0 < row[name]["low"] <= row[name]["median"] <= row[name]["high"]
    assert row["verdict"] == "reference" if row["ratio"] is None else "unclear"
    times = row["batch_ms"]
    assert times["p5"] <= times["p50"] <= times["p95"] <= times["p99"] <= times["max"]
    histogram = row["batch_histogram"]
    assert len(histogram["edges_ms"]) == len(histogram["counts"]) + 1
    assert sum(histogram["counts"]) == row["rounds"] * row["samples"] / row["batch_size"]
    assert row["of_limit"] > 0
    assert row["seconds"]["read"] > 0
    assert row["cache"] in ("warm", "unknown")


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
    report = bench(images, packed(images), workers=[2], worker_type="process")
    assert [row["worker_type"] for row in report["rows"]] == ["process"] * 2
    for row in report["rows"]:
        assert row["samples"] == 4 * 8, "batches that were made while processes started are not"
        assert sum(row["batch_histogram"]["counts"]) == 4 * row["rounds"]


@quick
def test_the_limit_draws_samples(images: Path) -> None:
    report = bench(images, packed(images), limit=5, batch_size=5)
    assert "same 5 of 36 samples" in report["checked"]
    other = bench(images, packed(images, "other"), limit=5, batch_size=5, seed=1)
    assert report["checked"] != other["checked"]  # the sizes differ, too


@quick
def test_tokens(tmp_path: Path) -> None:
    docs = documents([3000] * 10)
    one, other = pack_tokens(tmp_path / "a", docs), pack_tokens(tmp_path / "b", docs, to="lmdb")
    ids = write(tmp_path / "ids.bin", np.concatenate(docs).tobytes())
    report = bench(one, other, ids, read="tokens", also=tmp_path)
    assert "14 samples of inputs, labels" in report["checked"]
    assert [row["target"] for row in report["rows"]] == ["npy", "lmdb", "token file"] * 2
    for row in report["rows"]:
        assert row["bytes_per_s"]["median"] / row["samples_per_s"]["median"] == 2048 * 2
    with pytest.raises(UsageError, match="plain folder, which holds no tokens"):
        bench(make_images(tmp_path / "images"), read="tokens")


# --- the same samples ---------------------------------------------------------------------


@quick
@pytest.mark.parametrize("make", [make_images, make_pairs, make_arrays, make_texts])
def test_a_folder_gives_what_any_dataset_of_it_gives(make: Any, tmp_path: Path) -> None:
    source = make(tmp_path / "source")
    datasets = [packed(source, to, to) for to in ("lmdb", "hdf5", "npy", "webdataset")]
    report = bench(source, *datasets, batch_size=4)
    assert report["checked"].startswith("5 targets returned the same")
    tars = tmp_path / "tars"
    tars.mkdir()
    for tar in datasets[3].glob("*.tar"):
        shutil.copy(tar, tars)
    assert bench(datasets[3], tars, batch_size=4)["checked"].startswith("2 targets")


@quick
def test_samples_are_found_by_key(images: Path) -> None:
    """In whatever order they were packed; a folder may have more than a split of it."""
    shuffled = packed(images, "shuffled", shuffle=True)
    part = packed(images, "part", val_fraction=0.5)
    report = bench(part, shuffled, images)
    assert "3 targets returned the same 18 samples" in report["checked"]
    assert [row["target"] for row in report["rows"]] == ["part", "shuffled", "folder"]
    with pytest.raises(DataError, match=r"part has no sample 'class\d/img.\d+', which is to be"):
        bench(shuffled, part)


def test_a_value_that_differs_is_named(images: Path) -> None:
    dataset = packed(images)
    data = bytearray((images / "class1" / "img.003.jpg").read_bytes())
    data[-1] ^= 1
    write(images / "class1" / "img.003.jpg", bytes(data))
    with pytest.raises(
        DataError,
        match=r"npy does not return the samples of folder: of sample 'class1/img.003', jpg differs",
    ):
        bench(images, dataset)
    write(images / "class1" / "img.003.jpg", bytes(data) + b"x")
    with pytest.raises(DataError, match=r"jpg has [\d,]+ bytes, not "):
        bench(images, dataset)


def test_a_class_that_differs_is_named(images: Path) -> None:
    dataset = packed(images)
    (images / "class0a").mkdir()  # which takes the number of class1
    with pytest.raises(DataError, match="cls is 1, not 2"):
        bench(images, dataset)


@pytest.mark.parametrize(
    ("own", "theirs", "what"),
    [
        ({"a": [b"x"]}, {"a": [memoryview(b"x")]}, None),
        ({"a": [b"x", b"y"]}, {"a": [b"x", b"z"]}, (1, "a differs")),
        ({"a": [b"x", None]}, {"a": [b"x", b""]}, (1, "a is there, which the other lacks")),
        ({"a": [b"x"], "b": [b""]}, {"a": [b"x"]}, (0, "b is missing")),
        ({"a": [1]}, {"a": [1.0]}, (0, "a is 1.0, not 1")),
        ({"a": ["é"]}, {"a": ["e"]}, (0, "a has 1 bytes, not 2")),
        ({"a": [{"n": float("nan")}]}, {"a": [{"n": float("nan")}]}, None),
        ({"a": [np.array([np.nan])]}, {"a": [np.array([np.nan])]}, None),
        ({"a": [np.zeros(2, "<i4")]}, {"a": [np.zeros(2, "<f4")]}, (0, "a differs")),
        ({"a": [np.zeros((2, 1))]}, {"a": [np.zeros((1, 2))]}, (0, "a differs")),
    ],
)
def test_differences(own: Any, theirs: Any, what: Any) -> None:
    assert find_difference(own, theirs) == what


def test_the_samples_are_read_through_the_files(images: Path) -> None:
    """What is checked is what is measured: a dataset whose shard was changed is found, too."""
    dataset = packed(images, shard_size="1MB")
    shard = dataset / "train-00000.jpg.npy"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    targets = [FolderTarget(images), PackedTarget(dataset)]
    with pytest.raises(DataError, match="jpg differs"):
        check_same(targets, align(targets, np.arange(36)))


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


def judged(slow: float, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The row of a copy that is so many times slower, on a clock on which nothing else takes time
    and each batch a tenth more or less; default rounds."""
    SimulatedClock(monkeypatch, spread=0.1)
    monkeypatch.setattr(Limits, "_of_storage", lambda self, target: "")  # a copy takes no time
    first, second = Busy(packed(folder, "first")), Busy(packed(folder, "second"))
    second.units = round(first.units * slow)
    name_apart([first, second])
    options = BenchOptions(workers=(0,), batch_size=8)
    rows = [np.arange(len(first))] * 2
    report = bench_module._measure([first, second], rows, options, print)
    shutil.rmtree(first.path)
    shutil.rmtree(second.path)
    return dict(report.to_json()["rows"][1])


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases half as long as usual."""
    monkeypatch.setattr(pace, "pieces", lambda wanted, workers: max(round(wanted / 2), 6))


@pytest.mark.usefixtures("_short")
def test_what_is_slower_by_1_3_is_found(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged(1.3, images, monkeypatch)
    assert found["verdict"] == "slower"
    assert found["rounds"] == ROUNDS
    assert found["ratio"]["median"] == pytest.approx(1 / 1.3, rel=0.02)


@pytest.mark.usefixtures("_short")
def test_two_copies_do_not_differ(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(1.0, images, monkeypatch)["verdict"] == "no difference"


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
    assert not any(note.startswith("not cold") for note in report["notes"])
    assert report["notes"][1].startswith("folder: its files, opened and read one by one")
    assert len(report["notes"]) == 2, "there are no pictures to decode"


def test_what_stays_in_the_cache_is_not_called_cold(large: Path) -> None:
    dataset = packed(large, shard_size="10MB")
    shard = np.load(dataset / "train-00000.npy.npy", mmap_mode="r")
    assert shard.sum() > 0  # mapped and touched: cannot be dropped
    report = bench(dataset, cold=True, batch_size=16)
    assert [row["cache"] for row in report["rows"]] == ["unknown"]
    assert report["notes"][1].startswith("not cold: npy: some stayed in the page cache")
    assert [limit["cache"] for limit in report["limits"]] == ["unknown"]
    assert [row["limit"] for row in report["rows"]] == [None], "what is in memory is no limit"
    beside = bench(dataset, packed(large, "other"), cold=True, batch_size=16, rounds=6)
    assert [row["cache"] for row in beside["rows"]] == ["unknown", "cold"]
    assert [row["verdict"] for row in beside["rows"]] == ["reference", "unclear"]
    assert any(line.startswith("not compared: ") for line in words_of(beside))
    del shard


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_few_samples_of_large_shards_do_not_pass_the_limit(large: Path, worker_type: Any) -> None:
    """Whole shards are read for the limit: their bytes count, not those of the few samples. And of
    what processes make before their first batch comes, all the time counts."""
    dataset = packed(large, shard_size="10MB")
    (few,) = bench(
        dataset, cold=True, batch_size=1, limit=6, workers=[1], worker_type=worker_type, rounds=3
    )["rows"]
    assert few["samples"] == 6
    assert few["of_limit"] < 1.5
    assert few["samples_per_s"]["high"] < 6 / 0.0001


def test_what_the_device_did_not_give_is_not_called_cold(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a host's cache serves a file system of its own."""
    monkeypatch.setattr("shardkit.measure.bench.target.counter", lambda path: lambda: 0)
    report = bench(large, cold=True, batch_size=16)
    assert report["rows"][0]["cache"] == "unknown"


def test_memory_is_never_cold(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardkit.measure.bench.target.is_in_memory", lambda path: True)
    report = bench(large, cold=True, batch_size=16)
    assert report["rows"][0]["cache"] == "warm"
    assert report["rows"][0]["limit"] == "memory copy"
    assert report["notes"][1] == "not cold: folder: in memory, whatever is dropped"


def test_a_sequential_read_reads_all(large: Path) -> None:
    paths = sorted(large.iterdir())
    with nothing_left_open():
        assert read_ahead(paths) == sum(path.stat().st_size for path in paths)
        assert read_ahead([write(large.parent / "empty", "")]) == 0
        with pytest.raises(FileNotFoundError):
            read_ahead([*paths[:3], large / "none"])


# --- made for the bench -------------------------------------------------------------------


@pytest.fixture
def _unchanged(tmp_path: Path) -> Iterator[None]:
    """Nothing is left beside the source."""
    yield
    assert not list(tmp_path.rglob(".shardkit-bench-*"))


@quick
@pytest.mark.usefixtures("_unchanged")
def test_formats(images: Path) -> None:
    said: list[str] = []
    report = bench(images, formats="all", say=said.append)
    assert [row["target"] for row in report["rows"]] == [
        "folder", "lmdb", "hdf5", "webdataset", "npy",
    ]  # fmt: skip
    assert re.fullmatch(
        rf"packing 36 samples \([\d.]+ kB\) into lmdb, hdf5, webdataset, npy in"
        rf" {images.parent}/.shardkit-bench-\w+, which is removed afterwards",
        said[0],
    )
    chosen = bench(images, formats=["tar", "npy"], limit=7, batch_size=7)
    assert [row["target"] for row in chosen["rows"]] == ["folder", "webdataset", "npy"]
    assert "3 targets returned the same 7 samples" in chosen["checked"]


@quick
@pytest.mark.usefixtures("_unchanged")
def test_of_a_large_folder_a_part_is_packed(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(images / "class0" / "bad.jpg", "no picture")
    monkeypatch.setattr(scratch, "NUM_SAMPLES", 30)
    assert re.search("same (29|30) samples", bench(images, formats="npy")["checked"])
    monkeypatch.setattr(scratch, "NUM_BYTES", 4000)
    found = re.search(r"same (\d+) samples", bench(images, formats="npy", batch_size=1)["checked"])
    assert found is not None
    assert 2 <= int(found[1]) <= 12


@pytest.mark.usefixtures("_unchanged")
def test_where_the_source_cannot_be_written_beside_the_current_folder_serves(
    images: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "here"
    other.mkdir()
    monkeypatch.chdir(other)
    real = scratch.tempfile.mkdtemp

    def refuse(prefix: str, dir: Path) -> str:
        if dir == images.parent:
            raise PermissionError(13, "Permission denied")
        return real(prefix=prefix, dir=dir)

    monkeypatch.setattr(scratch.tempfile, "mkdtemp", refuse)
    said: list[str] = []
    with pytest.raises(UsageError):
        bench(images, formats="npy", read="nothing")
    bench(images, formats="npy", say=said.append, rounds=1)
    assert f" in {other}/.shardkit-bench-" in said[0]
    monkeypatch.setattr(scratch, "_make", lambda folders: scratch_make([images.parent]))
    scratch_make = real_make
    with pytest.raises(DestinationError, match="Permission denied"):
        bench(images, formats="npy")


real_make = scratch._make


@quick
@pytest.mark.usefixtures("_unchanged")
@pytest.mark.parametrize("where", ["packing", "measuring"])
def test_interrupted_nothing_is_left(
    images: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    if where == "packing":
        monkeypatch.setattr(scratch, "run_pack", interrupt)
    else:
        monkeypatch.setattr(bench_module, "interleave", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bench(images, formats="npy", also=images.parent)


def left_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".shardkit-bench")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_ended_from_outside_it_leaves_nothing_for_long(images: Path, number: int) -> None:
    command = [sys.executable, "-m", "shardkit", "bench", images, "--formats", "npy"]
    env = {**os.environ, "PYTHONPATH": str(Path(shardkit.__file__).parents[1])}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stderr is not None
    while "measuring" not in process.stderr.readline():
        assert process.poll() is None
    assert len(left_in(images.parent)) == 1
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    if number == signal.SIGKILL:
        assert len(left_in(images.parent)) == 1
        with scratch._scratch(images.parent) as mine:
            assert left_in(images.parent) == [mine.name], "the next one removes it"
            with scratch._scratch(images.parent):
                assert len(left_in(images.parent)) == 2, "but not what is in use"
    else:
        assert process.returncode == 128 + number
        assert said.splitlines()[-1].endswith("interrupted; temporary files are removed")
    assert left_in(images.parent) == []


@pytest.mark.parametrize("read", ["decode", "train"])
def test_a_picture_that_does_not_decode_is_named(images: Path, read: str) -> None:
    path = images / "class1" / "img.003.jpg"
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(DataError, match=r"folder: sample 'class1/img.003': .*--on-error skip"):
        bench(images, read=read)


@quick
def test_a_batch_is_no_larger_than_an_epoch(images: Path) -> None:
    report = bench(images, batch_size=10**11)
    assert report["rows"][0]["batch_size"] == 36


@quick
@pytest.mark.usefixtures("_unchanged")
def test_also(images: Path, tmp_path: Path) -> None:
    fast = tmp_path / "fast"
    fast.mkdir()
    said: list[str] = []
    report = bench(images, packed(images), also=fast, say=said.append, limit=20)
    assert "4 targets returned the same 20 of 36 samples" in report["checked"]
    assert [(row["target"], row["where"]) for row in report["rows"]] == [
        ("folder", None),
        ("npy", None),
        ("folder", str(fast)),
        ("npy", str(fast)),
    ]
    assert said[0].startswith(f"copying to {fast}/.shardkit-bench-")
    assert report["rows"][2]["verdict"] == "unclear"
    with pytest.raises(UsageError, match="is no folder"):
        bench(images, also=tmp_path / "none")


@pytest.mark.usefixtures("_unchanged")
def test_too_little_space(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(images)._replace(free=10_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DestinationError, match=r"has 10\.0 kB free"):
        bench(images, formats="all")
    with pytest.raises(DestinationError, match=r"has 10\.0 kB free"):
        bench(images, also=images.parent)


# --- refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"read": "fast"}, "read must be raw, decode, train or tokens, got 'fast'"),
        ({"worker_type": "fibre"}, "worker_type must be thread or process, got 'fibre'"),
        ({"workers": []}, r"workers must be different counts, got \[\]"),
        ({"workers": [1, 1]}, r"workers must be different counts, got \[1, 1\]"),
        ({"workers": [-1]}, "workers must be at least 0, got -1"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"limit": 0}, "limit must be at least 1, got 0"),
        ({"speed": 1}, "bench: .*unexpected keyword argument 'speed'"),
        ({"formats": "zip"}, "'zip' is no format; choose one of lmdb"),
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
    texts = make_texts(tmp_path / "texts")
    for read in ("decode", "train"):
        with pytest.raises(UsageError, match=f"folder has the fields txt: no pictures to {read}"):
            bench(texts, read=read)
    both = make_images(tmp_path / "split" / "test").parent
    make_images(both / "val")
    with pytest.raises(UsageError, match="has splits test, val: name the folder of one"):
        bench(both)


def test_a_file_that_is_no_sample(images: Path) -> None:
    dataset = packed(images)
    write(images / "class0" / "bad.jpg", "no picture")
    with pytest.raises(DataError, match=r"class0/bad.jpg is no sample: move it away, or name a"):
        bench(images)
    assert bench(dataset, images, rounds=1)["checked"].startswith("2 targets")


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
    own = pace.Pace(workers=2, least_s=0.3)
    assert own.num == 8
    assert own.took(0.012) == 0.012
    assert own.num == 200
    own.took(0.15)
    assert own.num == 400
    own.took(100.0)
    assert own.num == 400, "a disturbed round makes no case shorter"
    slow = pace.Pace(workers=3)
    slow.took(1e6)
    assert slow.num == 12


def test_a_folder_of_many_is_cut_to_what_is_read_in_a_second(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_module, "PROBED", 10)
    monkeypatch.setattr(bench_module, "_rate", lambda target, rows, options: 20.4)
    targets = [FolderTarget(images)]
    rows = bench_module._choose(targets, BenchOptions())
    assert len(rows[0]) == 21 == len(set(rows[0].tolist()))
    assert len(bench_module._choose(targets, BenchOptions(cold=True))[0]) == 36


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
        case = Loading(target, np.arange(36), np.ones(36, np.int64), 0, options, least_s=1e-9)
        case()
        first = [*seen[number]]
        seen[number].clear()
        case._pace.num = 4
        case()
        assert seen[number] == first
    assert seen[0] == seen[1]
    assert sorted(row for rows in seen[0] for row in rows)[:36] != list(range(36))


# --- words and the command line -----------------------------------------------------------


def row(target: str, rate: float, **more: Any) -> Row:
    ratio = more.pop("ratio", None)
    given: dict[str, Any] = {
        "target": target, "format": target, "path": target, "where": None, "read": "raw",
        "workers": 2, "worker_type": "thread", "batch_size": 8, "cache": "warm", "rounds": 12,
        "samples": 8, "samples_per_s": Interval(rate, rate, rate),
        "bytes_per_s": Interval(rate, rate, rate),
        "ratio": ratio and Interval(ratio, ratio - 0.1, ratio + 0.1),
        "verdict": "faster" if ratio else "reference", "limit": "memory copy", "of_limit": 0.5,
        "batch_ms": BatchTimes(1, 1, 1, 1, 1), "batch_histogram": Histogram((1, 2), (1,)),
        "seconds": Seconds(3.0, 0.0, 1.0, 9.0), "device_bytes": None, "dataset_bytes": 8,
    }  # fmt: skip
    return Row(**given | more)


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        (
            [row("folder", 100), row("lmdb", 290, ratio=2.9), row("npy", 300, ratio=3.0)],
            [
                "fastest: npy with 2 threads, 300 samples/s, 3.00 times folder (2.90 to 3.10)",
                "nearly as fast: lmdb with 2 threads",
                "it reaches 50 % of the limit, memory copy; 75 % of the work is finding and"
                " reading samples",
            ],
        ),
        (
            [row("lmdb", 100), row("npy", 103, ratio=1.03, verdict="no difference", of_limit=0.9)],
            [
                "fastest: npy with 2 threads, 103 samples/s, 1.03 times lmdb (0.93 to 1.13), too"
                " little to choose by",
                "nearly as fast: lmdb with 2 threads",
                "it reaches 90 % of the limit, memory copy: little is left to win",
            ],
        ),
        (
            [row("lmdb", 99), row("npy", 100, ratio=0.97, verdict="unclear", of_limit=0.5)],
            [
                "fastest: lmdb with 2 threads, 99 samples/s",
                "nearly as fast: npy with 2 threads",
                "it reaches 50 % of the limit, memory copy; 75 % of the work is finding and"
                " reading samples",
                "unclear: the rounds of npy differ too much; try --rounds 24",
            ],
        ),
        (
            [
                row("npy", 300, of_limit=1.08),
                row("lmdb", 200, cache="cold", limit=None),
            ],
            [
                "fastest: npy with 2 threads, 300 samples/s",
                "it is as fast as the limit, memory copy (108 % of it): little is left to win",
            ],
        ),
        (
            [row("npy", 300, cache="cold", of_limit=0.5, limit="sequential read")],
            [
                "fastest: npy with 2 threads, 300 samples/s",
                "it reaches 50 % of the limit, sequential read; the disk is waited for wherever"
                " bytes are touched first",
            ],
        ),
        (
            [row("npy", 300, workers=0, of_limit=0.9, limit="bare decoder, 1 thread")],
            [
                "fastest: npy with no worker, 300 samples/s",
                "it reaches 90 % of the limit, bare decoder, 1 thread: little is left to win",
            ],
        ),
        (
            [
                row("lmdb", 100, workers=1, rounds=5),
                row(
                    "npy",
                    200,
                    workers=1,
                    ratio=2.0,
                    verdict="unclear",
                    rounds=5,
                    limit=None,
                    of_limit=None,
                ),
            ],
            [
                "fastest: npy with 1 thread, 200 samples/s, 2.00 times lmdb (1.90 to 2.10), in"
                " too few rounds",
                "75 % of the work is finding and reading samples",
                "too few rounds to judge npy: try --rounds 6 or more",
            ],
        ),
        (
            [
                row("lmdb", 100, workers=1, worker_type="process"),
                row("lmdb", 80, workers=1, where="/fast", ratio=0.8, verdict="unclear"),
            ],
            [
                "fastest: lmdb with 1 process, 100 samples/s",
                "it reaches 50 % of the limit, memory copy; 75 % of the work is finding and"
                " reading samples",
                "unclear: the rounds of lmdb on /fast differ too much; try --rounds 24",
            ],
        ),
    ],
)
def test_words(rows: list[Row], lines: list[str]) -> None:
    assert in_words(rows, []) == lines


NUMBERS = {
    r"\d[\d,]*-\d[\d,]*(?= )": "INTERVAL",
    r"\d+\.\d{2,3} \(\d+\.\d{2,3}-\d+\.\d{2,3}\)": "RATIO",
    r"\d+\.\d{2,3} times \w+ \(\d+\.\d{2,3} to \d+\.\d{2,3}\)": "TIMES",
    r"\d+(\.\d)? %(?! interval)": "SHARE",
    r"\d+\.\d [kM]?B": "SIZE",
    r"(?<= )\d[\d,]{2,}(?= |$)": "NUM",
    r" +": " ",
}


def plain(text: str) -> str:
    for pattern, name in NUMBERS.items():
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return text


@quick
def test_output(run: Run) -> None:
    assert run("pack", "pictures", "--to", "npy").code == 0
    options = ["--workers", "0", "--batch-size", "36", "--rounds", "2"]
    got = run("bench", "pictures", "pictures-npy", *options, "--json", "report.json")
    assert (got.code, got.err) == (0, "measuring 2 cases in 2 rounds\n")
    lines = plain(got.out).splitlines()
    assert lines[0].startswith("2 targets returned the same 36 samples of cls, jpg, SIZE: raw,")
    assert lines[1] == " workers samples/s 95 % interval MB/s of limit against the first"
    assert re.match(" folder 0 NUM INTERVAL [NUM0-9]+ SHARE reference", lines[2])
    assert re.match(" npy 0 NUM INTERVAL [NUM0-9]+ SHARE RATIO unclear", lines[3])
    assert re.match(" limit: memory copy NUM [NUM0-9]+", lines[4])
    assert lines[5].startswith("fastest: ")
    assert lines[-3] == "too few rounds to judge npy: try --rounds 6 or more"
    assert lines[-2].startswith("folder: its files, opened and read one by one")
    assert lines[-1] == "nothing was decoded: what training gets of it, --read train says"
    assert max(map(len, got.out.splitlines()[1:5])) <= 100
    report = json.loads(Path("report.json").read_text())
    assert report["command"] == (
        "shardkit bench pictures pictures-npy --workers 0 --batch-size 36 --rounds 2"
        " --json report.json"
    )
    other = run("bench", "pictures-npy", "--raw", "pictures", *options, "--json", "-")
    assert [row["target"] for row in json.loads(other.out)["rows"]] == ["folder", "npy"]


def test_refusals_are_one_line(run: Run) -> None:
    for args, code in (
        (["bench"], 2),
        (["bench", "pictures", "--workers", "two"], 2),
        (["bench", "pictures", "--formats", "zip"], 2),
        (["bench", "nothing"], 2),
        (["bench", "pictures", "--json", "none/there.json"], 2),
        (["bench", "pictures", "--json", "."], 2),
        (["bench", "pictures", "--html", "none/there.html"], 2),
        (["bench", "pictures", "--raw", ""], 2),
        (["bench", "pictures", "--workers", "5000"], 2),
    ):
        got = run(*args)
        assert got.code == code
        assert got.err.splitlines()[-1].startswith("shardkit: error: ")
