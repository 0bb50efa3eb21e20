"""Datasets that earlier releases wrote are read by this code, to the byte.

``tests/golden/make.py`` made them, and says how to add those of a release.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import CONTAINERS, tree
from golden.make import versions

import shardkit
from shardkit.index.manifest import CHANGED_VERSION, dump_info, read_info

ROOT = Path(__file__).parent / "golden"
RELEASES = sorted(
    (path.name for path in ROOT.iterdir() if (path / "pictures.json").exists()),
    key=lambda name: [int(number) for number in name.split(".")],
)
KINDS = ["pictures", "fields", "raw", "tokens"]
DATASETS = [(release, kind, to) for release in RELEASES for kind in KINDS for to in CONTAINERS]
MADE_WITH = {
    "lmdb": ["lmdb", "page size", "byte order", "machine"],
    "hdf5": ["hdf5", "zlib", "byte order"],
    "webdataset": [],
    "npy": ["byte order"],
}
"""What else decides the bytes of a container's files."""


class Golden(NamedTuple):
    dataset: Path
    source: Path
    options: dict[str, Any]
    said: dict[str, Any]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """(release, kind) -> folder of the input and of what each container made of it."""
    folders = {}
    for release, kind in {(release, kind) for release, kind, _ in DATASETS}:
        folder = folders[release, kind] = tmp_path_factory.mktemp(f"{release}-{kind}")
        with tarfile.open(ROOT / release / f"{kind}.tar.xz") as tar:
            tar.extractall(folder, filter="data")
    return folders


@pytest.fixture(params=DATASETS, ids="-".join)
def golden(request: pytest.FixtureRequest, unpacked: dict[tuple[str, str], Path]) -> Golden:
    release, kind, to = request.param
    folder = unpacked[release, kind]
    said = json.loads((ROOT / release / f"{kind}.json").read_bytes())
    return Golden(folder / to, folder / "input", said["datasets"][to], said)


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """The path of a golden tokenizer is from its folder."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def digest(value: Any) -> str:
    return hashlib.sha256(bytes(value)).hexdigest()


def check(dataset: Path, said: dict[str, Any]) -> None:
    """Keys, labels and the canonical bytes of every value are those that were written down."""
    info = read_info(dataset, sealed=True)
    assert list(info.splits) == list(said["splits"]) and info.classes == said["classes"]
    for split, samples in said["splits"].items():
        ds = shardkit.open(dataset, split, decode=False, verify=True)
        assert ds.keys() == [key for key, _ in samples]
        for row, (key, values) in enumerate(samples):
            sample = ds[row]
            assert sample.pop("__key__") == key and ds.find(key) == row
            assert {field: digest(value) for field, value in sample.items()} == values, key
        decoded = shardkit.open(dataset, split)
        whole = decoded.read(range(len(decoded)))
        for row, sample in enumerate(ds):
            for field in sample.keys() & {"cls", "tokens", "image.npy", "emb.npy", "feat.npy"}:
                assert_means(bytes(sample[field]), field, whole[field][row])


def assert_means(stored: bytes, field: str, value: object) -> None:
    """``value`` is what numpy, or int, makes of the canonical bytes."""
    if field == "cls":
        assert value == int(stored)
    else:
        expected = np.load(io.BytesIO(stored))
        assert np.asarray(value).dtype == expected.dtype and np.array_equal(value, expected)


def without_signposts(dataset: Path) -> dict[str, bytes]:
    """Its files as 0.1.0 wrote them: files for other tools lie beside the shards since then, and
    nothing else has changed."""
    files, info = tree(dataset), read_info(dataset, sealed=True)
    for name in info.signposts:
        del files[name]
    return files | {"shardkit.json": dump_info(dataclasses.replace(info, signposts={}))}


def test_every_format_version_is_there() -> None:
    """Whoever raises the version adds the datasets of it, and keeps the older ones."""
    found = {
        json.loads((ROOT / release / f"{kind}.json").read_bytes())["format_version"]
        for release in RELEASES
        for kind in (*KINDS, "changed")
    }
    assert found == set(range(2, CHANGED_VERSION + 1))


def test_they_are_small() -> None:
    """They stay in the repository for good."""
    assert sum(len(data) for data in tree(ROOT).values()) < 1_000_000


def test_read(golden: Golden) -> None:
    check(golden.dataset, golden.said)


def test_verify(golden: Golden) -> None:
    result = shardkit.verify(golden.dataset, against=golden.source, progress=False)
    assert result.ok, result.problems
    num_samples = sum(map(len, golden.said["splits"].values()))
    assert (result.num_samples, result.num_compared) == (num_samples, num_samples)


def test_unpack(golden: Golden, tmp_path: Path) -> None:
    shardkit.unpack(golden.dataset, tmp_path / "back", progress=False)
    found = {name: digest(data) for name, data in tree(tmp_path / "back").items()}
    assert found == golden.said["unpacked"]


def test_convert(golden: Golden, tmp_path: Path) -> None:
    to = CONTAINERS[CONTAINERS.index(golden.options["to"]) - 1]
    shardkit.convert(golden.dataset, tmp_path / "other", to=to, workers=0, progress=False)
    check(tmp_path / "other", golden.said)
    assert shardkit.verify(tmp_path / "other", progress=False).ok


def test_packing_the_same_again_gives_the_same_bytes(golden: Golden, tmp_path: Path) -> None:
    """Of the newest release alone: a later one may write other bytes, and then adds its own."""
    if not golden.dataset.parent.name.startswith(RELEASES[-1]):
        pytest.skip("a later release writes other bytes")
    then, now = golden.said["made_with"], versions()
    for name in MADE_WITH[golden.options["to"]]:
        if then[name] != now[name]:
            pytest.skip(f"made with {name} {then[name]}, and this machine has {now[name]}")
    with inside(golden.source.parent):
        shardkit.pack("input", tmp_path / "again", **golden.options, workers=0, progress=False)
    assert without_signposts(tmp_path / "again") == tree(golden.dataset)


def test_they_have_no_signposts_and_are_whole(golden: Golden) -> None:
    """Files for other tools came later, and nobody who reads needs them."""
    assert read_info(golden.dataset, sealed=True).signposts == {}
    assert not {"data.mdb", ".huggingface.yaml"} & tree(golden.dataset).keys()
    assert shardkit.info(golden.dataset).recipes["shardkit"]


# --- what was changed after it was packed -------------------------------------------------

CHANGED = [(release, to) for release in RELEASES for to in CONTAINERS]


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Release -> folder of its datasets that were changed, one of each container."""
    folders = {release: tmp_path_factory.mktemp(release) for release in RELEASES}
    for release, folder in folders.items():
        with tarfile.open(ROOT / release / "changed.tar.xz") as tar:
            tar.extractall(folder, filter="data")
    return folders


@pytest.mark.parametrize(("release", "to"), CHANGED)
def test_every_version_is_read(
    changed: dict[str, Path], release: str, to: str, tmp_path: Path
) -> None:
    dataset = changed[release] / to
    said = json.loads((ROOT / release / "changed.json").read_bytes())["versions"]
    assert shardkit.info(dataset).versions == [*map(int, said)]
    for number, expected in said.items():
        version = int(number)
        assert shardkit.verify(dataset, version=version, progress=False).ok
        for split, samples in expected["splits"].items():
            ds = shardkit.open(dataset, split, version=version, decode=False, verify=True)
            assert ds.classes == expected["classes"]
            assert ds.keys() == [key for key, _ in samples]
            for row, (key, values) in enumerate(samples):
                sample = ds[row]
                assert sample.pop("__key__") == key and ds.find(key) == row
                assert {field: digest(value) for field, value in sample.items()} == values, key
    other = CONTAINERS[CONTAINERS.index(to) - 1]
    shardkit.convert(dataset, tmp_path / "other", to=other, workers=0, progress=False)
    check(tmp_path / "other", said[max(said)])


@pytest.mark.parametrize(("release", "to"), CHANGED)
def test_it_can_be_changed_again(
    changed: dict[str, Path], release: str, to: str, tmp_path: Path
) -> None:
    dataset = shutil.copytree(changed[release] / to, tmp_path / "dataset")
    last = shardkit.open(dataset).version
    shardkit.edit(dataset, restore=5)
    shardkit.prune(dataset, keep=2)
    assert shardkit.info(dataset).versions == [last, last + 1]
    assert shardkit.verify(dataset, progress=False).ok
