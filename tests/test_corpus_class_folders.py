"""Folders that look like classes and are none: no sample gets a class without a word."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from conftest import picture, write

import shardkit
from shardkit.errors import CorpusError
from shardkit.inputs.odd_names import called_as_splits, role_in, splits_in
from shardkit.inputs.open import open_corpus

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
        (["data/cat", "data/dog"], [], "all of it lies in data; pack "),
        (["data/train/cat", "data/test/cat"], [], "all of it lies in data; pack "),
        (
            ["pics"],
            ["meta/labels.csv"],
            "all images lie in pics, and there are other files in meta; pack ",
        ),
        (
            ["Images/a", "Images/b"],
            ["Annotation/a/x"],
            "all images lie in Images, and there are other files in Annotation; pack ",
        ),
        (
            ["CAM_FRONT"],
            ["LIDAR_TOP/x.pcd.bin", "RADAR/x.pcd"],
            "all images lie in CAM_FRONT, and there are other files in LIDAR_TOP, RADAR; pack ",
        ),
        (["train/a", "test/a", "extra/a"], [], "called as splits, and extra are not"),
        (["train/a", "test/a"], ["meta/x.csv"], "called as splits, and meta are not"),
        (["train/a", "extra"], [], "folders train are called as splits, and extra are not"),
        (["a", "b"], ["meta/x.csv"], "meta holds files, and none of them is a sample of images"),
        (["train/a", "train/b", "val"], ["val.txt/x"], "called as splits, and val.txt are not"),
        (["val"], ["train/a/x.json"], "train/a holds files, and none of them is a sample"),
        (["train/data/a", "train/data/b", "val/data/a"], [], "all of it lies in train/data, val/d"),
        (["x/y/a", "x/y/b"], [], "all of it lies in x; pack "),
        (["x", "x/a", "x/b"], [], "all of it lies in x; pack "),
        (
            ["train", "cat"],
            [],
            "folder train is called as a split, and cat is not; if it is",
        ),
        (
            ["Final_Training/Images/0", "Final_Training/Images/1", "Final_Test/Images"],
            ["GT.csv"],
            "are called after splits, and more; if they are splits, rename Final_Test to test,",
        ),
        (
            ["bounding_box_train", "bounding_box_test", "gt_bbox", "query"],
            ["gt_query/x.mat"],
            "gt_bbox, gt_query, query are not; if they are splits, rename bounding_box_test to"
            " test, bounding_box_train to train and move gt_bbox, gt_query, query away, or pack ",
        ),
        (["trainA", "trainB", "testA", "testB"], [], "move testA to test/A and so on, or pack "),
        (
            ["X_Training_Input", "X_Training_GroundTruth", "X_Validation_Input"],
            [],
            "put the pictures of each split, and what belongs to them, side by side, as train/im",
        ),
        (
            ["D_train_HR", "D_train_LR_bicubic/X2", "D_valid_HR", "D_valid_LR_bicubic/X2"],
            [],
            "after splits, and more; if they are splits, pack .*/D_train_HR and the like apart, or",
        ),
        (["images_background/a", "images_rest/b"], [], "called as pictures or annotations are; pa"),
        (["images_png", "masks_png"], [], "rename them to images, masks and the like if files of"),
        (
            [f"{c}/{own}" for c in "ab" for own in ("train/good", "test/bad", "ground_truth/bad")],
            [],
            "ground_truth, test, train in a are called as splits, .* pack .*in/a and the like",
        ),
        (
            [f"Train/{c}/{own}" for c in ("Rural", "Urban") for own in ("images_png", "masks_png")],
            [],
            "images_png, masks_png in Train/Rural are called as .* pack .*/Train/Rural and the ",
        ),
        (
            [f"train/{c}/{own}" for c in "ab" for own in ("blur", "sharp", "blur_gamma")],
            [],
            "blur, blur_gamma, sharp in train/a are called as",
        ),
        (["chair/train", "chair/test", "desk/train"], [], "test, train in chair are called as"),
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
    assert shardkit.pack(source, tmp_path / "out", corpus="images", **OPTIONS).num_samples > 1


ORDINARY = [
    ["train", "cat", "dog", "cow"],
    ["bullet_train", "test_tube", "beer", "box", "cup", "pen"],
    [*"abcdefghij", "bullet_train", "test_tube", "mask", "comic_book", "test", "masks"],
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


def test_many_folders_are_splits_only_if_all_are_called_so() -> None:
    names = [f"{split}-{i}" for split in ("train", "dev") for i in range(20)]
    assert called_as_splits(names, "x") is not None
    assert called_as_splits([*names, "cat"], "x") is None


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
    ]


def test_pictures_of_a_list_beside_a_split_keep_their_keys(tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["cat", "train2012/cat"])
    lines = [f"{name}/{i}.jpg,{i}" for name in ("cat", "train2012/cat") for i in range(2)]
    write(source / "metadata.csv", "\n".join(["file_name,n", *lines]))
    shardkit.pack(source, tmp_path / "out", **OPTIONS)
    keys = shardkit.open(tmp_path / "out").keys()
    assert {*keys} == {"cat/0", "cat/1", "train2012/cat/0", "train2012/cat/1"}


def test_folders_without_pictures_are_no_classes_of_a_list(tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["cat", "dog"])
    write(source / "meta" / "x.csv", b"1")
    lines = [f"{name}/{i}.jpg,{i}" for name in ("cat", "dog") for i in range(2)]
    write(source / "metadata.csv", "\n".join(["file_name,n", *lines]))
    shardkit.pack(source, tmp_path / "out", **OPTIONS)
    assert shardkit.open(tmp_path / "out").classes == ["cat", "dog"]


@pytest.mark.parametrize(
    ("folders", "classes"),
    [
        (["Train2017", "val_set"], None),
        (["train/cat", "dog"], None),
        (["train", "test", "dog"], None),
        (["train", "dog"], ["dog", "train"]),
    ],
)
def test_splits_in_a_tar(folders: list[str], classes: list[str] | None, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for folder in folders:
            path = write(tmp_path / folder / "0.jpg", picture(0))
            tar.add(path, f"{folder}/0.jpg")
    made = shardkit.convert(tmp_path / "x.tar", tmp_path / "out", **OPTIONS)
    assert shardkit.open(tmp_path / "out").classes == classes
    assert any("are splits" in note for note in made.notes) == (classes is None)


def test_labels_of_a_file_make_folders_none(tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["data/a", "data/b"])
    rows = [f"data/{c}/{i}.jpg,{c}" for c in "ab" for i in range(2)]
    write(tmp_path / "labels.csv", "\n".join(["file,label", *rows]))
    shardkit.pack(source, tmp_path / "out", labels=tmp_path / "labels.csv", **OPTIONS)
    assert shardkit.open(tmp_path / "out").classes == ["a", "b"]


def test_folders_of_parts_in_a_tar_are_no_classes(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for folder in ("images", "masks"):
            path = write(tmp_path / folder / "0.jpg", picture(0))
            tar.add(path, f"{folder}/0.jpg")
    made = shardkit.convert(tmp_path / "x.tar", tmp_path / "out", **OPTIONS)
    assert shardkit.open(tmp_path / "out").classes is None
    assert any("are called as parts of samples" in note for note in made.notes)


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
