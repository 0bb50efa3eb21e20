"""Folders side by side: which are parallel, which are classes, and what becomes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import picture, tree, write
from hypothesis import given
from hypothesis import strategies as st
from layouts import MAKERS, YAML, make_yolo, pack, png, samples
from layouts import make_folder as folder

import shardkit
from shardkit.errors import CorpusError
from shardkit.inputs.annotations.parallel import (
    ParallelCorpus,
    Track,
    collect,
    fit,
    judge,
)
from shardkit.inputs.corpus import Look, Strength
from shardkit.inputs.detection import open_corpus
from shardkit.inputs.files import FolderListing

SURE, UNCLEAR, NONE = Strength.LAYOUT, Strength.FILES, None

TABLE: list[tuple[str, Strength | None, str]] = [
    # Names of folders say it, and names of files agree.
    ("images and masks", SURE, "images/0-8.jpg masks/0-8.png"),
    ("of one ending", SURE, "images/0-8.jpg masks/0-8.jpg"),
    ("of some images", SURE, "images/0-8.jpg masks/0-2.jpg"),
    ("in splits", SURE, "train/images/0-3.jpg train/masks/0-3.jpg val/images/0-1.jpg"),
    ("splits within", SURE, "images/train/0-3.jpg masks/train/0-3.jpg"),
    ("an unknown one", SURE, "images/0-3.jpg ours/0-3.jpg"),
    ("KITTI", SURE, "training/image_2/0-3.png training/label_2/0-3.txt testing/image_2/0-3.png"),
    ("one folder of images", SURE, "scans/0-3.jpg notes/0-3.txt"),
    ("frames and masks", SURE, "cam0/0-3.jpg masks/0-3.png"),
    ("unknown endings", SURE, "images/0-3.nii.gz labels/0-3.nii.gz"),
    # Class folders, whatever they share.
    ("classes", NONE, "cat/0-1.jpg dog/2-3.jpg"),
    ("numbered", NONE, "cat/0-8.jpg dog/0-8.jpg owl/0-8.jpg"),
    ("faces", NONE, "mask/0-8.jpg no_mask/0-6.jpg"),
    ("drawings", NONE, "photos/0-8.jpg drawings/0-8.jpg"),
    ("labels as a class", NONE, "labels/a.jpg caps/c.jpg"),
    ("beer", NONE, "beer/0-3.jpg beer_label/0-3.jpg"),
    ("a folder of images", NONE, "images/0-4.jpg"),
    ("other texts", NONE, "cat/0-8.jpg docs/a.txt"),
    # Neither explains the names: guards refuse the folders as classes.
    ("nothing in common", NONE, "images/0-1.jpg masks/2-3.jpg"),
    ("labels of others", NONE, "images/0-1.jpg labels/7.txt"),
    ("some in common", NONE, "images/0-5.jpg more/4-9.jpg"),
    ("masks without splits", NONE, "images/train/0-3.jpg masks/0-3.png"),
    # Both explain them.
    ("mask or not", UNCLEAR, "mask/0-8.jpg no_mask/0-8.jpg"),
    ("two endings", UNCLEAR, "cat/0-8.jpg dog/0-8.png"),
    ("hats", UNCLEAR, "hats/0-8.jpg masks/0-8.jpg"),
]


UNEXPLAINED = {"nothing in common", "labels of others", "some in common", "masks without splits"}


@pytest.mark.parametrize(("strength", "names"), [t[1:] for t in TABLE], ids=[t[0] for t in TABLE])
def test_claims(strength: Strength | None, names: str, tmp_path: Path) -> None:
    claim = ParallelCorpus.claim(Look(folder(tmp_path, names)))
    assert (claim and claim.strength) == strength


@pytest.mark.parametrize("names", [t[2] for t in TABLE if t[0] in UNEXPLAINED])
def test_what_neither_explains_is_refused(names: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="--corpus images"):
        open_corpus(folder(tmp_path, names))


def track(name: str, stems: set[str], ending: str = ".jpg") -> Track:
    listing = FolderListing(name, names=[f"{stem}{ending}" for stem in sorted(stems)])
    (made,) = collect([listing], {"train": {name: name}})
    return made


stems = st.sets(st.sampled_from("abcdefgh"), min_size=1)
NAMES = ["images", "masks", "mask", "labels", "photos", "depth", "cat", "train", "train_masks"]
endings = st.sampled_from([".jpg", ".png", ".txt", ".npy"])
tracks = st.lists(
    st.builds(track, st.sampled_from(NAMES), stems, endings),
    min_size=2,
    max_size=5,
    unique_by=lambda made: made.name,
)


@given(tracks, st.randoms())
def test_the_order_of_folders_does_not_matter(found: list[Track], rng: Any) -> None:
    assert judge(found) == judge(sorted(found, key=lambda _: rng.random()))


@given(st.lists(stems, min_size=2, max_size=9))
def test_folders_of_unknown_names_and_one_ending_are_classes(held: list[set[str]]) -> None:
    assert judge([track(f"class{i}", own) for i, own in enumerate(held)]) is None


@pytest.mark.parametrize(
    ("one", "other", "suffix", "share"),
    [
        ("a b", "a b", "", 1),
        ("a_mask b_mask", "a b c", "_mask", 1),
        ("a_x b_x", "a b", "", 0),
        ("a b a_mask b_mask", "a b", "", 1),  # else 1_mask, without an image, would be of 1
        ("a_1 b_1", "a b", "", 0),  # the first of several objects, or another image
        ("a b c_old", "a b c d", "", 2 / 3),
        ("c d", "a b", "", 0),
    ],
)
def test_fit(one: str, other: str, suffix: str, share: float) -> None:
    assert fit({*one.split()}, {*other.split()})[:2] == (pytest.approx(share), suffix)


@pytest.mark.parametrize(
    ("name", "split", "key", "fields", "note"),
    [
        ("voc", "train", "2007_000001", "annotations.xml jpg segmentationclass.png", "ImageSets/"),
        ("voc", "train", "2007_000002", "annotations.xml jpg", "Class: 4 of 8 have no file"),
        ("masks in splits", "val", "a/2", "jpg masks.png", ""),
    ],
)
def test_fields(name: str, split: str, key: str, fields: str, note: str, tmp_path: Path) -> None:
    packed = pack(MAKERS[name][1](tmp_path / "source"))
    assert " ".join(sorted(samples(packed, split)[key])) == fields
    assert note in " ".join(packed.notes)


def test_what_has_no_counterpart_is_counted(tmp_path: Path) -> None:
    source = MAKERS["parallel"][1](tmp_path / "source")
    write(source / "masks" / "lone.png", png(3))
    write(source / "images" / "list.txt", b"1.jpg")  # others leave it among images
    packed = pack(source)
    assert samples(packed)["lone"].keys() == {"masks.png"} and packed.ignored == {".txt": 1}
    assert "masks: 1 are samples without an image: lone" in packed.notes


def test_folders_that_could_all_be_the_images(tmp_path: Path) -> None:
    packed = pack(folder(tmp_path / "in", "left/0-3.png right/0-3.png"), corpus="parallel")
    assert shardkit.open(packed.dest).fields == ["left.png", "right.png"]


@pytest.mark.parametrize(
    ("names", "what"),
    [
        ("images/a.jpg masks/b.png", "no file in masks is called as one in images"),
        ("train/good/0-2.png test/good/0-2.png ground_truth/bad/0.png", "are called after splits"),
        ("training/image_2/0.png testing/image_2/0.png ImageSets/a.txt", "are called after splits"),
        ("images/0-1.png masks/0-1.png test/0-1.png", "folders test are called after splits"),
        ("train/0-3.jpg train_masks/0-3_mask.gif test/7.jpg", "are called after splits"),
        ("images/a.jpg", "no parallel folders in"),
        ("a/x/0.png b/x/0.png", "would be one field"),
    ],
)
def test_refusals(names: str, what: str, tmp_path: Path) -> None:
    source = folder(tmp_path, names)
    if what.startswith("would"):
        (source / "b").rename(source / "A")
    with pytest.raises(CorpusError, match=what) as info:
        [*ParallelCorpus(source).runs(tmp_path)]
    assert "\n" not in str(info.value)


# --- YOLO ---------------------------------------------------------------------------------


def test_labels_of_yolo(tmp_path: Path) -> None:
    source = make_yolo(tmp_path / "source")
    packed = pack(source)
    assert shardkit.open(packed.dest).classes == ["person", "dog"]
    held = samples(packed)
    assert held["000000"].keys() == {"jpg"} and held["000001"]["labels.txt"] == ""
    assert held["000002"]["labels.txt"] == "0 0.5 0.5 0.25 0.1\n"
    assert packed.ignored == {".cache": 1}
    assert shardkit.info(packed.dest).corpus["annotations"] == {"data.yaml": {"text": YAML}}
    assert packed.notes == ["labels: 2 of 8 have no file: 000000, val/000000"]
    write(source / "data.yaml", "train: train.txt\nval: 'lists/val.txt'\nnames: [a]\n")
    assert "(train.txt, lists/val.txt) are not read" in pack(source, "third").notes[-1]
    (source / "data.yaml").unlink()
    write(source / "labels" / "classes.txt", "cat\nowl\n")
    other = pack(source, "other")
    assert (shardkit.open(other.dest).classes, other.ignored) == (["cat", "owl"], {".cache": 1})
    assert "labels/classes.txt" in {*tree(source)} - {*tree(other.dest)}


@pytest.mark.parametrize(
    ("name", "text", "names"),
    [
        ("data.yaml", "nc: 2\nnames: ['a', 'b']\n", ["a", "b"]),
        ("coco.yml", "names:\n  1: b\n  0: a\n", ["a", "b"]),
        ("classes.txt", "a\r\nb\r\n\r\n", ["a", "b"]),
        ("data.yaml", "nc: 2\n", None),
        ("other.txt", "a\n", None),
    ],
)
def test_names_of_classes(name: str, text: str, names: list[str] | None, tmp_path: Path) -> None:
    write(folder(tmp_path, "images/0.jpg labels/0.txt") / name, text)
    assert ParallelCorpus(tmp_path).classes == names


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)
"""A kilobyte of YAML that stands for 9**10 texts."""


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"data.yaml": "names: {0: a, 2: b}"}, "the name of class 1 is"),
        ({"data.yaml": "names: [a"}, "cannot be read for names of classes: while parsing"),
        ({"data.yaml": "names: 7"}, "'names' is no list"),
        ({"data.yaml": "names: [yes, cat]"}, "the name of class 0 is True, which is no text"),
        ({"classes.txt": "cat\n\ndog\n"}, "the name of class 1 is '', which is no text"),
        ({"data.yaml": BOMB + "names: *j"}, "has aliases"),
        ({"data.yaml": "names: " + "[" * 5_000 + "]" * 5_000}, "maximum recursion"),
        ({"data.yaml": "names: [a]", "classes.txt": "b\n"}, "have other names of classes"),
        ({"classes.txt": b"\xff"}, "cannot be read for names of classes"),
    ],
)
def test_names_of_classes_that_are_refused(
    files: dict[str, str | bytes], what: str, tmp_path: Path
) -> None:
    folder(tmp_path, "images/0.jpg labels/0.txt")
    for name, data in files.items():
        write(tmp_path / name, data)
    with pytest.raises(CorpusError, match=what) as info:
        ParallelCorpus(tmp_path)
    assert "\n" not in str(info.value)


def test_a_split_without_folders_is_named(tmp_path: Path) -> None:
    """As of ISBI's cells, whose test images have no masks."""
    for name in ("train/image", "train/label", "test"):
        for i in range(2):
            write(tmp_path / "in" / name / f"{i}.png", picture(i, kind="PNG"))
    made = shardkit.pack(tmp_path / "in", tmp_path / "out", to="npy", workers=0, progress=False)
    assert made.splits == {"train": 2}
    assert "nothing is packed of test: no folders lie in it" in made.notes
