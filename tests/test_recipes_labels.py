"""The recipes of docs/recipes/labels.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import picture, write

import shardkit

PAGE = Path(__file__).parents[1] / "docs" / "recipes" / "labels.md"
OPTIONS = {"to": "npy", "workers": 0, "progress": False}


def run_recipe(title: str) -> str:
    """Run the code of a section of the page, and return the section."""
    (section,) = re.findall(
        rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S
    )
    (code,) = re.findall(r"```python\n(.*?)```", section, re.S)
    exec(compile(code, title, "exec"), {"__name__": "recipe"})
    return section


def labels_of(title: str, tmp_path: Path) -> dict[str, str]:
    found = re.search(r"`shardkit pack (\S+) --to lmdb --labels (\S+)`", run_recipe(title))
    assert found
    shardkit.pack(found[1], tmp_path / "out", labels=found[2], **OPTIONS)
    ds = shardkit.open(tmp_path / "out")
    names = ds.classes or [str(i) for i in range(9)]
    return {key: names[i] for key, i in zip(ds.keys(), ds.column("cls").tolist(), strict=True)}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def pictures(*names: str) -> None:
    for i, name in enumerate(names):
        write(Path(name), picture(i))


def test_blanks(tmp_path: Path) -> None:
    pictures("data/images/1.jpg", "data/images/2.jpg")
    write(Path("data/images_family_train.txt"), "1 Boeing 707\n2 A300\n")
    found = labels_of("A label of several words, or columns separated by blanks", tmp_path)
    assert found == {"1": "Boeing 707", "2": "A300"}


def test_json(tmp_path: Path) -> None:
    pictures("images/1.jpg", "images/2.jpg")
    write(Path("labels.json"), '{"1.jpg": "cat", "2": "dog"}')
    assert labels_of("JSON of `{path: label}`", tmp_path) == {"1": "cat", "2": "dog"}


def test_celeba(tmp_path: Path) -> None:
    pictures("celeba/img_align_celeba/1.jpg", "celeba/img_align_celeba/2.jpg")
    write(Path("celeba/list_attr_celeba.txt"), "2\nSmiling Male\n1.jpg -1  1\n2.jpg  1 0\n")
    assert labels_of("CelebA's attributes", tmp_path) == {"1": "1", "2": "0"}


def test_one_hot(tmp_path: Path) -> None:
    folder = "ISIC2018_Task3_Training_Input"
    pictures(f"{folder}/I1.jpg", f"{folder}/I2.jpg")
    write(Path("ISIC2018_Task3_Training_GroundTruth.csv"), "image,MEL,NV\nI1,0.0,1.0\nI2,1.0,0.0\n")
    assert labels_of("One column per class, as ISIC 2018", tmp_path) == {"I1": "NV", "I2": "MEL"}


def test_nested(tmp_path: Path) -> None:
    pictures("data_256/a/abbey/1.jpg", "data_256/a/apse/in/1.jpg", "data_256/b/bar/1.jpg")
    found = labels_of("Classes in folders within folders, as Places365", tmp_path)
    assert found == {"a/abbey/1": "a/abbey", "a/apse/in/1": "a/apse/in", "b/bar/1": "b/bar"}


def test_lists_of_splits(tmp_path: Path) -> None:
    pictures(*(f"food-101/images/{name}.jpg" for name in ("pie/1", "pie/2", "tea/3")))
    write(Path("food-101/meta/train.txt"), "pie/1\ntea/3\n")
    write(Path("food-101/meta/test.txt"), "pie/2\n")
    run_recipe("Splits in a list, as Food-101 and CUB-200")
    train, test = (shardkit.open("food-101-lmdb", split=name) for name in ("train", "test"))
    assert (train.keys(), train.column("cls").tolist()) == (["pie/1", "tea/3"], [0, 1])
    assert (test.keys(), test.classes) == (["pie/2"], ["pie", "tea"])


def test_several_rows(tmp_path: Path) -> None:
    pictures("train/a.jpg", "train/b.jpg")
    write(Path("train-annotations-bbox.csv"), "ImageID,XMin\na,.1\nb,.2\na,.3\n")
    run_recipe("Several rows per image, as Open Images")
    ds = shardkit.open("open-images-lmdb")
    assert [len(sample["json"]) for sample in ds] == [2, 1]
    assert ds[1]["json"][0]["XMin"] == ".2"
