"""Packing Python objects: the same dataset from any source, workers, or after a kill."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.utils.data
from conftest import Run, make_images, thorough, tree, write
from object_sources import NUM, Rows, generated, make_some, sample, slow
from PIL import Image

import shardkit
from shardkit.errors import (
    CorpusError,
    DataError,
    DestinationError,
    ResumeError,
    SampleError,
    UsageError,
)
from shardkit.formats import FORMATS
from shardkit.packing import local

QUIET: dict[str, Any] = {"to": "npy", "shard_size": "200KB", "progress": False}


class Rolling(torch.utils.data.IterableDataset[dict[str, Any]]):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(sample, range(NUM))


SOURCES: dict[str, Any] = {
    "dataset": Rows(),
    "list": [sample(row) for row in range(NUM)],
    "generator": generated,
    "lambda": lambda: map(sample, range(NUM)),
    "subset of torch": torch.utils.data.Subset(Rows(), range(NUM)),
    "iterable of torch": Rolling(),
}


def shards(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree(folder).items() if name != "shardkit.json"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dest = tmp_path_factory.mktemp("plain") / "d"
    made = shardkit.pack(Rows(), dest, workers=0, **QUIET)
    assert (made.num_samples, made.splits) == (NUM, {"train": NUM})
    return dest


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", SOURCES)
def test_any_source_and_workers(name: str, workers: int, plain: Path, tmp_path: Path) -> None:
    shardkit.pack(SOURCES[name], tmp_path / "d", workers=workers, **QUIET)
    assert shards(tmp_path / "d") == shards(plain)
    assert shardkit.verify(tmp_path / "d").ok


def test_what_is_read(plain: Path) -> None:
    dataset = shardkit.open(plain)
    assert dataset.classes == ["a", "b", "c"]
    for row in (0, 7, NUM - 1):
        read, wanted = dataset[row], sample(row)
        assert read["__key__"] == f"{row:012d}"
        assert (read["cls"], read["txt"]) == (row % 3, wanted["text"])
        assert read["meta.json"] == wanted["meta"]
        np.testing.assert_array_equal(read["npy"], wanted["npy"])


@pytest.mark.parametrize("to", FORMATS)
def test_formats(to: str, plain: Path, tmp_path: Path) -> None:
    shardkit.pack(generated, tmp_path / "d", **{**QUIET, "to": to, "workers": 1})
    assert shardkit.diff(plain, tmp_path / "d").splits["train"].num_same == NUM


def test_splits_and_own_keys(tmp_path: Path) -> None:
    def rows(split: str) -> list[dict[str, Any]]:
        return [{"__key__": f"{split}/{i}", "txt": f"{split} {i}"} for i in range(5)]

    splits = {"train": rows("train"), "val": rows("val")[:2], "test": []}
    made = shardkit.pack(splits, tmp_path / "d", workers=0, **QUIET)
    assert made.splits == {"train": 5, "val": 2}
    assert made.notes == ["split 'test' has no row, and is left out"]
    assert shardkit.open(tmp_path / "d", split="val")[1] == {"__key__": "val/1", "txt": "val 1"}
    twice = [{"__key__": "a", "txt": "1"}, {"__key__": "a", "txt": "2"}]
    with pytest.raises(DataError, match="'a'"):
        shardkit.pack(twice, tmp_path / "e", workers=0, **QUIET)
    assert not (tmp_path / "e" / "shardkit.json").exists()


def test_shuffled_and_cut(tmp_path: Path) -> None:
    """As folders are: the same whatever the workers, each row once."""
    options = {**QUIET, "shuffle": True, "seed": 3, "val_fraction": 0.1}
    for workers in (0, 2):
        shardkit.pack(Rows(), tmp_path / f"{workers}", workers=workers, **options)
    assert tree(tmp_path / "0") == tree(tmp_path / "2")
    keys = [
        sample["__key__"]
        for split in ("train", "val")
        for sample in shardkit.open(tmp_path / "0", split=split)
    ]
    assert sorted(keys) == [f"{row:012d}" for row in range(NUM)] and keys != sorted(keys)


@pytest.mark.parametrize("shuffle", [False, True])
def test_splits_drawn_from_a_stream(
    shuffle: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several shards need rows of one chunk, wherever it waits."""
    monkeypatch.setattr("shardkit.inputs.objects.iterables.CHUNK_ROWS", 150)
    options = {**QUIET, "shuffle": shuffle, "val_fraction": 0.1}
    for workers in (0, 1):
        shardkit.pack(generated, tmp_path / f"{workers}", workers=workers, **options)
    assert tree(tmp_path / "0") == tree(tmp_path / "1")


# --- a function over inputs ---------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_function_over_inputs(workers: int, shuffle: bool, tmp_path: Path) -> None:
    """Each input becomes none, one or several samples, and names itself if it fails."""
    options = {**QUIET, "workers": workers, "fn": make_some, "shuffle": shuffle}
    inputs = [*range(30)]
    with pytest.raises(SampleError) as error:
        shardkit.pack(inputs, tmp_path / "d", **options)
    said = "row 13 of train: from 13: make_some raised ValueError: an unlucky number"
    line = make_some.__code__.co_firstlineno + 2
    assert str(error.value).startswith(f"{said} ({make_some.__code__.co_filename}:{line})")
    made = shardkit.pack(inputs, tmp_path / "d", on_error="skip", max_rejects=0.1, **options)
    texts = sorted(read["txt"] for read in shardkit.open(tmp_path / "d"))
    assert texts == sorted(f"{n}.{i}" for n in inputs if n != 13 for i in range(n % 3))
    assert (made.num_samples, made.num_rejects) == (len(texts), 1)


def test_on_the_command_line(tmp_path: Path, run: Run) -> None:
    source = make_images(tmp_path / "in", 2, 2)
    code = "def make(path):\n    return {'image': path, 'cls': int(path.parent.name[-1])}\n"
    reader = write(tmp_path / "reader.py", code)
    out = run(
        "pack", source, tmp_path / "d", "--to", "lmdb", "--fn", f"{reader}:make", "--workers", "1"
    )
    assert out.code == 0, out.err
    read = shardkit.open(tmp_path / "d")
    assert [sample["cls"] for sample in read] == [0, 0, 1, 1]
    files = sorted(source.rglob("*.jpg"))
    assert [sample["jpg"] for sample in read] == [file.read_bytes() for file in files]
    lines = write(tmp_path / "inputs.txt", "\n".join(map(str, files)) + "\n\n")
    reader.write_text("def make(line):\n    return {'text': line}\n")
    out = run(
        "pack", lines, tmp_path / "e", "--to", "npy", "--fn", f"{reader}:make", "--workers", "0"
    )
    assert [sample["txt"] for sample in shardkit.open(tmp_path / "e")] == [*map(str, files)]
    out = run("pack", lines, tmp_path / "f", "--to", "npy", "--fn", f"{reader}:nothing")
    assert out.code == 2 and "expected file.py:function" in out.err


# --- again, after a kill, or with something else ------------------------------------------


@pytest.mark.parametrize("kind", ["rows", "stream"])
def test_a_resumed_pack_compares(
    kind: str, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardkit.inputs.objects.iterables.CHUNK_BYTES", 100_000)

    def source(bad: int, changed: int = -1) -> Any:
        rows = Rows(NUM, bad, changed)
        return rows if kind == "rows" else lambda: map(rows.after_a_while, range(NUM))

    options = {**QUIET, "workers": 1}
    with pytest.raises(DataError, match="unplugged"):
        shardkit.pack(source(NUM - 2), tmp_path / "d", **options)
    with pytest.raises(ResumeError, match="changed since this pack was started"):
        shardkit.pack(source(-1, changed=0), tmp_path / "d", **options)
    made = shardkit.pack(source(-1), tmp_path / "d", **options)
    assert made.resumed_shards > 0
    assert shards(tmp_path / "d") == shards(plain)


def test_up_to_date(plain: Path, tmp_path: Path) -> None:
    """The rows that are looked at before a pack decide; of an iterator there are none."""
    made = shardkit.pack(Rows(), plain, workers=0, **QUIET)
    assert made.was_complete
    with pytest.raises(DestinationError, match="changed or touched since"):
        shardkit.pack(Rows(changed=0), plain, workers=0, **QUIET)
    shardkit.pack(generated, tmp_path / "d", workers=0, **QUIET)
    with pytest.raises(DestinationError, match="already holds a dataset; pass --overwrite"):
        shardkit.pack(generated, tmp_path / "d", **QUIET)


@pytest.mark.parametrize("after_s", [*thorough(0.3), 0.8])
@pytest.mark.parametrize("workers", [0, 2])
def test_killed(after_s: float, workers: int, plain: Path, tmp_path: Path) -> None:
    dest = tmp_path / "d"
    pid = os.fork()
    if not pid:
        try:
            shardkit.pack(slow(NUM), dest, workers=workers, **QUIET)
        finally:
            os._exit(0)
    time.sleep(after_s)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert not (dest / "shardkit.json").exists() or shardkit.verify(dest).ok
    if not (dest / "shardkit.json").exists():
        shardkit.pack(generated, dest, workers=workers, **QUIET)
    assert shards(dest) == shards(plain)


def test_compared_with_its_source(plain: Path) -> None:
    assert shardkit.verify(plain, against=Rows()).ok
    assert shardkit.verify(plain, against=generated).num_compared == NUM
    for source, said in (
        (Rows(changed=17), "its cls differs from the original"),
        (Rows(NUM - 1), "has no original in the given object"),
        (Rows(NUM + 1), "is not in the dataset"),
        (Rows(bad=3), "unplugged"),
    ):
        problems = shardkit.verify(plain, against=source).problems
        assert any(said in problem.what for problem in problems)


@pytest.mark.parametrize("source", [Rows(), generated])
def test_workers_that_come_later(
    source: Any, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default this process packs alone, and workers take over when they are ready."""
    monkeypatch.setattr(local, "START_AFTER_S", 0.0)
    monkeypatch.setattr("shardkit.inputs.objects.iterables.CHUNK_BYTES", 300_000)
    by_workers: list[Any] = []
    is_ready = local.ProcessPool.is_ready
    monkeypatch.setattr(
        local.ProcessPool, "is_ready", lambda self, wait=False: is_ready(self, wait=True)
    )
    run = local.ProcessPool.run
    monkeypatch.setattr(
        local.ProcessPool,
        "run",
        lambda *args: (by_workers.append(each) or each for each in run(*args)),
    )
    shardkit.pack(source, tmp_path / "d", **QUIET)
    assert shards(tmp_path / "d") == shards(plain)
    assert 0 < len(by_workers) < len([*tmp_path.glob("d/*.npy.npy")])  # not the first


def test_what_cannot_be_pickled_is_packed_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "START_AFTER_S", 0.0)
    held = [sys.stdout, *range(50)]
    made = shardkit.pack(
        held[1:], tmp_path / "d", fn=lambda i: {"txt": f"{i} {held[0]!r}"}, **QUIET
    )
    assert made.num_samples == 50


# --- what is refused ----------------------------------------------------------------------


class Unsized(Rows):
    def __len__(self) -> int:
        raise NotImplementedError


def test_refusals(tmp_path: Path) -> None:
    def refused(source: Any, **options: Any) -> str:
        with pytest.raises(UsageError) as error:
            shardkit.pack(source, tmp_path / "d", **{**QUIET, "workers": 0, **options})
        assert not (tmp_path / "d").exists()
        return str(error.value)

    assert "can be read only once" in refused(iter([1]))
    assert "part needs rows by number" in refused(generated, part="1/2")
    assert "fn takes inputs that have a number" in refused(generated, fn=make_some)
    assert "corpus is for files" in refused([1], corpus="images")
    assert "names and classes are for Python objects" in refused("x", names=("a",))
    assert "an empty dict" in refused({})
    assert "split 'a/b' cannot name files" in refused({"a/b": [1]})
    assert "the source is a type; pass a path" in refused(Rows)
    assert "raised TypeError" in refused(lambda missing: iter(missing))
    assert "__len__ raised NotImplementedError" in refused(Unsized())
    assert "the source of a split is 'abc'" in refused({"train": "abc"})
    assert "classes must be a list of texts, got 'ab'" in refused([1], classes="ab")
    held = [sys.stdout]  # cannot be pickled
    assert "cannot be sent to worker processes" in refused(held, fn=len, workers=1)


def test_what_is_said(tmp_path: Path) -> None:
    rows = [{"label": 0.5, "txt": "a"}, {"label": 1.5, "txt": "b"}]
    for number, source in enumerate((rows, lambda: iter(rows))):
        made = shardkit.pack(source, tmp_path / f"{number}", workers=0, **QUIET)
        (note,) = made.notes
        assert note.startswith("label: not cls, though named as labels")
    made = shardkit.pack([0, 3, 4, 5], tmp_path / "fn", workers=0, fn=make_some, **QUIET)
    assert made.notes == ["inputs of which fn made no sample: 2"]
    file = write(tmp_path / "a.txt", "text")
    for source in ([str(file)], [(str(file), 1)], [{"image": str(file)}]):
        with pytest.raises(UsageError, match="the path of a file as a text"):
            shardkit.pack(source, tmp_path / "d", workers=0, **QUIET)


def test_dry_run(tmp_path: Path) -> None:
    """Says what a pack would read, and leaves nothing."""
    made = shardkit.pack(Rows(), tmp_path / "d", dry_run=True, **QUIET)
    assert made.notes[0] == f"{NUM} entries (objects) in 3 classes (a, b, c) -> {tmp_path / 'd'}"
    assert made.notes[1].startswith(
        "first sample: '000000000000': cls (1 B), meta.json (10 B), npy"
    )
    made = shardkit.pack(generated, tmp_path / "d", dry_run=True, **QUIET)
    assert made.notes[0] == f"samples, counted as they come (stream) -> {tmp_path / 'd'}"
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("workers", [0, 1])
def test_images_of_a_stream_are_compressed_by_workers(workers: int, tmp_path: Path) -> None:
    """To the bytes of those that are not deferred; a PNG that was given stays as it is."""
    images = [Image.new("P" if i % 2 else "RGB", (20 + i, 20), i) for i in range(12)]
    given = [{"image": image, "mask.png": b"as it is"} for image in images]
    shardkit.pack(given, tmp_path / "list", workers=0, **QUIET)
    shardkit.pack(lambda: iter(given), tmp_path / "stream", workers=workers, **QUIET)
    assert shards(tmp_path / "stream") == shards(tmp_path / "list")


def test_nothing_to_pack(tmp_path: Path) -> None:
    for source in ([], lambda: iter(())):
        with pytest.raises(CorpusError, match="there is nothing to pack"):
            shardkit.pack(source, tmp_path / "d", workers=0, **QUIET)


def reusing(number: int) -> Iterator[dict[str, Any]]:
    """Yields one array again and again."""
    held = np.zeros(1, int)
    for i in range(3):
        held[0] = 10 * number + i
        yield {"x.npy": held, "label": i}


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_function_yields_is_taken_at_once(workers: int, tmp_path: Path) -> None:
    shardkit.pack([0, 1], tmp_path / "d", to="npy", fn=reusing, workers=workers, progress=False)
    ds = shardkit.open(tmp_path / "d")
    assert [int(sample["x.npy"][0]) for sample in ds] == [0, 1, 2, 10, 11, 12]
