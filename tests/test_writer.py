"""``Writer``: a dataset made by a loop, which a kill or an error leaves to be resumed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import tree

import shardkit
from shardkit.commit import work_folder
from shardkit.errors import DataError, DestinationError, SampleError, UsageError
from shardkit.formats import FORMATS
from shardkit.index.manifest import read_info
from shardkit.inputs.objects.iterables import Chunk
from shardkit.packing import listing, local

NUM = 2_000
QUIET: dict[str, Any] = {"to": "npy", "shard_size": "200KB", "workers": 0}


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardkit.inputs.objects.iterables.CHUNK_BYTES", 50_000)


def samples() -> Iterator[tuple[str, dict[str, Any]]]:
    """Splits in turn, not one after the other."""
    for i in range(NUM):
        yield "val" if i % 10 == 9 else "train", {"npy": np.full(200, i, np.int32), "cls": i % 7}


def write_all(writer: shardkit.Writer) -> None:
    """Write all samples but those that an earlier writer packed."""
    left = dict(writer.written)
    for split, sample in samples():
        if left.get(split, 0):
            left[split] -= 1
        else:
            writer.write(sample, split)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dest = tmp_path_factory.mktemp("plain") / "d"
    with shardkit.Writer(dest, **QUIET) as writer:
        write_all(writer)
    assert writer.result is not None
    assert writer.result.splits == {"train": NUM * 9 // 10, "val": NUM // 10}
    return dest


def test_what_is_read(plain: Path) -> None:
    assert shardkit.verify(plain).ok
    expected: dict[str, list[int]] = {"train": [], "val": []}
    for split, sample in samples():
        expected[split].append(int(sample["npy"][0]))
    for split, numbers in expected.items():
        dataset = shardkit.open(plain, split=split)
        assert [int(sample["npy"][0]) for sample in dataset] == numbers
        assert dataset[3]["__key__"] == f"{3:012d}"


@pytest.mark.parametrize("to", FORMATS)
def test_workers(to: str, tmp_path: Path) -> None:
    for workers in (0, 2):
        with shardkit.Writer(
            tmp_path / f"{workers}", **{**QUIET, "to": to, "workers": workers}
        ) as w:
            write_all(w)
    assert tree(tmp_path / "0") == tree(tmp_path / "2")


def test_killed_when_only_publishing_was_left(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No sample follows, and none is missing."""

    def fail(*given: Any, **options: Any) -> None:
        raise DataError("stopped here")

    with monkeypatch.context() as patched:
        patched.setattr("shardkit.packing.finish.Conclusion.publish", fail)
        writer = shardkit.Writer(tmp_path / "d", **QUIET)
        write_all(writer)
        with pytest.raises(DataError, match="stopped here"):
            writer.close()
    with shardkit.Writer(tmp_path / "d", resume=True, **QUIET) as writer:
        assert writer.num_written == NUM
    assert tree(tmp_path / "d") == tree(plain)


def test_threads_share_a_writer(tmp_path: Path) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with shardkit.Writer(tmp_path / "d", **QUIET) as writer, ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda i: writer.write({"txt": f"{i}", "cls": i}), range(20_000)))
    finally:
        sys.setswitchinterval(interval)
    read = [(sample["txt"], sample["cls"]) for sample in shardkit.open(tmp_path / "d")]
    assert sorted(read, key=lambda pair: pair[1]) == [(f"{i}", i) for i in range(20_000)]


def killed_in(dest: Path, step: str, calls: int, **options: Any) -> None:
    """Write all in a fork that is killed after so many calls of a step of the packer."""
    pid = os.fork()
    if not pid:
        try:
            home, _, name = step.rpartition(".")
            real, left = getattr(HOMES[home], name), [calls]

            def step_and_die(*args: Any, **more: Any) -> Any:
                made = real(*args, **more)
                left[0] -= 1
                if not left[0]:
                    os._exit(9)
                return made

            setattr(HOMES[home], name, step_and_die)
            with shardkit.Writer(dest, resume=True, **options) as writer:
                write_all(writer)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


HOMES = {"Chunk": Chunk, "Listing": listing.Listing, "local": local, "commit": work_folder}


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("step", "calls"),
    [
        ("Chunk.add", 300),
        ("Chunk.add", NUM),
        ("Listing.complete", 1),
        ("Listing.add", 2),
        ("commit.write_record", 1),
    ],
)
def test_killed_again_and_again(
    step: str, calls: int, workers: int, plain: Path, tmp_path: Path
) -> None:
    """While samples come, between listing and packing, while a resumed Writer lists, or at the
    end."""
    dest, options = tmp_path / "d", {**QUIET, "workers": workers}
    for _ in range(3):
        killed_in(dest, step, calls, **options)
        assert not (dest / "shardkit.json").exists()
        if step != "Listing.add":
            break
    with shardkit.Writer(dest, resume=True, **options) as writer:
        write_all(writer)
    assert tree(dest) == tree(plain)


def test_shards_behind_one_that_is_missing_are_packed_anew(plain: Path, tmp_path: Path) -> None:
    dest = tmp_path / "d"
    killed_in(dest, "Listing.complete", 1, **{**QUIET, "workers": 0})
    gone = dest / ".packing" / "train-00002.part"
    assert gone.exists() and gone.with_name("train-00003.part").exists()
    gone.unlink()
    with shardkit.Writer(dest, resume=True, **QUIET) as writer:
        first = read_info(plain).splits["train"].shards[:2]
        assert writer.written["train"] == sum(shard.num_rows for shard in first)
        write_all(writer)
    assert tree(dest) == tree(plain)


def test_an_error_in_the_block(plain: Path, tmp_path: Path) -> None:
    """What was packed by then stays, and is gone on behind; or is refused, or forgotten."""
    dest = tmp_path / "d"

    def write_some() -> None:
        with shardkit.Writer(dest, **QUIET) as writer:
            for number, (split, sample) in enumerate(samples()):
                writer.write(sample, split)
                if number == 1_000:
                    time.sleep(0.5)
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_some()
    assert not (dest / "shardkit.json").exists()
    with pytest.raises(DestinationError, match="pass resume=True to go on behind them"):
        shardkit.Writer(dest, **QUIET)
    with shardkit.Writer(dest, resume=True, **QUIET) as writer:
        assert 0 < writer.num_written <= 1_001
        write_all(writer)
    assert tree(dest) == tree(plain)
    with pytest.raises(DestinationError, match="already"), shardkit.Writer(dest, **QUIET) as writer:
        write_all(writer)
    with shardkit.Writer(dest, overwrite=True, **QUIET) as writer:
        writer.write({"txt": "alone"})
    assert len(shardkit.open(dest)) == 1


def test_a_writer_of_what_is_complete(plain: Path, tmp_path: Path) -> None:
    """As after a kill between the last step and the end of the script."""
    before = tree(plain)
    with shardkit.Writer(plain, resume=True, **QUIET) as writer:
        write_all(writer)
    assert writer.result is not None and writer.result.was_complete
    assert writer.num_written == NUM and tree(plain) == before
    with (
        pytest.raises(DestinationError, match="complete already, with 2,000 samples"),
        shardkit.Writer(plain, resume=True, **QUIET) as writer,
    ):
        writer.write({"txt": "one more"})
    assert tree(plain) == before


def test_a_bad_sample_is_refused_where_it_is_written(tmp_path: Path) -> None:
    with shardkit.Writer(tmp_path / "d", **QUIET) as writer:
        writer.write(("a text", 1))
        with pytest.raises(SampleError, match="split train, sample 1 field 'x' is a"):
            writer.write({"x": object()})
        writer.write({"txt": "the next"})
        with pytest.raises(UsageError, match="split 'a/b' cannot name files"):
            writer.write({"txt": ""}, split="a/b")
    assert [sample["txt"] for sample in shardkit.open(tmp_path / "d")] == ["a text", "the next"]
    with pytest.raises(UsageError, match="closed"):
        writer.write({"txt": ""})


def test_a_disk_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packer's error is raised where the next samples are written."""
    real = os.fsync

    def refuse(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("train-00003.npy.npy"):
            raise OSError(28, "No space left on device")
        real(fd)

    monkeypatch.setattr(os, "fsync", refuse)
    with (
        pytest.raises(DataError, match="the disk is full"),
        shardkit.Writer(tmp_path / "d", **QUIET) as writer,
    ):
        write_all(writer)
    assert not (tmp_path / "d" / "shardkit.json").exists()


def test_several_writers_are_merged(tmp_path: Path) -> None:
    parts = [tmp_path / "0", tmp_path / "1"]
    for number, part in enumerate(parts):
        with shardkit.Writer(part, part=f"{number}", **QUIET) as writer:
            writer.write({"txt": f"{number}"})
    shardkit.merge(parts, tmp_path / "d")
    merged = [(sample["__key__"], sample["txt"]) for sample in shardkit.open(tmp_path / "d")]
    assert merged == [("0-000000000000", "0"), ("1-000000000000", "1")]


@pytest.mark.parametrize("name", ["shuffle", "val_fraction", "limit", "train_tokenizer"])
def test_options_that_need_all_samples(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"takes no {name}"):
        shardkit.Writer(tmp_path / "d", **{**QUIET, name: 1})
