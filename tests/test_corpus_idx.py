"""MNIST's idx files."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_files import LABELS, idx
from conftest import CONTAINERS, Run, nothing_left_open, tree, write
from forked_workers import workers_for
from test_corpus_files import read_all
from test_corpus_rows import rows_of, same

import shardkit
from shardkit.errors import CorpusError, FormatError
from shardkit.inputs.containers.find import container_kind
from shardkit.inputs.containers.idx_files import idx_title, is_idx_name
from shardkit.inputs.detect import detect
from shardkit.inputs.endings import kind_of
from shardkit.inputs.open import open_corpus

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False}

DIGITS = np.arange(20 * 28 * 28, dtype=np.uint8).reshape(20, 28, 28)
DIGIT_LABELS = LABELS.astype(np.uint8)

NAMES = [
    "{}-{}-idx{}-ubyte",
    "{}-{}-idx{}-ubyte.gz",
    "{}-{}.idx{}-ubyte",
    "emnist-letters-{}-{}-idx{}-ubyte.gz",
]


def mnist(root: Path, name: str = NAMES[0], test: str = "t10k") -> Path:
    for split, number in (("train", 20), (test, 5)):
        idx(root / name.format(split, "images", 3), DIGITS[:number])
        idx(root / name.format(split, "labels", 1), DIGIT_LABELS[:number])
    return root


@pytest.mark.parametrize("to", CONTAINERS)
@pytest.mark.parametrize("name", NAMES)
def test_mnist_as_it_is(name: str, to: str, tmp_path: Path) -> None:
    source = mnist(tmp_path / "in", name, "test" if "emnist" in name else "t10k")
    write(source / "emnist-letters-mapping.txt", "1 65 97\n")
    assert detect(source) == "rows"
    options: dict[str, Any] = {"to": to, "shard_size": "4KB"}
    with nothing_left_open():
        packed = shardkit.pack(source, tmp_path / "out", **options, **OPTIONS)
    assert (packed.kind, packed.splits) == ("rows", {"train": 20, "test": 5})
    assert packed.notes == ["cls is 'labels', from 0 to 6"] and packed.num_rejects == 0
    for split, number in packed.splits.items():
        batch = shardkit.open(tmp_path / "out", split).read(range(number))
        assert {*batch} == {"cls", "images.npy"}
        assert batch["images.npy"].dtype == np.uint8
        assert np.array_equal(batch["images.npy"], DIGITS[:number])
        assert batch["cls"].tolist() == LABELS[:number].tolist()
    checked = shardkit.verify(tmp_path / "out", against=source)
    assert checked.ok and checked.num_compared == 25, checked.problems
    with workers_for(to):
        shardkit.pack(source, tmp_path / "two", workers=2, **options)
    assert tree(tmp_path / "two") == tree(tmp_path / "out")
    assert shardkit.pack(source, tmp_path / "out", **options, **OPTIONS).was_complete


def test_compressed_files_are_unpacked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = mnist(tmp_path / "in", NAMES[1])
    corpus = open_corpus(source)
    runs = [*corpus.runs(tmp_path / "scratch")]
    monkeypatch.setattr("shardkit.inputs.lines._gunzip", None)
    assert sum(len(corpus.read(run, tmp_path / "scratch")) for run in runs) == 25


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4", "f4", "f8"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_values_are_exact_and_native(dtype: str, ending: str, tmp_path: Path) -> None:
    bits = np.random.default_rng(0).integers(0, 256, (7, 3 * np.dtype(dtype).itemsize), np.uint8)
    array = bits.view(dtype)  # not-a-numbers, too
    source = idx(tmp_path / f"scans-idx2-int{ending}", array)
    assert detect(source) == "rows"
    assert same(rows_of(source, tmp_path / "scratch")["scans.npy"], array)


def test_what_torchvision_leaves(tmp_path: Path) -> None:
    """Each file beside what it came in, in a folder of their own."""
    for name in NAMES[:2]:
        mnist(tmp_path / "MNIST" / "raw", name)
    corpus = open_corpus(tmp_path / "MNIST")
    batches = read_all(corpus, tmp_path / "scratch")
    assert {split: len(batch) for split, batch in batches.items()} == {"test": 5, "train": 20}
    said = "left out: {}.gz of {}/raw: {} of the same name lies beside it"
    for each in ("train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        assert said.format(each, tmp_path / "MNIST", each) in corpus.notes
    assert len(corpus.notes) == 5


def test_several_datasets_in_one_folder_are_refused(tmp_path: Path) -> None:
    for name in ("digits", "letters"):
        mnist(tmp_path / "in", f"emnist-{name}-{{}}-{{}}-idx{{}}-ubyte.gz", "test")
    with pytest.raises(CorpusError, match=r"several datasets \(emnist-digits-test-images-idx3"):
        open_corpus(tmp_path / "in")
    for other in ("test-images-idx3-ubyte", "x-test-images-idx3-ubyte"):
        idx(mnist(tmp_path / other) / other, DIGITS)
        with pytest.raises(CorpusError, match="files of several datasets"):
            open_corpus(tmp_path / other)


SPOILT = {
    "cut": (lambda data: data[:-9], "has 15,687 bytes, and by its header 15,696 (uint8 of (20, 2"),
    "longer": (lambda data: data + b"9", "has 15,697 bytes, and by its header 15,696"),
    "sizes": (
        lambda data: data[:15] + b"\x1d" + data[16:],
        "and by its header 16,256 (uint8",
    ),
    "header": (lambda data: data[:9], "is damaged: it ends in its header; fetch it again"),
    "empty": (lambda data: b"", "is no idx file: it begins with b''; fetch it again"),
    "page": (lambda data: b"<html>403</html>", "is no idx file: it begins with b'<html>40'; fet"),
    "type": (lambda data: b"\0\0\x0a" + data[3:], "is no idx file: it begins with"),
}


@pytest.mark.parametrize("what", SPOILT)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_bad_files_are_refused_before_anything_is_packed(
    what: str, ending: str, tmp_path: Path, run: Run
) -> None:
    mnist(tmp_path / "in", NAMES[0] + ending)
    path = tmp_path / "in" / f"train-images-idx3-ubyte{ending}"
    spoil, said = SPOILT[what]
    data = path.read_bytes()
    write(path, gzip.compress(spoil(gzip.decompress(data))) if ending else spoil(data))
    code, _, err = run("pack", "in", "out", "--to", "npy", "--workers", "0")
    assert code != 0 and err.count("\n") == 1 and f"in/{path.name}: " in err and said in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("shape", [(1,) * 40, (0, 2**32 - 1, 2**32 - 1), (2**32 - 1,) * 3])
def test_hostile_headers(shape: tuple[int, ...], ending: str, tmp_path: Path) -> None:
    head = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes() + b"1"
    for data in (head, head[:-1]):
        path = write(tmp_path / f"x-idx1-ubyte{ending}", gzip.compress(data) if ending else data)
        with pytest.raises(FormatError, match=r"x-idx1-ubyte.*: is (damaged|no idx file): "):
            read_all(open_corpus(path, "rows"), tmp_path / "scratch")


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_arrays_without_rows_or_axes(ending: str, tmp_path: Path) -> None:
    path = idx(tmp_path / f"x-idx3-ubyte{ending}", DIGITS[:0])
    with pytest.raises(CorpusError, match=r"nothing|no rows"):
        shardkit.pack(path, tmp_path / "out", to="npy", **OPTIONS)
    path = idx(tmp_path / f"y-idx0-ubyte{ending}", DIGITS[0, 0, 0])
    with pytest.raises(CorpusError):
        shardkit.pack(path, tmp_path / "out", to="npy", **OPTIONS)


def test_a_compressed_file_cut_short_is_refused(tmp_path: Path) -> None:
    for name in ("images-idx3", "labels-idx1"):
        path = mnist(tmp_path / name, NAMES[1]) / f"train-{name}-ubyte.gz"
        write(path, path.read_bytes()[:-7])
        with pytest.raises(FormatError, match=rf"{path.name}: is damaged: .*; fetch "):
            shardkit.pack(path.parent, tmp_path / "out", to="npy", **OPTIONS)


def test_a_browser_that_unpacked_it_on_the_way(tmp_path: Path) -> None:
    source = mnist(tmp_path / "in", NAMES[1])
    for path in source.iterdir():
        write(path, gzip.decompress(path.read_bytes()))
    assert same(rows_of(source, tmp_path / "scratch")["images.npy"], DIGITS)


def test_a_name_alone_is_no_idx_file(tmp_path: Path) -> None:
    path = write(tmp_path / "in" / "a-idx1-ubyte", "text")
    assert container_kind(path, kind_of) is None and container_kind(path.parent, kind_of) is None


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("train-images-idx3-ubyte", "train-images"),
        ("T10K-labels.idx1-ubyte", "test-labels"),
        ("emnist-byclass-test-labels-idx1-ubyte.gz", "test-labels"),
        ("qmnist-train-labels-idx2-int.gz", "train-labels"),
        ("scans-idx4-float", "scans"),
        ("train-images.gz", None),
        ("ids.idx", None),
    ],
)
def test_names(name: str, title: str | None) -> None:
    assert is_idx_name(name) is (title is not None)
    assert title is None or idx_title(name) == title
