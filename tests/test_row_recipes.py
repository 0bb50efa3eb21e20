"""Rows that lie apart, in files of a column or of a class each, and the lines that join them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_files import IMAGES, LABELS, folder, hdf5, npz, run_note, safetensors
from conftest import Run

import shardkit
from shardkit.errors import CorpusError
from shardkit.inputs.containers.row_recipes import LINES_OF_CLASSES
from shardkit.inputs.open import open_corpus

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False}


# --- columns in files of their own --------------------------------------------------------


@pytest.mark.parametrize("ending", ["h5", "npz"])
def test_columns_in_files_of_their_own_are_joined(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PatchCamelyon: \"pack them apart\" gave labels without pictures."""
    source = tmp_path / "in"
    make = hdf5 if ending == "h5" else npz
    for split, number in (("train", 20), ("valid", 6), ("test", 5)):
        make(source / f"level_2_{split}_x.{ending}", **{"in/x": IMAGES[:number]})
        make(source / f"level_2_{split}_y.{ending}", y=LABELS[:number].reshape(-1, 1, 1, 1))
    said = run_note(source, monkeypatch)
    assert f"level_2_test_x.{ending}, and has as many rows: if row by row they belong" in said
    assert f"test.{ending}, train.{ending}, valid.{ending} of them in joined: then pack" in said
    assert "leave out" not in said
    packed = shardkit.pack(source / "joined", tmp_path / "out", to="npy", **OPTIONS)
    assert packed.splits == {"train": 20, "valid": 6, "test": 5}
    batch = shardkit.open(tmp_path / "out", "train").read(range(20))
    assert np.array_equal(batch["in.x.npy"], IMAGES) and batch["cls"].tolist() == LABELS.tolist()


def test_arrays_of_one_name_are_called_by_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hdf5(tmp_path / "in" / "faces_images.h5", data=IMAGES, mean=IMAGES[0, 0])
    hdf5(tmp_path / "in" / "faces_labels.h5", data=LABELS)
    said = run_note(tmp_path / "in", monkeypatch)
    assert said.endswith("else pack them apart; the lines leave out mean")
    shardkit.pack(tmp_path / "in" / "joined", tmp_path / "out", to="npy", **OPTIONS)
    batch = shardkit.open(tmp_path / "out").read(range(20))
    assert np.array_equal(batch["images.npy"], IMAGES) and batch["cls"].tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    "files",
    [
        {"a.h5": {"x": IMAGES}, "b.h5": {"y": LABELS[:9]}},
        {"a.h5": {"x": IMAGES}, "b.h5": {"x": IMAGES, "y": LABELS}},
        {"a_1.h5": {"x": IMAGES}, "a_2.h5": {"x": LABELS}},
        {"a.h5": {"x": IMAGES}, "b.npz": {"y": LABELS}},
        {"a.safetensors": {"x": IMAGES}, "b.safetensors": {"y": LABELS}},
    ],
)
def test_files_that_may_be_something_else_are_refused_as_before(
    files: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    for name, arrays in files.items():
        if name.endswith(".safetensors"):
            safetensors(tmp_path / name, arrays)
        else:
            (npz if name.endswith(".npz") else hdf5)(tmp_path / name, **arrays)
    with pytest.raises(CorpusError, match=r"is built otherwise than .*; pack them apart$"):
        open_corpus(tmp_path, "rows")


# --- a class a file -----------------------------------------------------------------------


def test_files_of_a_class_each_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """Quick, Draw!: a file a class, not all of one length."""
    source = tmp_path / "bitmaps"
    names = {"airplane": (0, 9), "alarm clock": (9, 10), "apple": (10, 20)}
    folder(source, **{name: IMAGES[start:stop] for name, (start, stop) in names.items()})
    code, out, _ = run("pack", "bitmaps", "samples", "--to", "npy", "--workers", "0")
    assert code == 0 and "--corpus rows takes them, or says how to join files of which each" in out
    said = run_note(source, monkeypatch)
    assert "one kind of row (airplane.npy (9, 4, 3), alarm clock.npy (1, 4, 3), " in said
    assert f"then pack {source}/joined; else choose with --fields" in said
    packed = shardkit.pack(source / "joined", tmp_path / "out", to="npy", **OPTIONS)
    assert packed.num_samples == 20
    ds = shardkit.open(tmp_path / "out")
    batch = ds.read(range(20))
    assert ds.classes == [*names] and np.array_equal(batch["data.npy"], IMAGES)
    assert batch["cls"].tolist() == [0] * 9 + [1] + [2] * 10
    chosen: dict[str, Any] = {"corpus": "rows", "fields": ["apple"], "to": "npy"}
    assert shardkit.pack(source, tmp_path / "apples", **chosen, **OPTIONS).num_samples == 10


def test_files_of_as_many_rows_are_columns_which_is_said(tmp_path: Path) -> None:
    folder(tmp_path, left=IMAGES, right=IMAGES)
    notes = open_corpus(tmp_path, "rows").notes
    assert any("left.npy (20, 4, 3), right.npy (20, 4, 3) are columns: each" in n for n in notes)
    (tmp_path / "right.npy").unlink()
    folder(tmp_path, mean=IMAGES[:1])  # of one row: no class
    assert "left out: mean.npy of" in "".join(open_corpus(tmp_path, "rows").notes)
    folder(tmp_path, right=IMAGES, labels=LABELS)
    assert not any("are columns" in note for note in open_corpus(tmp_path, "rows").notes)


def test_files_of_splits_are_no_classes(tmp_path: Path) -> None:
    folder(tmp_path, train=IMAGES, test=IMAGES[:5])
    assert sorted(open_corpus(tmp_path, "rows").splits()) == ["test", "train"]


def test_the_documentation_has_the_lines() -> None:
    docs = Path(__file__).parents[1] / "docs" / "your-data.md"
    assert LINES_OF_CLASSES in docs.read_text()
