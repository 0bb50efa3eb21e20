"""Datasets whose bytes lie in no file: reading asks the seam for named bytes, and nothing else."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import EACH_FORMAT, make_pairs
from token_data import documents, pack_tokens

import shardkit
from shardkit.arrays import Array, Bytes, Integers
from shardkit.errors import IndexFileError, ShardMissingError
from shardkit.index.manifest import stored_info
from shardkit.shards.locate import Located
from shardkit.storage.interface import Files, Ranges, Sliceable, Storage, Turn

NOWHERE = Path("/nowhere at all")


class InDict:
    """Files are entries of a dict. Ranges are fetched when they are waited for, not when they are
    asked for, as over a network; ``asked`` says how many each call asked for."""

    def __init__(self, kept: dict[str, bytes]) -> None:
        self.kept = kept
        self.asked: list[int] = []

    def contents(self, name: str, num_bytes: int, *, copied: bool = False) -> memoryview:
        if self.size(name) != num_bytes:
            raise IndexFileError(f"{self.show(name)} has {self.size(name)} bytes")
        return memoryview(self.kept[name])

    def size(self, name: str) -> int:
        if name not in self.kept:
            raise ShardMissingError(f"{self.show(name)} is missing")
        return len(self.kept[name])

    def files(self, names: Sequence[str], sizes: Sequence[int], *, copied: bool = False) -> Files:
        return DictFiles(self, names, sizes)

    def show(self, name: str) -> str:
        return f"dict://{name}"


class DictFiles:
    def __init__(self, storage: InDict, names: Sequence[str], sizes: Sequence[int]) -> None:
        self.sizes = np.array(sizes, np.int64)
        self._storage = storage
        self._names = names

    def read(self, numbers: Integers, starts: Integers, sizes: Integers) -> Ranges:
        self._storage.asked.append(len(numbers))
        columns = numbers.tolist(), starts.tolist(), (starts + sizes).tolist()
        places = [*zip(*columns, strict=True)]
        return DictRanges(lambda: [self.get(*place) for place in places])

    def get(self, number: int, start: int, stop: int) -> memoryview:
        name = self._names[number]
        return self._storage.contents(name, int(self.sizes[number]))[start:stop]

    def piece(self, number: int, start: int, stop: int) -> Sliceable:
        return self.get(number, start, stop)

    def announce(
        self, numbers: Integers, starts: Integers, sizes: Integers, turn: Turn | None = None
    ) -> None:
        assert len(numbers) == len(starts) == len(sizes) and (sizes > 0).all()
        self._storage.asked.append(-len(numbers))

    def is_cold(self) -> bool:
        return True


class DictRanges:
    def __init__(self, fetch: Callable[[], list[memoryview]]) -> None:
        self._fetch = fetch

    def slices(self) -> list[memoryview]:
        return self._fetch()

    def copy_to(self, out: Bytes) -> None:
        out[:] = np.frombuffer(b"".join(self._fetch()), np.uint8)

    def widen_to(self, out: Array, dtype: np.dtype[Any]) -> None:
        out[:] = np.frombuffer(b"".join(self._fetch()), dtype)

    def joined(self, size: int) -> Bytes | None:
        return np.frombuffer(bytearray().join(self._fetch()), np.uint8).reshape(-1, size)


def taken_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> InDict:
    """A dataset's bytes, which are then in no file; opening finds them whatever the path."""
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    for path in folder.iterdir():
        path.unlink()
    storage: Storage = (made := InDict(kept))

    def located(path: Path, *, sealed: bool = False, version: int | None = None) -> Located:
        return Located(storage, NOWHERE, stored_info(storage, sealed=sealed))

    monkeypatch.setattr("shardkit.reading.dataset.locate", located)
    return made


def plain(values: Any) -> list[Any]:
    if isinstance(values, np.ndarray):
        return [values.dtype.str, values.tolist()]
    return [bytes(v) if isinstance(v, memoryview) else repr(v) for v in values]


def everything(ds: shardkit.Dataset) -> dict[str, Any]:
    """What can be asked of a dataset."""
    rows = [*range(len(ds) - 1, -1, -2), 3, 3]
    out = np.zeros(1 << 20, np.uint8)
    offsets = ds.read_into(rows, "jpg", out)
    ds.advise(rows)
    return {
        "read": {name: plain(values) for name, values in ds.read(rows).items()},
        "read_into": [offsets.tolist(), out[: offsets[-1]].tobytes()],
        "items": [repr(ds[row]) for row in range(len(ds))],
        "keys": (keys := ds.keys()),
        "found": [*map(ds.find, keys)],
        "column": plain(ds.column("cls")),
        "where": ds.where(2),
        "selected": [repr(sample) for sample in ds.select([4, 1])],
    }


@pytest.mark.parametrize("verify", [False, True])
def test_a_dataset_in_no_file(
    container: str, verify: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    source = make_pairs(tmp_path / "in")
    shardkit.pack(source, folder, to=container, shard_size="1kB", workers=0)
    expected = everything(shardkit.open(folder, verify=verify))
    storage = taken_away(folder, monkeypatch)
    ds = shardkit.open(NOWHERE, verify=verify)
    assert everything(ds) == expected
    assert everything(pickle.loads(pickle.dumps(ds))) == expected
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(everything, [ds] * 4)] == [expected] * 4
    storage.asked.clear()
    ds.read(np.arange(len(ds)))
    assert len(storage.asked) <= len(ds.fields), "a batch is one question a field"


@pytest.mark.parametrize("boundaries", ["ignore", "mask", "fit"])
@pytest.mark.parametrize("to", EACH_FORMAT)
def test_tokens_in_no_file(
    to: str, boundaries: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pack_tokens(tmp_path, documents([5, 0, 40, 17, 3, 60]), to, shard_size="150B")

    def read(path: Path) -> list[Any]:
        ds = shardkit.TokenDataset(path, seq_len=9, boundaries=boundaries)
        ds.advise(np.arange(len(ds)))
        batch = ds.read(np.arange(len(ds)))
        return [*((name, plain(values)) for name, values in batch.items()), ds.where(1)]

    expected = read(folder)
    storage = taken_away(folder, monkeypatch)
    assert read(NOWHERE) == expected
    assert min(storage.asked) < 0, "what is advised is announced"
