"""Every recipe of docs/recipes/arrays.md runs on a small folder of the same names."""

from __future__ import annotations

import gzip
import pickle
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from array_files import folder, hdf5, npz
from conftest import picture, write
from safetensors.numpy import save_file

import shardkit

PAGE = (Path(__file__).parents[1] / "docs" / "recipes" / "arrays.md").read_text()
BLOCKS = dict(re.findall(r"^## (.+?)\n.*?```python\n(.*?)```", PAGE, re.M | re.S))
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (6, 32, 32, 3), np.uint8)
LABELS = np.array([0, 2, 1, 1, 0, 2])
FLAT = IMAGES.transpose(0, 3, 1, 2).reshape(6, 3072)


def mnist(path: Path) -> None:
    shades = np.zeros((6, 28, 28), np.uint8) + LABELS[:, None, None].astype(np.uint8)
    for split in ("train", "t10k"):
        images = bytes([0, 0, 8, 3]) + bytes(12) + shades.tobytes()
        labels = bytes([0, 0, 8, 1]) + bytes(4) + bytes(LABELS.tolist())
        write(path / f"MNIST/raw/{split}-images-idx3-ubyte.gz", gzip.compress(images))
        write(path / f"MNIST/raw/{split}-labels-idx1-ubyte.gz", gzip.compress(labels))


def tensors(path: Path) -> None:
    (path / "latents").mkdir()
    for i in range(3):
        torch.save(torch.full((2, 2), i), path / "latents" / f"{i}.pt")


def safetensors(path: Path) -> None:
    save_file({"images": IMAGES, "labels": LABELS}, path / "features.safetensors")


def cifar(path: Path) -> None:
    root = path / "cifar-10-batches-py"
    for i, name in enumerate([f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]):
        held = {"data": FLAT[i : i + 1], "labels": [int(LABELS[i])], "batch_label": name}
        write(root / name, pickle.dumps(held, protocol=2))
    write(root / "batches.meta", pickle.dumps({"label_names": ["a", "b", "c"]}, protocol=2))


def cifar_binary(path: Path) -> None:
    root = path / "cifar-10-batches-bin"
    rows = np.concatenate([LABELS.astype(np.uint8)[:, None], FLAT], axis=1)
    for i, name in enumerate([f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]):
        write(root / f"{name}.bin", rows[i].tobytes())
    write(root / "batches.meta.txt", "a\nb\nc\n\n")


def photos(path: Path) -> None:
    padded = [picture(i).ljust(2_000, b"\0") for i in range(3)]
    with h5py.File(path / "photos.h5", "w") as file:
        file["images"], file["labels"] = np.array([*map(np.void, padded)]), LABELS[:3]
        file["captions"] = ["one", "two", "drei \u00e9"]


def groups(path: Path) -> None:
    with h5py.File(path / "scans.h5", "w") as file:
        for i in range(6):
            file[f"{i:03}/image"], file[f"{i:03}/label"] = IMAGES[i, : 9 + i], LABELS[i]


def episodes(path: Path) -> None:
    with h5py.File(path / "demos.hdf5", "w") as file:
        for i in range(12):
            file[f"data/demo_{i}/obs"] = np.full((2, 3), i)
            file[f"data/demo_{i}/actions"] = np.full((2, 1), i)


def parts(path: Path) -> None:
    for i, (start, stop) in enumerate([(0, 4), (4, 6)]):
        folder(path, **{f"images_{i}": IMAGES[start:stop], f"labels_{i}": LABELS[start:stop]})


def apart(path: Path) -> None:
    hdf5(path / "train_x.h5", x=IMAGES)
    hdf5(path / "train_y.h5", y=LABELS)


def drawings(path: Path) -> None:
    rows = np.repeat(np.arange(5, dtype=np.uint8), 784).reshape(5, 784)
    folder(path / "quickdraw", airplane=rows[:3], apple=rows[3:])


def slices(path: Path) -> None:
    for i in range(3):
        npz(path / "train_npz" / f"case0005_slice00{i}.npz", image=IMAGES[i], label=IMAGES[i, :, 0])


def one_hot(path: Path) -> None:
    npz(path / "data.npz", images=IMAGES, labels=np.eye(3)[LABELS], class_names=np.array([*"abc"]))


def matlab(path: Path) -> None:
    with (path / "train_32x32.mat").open("wb") as file:  # scipy is not needed here
        digits = np.where(LABELS == 0, 10, LABELS)[:, None]
        np.savez(file, X=IMAGES.transpose(1, 2, 3, 0), y=digits)


def digits(path: Path) -> None:
    lines = [",".join(map(str, [LABELS[i], *IMAGES[i].ravel()[:784]])) for i in range(6)]
    write(path / "digits.csv", "\n".join(["label,pixel0...", *lines]))


def objects(path: Path) -> None:
    words = np.array([["w"] * i for i in range(6)], object)
    npz(path / "data.npz", images=IMAGES, words=words)


def rows_of(name: str, split: str = "train") -> tuple[Any, dict[str, Any]]:
    ds = shardkit.open(name, split)
    return ds, ds.read(range(len(ds)))


def is_whole(name: str, classes: list[str] | None = None, splits: bool = False) -> None:
    """All images and labels are there, in order."""
    ds, held = rows_of(name)
    assert ds.classes == classes
    images, labels = held["images.npy"], held["cls"]
    if splits:
        more = rows_of(name, "test")[1]
        images = np.concatenate([images, more["images.npy"]])
        labels = np.concatenate([labels, more["cls"]])
    assert np.array_equal(images, IMAGES) and labels.tolist() == LABELS.tolist()


def shades_are_labels() -> None:
    _, held = rows_of("mnist", "test")
    assert held["images.npy"][:, 0, 0].tolist() == held["cls"].tolist() == LABELS.tolist()


def tensors_are_samples() -> None:
    ds, held = rows_of("latents-npy")
    assert ds.keys() == ["0", "1", "2"] and held["npy"][:, 1, 1].tolist() == [0, 1, 2]


def arrays_are_rows() -> None:
    shardkit.pack("features.npz", "features", to="lmdb")
    is_whole("features")


def objects_are_json() -> None:
    ds, held = rows_of("data")
    assert np.array_equal(held["images.npy"], IMAGES) and ds[2]["words.json"] == ["w", "w"]


def photos_are_jpegs() -> None:
    held = [(s["jpg"], s["cls"], s["txt"]) for s in shardkit.open("photos")]
    assert held == [
        *zip(map(picture, range(3)), LABELS, ["one", "two", "drei \u00e9"], strict=False)
    ]


def groups_are_samples() -> None:
    ds = shardkit.open("scans")
    assert ds.keys() == [f"{i:03}" for i in range(6)] and [s["cls"] for s in ds] == [*LABELS]
    assert all(np.array_equal(ds[i]["image.npy"], IMAGES[i, : 9 + i]) for i in range(6))


def steps_are_samples() -> None:
    ds, held = rows_of("demos")
    assert held["obs.npy"][:, 0].tolist() == [i for i in range(12) for _ in range(2)]
    assert held["actions.npy"].shape == (24, 1) and ds[23]["episode.txt"] == "demo_11"


def files_are_classes() -> None:
    ds, held = rows_of("drawings")
    assert ds.classes == ["airplane", "apple"] and held["cls"].tolist() == [0, 0, 0, 1, 1]
    assert held["npy"].shape == (5, 28, 28) and held["npy"][:, 0, 0].tolist() == [0, 1, 2, 3, 4]


def files_are_samples() -> None:
    ds = shardkit.open("synapse")
    assert ds.keys() == [f"case0005_slice00{i}" for i in range(3)]
    assert np.array_equal(ds[2]["mask.npy"], IMAGES[2, :, 0])


def digits_are_arrays() -> None:
    _, held = rows_of("digits")
    assert held["images.npy"].shape == (6, 28, 28) and held["cls"].tolist() == LABELS.tolist()


RECIPES: dict[str, tuple[Callable[[Path], None], Callable[[], None]]] = {
    "MNIST's files": (mnist, shades_are_labels),
    "A tensor per file": (tensors, tensors_are_samples),
    "safetensors": (safetensors, arrays_are_rows),
    "CIFAR-10 and CIFAR-100": (cifar, partial(is_whole, "cifar10", ["a", "b", "c"], True)),
    "CIFAR-10 and STL-10 as binary files": (
        cifar_binary,
        partial(is_whole, "cifar10", ["a", "b", "c"], True),
    ),
    "Pickled object arrays": (objects, objects_are_json),
    "Texts and files in rows": (photos, photos_are_jpegs),
    "A group a sample in HDF5": (groups, groups_are_samples),
    "Episodes in HDF5": (episodes, steps_are_samples),
    "Columns in numbered parts": (parts, partial(is_whole, "parts")),
    "Columns in files of their own": (apart, partial(is_whole, "train")),
    "A class a file": (drawings, files_are_classes),
    "Several arrays a file, each file a sample": (slices, files_are_samples),
    "Names of classes, and labels that are no whole numbers": (
        one_hot,
        partial(is_whole, "data", ["a", "b", "c"]),
    ),
    "MATLAB files": (matlab, partial(is_whole, "svhn")),
    "CSV of pixels": (digits, digits_are_arrays),
}


def test_every_recipe_is_tested() -> None:
    assert [*BLOCKS] == [*RECIPES] and PAGE.count("```python") == len(BLOCKS)


@pytest.mark.parametrize("title", RECIPES)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_recipe(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, check = RECIPES[title]
    make(tmp_path)
    monkeypatch.chdir(tmp_path)
    scipy = SimpleNamespace(io=SimpleNamespace(loadmat=np.load))
    monkeypatch.setitem(sys.modules, "scipy", scipy)
    monkeypatch.setitem(sys.modules, "scipy.io", scipy.io)
    pack = shardkit.pack
    quiet = {"workers": 0, "progress": False}
    monkeypatch.setattr(shardkit, "pack", lambda *a, **options: pack(*a, **{**options, **quiet}))
    exec(compile(BLOCKS[title], title, "exec"), {"__name__": "recipe"})
    check()
