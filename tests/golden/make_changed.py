"""Make the golden datasets of version 3 of the format: small ones that were changed in every way.

    python tests/golden/make_changed.py

writes ``changed.tar.xz``, with one dataset of each container, and ``changed.json``, which says what
must be in each of their versions. That is computed here from lists of keys, labels and pictures,
not from the datasets. As for ``make.py``: what was released is never made again.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from golden.make import CONTAINERS, archive, digest, picture, pixels, versions, write

import shardkit
from shardkit.packing.plan import draw

OUT = Path(__file__).parent / "0.1.0"
QUIET: dict[str, Any] = {"shard_size": "2kB", "workers": 0, "progress": False}

Samples = dict[str, tuple[str, bytes]]
"""Key -> name of its class, and its picture."""


def make_input(root: Path, classes: list[str], count: int, first: int) -> Samples:
    made: Samples = {}
    for c, name in enumerate(classes):
        for i in range(first, first + count):
            data = picture(pixels(20 * c + i))
            write(root / name / f"{i:03d}.jpg", data)
            made[f"{name}/{i:03d}"] = (name, data)
    return made


def said(splits: dict[str, Samples], classes: list[str]) -> dict[str, Any]:
    """What must be in one version."""
    return {
        "classes": classes,
        "splits": {
            split: [
                [key, {"cls": digest(str(classes.index(name)).encode()), "jpg": digest(data)}]
                for key, (name, data) in samples.items()
            ]
            for split, samples in splits.items()
        },
    }


def in_val(keys: list[str], count: int, seed: int) -> set[str]:
    """The keys whose draws are the lowest."""
    import numpy as np
    import xxhash

    hashes = np.array([xxhash.xxh3_64_intdigest(key.encode()) for key in keys], np.uint64)
    draws = draw(hashes, seed, "val").tolist()
    return {key for _, key in sorted(zip(draws, keys, strict=True))[:count]}


def make(folder: Path) -> dict[str, Any]:
    first = make_input(folder / "first", ["ant", "bee"], 6, 0)
    more = make_input(folder / "more", ["ant", "cow"], 3, 100)
    labels = {"ant/002": "cow", "bee/004": "dog"}
    drop = ["ant/000", "cow/101", "bee/003"]
    for to in CONTAINERS:
        dataset = folder / to
        shardkit.pack(folder / "first", dataset, to=to, **QUIET)
        shardkit.append(dataset, folder / "more", **QUIET)
        shardkit.edit(dataset, labels=labels, progress=False)
        shardkit.edit(dataset, drop_keys=drop, progress=False)
        shardkit.edit(dataset, val_fraction=0.25, seed=1, progress=False)
        shardkit.edit(dataset, restore=2)
    both = first | more
    new = {key: (labels.get(key, name), data) for key, (name, data) in both.items()}
    left = {key: sample for key, sample in new.items() if key not in drop}
    val = in_val([*left], round(0.25 * len(left)), 1)
    cut = {
        "train": {key: sample for key, sample in left.items() if key not in val},
        "val": {key: sample for key, sample in left.items() if key in val},
    }
    four = ["ant", "bee", "cow", "dog"]
    return {
        "1": said({"train": first}, ["ant", "bee"]),
        "2": said({"train": both}, four[:3]),
        "3": said({"train": new}, four),
        "4": said({"train": left}, four),
        "5": said(cut, four),
        "6": said({"train": both}, four[:3]),
    }


def main() -> None:
    if (OUT / "changed.json").exists():
        sys.exit(f"{OUT / 'changed.json'} is there already: what was released is made once")
    folder = Path(tempfile.mkdtemp(prefix="shardkit-golden-"))
    try:
        made = {"format_version": 3, "made_with": versions(), "versions": make(folder)}
        shutil.rmtree(folder / "first")
        shutil.rmtree(folder / "more")
        (OUT / "changed.json").write_text(json.dumps(made, indent=1) + "\n")
        (OUT / "changed.tar.xz").write_bytes(archive(folder))
    finally:
        shutil.rmtree(folder)
    print(f"{OUT / 'changed.tar.xz'}: {(OUT / 'changed.tar.xz').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
