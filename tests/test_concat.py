"""Several datasets as one: what a single dataset with the samples of all would give."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import CONTAINERS, EACH_FORMAT, make_images, picture, write
from torch.utils.data import DataLoader

import shardkit
from shardkit.errors import UsageError

OPTIONS: dict[str, Any] = {"shard_size": "4kB", "workers": 0, "progress": False}
CROP = shardkit.images.train(12)
GIVEN: dict[str, Any] = {"seed": 5, "transform": CROP, "with_keys": True}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``one`` and ``two`` in all formats, and ``whole``: the first has classes 0 and 1, the second
    2 to 4, so that sorted folders have them in this order."""
    root = tmp_path_factory.mktemp("concat")
    make_images(root / "source", per_class=9, classes=5)
    for name, classes in (("one", (0, 1)), ("two", (2, 3, 4))):
        for number in classes:
            folder = f"class{number}"
            shutil.copytree(root / "source" / folder, root / name / folder)
        for to in CONTAINERS:
            shardkit.pack(root / name, root / f"{name}-{to}", to=to, **OPTIONS)
    shardkit.pack(root / "source", root / "whole", to="npy", **OPTIONS)
    return root


def both(sets: Path, first: str = "npy", second: str = "npy", **options: Any) -> Any:
    folders = (sets / f"one-{first}", sets / f"two-{second}")
    return shardkit.concat([shardkit.open(folder, **options) for folder in folders])


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def batches_of(source: Any, **options: Any) -> list[dict[str, Any]]:
    return [dict(batch) for batch in shardkit.Loader(source, 8, **{**GIVEN, **options})]


def assert_same(some: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    assert len(some) == len(others) > 0
    for one, other in zip(some, others, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert equal(one[name], other[name]), name


@pytest.mark.parametrize("first", EACH_FORMAT)
@pytest.mark.parametrize("second", ["webdataset", "npy"])
def test_batches_are_those_of_one_dataset(sets: Path, first: str, second: str) -> None:
    whole = shardkit.open(sets / "whole")
    for shuffle in ("full", "block", None):
        assert_same(
            batches_of(both(sets, first, second), shuffle=shuffle),
            batches_of(whole, shuffle=shuffle),
        )


def test_resume(sets: Path) -> None:
    expected = batches_of(shardkit.open(sets / "whole"))
    loader = shardkit.Loader(both(sets), 8, **GIVEN)
    first = iter(loader)
    seen = [dict(next(first)) for _ in range(2)]
    state = loader.state_dict()
    again = shardkit.Loader(both(sets, "hdf5", "lmdb"), 8, **GIVEN)
    again.load_state_dict(state)
    assert_same([*seen, *(dict(batch) for batch in again)], expected)
    other = shardkit.Loader(shardkit.open(sets / "one-npy"), 8, seed=5)
    with pytest.raises(UsageError, match="the state is of another dataset"):
        other.load_state_dict(state)
    swapped = shardkit.concat([shardkit.open(sets / f"{name}-npy") for name in ("two", "one")])
    with pytest.raises(UsageError, match="the state is of another dataset"):
        shardkit.Loader(swapped, 8, seed=5).load_state_dict(state)


def test_map_style(sets: Path) -> None:
    data, whole = both(sets, "hdf5", "webdataset"), shardkit.open(sets / "whole")
    assert len(data) == len(whole) == 45
    assert data.classes == whole.classes
    assert data.keys() == whole.keys()
    assert data.keys([44, 0]) == whole.keys([44, 0])
    for row in (0, 17, 18, 44):
        assert data[row] == whole[row]
    assert np.array_equal(data.column("cls"), whole.column("cls"))
    assert [bytes(value) for value in data.column("jpg")] == [
        bytes(value) for value in whole.column("jpg")
    ]
    assert pickle.loads(pickle.dumps(data))[20] == whole[20]
    found = DataLoader(data, 9, collate_fn=list, num_workers=0)
    assert [sample for batch in found for sample in batch] == list(whole)
    assert "of <Dataset" in data.where(20)
    for row in (45, -46):
        with pytest.raises(IndexError):
            data[row]
    for rows in ([45], [-1]):
        with pytest.raises(IndexError, match=r"outside 0\.\.44"):
            data.read(rows)
    assert len(data.read([])["cls"]) == 0
    with pytest.raises(UsageError, match="no field 'png'"):
        data.column("png")


def test_stream(sets: Path) -> None:
    found = list(DataLoader(both(sets).stream(8, seed=5, transform=CROP), batch_size=None))
    assert_same(found, batches_of(shardkit.open(sets / "whole"), with_keys=False))


def test_by_url(sets: Path, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    url = (sets / "two-lmdb").as_uri()
    there = shardkit.open(url, cache_dir=tmp_path / "cache")
    data = shardkit.concat([shardkit.open(sets / "one-npy"), there])
    assert_same(batches_of(data), batches_of(shardkit.open(sets / "whole")))


# --- classes --------------------------------------------------------------------------------


def dataset(root: Path, name: str, **classes: int) -> Path:
    """``count`` pictures of each class."""
    for folder, count in classes.items():
        for number in range(count):
            write(root / name / folder / f"{number}.jpg", picture(number))
    shardkit.pack(root / name, root / f"{name}.packed", to="lmdb", **OPTIONS)
    return root / f"{name}.packed"


def test_classes_go_by_name(tmp_path: Path) -> None:
    folders = dataset(tmp_path, "a", dog=2, zebra=1), dataset(tmp_path, "b", ant=1, dog=1, fox=2)
    data = shardkit.concat([shardkit.open(folder) for folder in folders])
    assert data.classes == ["dog", "zebra", "ant", "fox"]
    assert data.column("cls").tolist() == [0, 0, 1, 2, 0, 3, 3]  # type: ignore[union-attr]
    named = [data.classes[sample["cls"]] for sample in map(data.__getitem__, range(7))]
    assert named == [key.partition("/")[0] for key in data.keys(range(7))]
    [batch] = shardkit.Loader(data, 7, shuffle=None, as_buffer=["jpg"])
    assert batch["cls"].tolist() == [0, 0, 1, 2, 0, 3, 3]
    again = shardkit.concat([shardkit.open(folder) for folder in folders[::-1]])
    assert again.classes == ["ant", "dog", "fox", "zebra"]
    assert again.fingerprint != data.fingerprint


def test_numbers_as_they_are_stored_are_not_changed(tmp_path: Path) -> None:
    folders = dataset(tmp_path, "a", dog=2, zebra=1), dataset(tmp_path, "b", ant=1)
    with pytest.raises(UsageError, match=r"number 1\) become others, and decode=False"):
        shardkit.concat([shardkit.open(folder, decode=False) for folder in folders])
    same = shardkit.concat([shardkit.open(folders[0], decode=False)] * 2)
    assert [bytes(value) for value in same.column("cls")] == [b"0", b"0", b"1"] * 2


def test_absent_labels_stay_absent(tmp_path: Path) -> None:
    for key, label in (("a", "1"), ("b", None), ("c", "0")):
        write(tmp_path / "source" / f"{key}.jpg", picture(3))
        if label is not None:
            write(tmp_path / "source" / f"{key}.cls", label)
    shardkit.pack(tmp_path / "source", tmp_path / "pairs", to="webdataset", **OPTIONS)
    pairs = shardkit.open(tmp_path / "pairs")
    assert pairs.classes is None
    assert list(shardkit.concat([pairs, pairs]).column("cls")) == [1, None, 0] * 2


def test_refused(tmp_path: Path) -> None:
    named = shardkit.open(dataset(tmp_path, "a", dog=2))
    write(tmp_path / "pairs" / "a.jpg", picture(3))
    write(tmp_path / "pairs" / "a.cls", "1")
    shardkit.pack(tmp_path / "pairs", tmp_path / "numbers", to="npy", **OPTIONS)
    numbers = shardkit.open(tmp_path / "numbers")
    with pytest.raises(UsageError, match=r"number 1\) have no names, and those of others have"):
        shardkit.concat([named, numbers])
    alike = [shardkit.open(tmp_path / name, fields=["jpg"]) for name in ("a.packed", "numbers")]
    assert len(shardkit.concat(alike)) == 3
    with pytest.raises(UsageError, match="fields differ: number 0 has cls, jpg, and number 1"):
        shardkit.concat([named, alike[0]])
    with pytest.raises(UsageError, match="has an order of its own, which rows"):
        shardkit.concat([shardkit.mix({"a": named}, length=1), named])
    with pytest.raises(UsageError, match="no datasets"):
        shardkit.concat([])
    with pytest.raises(UsageError, match="give a list of datasets that are open, got a str"):
        shardkit.concat(str(tmp_path / "a.packed"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="str cannot be fed from"):
        shardkit.concat([str(tmp_path / "a.packed")])  # type: ignore[list-item]


def test_sequences_of_tokens_are_for_mixes(tmp_path: Path) -> None:
    write(tmp_path / "a" / "a.txt", "some text " * 100)
    shardkit.pack(tmp_path / "a", tmp_path / "packed", train_tokenizer=300, **OPTIONS)
    tokens = shardkit.TokenDataset(tmp_path / "packed", seq_len=16)
    with pytest.raises(UsageError, match=r"shardkit\.mix takes it, with length='all'"):
        shardkit.concat([tokens, tokens])
    assert len(shardkit.mix({"a": tokens, "b": tokens}, length="all")) > len(tokens)
