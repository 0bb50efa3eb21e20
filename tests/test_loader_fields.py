"""``fields=`` of a loader: tuples in that order, of which no others are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_images
from torch.utils.data import DataLoader

import shardkit
from shardkit import CudaPrefetcher, Loader, Stream
from shardkit.errors import UsageError


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> shardkit.Dataset:
    folder = tmp_path_factory.mktemp("fields")
    shardkit.pack(make_images(folder / "in"), folder / "d", to="npy", workers=0, progress=False)
    return shardkit.open(folder / "d")


def sized(sample: dict[str, Any]) -> dict[str, Any]:
    return {"image": torch.full((2, 2), len(sample["jpg"])), "cls": sample["cls"], "more": "x"}


def brighter(batch: dict[str, Any]) -> dict[str, Any]:
    return {"bright": batch["image"] + 1, "label": batch["cls"]}


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 0},
        {"workers": 2},
        {"workers": 1, "worker_type": "process"},
        {"workers": 2, "device": "cpu"},
        {"workers": 0, "device": "cpu"},
    ],
)
def test_tuples_in_that_order(dataset: shardkit.Dataset, options: dict[str, Any]) -> None:
    given = {"shuffle": "full", "transform": sized, **options}
    dicts = list(Loader(dataset, 8, **given))
    tuples = list(Loader(dataset, 8, fields=("cls", "image"), **given))
    for (labels, images), batch in zip(tuples, dicts, strict=True):
        assert torch.equal(labels, batch["cls"]) and torch.equal(images, batch["image"])
    if "device" in options:
        bright = Loader(dataset, 8, fields=["label", "bright"], device_transform=brighter, **given)
        labels, images = next(iter(bright))
        assert torch.equal(labels, dicts[0]["cls"]) and torch.equal(images, dicts[0]["image"] + 1)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_and_a_prefetcher(dataset: shardkit.Dataset, num_workers: int) -> None:
    stream = dataset.stream(8, transform=sized, fields=("image", "cls"))
    torchs = DataLoader(stream, batch_size=None, num_workers=num_workers)
    for around in (torchs, CudaPrefetcher(torchs, "cpu")):
        expected = Loader(dataset, 8, transform=sized, workers=0)
        expected.set_epoch(1)
        stream.set_epoch(1)
        for (images, labels), batch in zip(around, expected, strict=True):
            assert torch.equal(images, batch["image"]) and torch.equal(labels, batch["cls"])


def test_what_is_padding_and_keys_are_named(dataset: shardkit.Dataset) -> None:
    names = ("cls", "valid", "__key__")
    *_, (labels, valid, keys) = Loader(dataset, 8, last="pad", fields=names, workers=0)
    assert (
        len(labels) == len(valid) == len(keys) == 8 and valid.tolist() == [True] * 4 + [False] * 4
    )
    assert keys[:4] == dataset.keys()[-4:]
    for options in ({"last": "pad"}, {"with_keys": True}):
        with pytest.raises(UsageError, match=r"fields: name '(valid|__key__)', too"):
            Loader(dataset, 8, fields=("cls",), **options)  # type: ignore[arg-type]


def test_no_others_are_read(dataset: shardkit.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    both = shardkit.concat([dataset, dataset])
    mixed = shardkit.mix({"a": dataset, "b": dataset})
    (labels,) = next(iter(Loader(both, 8, fields=("cls",), workers=0)))
    (images, offsets) = next(
        iter(Loader(dataset, 8, fields=("jpg", "jpg.offsets"), as_buffer=["jpg"], workers=0))
    )
    assert labels.tolist() == dataset.column("cls")[:8].tolist()
    assert bytes(images[: offsets[1]].numpy()) == bytes(dataset[0]["jpg"])
    read = []
    real = shardkit.Dataset.read_joined

    def noted(self: Any, rows: Any, joined: Any) -> Any:
        read.append(self.fields)
        return real(self, rows, joined)

    monkeypatch.setattr(shardkit.Dataset, "read_joined", noted)
    monkeypatch.setattr(shardkit.Dataset, "read", lambda self, rows: noted(self, rows, ()))
    for source in (dataset, dataset.select([1, 2, 3] * 5), both, mixed):
        loader = Loader(source, 8, fields=("cls",), workers=0)
        next(iter(loader))
        Loader(source, 8, workers=0).load_state_dict(loader.state_dict())
    assert read and all(fields == ["cls"] for fields in read)
    assert dataset.fields == ["cls", "jpg"]


def test_sequences_of_tokens(tmp_path: Path) -> None:
    (tmp_path / "ids.bin").write_bytes(bytes(range(200)))
    ids = shardkit.TokenDataset(tmp_path / "ids.bin", seq_len=8)
    inputs, labels = next(iter(Loader(ids, 2, fields=("inputs", "labels"), workers=0)))
    assert inputs[:, 1:].tolist() == labels[:, :-1].tolist()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"fields": "cls"}, "fields must be a list of names, got 'cls'"),
        ({"fields": ()}, "fields must be a list of names, got"),
        ({"fields": ("png",)}, "no field 'png' here, only cls, jpg"),
        ({"fields": ("png",), "transform": sized}, "no 'png' in a batch, only image, cls, more"),
    ],
)
def test_fields_that_there_are_not(
    dataset: shardkit.Dataset, options: dict[str, Any], what: str
) -> None:
    for make in (Loader, Stream):
        with pytest.raises(UsageError, match=what):
            next(iter(make(dataset, 8, **options)))  # type: ignore[operator]
