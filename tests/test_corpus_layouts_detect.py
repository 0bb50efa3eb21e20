"""Which layouts of pictures with annotations a folder is taken for, and which are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import write
from hypothesis import given
from hypothesis import strategies as st
from layouts import MAKERS, coco
from test_corpus_files import JPG, PNG

from shardkit.errors import CorpusError
from shardkit.inputs.annotations.companions import group_names
from shardkit.inputs.annotations.layouts import CompanionCount, judge_companions
from shardkit.inputs.annotations.siblings import judge_siblings
from shardkit.inputs.annotations.stem_fit import fit, shared_suffixes
from shardkit.inputs.annotations.tracks import TrackLook
from shardkit.inputs.detect import detect
from shardkit.inputs.open import open_corpus
from shardkit.inputs.roles import role_of, split_tracks


def folder(root: Path, names: list[str]) -> Path:
    for name in names:
        write(root / name, PNG if name.lower().endswith("png") else JPG)
    return root


def many(base: str, stems: range | list[str], ending: str = ".jpg") -> list[str]:
    return [f"{base}/{stem}{ending}" for stem in stems]


UNCLEAR = "unclear"

TABLE: list[tuple[str, str, list[str]]] = [
    # Names of folders say it, and names of files agree.
    ("images and masks", "parallel", many("images", range(9)) + many("masks", range(9), ".png")),
    ("of one ending", "parallel", many("images", range(9)) + many("masks", range(9))),
    ("of some pictures", "parallel", many("images", range(9)) + many("masks", range(3))),
    ("in splits", "parallel", many("train/images", range(4)) + many("train/masks", range(4))),
    ("splits within", "parallel", many("images/train", range(4)) + many("masks/train", range(4))),
    ("singular", "parallel", many("img", range(4)) + many("label", range(4), ".png")),
    ("an unknown one", "parallel", many("images", range(4)) + many("ours", range(4))),
    (
        "train_masks",
        "parallel",
        many("train", range(4)) + many("train_masks", range(4), "_mask.gif"),
    ),
    (
        "train, train_masks and test",
        "parallel",
        many("train", range(4)) + many("train_masks", range(4), "_mask.gif") + many("test", "xy"),
    ),
    (
        "train_images and val_labels",
        "parallel",
        many("train_images", range(4))
        + many("train_labels", range(4), ".png")
        + many("val_images", range(4))
        + many("val_labels", range(4), ".png"),
    ),
    (
        "training and validation",
        "parallel",
        many("images/training", range(4))
        + many("annotations/training", range(4), ".png")
        + many("images/validation", range(3))
        + many("annotations/validation", range(3), ".png"),
    ),
    (
        "Cityscapes",
        "parallel",
        many("leftImg8bit/train/a", range(4), "_leftImg8bit.png")
        + many("gtFine/train/a", range(4), "_gtFine_color.png")
        + many("gtFine/train/a", range(4), "_gtFine_labelIds.png")
        + many("gtFine/train/a", range(4), "_gtFine_polygons.json"),
    ),
    (
        "names that end in the folder's",
        "parallel",
        many("rgb", range(4), "_rgb.png") + many("depth", range(4), "_depth.png"),
    ),
    ("KITTI", "parallel", many("image_2", range(4)) + many("label_2", range(4), ".txt")),
    (
        "one folder of pictures",
        "parallel",
        many("scans", range(4)) + many("notes", range(4), ".txt"),
    ),
    ("frames and masks", "parallel", many("cam0", range(4)) + many("masks", range(4), ".png")),
    ("arrays", "parallel", many("images", range(4), ".npy") + many("masks", range(4), ".npy")),
    # Class folders, whatever they share.
    ("classes", "images", many("cat", ["a", "b"]) + many("dog", ["c", "d"])),
    ("numbered", "images", many("cat", range(9)) + many("dog", range(9))),
    ("ten numbered", "images", [n for k in range(10) for n in many(f"class{k}", range(5))]),
    ("numbered, unequal", "images", many("cat", range(9)) + many("dog", range(4))),
    ("numbered, mixed", "images", many("cat", range(9)) + many("dog", range(9)) + ["dog/9.png"]),
    ("faces", "images", many("with_mask", range(9)) + many("without_mask", range(9))),
    ("faces, unequal", "images", many("mask", range(9)) + many("no_mask", range(7))),
    ("drawings", "images", many("photos", range(9)) + many("drawings", range(9))),
    ("labels as a class", "images", many("labels", ["a", "b"]) + many("caps", ["c", "d"])),
    ("beer", "images", many("beer", range(4)) + many("beer_label", range(4))),
    ("classes in splits", "images", many("train/cat", range(3)) + many("train/dog", range(3))),
    ("many classes", "images", [n for k in range(30) for n in many(f"{k}", range(2))]),
    ("a folder of images", "images", many("images", range(5))),
    ("stray texts", "images", [*many("cat", range(200)), *many("docs", range(2), ".txt")]),
    # Neither explains the names, or both do.
    ("nothing in common", UNCLEAR, many("images", ["a", "b"]) + many("masks", ["c", "d"])),
    ("labels of others", UNCLEAR, many("images", ["a", "b"]) + many("labels", ["c"], ".txt")),
    ("some in common", UNCLEAR, many("images", range(9)) + many("more", range(7, 20))),
    ("mask or not", UNCLEAR, many("mask", range(9)) + many("no_mask", range(9))),
    ("two endings", UNCLEAR, many("cat", range(9)) + many("dog", range(9), ".png")),
    ("two of pictures", UNCLEAR, many("images", range(4)) + many("imgs", range(4))),
    ("hats", UNCLEAR, many("hats", range(9)) + many("masks", range(9))),
    (
        "masks without splits",
        UNCLEAR,
        many("images/train", range(4)) + many("masks", range(4), ".png"),
    ),
    # Companions in one folder.
    ("x_mask", "companions", ["a.jpg", "a_mask.png", "b.jpg", "b_mask.png"]),
    ("x.mask", "companions", ["a.jpg", "a.mask.png"]),
    ("x.png beside x.jpg", "companions", ["a.jpg", "a.png", "b.jpg", "b.png", "c.jpg"]),
    ("in class folders", "companions", many("cat", ["a", "a_mask"]) + many("dog", ["b", "b_mask"])),
    ("with texts", "companions", ["a.jpg", "a.txt", "a_mask.png"]),
    ("texts and x.mask", "paired", ["a.jpg", "a.mask.png", "a.txt"]),
    ("texts and x.png", "paired", ["a.jpg", "a.png", "a.txt"]),
    ("some by chance", "images", ["1.jpg", "2.jpg", "3.jpg", "2.png", "4.png", "5.png"]),
    ("half by chance", UNCLEAR, ["1.jpg", "2.jpg", "3.jpg", "2.png", "3.png", "5.png"]),
    ("a few", UNCLEAR, [*many("k", range(50)), "k/7_mask.jpg"]),
]
"""Name, verdict, files."""


@pytest.mark.parametrize(("verdict", "names"), [t[1:] for t in TABLE], ids=[t[0] for t in TABLE])
def test_table(verdict: str, names: list[str], tmp_path: Path) -> None:
    folder(tmp_path, names)
    if verdict != UNCLEAR:
        assert detect(tmp_path) == verdict
        return
    with pytest.raises(CorpusError, match=r"may be read in two ways: ") as info:
        detect(tmp_path)
    text = str(info.value)
    assert "--corpus images" in text and "\n" not in text
    assert "--corpus parallel" in text or "--corpus companions" in text


@pytest.mark.parametrize("name", MAKERS)
def test_each_layout_is_known_by_name(name: str, tmp_path: Path) -> None:
    kind, make = MAKERS[name]
    assert detect(make(tmp_path)) == kind


def test_two_layouts_at_once_are_refused(tmp_path: Path) -> None:
    source = MAKERS["yolo"][1](tmp_path)
    names = [f"{i:06d}.jpg" for i in range(5)]
    write(source / "annotations" / "instances_train.json", json.dumps(coco(names)))
    with pytest.raises(CorpusError) as info:
        detect(source)
    assert str(info.value) == (
        f"{source} may be read in several ways: as pictures with annotations as in"
        " annotations/instances_train.json (--corpus coco), or pictures with labels as YOLO's"
        " (--corpus yolo)"
    )


def test_a_layout_in_a_folder_of_its_own(tmp_path: Path) -> None:
    inner = MAKERS["parallel"][1](tmp_path / "data" / "set")
    with pytest.raises(
        CorpusError, match=r"holds nothing but set, in which there are parallel"
    ) as info:
        detect(tmp_path)
    assert str(info.value).endswith(f": pack {inner}")


def test_parallel_folders_within_classes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder(tmp_path, many(f"{name}/images", ["x"]) + many(f"{name}/masks", ["1", "2"]))
    with pytest.raises(
        CorpusError, match="images and masks in one are parallel folders, which are"
    ):
        detect(tmp_path)


def test_a_folder_beside_splits_of_parallel_folders(tmp_path: Path) -> None:
    """KITTI's, with the lists of others beside its splits."""
    for split in ("training", "testing"):
        folder(tmp_path, many(f"{split}/image_2", range(4), ".png"))
    folder(tmp_path, many("training/label_2", range(4), ".txt"))
    assert detect(tmp_path) == "parallel"
    folder(tmp_path, ["ImageSets/train.txt"])
    with pytest.raises(CorpusError) as info:
        detect(tmp_path)
    assert f"move ImageSets away, or pack {tmp_path / 'training'} and the like" in str(info.value)
    with pytest.raises(CorpusError, match="image_2 and training/label_2 are parallel folders with"):
        [*open_corpus(tmp_path, "parallel").runs(tmp_path)]


def test_names_that_end_as_their_split_does(tmp_path: Path) -> None:
    """DRIVE: 21_training.tif beside 21_manual1.gif, and 01_test.tif beside 01_manual1.gif."""
    for split, numbers in (("training", range(21, 25)), ("test", range(11, 15))):
        stems = {"images": split, "1st_manual": "manual1", "mask": f"{split}_mask"}
        for name, suffix in stems.items():
            folder(tmp_path / "in", many(f"{split}/{name}", [f"{i}_{suffix}" for i in numbers]))
    with pytest.raises(CorpusError, match=r"in each split for itself they are.* folder of each"):
        [*open_corpus(tmp_path / "in", "parallel").runs(tmp_path)]
    for split in ("training", "test"):
        runs = open_corpus(tmp_path / "in" / split, "parallel").runs(tmp_path)
        assert sum(len(run) for run in runs) == 4


def test_parallel_is_offered_where_folders_are_no_classes(tmp_path: Path) -> None:
    """Sintel: flow of one name with the pictures, in the training split alone."""
    names = ("training/clean/alley", "training/final/alley", "training/occlusions/alley")
    for name in (*names, "test/clean/cave", "test/final/cave"):
        folder(tmp_path, many(name, range(3), ".png"))
    folder(tmp_path, many("training/flow/alley", range(3), ".flo"))
    with pytest.raises(CorpusError, match=r"flow holds files.*, or --corpus parallel, since"):
        open_corpus(tmp_path)
    assert sum(len(run) for run in open_corpus(tmp_path, "parallel").runs(tmp_path)) == 6


def test_several_masks_of_a_picture_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """The Data Science Bowl of 2018: packing each folder apart would make a dataset a picture."""
    for name in ("a", "b"):
        folder(tmp_path, [f"train/{name}/images/{name}.png"])
        folder(tmp_path, many(f"train/{name}/masks", [f"{name}{i}" for i in range(3)], ".png"))
    with pytest.raises(CorpusError, match=r"make one of them.*into images/ and masks/ at the"):
        detect(tmp_path)


def test_pictures_of_two_splits_are_no_sample(tmp_path: Path) -> None:
    """MVTec AD, category by category: good/000 of train and of test are two pictures."""
    bottle = folder(tmp_path / "bottle", many("train/good", range(3), ".png"))
    folder(bottle, many("test/good", range(3), ".png") + many("test/bad", range(2), ".png"))
    folder(bottle, many("ground_truth/bad", ["0_mask", "1_mask"], ".png"))
    for kind in (None, "parallel"):
        with pytest.raises(CorpusError, match="test, train are called after splits") as info:
            [*open_corpus(bottle, kind).runs(tmp_path)]
        assert "move what lies in test to test/images, and what ground_truth" in str(info.value)
    for split in ("train", "test"):
        (bottle / split).rename(tmp_path / split)
        (bottle / split).mkdir()
        (tmp_path / split).rename(bottle / split / "images")
    (bottle / "ground_truth").rename(bottle / "test" / "masks")
    assert detect(bottle) == "parallel"
    assert sum(len(run) for run in open_corpus(bottle).runs(tmp_path)) == 8


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metadata.csv", "id,text\n1,a\n"),
        ("metadata.jsonl", '{"file_name": "gone.jpg"}\n'),
        ("captions.txt", "what this is about\n"),
        ("annotations.json", '{"info": "of another kind"}'),
        ("annotations.json", '[{"images": []}]'),
        ("data.yaml", "names: [a]\n"),
    ],
)
def test_files_called_so_that_are_something_else(name: str, text: str, tmp_path: Path) -> None:
    folder(tmp_path, many("cat", range(200)) + many("dog", range(100)))
    write(tmp_path / name, text)
    assert detect(tmp_path) == "images"


def test_lines_without_pictures_stay_lines(tmp_path: Path) -> None:
    write(tmp_path / "metadata.jsonl", '{"file_name": "0.jpg", "text": "x"}\n' * 3)
    assert detect(tmp_path) == "jsonl"


def test_more_folders_than_are_looked_into(tmp_path: Path) -> None:
    """Forty folders: only where pictures and annotations are both named."""
    names = [n for k in range(40) for n in many(f"{k}", ["x"])]
    assert detect(folder(tmp_path, names + many("images", ["x"]))) == "images"
    with pytest.raises(CorpusError, match="--corpus parallel"):
        detect(folder(tmp_path, many("masks", ["y"])))


# --- the rule -----------------------------------------------------------------------------


def look(name: str, stems: set[str], ending: str = ".jpg") -> TrackLook:
    made = TrackLook(name)
    made.add("train", "", [f"{stem}{ending}" for stem in stems])
    return made


stems = st.sets(st.sampled_from("abcdefgh"), min_size=1)
NAMES = "images masks mask labels rgb photos depth cat dog train train_masks"
names = st.sampled_from(NAMES.split())
endings = st.sampled_from([".jpg", ".png", ".txt", ".npy"])
looks = st.lists(st.builds(look, names, stems, endings), max_size=5, unique_by=lambda x: x.name)


@given(looks, st.randoms())
def test_the_order_of_folders_does_not_matter(found: list[TrackLook], rng: object) -> None:
    other = sorted(found, key=lambda _: rng.random())  # type: ignore[attr-defined]
    one, two = judge_siblings(found), judge_siblings(other)
    assert (one and one.what) == (two and two.what)


@given(st.lists(stems, min_size=2, max_size=9))
def test_folders_of_unknown_names_and_one_ending_are_classes(held: list[set[str]]) -> None:
    found = [look(f"class{i}", own) for i, own in enumerate(held)]
    verdict = judge_siblings(found)
    assert verdict is not None and verdict.what == "classes"


@given(stems, st.sampled_from(["masks", "labels", "mask", "depth", "segmentation"]), endings)
def test_images_and_annotations_are_never_classes(held: set[str], name: str, ending: str) -> None:
    for other in (held, {"x", "y"}, {*held, "x"}):
        verdict = judge_siblings([look("images", held), look(name, other, ending)])
        assert verdict is None or verdict.what != "classes"
    same = judge_siblings([look("images", held), look(name, held, ending)])
    assert same is not None and same.what == "parallel"


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("images", "pictures"),
        ("JPEGImages", "pictures"),
        ("image_2", "pictures"),
        ("photos", "maybe pictures"),
        ("SegmentationClass", "annotations"),
        ("ground truth", "annotations"),
        ("mask", "maybe annotations"),
        ("with_mask", ""),
        ("cat", ""),
        ("train", ""),
    ],
)
def test_roles(name: str, role: str) -> None:
    assert role_of(name) == role
    assert role_of("train_masks", ["train", "train_masks"]) == "annotations"
    assert role_of("train", ["train", "train_masks"]) == "pictures"
    assert role_of("beer_label", ["beer", "beer_label"]) == ""


def test_suffixes() -> None:
    assert shared_suffixes({"train//a_1_mask", "train//b_2_mask"}) == ["_mask"]
    assert shared_suffixes({"train//a_1", "train//b_1"}) == []
    assert shared_suffixes({"train//a.gt_mask"}) == ["_mask", ".gt_mask"]


@pytest.mark.parametrize(
    ("one", "other", "suffixes", "own", "share"),
    [
        ("a b", "a b", (), "", 1),
        ("a_mask b_mask", "a b", ("_mask",), "", 1),
        ("a_mask", "a b c", ("_mask",), "", 1),
        ("a_x b_x a_y b_y", "a b", ("_x", "_y"), "", 1),
        ("a b a_x b_x", "a b", ("_x",), "", 1),
        ("a_depth b_depth", "a_rgb b_rgb", ("_depth",), "_rgb", 1),
        ("a_1 b_1", "a b", (), "", 0),  # the first of several objects, or another picture
        ("a b c_old", "a b c d", (), "", 2 / 3),  # an odd one says nothing of the others
        ("a a_x a_x_x", "a a_x", (), "", 1),  # may be a's or a_x's
        ("c d", "a b", (), "", 0),
    ],
)
def test_fit(one: str, other: str, suffixes: tuple[str, ...], own: str, share: float) -> None:
    found = fit(look("one", {*one.split()}), look("other", {*other.split()}))
    assert (found.suffixes, found.own_suffix, found.share) == (suffixes, own, pytest.approx(share))


@pytest.mark.parametrize(
    ("names", "tree"),
    [
        (
            ["train", "train_masks", "test"],
            {"train": {"images": "train", "masks": "train_masks"}, "test": {"images": "test"}},
        ),
        (["masks-val", "val"], {"val": {"images": "val", "masks": "masks-val"}}),
        (["train", "train_images", "train_masks"], None),
        (["train", "val", "test"], None),
        (["train_images", "test_images"], None),
        (["train", "train_masks", "other"], None),
        (["train_masks"], None),
    ],
)
def test_splits_in_names(names: list[str], tree: object) -> None:
    assert split_tracks(names) == tree


# --- companions ---------------------------------------------------------------------------


def test_grouping() -> None:
    given_names = ["a.jpg", "a.json", "a_mask.png", "a_mask_2.png", "b.jpg", "b.png", "b.x.txt"]
    given_names += ["c.tif", "c.png", "d_mask.png", "notes.txt"]
    grouped = group_names(sorted(given_names))
    assert grouped.samples == {
        "a.jpg": [("", "a.json"), ("mask", "a_mask.png"), ("mask_2", "a_mask_2.png")],
        "b.jpg": [("mask", "b.png"), ("x", "b.x.txt")],
        "c.png": [],
        "c.tif": [],
        "d_mask.png": [],
    }
    assert grouped.passed == ["notes.txt"]
    assert (grouped.num_suffixed, grouped.num_dotted, grouped.num_twins) == (2, 0, 1)


def test_a_mask_of_two_pictures_is_refused() -> None:
    with pytest.raises(CorpusError, match=r"a_mask.png may belong to a.jpeg or to a.jpg"):
        group_names(["a.jpeg", "a.jpg", "a_mask.png"])
    assert len(group_names(["a.jpeg", "a.jpg"]).samples) == 2


file_names = st.lists(
    st.builds(
        lambda stem, ending: stem + ending,
        st.sampled_from(["a", "b", "a_mask", "a.mask", "a_mask_mask", "b-seg_1", "a.b", "readme"]),
        st.sampled_from([".jpg", ".png", ".txt", ".npy", ".gif", "", ".x y", ".jpeg"]),
    ),
    unique=True,
)


@given(file_names)
def test_each_file_is_in_one_group(found: list[str]) -> None:
    try:
        grouped = group_names(sorted(found))
    except CorpusError:
        return
    held = [*grouped.samples, *grouped.passed]
    held += [name for own in grouped.samples.values() for _, name in own]
    assert sorted(held) == sorted(found)


@pytest.mark.parametrize(
    ("count", "is_paired", "verdict"),
    [
        (CompanionCount(100, 0, 0, 0, 0), False, None),
        (CompanionCount(100, 50, 0, 0, 50), False, "parallel"),
        (CompanionCount(100, 9, 0, 0, 0), False, "unclear"),
        (CompanionCount(100, 0, 100, 0, 0), True, None),
        (CompanionCount(100, 0, 0, 60, 0), False, "parallel"),
        (CompanionCount(100, 0, 0, 60, 0), True, None),
        (CompanionCount(100, 0, 0, 30, 20), False, "unclear"),
        (CompanionCount(100, 0, 0, 3, 20), False, None),
    ],
)
def test_judging_companions(count: CompanionCount, is_paired: bool, verdict: str | None) -> None:
    found = judge_companions(count, is_paired)
    assert (found and found.what) == verdict
