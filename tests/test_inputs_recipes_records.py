"""The recipes of docs/recipes/records.md, on made files of the same names."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
from conftest import picture, write
from test_inputs_lmdb import database
from test_inputs_tars import tar_of

import shardkit

TEXT = Path(__file__).parents[1].joinpath("docs/recipes/records.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^## (.*?)\n.*?```python\n(.*?)```", TEXT, re.S | re.M))
IMAGES = [picture(i) for i in range(4)]


def make_sources(folder: Path) -> None:
    pickled = [(b"%d" % i, pickle.dumps((image, i))) for i, image in enumerate(IMAGES)]
    database(folder / "train_lmdb", [*pickled, (b"__len__", pickle.dumps(4))], subdir=True)
    pairs = [(b"%s-%d" % (w, i), IMAGES[i]) for i in range(4) for w in (b"gt", b"lq")]
    database(folder / "super_resolution_lmdb", pairs, subdir=True)
    inner = {n: {f"{n}_{i}.JPEG": IMAGES[i] for i in range(2)} for n in ("n02", "n01")}
    tars = {f"{name}.tar": tar_of(members) for name, members in inner.items()}
    write(folder / "ILSVRC2012_img_train.tar", tar_of(tars))
    found = {}
    for name in ("cat", "dog"):
        members = {f"{name}/{i}.jpg": IMAGES[i] for i in range(2)}
        write(folder / "classes" / f"{name}.tar", tar_of(members))
        found |= {f"{s}/{key}": data for s in ("train", "val") for key, data in members.items()}
    write(folder / "data.tar", tar_of(found))
    images = {key: data for key, data in found.items() if key.startswith("train/")}
    write(folder / "images.tar", tar_of({**images, "train/README.md": b"not read"}))


@pytest.mark.parametrize(
    ("title", "dest", "fields", "labels"),
    [
        ("LMDB of pickles", "train", ["cls", "jpg"], [0, 1, 2, 3]),
        ("LMDB of several values a sample", "pairs", ["gt.png", "lq.png"], None),
        ("A tar of tars", "imagenet", ["cls", "jpg"], [0, 0, 1, 1]),
        ("A tar for each class", "by-class", ["cls", "jpg"], [0, 0, 1, 1]),
        ("Class folders in a tar", "images", ["cls", "jpg"], [0, 0, 1, 1]),
        ("Splits inside a tar", "data", ["cls", "jpg"], [0, 0, 1, 1]),
    ],
)
def test_recipes(
    title: str,
    dest: str,
    fields: list[str],
    labels: list[int] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_sources(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert sum(bool(line) for line in RECIPES[title].splitlines()) <= 12
    exec(RECIPES[title], {})
    for split in ("train", "val")[: 1 + (dest == "data")]:
        ds = shardkit.open(dest, split=split)
        assert ds.fields == fields and len(ds) == 4
        assert labels is None or ds.column("cls").tolist() == labels
        assert bytes(ds[1][fields[-1]]) == IMAGES[1]
