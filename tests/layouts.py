"""Pictures with annotations, in every layout that is known, as the tools that write them do."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from conftest import make_companions, make_parallel, picture, write
from pyarrow import parquet as pq


def png(seed: int) -> bytes:
    return picture(seed, kind="PNG")


def make_masks(root: Path) -> Path:
    """Splits that hold folders, a mask of the name's own ending, and files beside all of it."""
    for split, number in (("train", 6), ("val", 3)):
        for i in range(number):
            write(root / split / "images" / "a" / f"{i}.JPEG", picture(i))
            write(root / split / "masks" / "a" / f"{i}_mask.png", png(i))
    write(root / "README.md", "what this is")
    return root


def make_voc(root: Path) -> Path:
    """Pascal VOC: boxes of all, outlines of some, and lists that are no part of any sample."""
    for i in range(8):
        write(root / "JPEGImages" / f"2007_{i:06d}.jpg", picture(i))
        write(root / "Annotations" / f"2007_{i:06d}.xml", f"<annotation>{i}</annotation>")
        if i % 2:
            write(root / "SegmentationClass" / f"2007_{i:06d}.png", png(i))
    write(root / "ImageSets" / "Main" / "train.txt", "2007_000001\n")
    return root


def make_pets(root: Path) -> Path:
    """Oxford's pets: annotations of two kinds lie in a folder of their own."""
    for i in range(6):
        write(root / "images" / f"Abyssinian_{i}.jpg", picture(i))
        write(root / "annotations" / "trimaps" / f"Abyssinian_{i}.png", png(i))
        if i % 2:
            write(root / "annotations" / "xmls" / f"Abyssinian_{i}.xml", f"<a>{i}</a>")
    write(root / "annotations" / "list.txt", "Abyssinian_1 1 1 1\n")
    return root


def make_split_within(root: Path) -> Path:
    """``images/train2017`` beside ``masks/train2017``."""
    for split, number in (("train2017", 5), ("val2017", 2)):
        for i in range(number):
            write(root / "images" / split / f"{i}.jpg", picture(i))
            write(root / "masks" / split / f"{i}.png", png(i))
    write(root / "images" / "test2017" / "0.jpg", picture(50))
    return root


def make_cityscapes(root: Path) -> Path:
    """Cityscapes: several files of annotations a picture, told by what their names end in."""
    for split, city in (("train", "aachen"), ("val", "munster"), ("test", "berlin")):
        for i in range(3):
            name = f"{split}/{city}/{city}_{i:06d}_000019"
            write(root / "leftImg8bit" / f"{name}_leftImg8bit.png", png(i))
            write(root / "gtFine" / f"{name}_gtFine_polygons.json", f'{{"n": {i}}}')
            for k, what in enumerate(("color", "labelIds")):
                write(root / "gtFine" / f"{name}_gtFine_{what}.png", png(10 * i + k + 1))
    write(root / "README", "what this is")
    return root


def make_carvana(root: Path) -> Path:
    """Carvana, as Kaggle unpacks it: splits lie in names, and the test has no masks."""
    for i in range(5):
        write(root / "train" / f"0{i}_01.jpg", picture(i))
        write(root / "train_masks" / f"0{i}_01_mask.gif", picture(i, kind="GIF"))
    write(root / "test" / "07_01.jpg", picture(7))
    write(root / "train_masks.csv", "img,rle_mask\n00_01.jpg,1 2\n")
    return root


def make_ade(root: Path) -> Path:
    """ADE20K: splits are called training and validation."""
    for split, number in (("training", 4), ("validation", 2)):
        for i in range(number):
            write(root / "images" / split / f"ADE_{i}.jpg", picture(i))
            write(root / "annotations" / split / f"ADE_{i}.png", png(i))
    write(root / "objectInfo150.txt", "1 wall")
    return root


ROWS: list[dict[str, Any]] = [
    {
        "file_name": f"{i}.jpg",
        "text": f"caption {i}, \u00e9",
        "label": i % 3,
        "score": i / 4,
        "id": f"00{i}",
        "objects": {"bbox": [[1, 2, 3, i]], "categories": [i]},
    }
    for i in range(6)
]
"""What a metadata file says of six pictures."""

FLAT = ("file_name", "text", "label", "score", "id")
"""Columns that a csv can hold."""


def jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def csv_of(rows: list[dict[str, Any]], columns: tuple[str, ...] = FLAT) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def parquet_of(rows: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


def make_metadata(root: Path, name: str = "metadata.jsonl") -> Path:
    """An imagefolder without splits, with a picture that no row names."""
    made = {
        "metadata.jsonl": lambda: jsonl(ROWS),
        "metadata.csv": lambda: csv_of(ROWS),
        "metadata.parquet": lambda: parquet_of(ROWS),
    }
    write(root / name, made[name]())
    for i in range(7):
        write(root / f"{i}.jpg", picture(i))
    return root


def coco(names: list[str], split: int = 0) -> dict[str, Any]:
    """A file of boxes, ids far from 0 and categories with a gap, as COCO has them; the last image
    has no annotation, and annotations do not stand in order of image."""
    images = [
        {"id": 500 + i + split, "file_name": name, "height": 16, "width": 16, "license": 1}
        for i, name in enumerate(names)
    ]
    annotations = [
        {
            "id": 10 * i + k,
            "image_id": images[i]["id"],
            "category_id": (18, 1)[k],
            "bbox": [1.50, 2, 3.25, float(i)],
            "segmentation": [[1, 2, 3, 4, 5.5, 6]],
            "area": 7.123456789,
            "iscrowd": 0,
        }
        for k in range(2)
        for i in range(len(images) - 1)
    ]
    categories = [
        {"supercategory": "animal", "id": 18, "name": "dog"},
        {"supercategory": "person", "id": 1, "name": "person"},
    ]
    licenses = [{"id": 1, "name": "CC \u00e9"}]
    made = {"info": {"year": 2017}, "licenses": licenses, "images": images}
    return {**made, "annotations": annotations, "categories": categories}


def make_coco(root: Path) -> Path:
    """As COCO 2017 unpacks."""
    for split, number in (("train2017", 5), ("val2017", 3)):
        names = [f"{i:012d}.jpg" for i in range(number)]
        for i, name in enumerate(names):
            write(root / split / name, picture(i))
        file = root / "annotations" / f"instances_{split}.json"
        write(file, json.dumps(coco(names, number), ensure_ascii=False))
    return root


def make_roboflow(root: Path) -> Path:
    """As Roboflow exports COCO: a file beside the pictures of each split."""
    for split, number in (("train", 5), ("valid", 3)):
        names = [f"{i}_png.rf.{i:02x}.jpg" for i in range(number)]
        for i, name in enumerate(names):
            write(root / split / name, picture(i))
        write(root / split / "_annotations.coco.json", json.dumps(coco(names), indent=2))
    write(root / "README.dataset.txt", "exported")
    return root


YAML = "path: .\ntrain: images/train\nnames:\n  0: person\n  1: dog\n"


def make_yolo(root: Path) -> Path:
    """As Ultralytics has it; the first picture of each split has nothing on it, and no file."""
    for split, number in (("train", 5), ("val", 3)):
        for i in range(number):
            write(root / "images" / split / f"{i:06d}.jpg", picture(i))
            if i:
                lines = [f"{i % 2} 0.5 0.5 0.25 0.{k + 1}\n" for k in range(i - 1)]
                write(root / "labels" / split / f"{i:06d}.txt", "".join(lines))
    write(root / "labels" / "train.cache", b"\x93NUMPY")
    write(root / "data.yaml", YAML)
    return root


def make_flickr(root: Path) -> Path:
    """As Flickr8k unpacks: five captions a picture."""
    lines = ["image,caption"]
    for i in range(5):
        write(root / "Images" / f"{i}_b.jpg", picture(i))
        lines += [f'{i}_b.jpg,"A dog, number {k} of {i} ."' for k in range(5)]
    write(root / "captions.txt", "\n".join(lines) + "\n")
    return root


MAKERS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "parallel": ("parallel", make_parallel),
    "masks in splits": ("parallel", make_masks),
    "voc": ("parallel", make_voc),
    "pets": ("parallel", make_pets),
    "splits within": ("parallel", make_split_within),
    "cityscapes": ("parallel", make_cityscapes),
    "carvana": ("parallel", make_carvana),
    "ade": ("parallel", make_ade),
    "companions": ("companions", make_companions),
    "metadata.jsonl": ("metadata", make_metadata),
    "metadata.csv": ("metadata", lambda root: make_metadata(root, "metadata.csv")),
    "metadata.parquet": ("metadata", lambda root: make_metadata(root, "metadata.parquet")),
    "coco": ("coco", make_coco),
    "roboflow": ("coco", make_roboflow),
    "yolo": ("yolo", make_yolo),
    "flickr": ("captions", make_flickr),
}
"""Layout -> its kind, and what makes a folder of it."""
