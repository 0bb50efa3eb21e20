"""Images with annotations, in layouts as the tools that write them make them."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from conftest import make_companions, make_parallel, picture, write
from pyarrow import parquet as pq

import shardkit
from shardkit.inputs.corpus import Run
from shardkit.packing.result import PackResult

JPG = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00 pretend picture "
PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR pretend picture "


def check_run(run: Run) -> None:
    """Check what the seam promises of every run."""
    count = len(run)
    assert count == len(run.keys) == len(run.sizes) == len(run.stamps) > 0
    assert len(set(run.keys)) == count
    assert not any(b"\0" in text for text in run.keys + run.locators)
    assert all(-(2**63) <= n < 2**63 for n in run.sizes + run.stamps)


OPTIONS: dict[str, Any] = {"to": "npy", "workers": 0, "progress": False, "shard_size": "3kB"}


def pack(source: Path, name: str = "packed", **options: Any) -> PackResult:
    """Pack a folder to one next to it."""
    return shardkit.pack(source, source.parent / name, **{**OPTIONS, **options})


def samples(result: PackResult, split: str = "train") -> dict[str, dict[str, Any]]:
    """Return key -> the fields that a sample has."""
    held = shardkit.open(result.dest, split=split)
    return {
        str(s.pop("__key__")): {n: v for n, v in s.items() if v is not None}
        for s in (dict(sample) for sample in held)
    }


def make_folder(root: Path, names: str) -> Path:
    """Write files: ``images/0-3.jpg`` is four of them, ``a/0-3_x.png`` four more."""
    found = []
    for name in names.split():
        numbers = re.search(r"(?:^|(?<=/))([0-9]+)-([0-9]+)(?![0-9-])", name)
        first, last = map(int, numbers.groups()) if numbers else (0, 0)
        range_ = [re.sub(rf"\b{first}-{last}", str(i), name) for i in range(first, last + 1)]
        found += range_ if first < last else [name]
    for seed, name in enumerate(found):
        kind = {"jpg": "JPEG", "png": "PNG", "gif": "GIF", "tif": "TIFF", "ppm": "PPM"}
        own = kind.get(name.rpartition(".")[2].lower())
        write(root / name, picture(seed, kind=own) if own else f"text {seed}")
    return root


def png(seed: int) -> bytes:
    return picture(seed, kind="PNG")


def make_masks(root: Path) -> Path:
    """Write splits that hold folders, names that end in ``_mask``, and a file next to them."""
    for split, number in (("train", 6), ("val", 3)):
        for i in range(number):
            write(root / split / "images" / "a" / f"{i}.JPEG", picture(i))
            write(root / split / "masks" / "a" / f"{i}_mask.png", png(i))
    write(root / "README.md", "what this is")
    return root


def make_voc(root: Path) -> Path:
    """Write Pascal VOC: boxes of all images, outlines of some, and lists of names."""
    for i in range(8):
        write(root / "JPEGImages" / f"2007_{i:06d}.jpg", picture(i))
        write(root / "Annotations" / f"2007_{i:06d}.xml", f"<annotation>{i}</annotation>")
        if i % 2:
            write(root / "SegmentationClass" / f"2007_{i:06d}.png", png(i))
    write(root / "ImageSets" / "Main" / "train.txt", "2007_000001\n")
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
    """Write an imagefolder without splits, with an image that no row names."""
    makers: dict[str, Any] = {"jsonl": jsonl, "csv": csv_of, "parquet": parquet_of}
    write(root / name, makers[name.rpartition(".")[2]](ROWS))
    for i in range(7):
        write(root / f"{i}.jpg", picture(i))
    return root


def coco(names: list[str], split: int = 0) -> dict[str, Any]:
    """Return a file of boxes as COCO's: ids far from 0, categories with a gap, no annotation of the
    last image, and annotations that do not stand in order of image."""
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
    """Write what COCO 2017 unpacks to."""
    for split, number in (("train2017", 5), ("val2017", 3)):
        names = [f"{i:012d}.jpg" for i in range(number)]
        for i, name in enumerate(names):
            write(root / split / name, picture(i))
        file = root / "annotations" / f"instances_{split}.json"
        write(file, json.dumps(coco(names, number), ensure_ascii=False))
    return root


def make_roboflow(root: Path) -> Path:
    """Write what Roboflow exports as COCO: a file beside the pictures of each split."""
    for split, number in (("train", 5), ("valid", 3)):
        names = [f"{i}_png.rf.{i:02x}.jpg" for i in range(number)]
        for i, name in enumerate(names):
            write(root / split / name, picture(i))
        write(root / split / "_annotations.coco.json", json.dumps(coco(names), indent=2))
    write(root / "README.dataset.txt", "exported")
    return root


YAML = "path: .\ntrain: images/train\nnames:\n  0: person\n  1: dog\n"


def make_yolo(root: Path) -> Path:
    """Write what Ultralytics has; the first image of each split has no file of labels."""
    for split, number in (("train", 5), ("val", 3)):
        for i in range(number):
            write(root / "images" / split / f"{i:06d}.jpg", picture(i))
            if i:
                lines = [f"{i % 2} 0.5 0.5 0.25 0.{k + 1}\n" for k in range(i - 1)]
                write(root / "labels" / split / f"{i:06d}.txt", "".join(lines))
    write(root / "labels" / "train.cache", b"\x93NUMPY")
    write(root / "data.yaml", YAML)
    return root


MAKERS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "parallel": ("parallel", make_parallel),
    "masks in splits": ("parallel", make_masks),
    "voc": ("parallel", make_voc),
    "companions": ("companions", make_companions),
    "metadata.jsonl": ("metadata", make_metadata),
    "metadata.csv": ("metadata", lambda root: make_metadata(root, "metadata.csv")),
    "metadata.parquet": ("metadata", lambda root: make_metadata(root, "metadata.parquet")),
    "coco": ("coco", make_coco),
    "roboflow": ("coco", make_roboflow),
    "yolo": ("parallel", make_yolo),
}
"""Layout -> its kind, and what makes a folder of it."""
