"""Folders that look like classes and are none: no sample gets a class without a word."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from conftest import picture, write

import shardkit
from shardkit.errors import CorpusError
from shardkit.inputs.detection import open_corpus
from shardkit.inputs.guards import doubt_names, role_in, splits_in

OPTIONS = {"to": "npy", "workers": 0, "progress": False}


def pictures(root: Path, folders: list[str]) -> Path:
    for folder in folders:
        for i in range(2):
            write(root / folder / f"{i}.jpg", picture(i))
    return root


def classes_and_splits(source: Path, dest: Path) -> tuple[list[str] | None, list[str]]:
    packed = shardkit.pack(source, dest, **OPTIONS)
    return shardkit.open(dest, split="train").classes, [*packed.splits]


@pytest.mark.parametrize(
    "names",
    [
        ("train2017", "val2017"),
        ("Train", "Val"),
        ("TRAIN", "val"),
        ("training", "Val"),
        ("train_set", "val_set"),
        ("train-2012", "val-2012"),
    ],
)
def test_splits_of_other_spelling_are_splits(names: tuple[str, str], tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", [f"{name}/{c}" for name in names for c in ("cat", "dog")])
    assert classes_and_splits(source, tmp_path / "out") == (["cat", "dog"], ["train", "val"])
    keys = shardkit.open(tmp_path / "out", split="val").keys()
    assert {*keys} == {"cat/0", "cat/1", "dog/0", "dog/1"}


def test_two_folders_of_one_split_keep_their_names(tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["train2014/cat", "train2017/cat"])
    packed = shardkit.pack(source, tmp_path / "out", **OPTIONS)
    assert [*packed.splits] == ["train2014", "train2017"]


@pytest.mark.parametrize(
    ("folders", "others", "said"),
    [
        (["data/cat", "data/dog"], [], "all images lie in data; pack "),
        (["data/train/cat", "data/test/cat"], [], "all images lie in data; pack "),
        (["x", "x/a", "x/b"], [], "all images lie in x; pack "),
        (["train/data/a", "train/data/b", "val/data/a"], [], "all images lie in train/data, val/"),
        (["pics"], ["meta/l.csv"], "all images lie in pics, and there are other files in meta; pa"),
        (["CAM"], ["LIDAR/x.bin", "RADAR/x.pcd"], "there are other files in LIDAR, RADAR; pack "),
        (["a", "b"], ["meta/x.csv"], "meta holds files, and none of them is a sample of images"),
        (["val"], ["train/a/x.json"], "train/a holds files, and none of them is a sample"),
        (["train/a", "test/a", "extra/a"], [], "are named as splits, and extra are not"),
        (["train/a", "test/a"], ["meta/x.csv"], "are named as splits, and meta are not"),
        (["train/a", "extra"], [], "folders train are named as splits, and extra are not"),
        (["train", "cat"], [], "folders train are named as splits, and cat are not"),
        (["train/a", "train/b", "val"], ["val.txt/x"], "named as splits, and val.txt are not"),
        (["Final_Training/a", "Final_Test/a"], [], "Final_Test, Final_Training are named after sp"),
        (["box_train", "box_test", "gt_box", "query"], [], "box_test, box_train are named after s"),
        (["trainA", "trainB", "testA", "testB"], [], "are named after splits; rename folders of"),
        (["D_train_HR", "D_train_LR/X2", "D_valid_HR", "D_valid_LR/X2"], [], "named after splits"),
        (["images_background/a", "images_rest/b"], [], "are named as images or annotations are"),
        (["images_png", "masks_png"], [], "images_png, masks_png are named as images or annotat"),
        (["cat", "dog", "masks"], [], "masks would be a class, and is named as annotations are"),
        (["cat", "dog", "images"], [], "images would be a class, and is named as any folder of"),
        (["train/cat", "train/labels", "val/cat", "val/dog"], [], "labels would be a class, and"),
        ([f"{c}/{own}" for c in "ab" for own in ("train", "test")], [], "test, train in a are nam"),
        ([f"{c}/{own}_png" for c in "ab" for own in ("images", "masks")], [], "in a are named as "),
    ],
)
def test_what_is_hardly_a_class_is_refused(
    folders: list[str], others: list[str], said: str, tmp_path: Path
) -> None:
    source = pictures(tmp_path / "in", folders)
    for name in others:
        write(source / name, b"1")
    with pytest.raises(CorpusError, match=said) as caught:
        shardkit.pack(source, tmp_path / "out", **OPTIONS)
    assert "choose --corpus images" in str(caught.value) and "\n" not in str(caught.value)
    made = shardkit.pack(source, tmp_path / "out", corpus="images", **OPTIONS)
    assert made.num_samples > 1
    assert any("may be no classes" in note for note in made.notes)


ORDINARY = [
    ["train", "cat", "dog", "cow"],
    ["bullet_train", "test_tube", "beer", "box", "cup", "pen"],
    [*"abcdefghij", "bullet_train", "test_tube", "mask", "comic_book", "test"],
    ["with_mask", "without_mask"],
    ["cat_images", "dog_images"],
    ["photos", "drawings"],
    ["n01/images", "n02/images"],
    ["cat/old", "cat/new", "dog/old"],
    ["hats/straw", "shoes/flat", "glasses/masks"],
]
"""Classes, some of which are called after splits or parts of samples."""


@pytest.mark.parametrize(
    "folders",
    [["cat"], ["cat", "dog"], ["cat/a/b", "dog"], ["cat/a"], ["."], *ORDINARY],
)
def test_class_folders_are_what_they_were(folders: list[str], tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", folders)
    (source / "empty").mkdir()  # torchvision's rule: a class, too
    if folders == ["."]:
        (source / "empty").rmdir()
    found = open_corpus(source)
    expected = {folder.partition("/")[0] for folder in folders} | {"empty"}
    assert found.classes == (None if folders == ["."] else sorted(expected))


@pytest.mark.parametrize(
    ("name", "splits", "role"),
    [
        ("bounding_box_train", {"train"}, ""),
        ("trainA", {"train"}, ""),
        ("Final_Training", {"train"}, ""),
        ("FSD50K.dev_audio", {"dev"}, ""),
        ("train2017", {"train"}, ""),
        ("trainer", set(), ""),
        ("contest", set(), ""),
        ("masks_png", set(), "annotations"),
        ("ISIC2018_Task1_Training_GroundTruth", {"train"}, "annotations"),
        ("DIV2K_valid_HR", {"valid"}, "maybe annotations"),
        ("images_background", set(), "pictures"),
        ("gt_bbox", set(), "annotations"),
        ("comic_book", set(), ""),
        ("\u732b", set(), ""),
        ("", set(), ""),
    ],
)
def test_words_within_names(name: str, splits: set[str], role: str) -> None:
    assert (splits_in(name), role_in(name)) == (splits, role)


def test_many_folders_are_splits_only_if_all_are_named_so() -> None:
    names = [f"{split}-{i}" for split in ("train", "dev") for i in range(20)]
    assert doubt_names(names)
    assert not doubt_names([*names, "cat"])


def test_companions_have_no_odd_classes_either(tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["cat", "dog"])
    for name in ("cat", "dog"):
        for i in range(2):
            write(source / name / f"{i}_mask.png", picture(i))
    packed = shardkit.pack(source, tmp_path / "out", **OPTIONS)
    assert packed.kind == "companions"
    assert packed.notes == ["cls is of 2 classes, the folders: cat, dog"]
    write(source / "meta" / "x.csv", b"1")
    with pytest.raises(CorpusError, match=r"meta holds files.* choose --corpus companions"):
        open_corpus(source)
    given = shardkit.pack(source, tmp_path / "given", corpus="companions", **OPTIONS)
    assert given.notes == [
        "cls is of 3 classes, the folders: cat, dog, meta",
        "the folders may be no classes: meta holds files, and none of them is a sample of"
        " companions; if so, move it away",
        "1 files about samples, not of one, passed over: meta/x.csv",
    ]


def test_pictures_of_a_list_beside_a_split_keep_their_keys(tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["cat", "train2012/cat"])
    lines = [f"{name}/{i}.jpg,{i}" for name in ("cat", "train2012/cat") for i in range(2)]
    write(source / "metadata.csv", "\n".join(["file_name,n", *lines]))
    shardkit.pack(source, tmp_path / "out", **OPTIONS)
    keys = shardkit.open(tmp_path / "out").keys()
    assert {*keys} == {"cat/0", "cat/1", "train2012/cat/0", "train2012/cat/1"}


@pytest.mark.parametrize(
    ("folders", "note"),
    [
        (["Train2017", "val_set"], "are no splits"),
        (["train", "dog"], "are no splits"),
        (["dog", "cat", "cow"], "no cls: folders in the tars"),
        (["images", "masks"], "no cls: folders in the tars"),
    ],
)
def test_folders_in_a_tar_are_named(folders: list[str], note: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for folder in folders:
            path = write(tmp_path / folder / "0.jpg", picture(0))
            tar.add(path, f"{folder}/0.jpg")
    made = shardkit.convert(tmp_path / "x.tar", tmp_path / "out", **OPTIONS)
    assert shardkit.open(tmp_path / "out").classes is None
    assert any(note in line for line in made.notes)


def test_labels_of_a_file_make_folders_none(tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["data/a", "data/b"])
    rows = [f"data/{c}/{i}.jpg,{c}" for c in "ab" for i in range(2)]
    write(tmp_path / "labels.csv", "\n".join(["file,label", *rows]))
    shardkit.pack(source, tmp_path / "out", labels=tmp_path / "labels.csv", **OPTIONS)
    assert shardkit.open(tmp_path / "out").classes == ["a", "b"]


def test_other_names_of_classes_are_a_difference(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for i in range(3):
        write(source / "images" / f"{i}.jpg", picture(i))
        write(source / "labels" / f"{i}.txt", "0 .5 .5 .1 .1\n")
    write(source / "classes.txt", "cat\n")
    shardkit.pack(source, tmp_path / "out", **OPTIONS)
    assert shardkit.verify(tmp_path / "out", against=source).ok
    write(source / "classes.txt", "cow\n")
    assert not shardkit.verify(tmp_path / "out", against=source).ok
