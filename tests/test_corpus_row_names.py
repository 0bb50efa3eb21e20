"""Names of classes beside arrays by rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from array_files import IMAGES, LABELS, folder, hdf5, idx, npy, npz
from conftest import CONTAINERS, write
from test_corpus_rows import enumerated

import shardkit
from shardkit.inputs.detect import detect
from shardkit.inputs.open import open_corpus

OPTIONS: dict[str, Any] = {"to": "npy", "workers": 0, "progress": False}

DAYS = ["mo", "tu", "wé", "th", "fr", "sa", "su"]

NAMES = {
    "str": lambda: np.array(DAYS),
    "bytes": lambda: np.array([name.encode() for name in DAYS]),
    "more than labels": lambda: np.array([*DAYS, "a day of no label, and a long name at that"]),
}


def with_names(source: Path, **names: Any) -> Path:
    """A container of the ending of ``source``, or a folder of ``.npy``."""
    make = {".npz": npz, ".h5": hdf5}.get(source.suffix, folder)
    return make(source, images=IMAGES, labels=LABELS, **names)


@pytest.mark.parametrize("name", ["class_names", "classes", "label_names", "Categories"])
@pytest.mark.parametrize("how", NAMES)
@pytest.mark.parametrize("ending", ["in.npz", "in.h5", "in"])
def test_names_in_the_same_container(ending: str, how: str, name: str, tmp_path: Path) -> None:
    names = NAMES[how]()
    if ending == "in.h5" and how != "bytes":
        names = [str(each) for each in names]
    source = with_names(tmp_path / ending, **{name: names})
    assert detect(source) == "rows"
    packed = shardkit.pack(source, tmp_path / "out", **OPTIONS)
    ds = shardkit.open(tmp_path / "out")
    assert ds.classes is not None and ds.classes[:7] == DAYS and len(ds.classes) == len(names)
    assert {*ds[0]} == {"__key__", "images.npy", "cls"} and len(ds) == 20
    more = "" if len(names) == 7 else f"; no sample is of its last {len(names) - 7}"
    assert packed.notes == [
        "cls is 'labels', from 0 to 6",
        f"names of classes are those of {name}{more}",
    ]
    assert shardkit.verify(tmp_path / "out", against=source).ok


@pytest.mark.parametrize("name", ["classes.txt", "class_names.txt", "labels.txt"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_names_in_a_text_file(ending: str, name: str, tmp_path: Path) -> None:
    source = with_names(tmp_path / "in")
    write(source / name, ending.join([*DAYS, ""]).encode())
    write(source / "notes.txt", "of them")
    packed = shardkit.pack(source, tmp_path / "out", **OPTIONS)
    assert shardkit.open(tmp_path / "out").classes == DAYS
    assert f"names of classes are those of {name}" in packed.notes
    assert packed.ignored == {".txt": 1}


def test_numbered_lines_name_their_numbers(tmp_path: Path) -> None:
    source = with_names(tmp_path / "in")
    lines = [f"{i} {day}" for i, day in enumerate(DAYS)]
    write(source / "classes.txt", "\n".join(reversed(lines)))
    shardkit.pack(source, tmp_path / "out", **OPTIONS)
    assert shardkit.open(tmp_path / "out").classes == DAYS
    write(source / "classes.txt", "\n".join(f"{i}: {day}" for i, day in enumerate(DAYS, 1)))
    packed = shardkit.pack(source, tmp_path / "again", **OPTIONS)
    assert shardkit.open(tmp_path / "again").classes is None
    assert any("its lines are numbered, and not from 0 to 6" in note for note in packed.notes)


@pytest.mark.parametrize("to", CONTAINERS)
def test_names_of_several_files_and_splits(to: str, tmp_path: Path) -> None:
    for name in ("train", "test"):
        with_names(tmp_path / "in" / f"{name}.npz", class_names=np.array(DAYS))
    write(tmp_path / "in" / "classes.txt", "\n".join(DAYS))
    packed = shardkit.pack(tmp_path / "in", tmp_path / "out", **{**OPTIONS, "to": to})
    assert packed.splits == {"test": 20, "train": 20} and not packed.ignored
    assert shardkit.open(tmp_path / "out").classes == DAYS
    assert packed.notes[1:] == ["names of classes are those of class_names"]


def test_names_beside_folders_of_splits_and_idx(tmp_path: Path) -> None:
    for split in ("train", "test"):
        with_names(tmp_path / "a" / split)
    idx(tmp_path / "b" / "train-images-idx3-ubyte", IMAGES)
    idx(tmp_path / "b" / "train-labels-idx1-ubyte", LABELS.astype(np.uint8))
    for name in "ab":
        write(tmp_path / name / "classes.txt", "\n".join(DAYS))
        corpus = open_corpus(tmp_path / name)
        assert corpus.kind == "rows" and corpus.classes == DAYS
    assert open_corpus(tmp_path / "a").splits() == ["test", "train"]


LEFT_OUT = {
    "few": (DAYS[:6], "it has 6 names, and 'labels' is from 0 to 6"),
    "twice": ([*DAYS, "mo"], "it has 'mo' twice"),
    "empty": (["a", "", *DAYS], "a name in it is empty"),
}


@pytest.mark.parametrize("why", LEFT_OUT)
@pytest.mark.parametrize("ending", ["in.npz", "in", "text"])
def test_names_that_do_not_fit_are_left_out(ending: str, why: str, tmp_path: Path) -> None:
    names, said = LEFT_OUT[why]
    source = tmp_path / ending
    if ending == "text":
        write(with_names(source) / "labels.txt", "\n".join(names))
    else:
        with_names(source, classes=np.array(names))
    packed = shardkit.pack(source, tmp_path / "out", **OPTIONS)
    name = {"text": "labels.txt", "in": "classes.npy", "in.npz": "classes.npy"}[ending]
    assert packed.notes[1:] == [f"left out: {name} of {source}: {said}"]
    assert shardkit.open(tmp_path / "out").classes is None and not packed.ignored


def test_names_that_differ_are_not_chosen_from(tmp_path: Path) -> None:
    source = with_names(tmp_path / "in", class_names=np.array(DAYS))
    write(source / "classes.txt", "\n".join(DAYS[::-1]))
    corpus = open_corpus(source)
    said = "class_names.npy and classes.txt name 'labels' otherwise"
    assert corpus.classes is None and f"left out: classes.txt of {source}: {said}" in corpus.notes
    assert f"left out: class_names.npy of {source}: {said}" in corpus.notes


def test_names_without_labels_are_left_out(tmp_path: Path) -> None:
    npz(tmp_path / "x.npz", x=IMAGES, y=LABELS / 2, class_names=np.array(DAYS))
    notes = sorted(open_corpus(tmp_path / "x.npz").notes)
    assert notes.pop() == "no cls: y has no whole number for each row"
    assert notes[0].endswith("there is no column of numbers that it names")


def test_names_of_an_enumeration_come_first(tmp_path: Path) -> None:
    enumerated(tmp_path / "x.h5", {name: 6 - i for i, name in enumerate(DAYS)})
    with h5py.File(tmp_path / "x.h5", "a") as file:
        file["class_names"] = DAYS
    corpus = open_corpus(tmp_path / "x.h5")
    assert corpus.classes == DAYS[::-1]
    assert corpus.notes[1].endswith("the file itself names the numbers of 'label'")


def test_names_in_latin_1(tmp_path: Path) -> None:
    write(with_names(tmp_path / "in") / "classes.txt", "\n".join(DAYS).encode("latin-1"))
    assert open_corpus(tmp_path / "in").notes[1].endswith("it is not all UTF-8")


def test_texts_of_each_row_stay_a_column(tmp_path: Path) -> None:
    """As many as rows: the class of each in words."""
    texts = np.array([DAYS[label] for label in LABELS])
    with_names(tmp_path / "in.npz", classes=texts)
    packed = shardkit.pack(tmp_path / "in.npz", tmp_path / "out", **OPTIONS)
    assert packed.notes == ["cls is 'labels', from 0 to 6"]
    assert shardkit.open(tmp_path / "out")[8]["classes.txt"] == "tu"


def test_names_that_are_asked_for_are_a_column(tmp_path: Path) -> None:
    source = npz(tmp_path / "x.npz", images=IMAGES, class_names=np.array(DAYS))
    packed = shardkit.pack(source, tmp_path / "out", fields=["class_names"], **OPTIONS)
    assert packed.num_samples == 7


def test_names_of_other_numbers_are_kept_beside_the_data(tmp_path: Path) -> None:
    coarse = {"coarse_labels": LABELS % 2, "coarse_label_names": np.array(["odd", "even"])}
    source = with_names(tmp_path / "x.npz", label_names=np.array(DAYS), **coarse)
    packed = shardkit.pack(source, tmp_path / "out", **OPTIONS)
    kept = json.loads((tmp_path / "out" / "shardkit.json").read_text())["corpus"]["names"]
    assert kept == {"coarse_labels": {"0": "odd", "1": "even"}}
    assert shardkit.open(tmp_path / "out").classes == DAYS
    assert "names of numbers of 'coarse_labels' are in shardkit.json" in "".join(packed.notes)


def test_an_array_alone_is_as_it_was(tmp_path: Path) -> None:
    npy(tmp_path / "in" / "images.npy", IMAGES)
    npy(tmp_path / "in" / "class_names.npy", np.array(DAYS))
    assert detect(tmp_path / "in") == "arrays"
