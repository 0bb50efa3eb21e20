"""Hugging Face ``datasets`` and megatron-core open what we write, by themselves.

They run where these are installed: not in the project's own environment.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CONTAINERS, make_images, picture, write
from PIL import Image
from token_data import documents, pack_tokens
from trained import Rows

import shardkit

OPTIONS = {"workers": 0, "progress": False}

# What these libraries warn of inside their own modules is theirs to mend.
pytestmark = pytest.mark.filterwarnings("default")


# --- Hugging Face -------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The library, with a cache of its own, offline."""
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed here")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    return datasets


@pytest.fixture
def source(tmp_path: Path) -> Path:
    make_images(tmp_path / "source" / "train", per_class=4)
    make_images(tmp_path / "source" / "val", per_class=1)
    return tmp_path / "source"


def pixels(data: bytes) -> Any:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


def test_class_names_come_from_tars(hub: Any, source: Path, tmp_path: Path) -> None:
    shardkit.pack(source, tmp_path / "d", to="webdataset", shard_size="3kB", **OPTIONS)
    loaded = hub.load_dataset(str(tmp_path / "d"))
    assert {name: len(split) for name, split in loaded.items()} == {"train": 12, "validation": 3}
    train = loaded["train"]
    assert train.features["cls"] == hub.ClassLabel(names=["class0", "class1", "class2"])
    assert isinstance(train.features["jpg"], hub.Image)
    ours = shardkit.open(tmp_path / "d", "train")
    for row, sample in zip(train, ours, strict=True):
        assert np.array_equal(np.asarray(row["jpg"]), pixels(sample["jpg"]))
        assert row["cls"] == sample["cls"]
    streamed = hub.load_dataset(str(tmp_path / "d"), split="train", streaming=True)
    assert streamed.features["cls"].names == ["class0", "class1", "class2"]
    assert [row["cls"] for row in streamed] == ours.column("cls").tolist()


def test_a_readme_of_ones_own_is_no_obstacle(hub: Any, source: Path, tmp_path: Path) -> None:
    shardkit.pack(source, tmp_path / "d", to="webdataset", **OPTIONS)
    write(tmp_path / "d" / "README.md", "---\nlicense: mit\n---\n# Pictures\n")
    loaded = hub.load_dataset(str(tmp_path / "d"), split="train")
    assert loaded.features["cls"].names == ["class0", "class1", "class2"]


def test_names_of_any_kind(hub: Any, tmp_path: Path) -> None:
    names = sorted(["yes", "1.0", 'it\'s "so"', "é", "日本", "😀", "a: b"], key=os.fsencode)
    for i, name in enumerate(names):
        write(tmp_path / "source" / name / "a.jpg", picture(i))
    shardkit.pack(tmp_path / "source", tmp_path / "d", to="webdataset", **OPTIONS)
    loaded = hub.load_dataset(str(tmp_path / "d"), split="train")
    assert loaded.features["cls"].names == shardkit.open(tmp_path / "d").classes == names
    shardkit.convert(tmp_path / "d", tmp_path / "p", to="parquet", progress=False)
    loaded = hub.load_dataset(str(tmp_path / "p"), split="train")
    assert loaded.features["label"].names == names


def test_samples_without_all_fields(hub: Any, source: Path, tmp_path: Path) -> None:
    """Without the card, the library refuses tars whose first samples differ in their fields."""
    write(source / "train" / "class0" / "a.png", picture(5, kind="PNG"))
    shardkit.pack(source, tmp_path / "d", to="webdataset", **OPTIONS)
    rows = list(hub.load_dataset(str(tmp_path / "d"), split="train"))
    assert len(rows) == 13 and [row["jpg"] is None for row in rows].count(True) == 1


@pytest.mark.parametrize("container", CONTAINERS)
def test_parquet(container: str, hub: Any, source: Path, tmp_path: Path) -> None:
    shardkit.pack(source, tmp_path / "d", to=container, shard_size="3kB", **OPTIONS)
    shardkit.convert(tmp_path / "d", tmp_path / "p", to="parquet", progress=False)
    loaded = hub.load_dataset(str(tmp_path / "p"))
    assert {name: len(split) for name, split in loaded.items()} == {"train": 12, "val": 3}
    names = ["class0", "class1", "class2"]
    assert loaded["train"].features == {
        "image": hub.Image(),
        "label": hub.ClassLabel(names=names),
        "__key__": hub.Value("string"),
    }
    for row, sample in zip(loaded["train"], shardkit.open(tmp_path / "d", "train"), strict=True):
        assert np.array_equal(np.asarray(row["image"]), pixels(sample["jpg"]))
        assert (row["label"], row["__key__"]) == (sample["cls"], sample["__key__"])
    streamed = hub.load_dataset(str(tmp_path / "p"), split="val", streaming=True)
    assert streamed.features["label"].names == names
    assert [row["label"] for row in streamed] == [0, 1, 2]


def test_parquet_of_tokens(hub: Any, tmp_path: Path) -> None:
    dataset = pack_tokens(tmp_path, documents([3, 0, 9]))
    shardkit.convert(dataset, tmp_path / "p", to="parquet", progress=False)
    loaded = hub.load_dataset(str(tmp_path / "p"), split="train")
    assert loaded.features["tokens"] == hub.List(hub.Value("uint16"))
    assert loaded["tokens"][:] == [ids.tolist() for ids in documents([3, 0, 9])]


@pytest.mark.parametrize("container", CONTAINERS)
def test_what_info_says_runs(container: str, hub: Any, source: Path, tmp_path: Path) -> None:
    dataset = tmp_path / f"d-{container}"
    shardkit.pack(source, dataset, to=container, **OPTIONS)
    lines = shardkit.info(dataset).recipes["Hugging Face datasets"]
    if container != "webdataset":
        assert lines.startswith("# after `shardkit convert ")
        out = tmp_path / f"d-{container}-parquet"
        shardkit.convert(dataset, out, to="parquet", progress=False)
        lines = lines.rpartition("`: ")[2].replace(out.name, str(out))
        lines = f"import datasets\ndataset = {lines}['train']"
    scope: dict[str, Any] = {}
    exec(compile(lines, "info --open", "exec"), scope)
    (labels,) = [f for f in scope["dataset"].features.values() if isinstance(f, hub.ClassLabel)]
    assert labels.names == ["class0", "class1", "class2"] and len(scope["dataset"]) == 12


# --- Megatron -----------------------------------------------------------------------------


@pytest.fixture
def indexed() -> Iterator[Any]:
    pytest.importorskip("megatron.core", reason="megatron-core is not installed here")
    from megatron.core.datasets import indexed_dataset

    yield indexed_dataset
    # Its cache holds readers, and they hold their files.
    indexed_dataset._IndexReader.__getitem__.cache_clear()


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("top", [300, 70_000])
def test_megatron_reads_its_own_format(top: int, mmap: bool, indexed: Any, tmp_path: Path) -> None:
    stored = "<u2" if top < 65_536 else "<u4"
    docs = [*documents([5, 0, 900, 1], stored), np.array([top], stored)]
    dataset = pack_tokens(tmp_path, docs)
    shardkit.convert(dataset, tmp_path / "out", to="megatron", progress=False)
    found = indexed.IndexedDataset(str(tmp_path / "out" / "train"), mmap=mmap)
    assert len(found) == len(docs)
    assert [found[i].tolist() for i in range(len(docs))] == [ids.tolist() for ids in docs]
    assert found.document_indices.tolist() == [*range(len(docs) + 1)]
    assert found.get(2, offset=3, length=4).tolist() == docs[2][3:7].tolist()
    assert found[0].dtype == (np.uint16 if top < 65_536 else np.int32)
    del found


def test_megatron_writes_the_same_index(indexed: Any, tmp_path: Path) -> None:
    """To the byte what its own builder makes of these documents."""
    torch = pytest.importorskip("torch")
    docs = documents([5, 900, 1])
    dataset = pack_tokens(tmp_path, docs)
    shardkit.convert(dataset, tmp_path / "out", to="megatron", progress=False)
    builder = indexed.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.uint16)
    for ids in docs:
        builder.add_document(torch.from_numpy(ids.astype(np.int64)), [len(ids)])
    builder.finalize(str(tmp_path / "theirs.idx"))
    for ending in ("bin", "idx"):
        theirs = (tmp_path / f"theirs.{ending}").read_bytes()
        assert (tmp_path / "out" / f"train.{ending}").read_bytes() == theirs


# --- albumentations -----------------------------------------------------------------------


def test_albumentations_draws_the_same_in_processes() -> None:
    """Its transforms have generators of their own, in nested attributes."""
    albumentations: Any = pytest.importorskip(
        "albumentations", reason="albumentations is not installed here"
    )
    some = albumentations.OneOf([albumentations.GaussNoise(), albumentations.Blur()])
    crop = albumentations.RandomCrop(16, 16)
    augment = albumentations.Compose([crop, albumentations.HorizontalFlip(), some])
    pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        return {"image": augment(image=pixels)["image"]}

    def run(**options: Any) -> list[bytes]:
        loader = shardkit.Loader(Rows(48), 8, transform=transform, **options)
        return [image.numpy().tobytes() for batch in loader for image in batch["image"]]

    one = run(workers=0)
    assert run(workers=3, worker_type="process") == one == run(workers=0)
    assert len(set(one)) > 40
