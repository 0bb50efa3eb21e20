"""``.npy`` files that are numbered parts of columns, or lie in folders side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_files import IMAGES, LABELS, folder, hdf5, npy
from conftest import CONTAINERS, Run, tree, write
from hypothesis import given
from hypothesis import strategies as st
from test_corpus_files import read_all
from test_corpus_rows import column

import shardkit
from shardkit.errors import CorpusError
from shardkit.inputs.containers.npy_reading import reading_of
from shardkit.inputs.containers.row_columns import ArrayColumn, divide
from shardkit.inputs.containers.row_parts import find_parts
from shardkit.inputs.detect import detect
from shardkit.inputs.open import open_corpus

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False}


def in_parts(root: Path, *cuts: int, prefix: str = "") -> Path:
    """``images_0.npy``, ``labels_0.npy``, ``images_1.npy`` ..., cut there."""
    for i, (start, stop) in enumerate(zip((0, *cuts), (*cuts, 20), strict=True)):
        npy(root / f"{prefix}images_{i}.npy", IMAGES[start:stop])
        npy(root / f"{prefix}labels_{i}.npy", LABELS[start:stop])
    return root


# --- numbered parts -----------------------------------------------------------------------


@pytest.mark.parametrize("to", CONTAINERS)
@pytest.mark.parametrize("cuts", [(10,), (7, 13), tuple(range(1, 20))])
def test_parts_follow_one_another(cuts: tuple[int, ...], to: str, tmp_path: Path) -> None:
    source = in_parts(tmp_path / "in", *cuts)
    assert detect(source) == "rows"
    options: dict[str, Any] = {"to": to, "shard_size": "90B"}
    packed = shardkit.pack(source, tmp_path / "out", **options, **OPTIONS)
    assert (packed.num_samples, packed.num_rejects) == (20, 0)
    said = f"{len(cuts) + 1} parts in {source}, numbered in images_#.npy, labels_#.npy: their rows"
    assert packed.notes[1].startswith(said)
    batch = shardkit.open(tmp_path / "out").read(range(20))
    assert {*batch} >= {"cls", "images.npy"}
    assert np.array_equal(batch["images.npy"], IMAGES) and batch["cls"].tolist() == LABELS.tolist()
    assert shardkit.verify(tmp_path / "out", against=source).num_compared == 20
    shardkit.pack(source, tmp_path / "two", workers=2, **options)
    assert tree(tmp_path / "two") == tree(tmp_path / "out")
    assert shardkit.pack(source, tmp_path / "out", **options, **OPTIONS).was_complete


def test_a_hundred_parts_are_parts(tmp_path: Path) -> None:
    for i in range(100):
        npy(tmp_path / "in" / f"images{i:03}.npy", IMAGES[i % 10 : i % 10 + 2])
        npy(tmp_path / "in" / f"labels{i:03}.npy", LABELS[i % 10 : i % 10 + 2])
    packed = shardkit.pack(tmp_path / "in", tmp_path / "out", to="npy", **OPTIONS)
    assert (packed.kind, packed.num_samples) == ("rows", 200)
    assert np.array_equal(shardkit.open(tmp_path / "out")[197]["images.npy"], IMAGES[9])


def test_parts_of_splits_shuffled(tmp_path: Path) -> None:
    in_parts(tmp_path / "in", 7, 13, prefix="train_")
    folder(tmp_path / "in", test_images=IMAGES[:5], test_labels=LABELS[:5])
    packed = shardkit.pack(
        tmp_path / "in", tmp_path / "out", to="npy", shuffle=True, shard_size="300B", **OPTIONS
    )
    assert packed.num_samples == 25 and packed.num_shards >= 3
    train, test = (shardkit.open(tmp_path / "out", split) for split in ("train", "test"))
    assert len(train) == 20 and np.array_equal(test.read(range(5))["cls"].sum(), LABELS[:5].sum())
    seen = {train[i]["images.npy"].tobytes(): int(train[i]["cls"]) for i in range(20)}
    assert seen == {IMAGES[i].tobytes(): int(LABELS[i]) for i in range(20)}
    fraction: dict[str, Any] = {"to": "npy", "val_fraction": 0.5}
    shardkit.pack(in_parts(tmp_path / "b", 7), tmp_path / "val", **fraction, **OPTIONS)
    halves = [shardkit.open(tmp_path / "val", split) for split in ("train", "val")]
    assert sum(map(len, halves)) == 20
    for half in halves:
        for i in range(len(half)):
            assert seen[half[i]["images.npy"].tobytes()] == int(half[i]["cls"])


def test_a_part_that_lacks_a_column_is_refused(tmp_path: Path, run: Run) -> None:
    source = in_parts(tmp_path / "in", 10)
    (source / "labels_1.npy").unlink()
    code, _, err = run("pack", "in", "out", "--to", "npy", "--corpus", "rows")
    assert code == 2 and "holds parts of columns, told by numbers, and lacks labels_1.npy" in err
    with pytest.raises(CorpusError, match=r"lacks labels_1\.npy|may be a sample"):
        open_corpus(source)
    columns = ["images_0", "images_1", "labels_0"]
    packed = shardkit.pack("in", "out", to="npy", corpus="rows", fields=columns, **OPTIONS)
    assert packed.num_samples == 10


def test_files_chosen_with_their_number_are_columns(tmp_path: Path) -> None:
    source = in_parts(tmp_path / "in", 10)
    chosen = ["images_0", "images_1", "labels_0"]
    shardkit.pack(source, tmp_path / "a", to="npy", fields=chosen, **OPTIONS)
    assert {"images_0.npy", "images_1.npy", "labels_0.npy"} <= {*shardkit.open(tmp_path / "a")[0]}
    packed = shardkit.pack(source, tmp_path / "b", to="npy", fields=["images"], **OPTIONS)
    assert packed.num_samples == 20
    assert "left out: labels_0.npy of " in "".join(packed.notes)


@pytest.mark.parametrize(
    ("columns", "numbers"),
    [
        ([column("x_0", 9, 4), column("x_1", 7, 4)], ["0", "1"]),
        ([column("x10", 9, 4), column("x9", 7, 4)], ["9", "10"]),
        (
            [column("0_x", 9, 4), column("0_y", 9), column("1_x", 9, 4), column("1_y", 9)],
            ["0", "1"],
        ),
        ([column("x_1", 9, 4), column("x_2", 9, 5)], None),  # rows of two kinds: two columns
        ([column("x_1", 9, 4), column("x_2", 9, 4), column("y", 9)], None),
        ([column("conv3", 9, 4), column("fc7", 9, 4)], None),
        ([column("images", 9, 4), column("labels", 9)], None),
        ([column(f"s{i}_e{j}", 9, 4) for i in range(2) for j in range(2)], None),
        ([], None),
    ],
)
def test_find_parts(columns: list[ArrayColumn], numbers: list[str] | None) -> None:
    found = find_parts(columns)
    assert (found and [number for _, number in found.parts]) == numbers


@given(st.lists(st.from_regex(r"[xy]?_?[0-9]{0,2}(_train|_test)?", fullmatch=True), unique=True))
def test_no_file_is_lost_by_parts(names: list[str]) -> None:
    columns = [column(name or "_", 9, 4) for name in names]
    found = find_parts(columns)
    if found is not None:
        held = [each for part in found.parts.values() for each in part]
        assert sorted(each.file for each in held) == sorted(c.name for c in columns)
        for (_, number), part in found.parts.items():
            assert [each.template.replace("/", number) for each in part] == [e.file for e in part]


LABEL = "<i8"


@pytest.mark.parametrize(
    ("columns", "reading"),
    [
        (
            [
                column(f"{a}_{i}", 9 + i, *s, dtype=d)
                for i in range(3)
                for a, s, d in (("x", (4,), "<f4"), ("y", (), LABEL))
            ],
            "rows",
        ),
        (
            [
                column(f"{a}_{i}", 9, 9, dtype=d)
                for i in range(3)
                for a, d in (("img", "<f4"), ("mask", "|u1"))
            ],
            "either",
        ),
        ([column("images", 9, 4), column("labels", 5, dtype=LABEL)], "either"),
        ([column("a", 9, 4), column("b", 5, dtype=LABEL)], "arrays"),
    ],
)
def test_reading_of_parts(columns: list[ArrayColumn], reading: str) -> None:
    assert reading_of(columns) == reading


# --- folders side by side -----------------------------------------------------------------


def test_columns_in_folders_side_by_side(tmp_path: Path) -> None:
    folder(tmp_path / "in" / "a", images=IMAGES[:5], labels=LABELS[:5])
    folder(tmp_path / "in" / "b" / "c", images=IMAGES[5:], labels=LABELS[5:])
    write(tmp_path / "in" / "README.md", "#")
    packed = shardkit.pack(tmp_path / "in", tmp_path / "out", to="npy", **OPTIONS)
    assert (packed.kind, packed.num_samples) == ("rows", 20)
    batch = shardkit.open(tmp_path / "out").read(range(20))
    assert np.array_equal(batch["images.npy"], IMAGES) and batch["cls"].tolist() == LABELS.tolist()


def test_splits_further_down_are_splits(tmp_path: Path) -> None:
    for name in ("train", "test"):
        folder(tmp_path / "in" / "data" / name, images=IMAGES, labels=LABELS)
    corpus = open_corpus(tmp_path / "in")
    assert corpus.kind == "rows" and sorted(corpus.splits()) == ["test", "train"]
    folder(tmp_path / "in" / "data" / "extra", images=IMAGES, labels=LABELS)
    notes = open_corpus(tmp_path / "in").notes
    assert any("all of split train, data/test too, since data/extra names no" in n for n in notes)


def test_folders_of_which_one_has_no_labels(tmp_path: Path) -> None:
    folder(tmp_path / "in" / "a", images=IMAGES, labels=LABELS)
    folder(tmp_path / "in" / "b", images=IMAGES)
    with pytest.raises(CorpusError, match=r"with labels, and .*/in/b does not: pack them apart"):
        detect(tmp_path / "in")


def test_containers_in_folders_side_by_side(tmp_path: Path) -> None:
    for name in "ab":
        hdf5(tmp_path / "in" / name / "x.h5", images=IMAGES, labels=LABELS)
    with pytest.raises(CorpusError, match=r"a/x\.h5 and others lie in folders of .*--corpus rows"):
        detect(tmp_path / "in")
    assert (
        shardkit.pack(
            tmp_path / "in", tmp_path / "out", to="npy", corpus="rows", **OPTIONS
        ).num_samples
        == 40
    )


# --- splits within names ------------------------------------------------------------------


@pytest.mark.parametrize("how", ["files", "folders"])
def test_a_split_that_both_names_tell(how: str, tmp_path: Path) -> None:
    for name, number in (("train", 20), ("test", 5)):
        arrays = {f"{name}_set_x": IMAGES[:number], f"{name}_set_label": LABELS[:number]}
        if how == "files":
            hdf5(tmp_path / "in" / f"{name}.h5", **arrays)
        else:
            folder(tmp_path / "in" / name, **arrays)
    shardkit.pack(tmp_path / "in", tmp_path / "out", to="npy", **OPTIONS)
    train, test = (shardkit.open(tmp_path / "out", split) for split in ("train", "test"))
    assert {*train[0]} == {*test[0]} == {"__key__", "set_label.npy", "set_x.npy"}
    assert (len(train), len(test)) == (20, 5)


@pytest.mark.parametrize(
    ("names", "split", "expected"),
    [
        (["train_set_x", "mean"], "train", ["set_x", "mean"]),
        (["train_x", "x"], "train", ["train_x", "x"]),  # both would be x
        (["test_x"], "train", ["test_x"]),
        (["train"], "train", ["data"]),
    ],
)
def test_the_word_of_a_split_within_names(
    names: list[str], split: str, expected: list[str]
) -> None:
    columns = [ArrayColumn(name, (9, 4), np.dtype("u1")) for name in names]
    assert [*divide(columns, "here", split).groups[""]] == expected


def test_text_in_parts_to_be_tokenized(tmp_path: Path) -> None:
    for i in range(2):
        npy(tmp_path / f"text_{i}.npy", np.array([f"text {i}{j}" for j in range(3)]))
        npy(tmp_path / f"labels_{i}.npy", np.arange(3))
    corpus = open_corpus(tmp_path, tokenized=True)
    batch = read_all(corpus, tmp_path)["train"]
    assert [*batch.columns] == ["txt"] and len(batch) == 6
    assert "left out: labels_1.npy of " in "".join(corpus.notes)


@pytest.mark.parametrize("num", [2, 50])
def test_files_that_together_are_a_sample_are_no_samples_of_their_own(
    num: int, tmp_path: Path
) -> None:
    """``img_0.npy`` and ``mask_0.npy``: neither a sample each nor rows, so nothing is guessed."""
    for i in range(num):
        folder(tmp_path, **{f"img_{i}": IMAGES, f"mask_{i}": IMAGES[:, 0] > 0})
    with pytest.raises(
        CorpusError, match=rf"holds {2 * num} \.npy files: each file may be a sample"
    ):
        detect(tmp_path)


@pytest.mark.parametrize("names", ["cat_{}", "{}_left", "{}"])
def test_many_arrays_of_one_kind_are_samples(names: str, tmp_path: Path) -> None:
    for i in range(70):
        npy(tmp_path / f"{names.format(i)}.npy", IMAGES[i % 20])
        npy(tmp_path / f"dog_{i}.npy", IMAGES[i % 20])
    assert detect(tmp_path) == "arrays"
