"""One hostile file for every way a file can be wrong: an error of ours, and nothing else happens.

What is forged here is forged well: sizes, hashes and the seal of shardkit.json are made to fit, so
that it is not a checksum that saves the reader.
"""

from __future__ import annotations

import faulthandler
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from conftest import (
    CONTAINERS,
    examples,
    make_arrays,
    make_images,
    make_pairs,
    run_python,
    tree,
    write,
)
from dying import end_of, forked
from hypothesis import given
from hypothesis import strategies as st

import shardkit
from shardkit.errors import (
    DataError,
    DestinationError,
    FormatError,
    IndexFileError,
    ShardkitError,
    UnsafePathError,
    UsageError,
)
from shardkit.index import manifest
from shardkit.index.file_names import INDEX_KINDS
from shardkit.index.manifest import parse_info
from shardkit.samples.encoding import Encoding, choose_encoding, inflate, npy_header_size, parse_npy

Json = dict[str, Any]

OPTIONS = {"shard_size": "3kB", "workers": 0, "progress": False}
MAKE = {
    "images": lambda root: make_images(root, per_class=4),
    "pairs": make_pairs,
    "arrays": make_arrays,
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``{kind}-{container}``: a small good dataset of each."""
    root = tmp_path_factory.mktemp("originals")
    for kind, make in MAKE.items():
        source = make(root / kind)
        for container in CONTAINERS:
            compression = 5 if (container, kind) == ("hdf5", "arrays") else None
            dest = root / f"{kind}-{container}"
            shardkit.pack(source, dest, to=container, compression=compression, **OPTIONS)
    return root


@pytest.fixture
def dataset(originals: Path, tmp_path: Path, container: str) -> Path:
    """A copy of a good dataset, to be spoilt."""
    return shutil.copytree(originals / f"pairs-{container}", tmp_path / "dataset")


# --- forging ------------------------------------------------------------------------------


def write_sealed(folder: Path, raw: Json) -> None:
    """Write shardkit.json as a writer would who meant all of it."""
    body = json.dumps(raw, indent=1).removesuffix("\n}").encode()
    (folder / "shardkit.json").write_bytes(body + manifest._seal(body))


def seal(folder: Path, raw: Json) -> None:
    """The same, with the sizes and hashes that the index files have."""
    for split in raw["splits"].values():
        for name, entry in split["files"].items():
            data = (folder / name).read_bytes()
            entry |= {"bytes": len(data), "xxh3": f"{xxhash.xxh3_64_intdigest(data):016x}"}
    write_sealed(folder, raw)


def load(folder: Path) -> Json:
    made: Json = json.loads((folder / "shardkit.json").read_bytes())
    del made["xxh3"]
    return made


def forge_rows(folder: Path, change: Callable[[np.ndarray[Any, Any]], None]) -> None:
    """Change the row index, which comes as a structured array."""
    path = folder / "train.rows"
    table = np.load(path)
    change(table)
    own = xxhash.xxh3_64_intdigest(load(folder)["splits"]["train"]["fingerprint"].encode())
    table["row.xxh3"] = [
        xxhash.xxh3_64_intdigest(row.tobytes()[:-8], (own + number) % 2**64)
        for number, row in enumerate(table)
    ]
    header = path.read_bytes()[: -table.nbytes]
    path.write_bytes(header + table.tobytes())
    seal(folder, load(folder))


def forge_names(folder: Path, entries: dict[int, bytes]) -> None:
    """Give rows other keys and paths (``key NUL paths``)."""
    table = np.load(folder / "train.rows")
    blob = (folder / "train.names").read_bytes()
    names = [blob[r["name.start"] :][: r["name.size"]] for r in table]
    for row, entry in entries.items():
        names[row] = entry
    (folder / "train.names").write_bytes(b"".join(names))

    def change(table: np.ndarray[Any, Any]) -> None:
        sizes = np.array([len(name) for name in names])
        table["name.size"] = sizes
        table["name.start"] = np.cumsum(sizes) - sizes
        table["name.xxh3"] = [xxhash.xxh3_64_intdigest(name) for name in names]
        table["key"] = [xxhash.xxh3_64_intdigest(name.split(b"\0")[0]) for name in names]

    forge_rows(folder, change)


# --- using --------------------------------------------------------------------------------


def steps(path: Path, scratch: Path) -> Iterator[Callable[[], object]]:
    """Everything that can be done with a dataset, step by step."""
    yield lambda: shardkit.info(path)
    yield lambda: shardkit.verify(path, progress=False)
    yield lambda: shardkit.unpack(path, scratch / "unpacked", progress=False)
    yield lambda: shardkit.open(path, verify=True).read([0])
    for decode in (True, False, "pil"):
        yield lambda decode=decode: _read_all(shardkit.open(path, decode=decode))
    yield lambda: shardkit.open(path).column("cls")
    yield lambda: _find_all(shardkit.open(path))
    yield lambda: shardkit.open(path).advise(range(4))


def _read_all(ds: shardkit.Dataset) -> None:
    for start in range(0, len(ds), 16):
        ds.read(range(start, min(start + 16, len(ds))))
    ds[-1]


def _find_all(ds: shardkit.Dataset) -> None:
    for key in [*ds.keys(), "no such key", "\ud800"]:
        try:
            ds.find(key)
        except KeyError:
            pass


def use(path: Path, scratch: Path) -> list[str]:
    """Do everything; what was refused. Whatever is no error of ours comes through."""
    refused = []
    for step in steps(path, scratch):
        try:
            step()
        except ShardkitError as error:
            refused.append(str(error))
        shutil.rmtree(scratch / "unpacked", ignore_errors=True)
    assert all("\n" not in message and len(message) < 2000 for message in refused)
    return refused


def test_nothing_is_refused_of_good_ones(originals: Path, tmp_path: Path, container: str) -> None:
    for kind in MAKE:
        refused = use(originals / f"{kind}-{container}", tmp_path)
        assert refused == (["no field 'cls' here, only npy"] if kind == "arrays" else [])
    forged = shutil.copytree(originals / f"pairs-{container}", tmp_path / "forged")
    forge_names(forged, {})
    assert tree(forged) == tree(originals / f"pairs-{container}")


# --- shardkit.json ------------------------------------------------------------------------

BYTES = {
    "empty": b"",
    "not JSON": b"\x89HDF\r\n",
    "not UTF-8": b'{"format": "shardkit\xff"}',
    "cut short": b'{"format": "shardkit", "version": 1',
    "nested deeply": b"[" * 1_000_000,
    "nested deeply inside": b'{"format": "shardkit", "version": 1, "fields": ' + b"[" * 1_000_000,
    "a list": b"[1]",
    "a number of a million digits": b'{"format": "shardkit", "version": ' + b"9" * 1_000_000 + b"}",
    "of another program": b'{"format": "mosaic", "version": 1}',
    "nothing else": b'{"format": "shardkit", "version": 1}',
}


@pytest.mark.parametrize("case", BYTES)
def test_hostile_json(tmp_path: Path, case: str) -> None:
    (tmp_path / "shardkit.json").write_bytes(BYTES[case])
    refused = use(tmp_path, tmp_path)
    assert len(refused) == len(list(steps(tmp_path, tmp_path)))
    assert all("shardkit.json" in message for message in refused)


def test_json_too_large_to_read(tmp_path: Path) -> None:
    with (tmp_path / "shardkit.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(IndexFileError, match="refusing to read"):
        shardkit.open(tmp_path)


def _shards(raw: Json) -> list[Any]:
    shards: list[Any] = raw["splits"]["train"]["shards"]
    return shards


def _rename(raw: Json, name: str) -> None:
    files = _shards(raw)[0][2]
    files[name] = files.pop(next(iter(files)))


def _encode(raw: Json, **encoding: Any) -> None:
    raw["splits"]["train"]["layouts"][0]["jpg"] = encoding


def _field(raw: Json, name: str) -> None:
    raw["fields"] = sorted([*raw["fields"], name])


def _split(raw: Json, name: str) -> None:
    raw["splits"][name] = raw["splits"].pop("train")


LINE = {"number": 1, "when": None, "what": "packed", "num_rows": {}, "fingerprints": {}}

CHANGES: dict[str, Callable[[Json], Any]] = {
    "newer version": lambda raw: raw.update(version=4),
    "a history of one": lambda raw: raw.update(history=[LINE]),
    "a history that skips": lambda raw: raw.update(history=[LINE, LINE | {"number": 3}]),
    "a history of no lines": lambda raw: raw.update(history=[1, 2]),
    "rows as text in it": lambda raw: raw.update(
        history=[LINE, LINE | {"number": 2, "num_rows": {"train": "1"}}]
    ),
    "a stem that leads out": lambda raw: _shards(raw)[0].append({"stem": "../train-00000"}),
    "a stem without a number": lambda raw: _shards(raw)[0].append({"stem": "train"}),
    "a stem of other files": lambda raw: _shards(raw)[0].append({"stem": "train-00001"}),
    "fewer than none left out": lambda raw: _shards(raw)[0].append({"left_out": -1}),
    "an index of another split": lambda raw: raw["splits"]["train"].update(
        files={f"val~2.{kind}": {"bytes": 1, "xxh3": "0"} for kind in INDEX_KINDS}
    ),
    "an index of version 0": lambda raw: raw["splits"]["train"].update(
        files={f"train~0.{kind}": {"bytes": 1, "xxh3": "0"} for kind in INDEX_KINDS}
    ),
    "a picture as a label": lambda raw: _encode(raw, kind="label"),
    "unreleased version": lambda raw: raw.update(version=1),
    "version as text": lambda raw: raw.update(version="2"),
    "no version": lambda raw: raw.pop("version"),
    "fields as text": lambda raw: raw.update(fields="jpg"),
    "a field twice": lambda raw: raw.update(fields=sorted([*raw["fields"], "jpg"])),
    "fields not in order": lambda raw: raw["fields"].reverse(),
    "classes as text": lambda raw: raw.update(classes="abc"),
    "class is no text": lambda raw: raw.update(classes=["a", 1]),
    "unknown container": lambda raw: raw.update(container="zarr"),
    "container by an alias": lambda raw: raw.update(container="tar"),
    "corpus kind is a list": lambda raw: raw.update(corpus={"kind": ["images"]}),
    "text field is a number": lambda raw: raw.update(corpus={"text_field": 7}),
    "tokens of a number": lambda raw: raw.update(corpus={"tokens": 7}),
    "a tokenizer above": lambda raw: raw.update(corpus={"tokens": {"file": "../../x"}}),
    "no splits": lambda raw: raw.update(splits={}),
    "rows negative": lambda raw: raw["splits"]["train"].update(rows=-1),
    "rows not the sum": lambda raw: raw["splits"]["train"].update(rows=1),
    "shard rows negative": lambda raw: _shards(raw)[0].__setitem__(0, -3),
    "shard rows of text": lambda raw: _shards(raw)[0].__setitem__(0, "3"),
    "layout out of range": lambda raw: _shards(raw)[0].__setitem__(1, 99),
    "layout negative": lambda raw: _shards(raw)[0].__setitem__(1, -1),
    "shard with four entries": lambda raw: _shards(raw)[0].append(0),
    "file size negative": lambda raw: _shards(raw)[0][2].update(
        dict.fromkeys(_shards(raw)[0][2], -1)
    ),
    "file with a path": lambda raw: _rename(raw, "train-00000./../../x.npy"),
    "file absolute": lambda raw: _rename(raw, "/tmp/train-00000.npy"),
    "file with NUL": lambda raw: _rename(raw, "train-00000.\0.npy"),
    "file with escapes": lambda raw: _rename(raw, "train-00000.\x1b[2J.npy"),
    "file no file system holds": lambda raw: _rename(raw, "train-00000.\ud800.npy"),
    "file that is no shard": lambda raw: _rename(raw, "train-00000.txt"),
    "file of another shard": lambda raw: _rename(raw, "train-00001.x.npy"),
    "field with NUL": lambda raw: _field(raw, "x\0"),
    "field named as a column": lambda raw: _field(raw, "jpg.start"),
    "field named as the key": lambda raw: _field(raw, "__key__"),
    "field empty": lambda raw: _field(raw, ""),
    "field endless": lambda raw: _field(raw, "x" * 65),
    "split with a path": lambda raw: _split(raw, "../train"),
    "split absolute": lambda raw: _split(raw, "/train"),
    "split with NUL": lambda raw: _split(raw, "train\0"),
    "its files named otherwise": lambda raw: raw["splits"]["train"]["files"].update(x={}),
    "layout of an unknown field": lambda raw: raw["splits"]["train"]["layouts"].append(
        {"x": {"kind": "bytes"}}
    ),
    "encoding without kind": lambda raw: _encode(raw),
    "unknown codec": lambda raw: _encode(raw, kind="bytes", codec="lzma"),
    "objects": lambda raw: _encode(raw, kind="array", dtype="O", shape=[2]),
    "text array": lambda raw: _encode(raw, kind="array", dtype="<U4", shape=[2]),
    "structured": lambda raw: _encode(raw, kind="array", dtype="i4,i4", shape=[2]),
    "dtype of code": lambda raw: _encode(raw, kind="array", dtype="__import__('os')", shape=[2]),
    "shape too large": lambda raw: _encode(raw, kind="array", dtype="<f4", shape=[2**62, 2**62]),
    "shape of too many axes": lambda raw: _encode(raw, kind="array", dtype="<f4", shape=[1] * 99),
    "shape negative": lambda raw: _encode(raw, kind="array", dtype="<f4", shape=[-1, -4]),
    "its product overflows": lambda raw: _encode(
        raw, kind="array", dtype="<f8", shape=[2**32, 2**32]
    ),
    "its product overflows zlib": lambda raw: _encode(
        raw, kind="array", dtype="<f8", shape=[2**47, 2**47], codec="zlib"
    ),
    "ragged inside": lambda raw: _encode(raw, kind="ragged", dtype="<f4", shape=[2, -1]),
    "ragged twice": lambda raw: _encode(raw, kind="ragged", dtype="<f4", shape=[-1, -1]),
    "ragged and deflated": lambda raw: _encode(
        raw, kind="ragged", dtype="<f4", shape=[-1, 2], codec="zlib"
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_hostile_entries(originals: Path, tmp_path: Path, case: str) -> None:
    dataset = shutil.copytree(originals / "images-npy", tmp_path / "dataset")
    before = tree(tmp_path)
    raw = load(dataset)
    CHANGES[case](raw)
    write_sealed(dataset, raw)
    refused = use(dataset, tmp_path)
    assert len(refused) == len(list(steps(dataset, tmp_path))), refused
    assert all("dataset/shardkit.json" in m or "no container" in m for m in refused), refused
    if "newer version" in case:
        assert all("has version 4, this shardkit reads 3; upgrade shardkit" in m for m in refused)
    if "unreleased version" in case:
        what = "has version 1, made by an unreleased shardkit; pack again"
        assert all(what in m for m in refused)
    assert tree(tmp_path).keys() == before.keys()


WRONG: list[Any] = [None, True, -1, 0, 2.5, 2**63, "x", "\ud800", [], [[]], {}, {"x": []}]


def _nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every node of a JSON document."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, below in list(items):
        yield value, key
        if isinstance(below, (dict, list)):
            yield from _nodes(below)


def test_wrong_types_everywhere(originals: Path, tmp_path: Path) -> None:
    """Each entry in turn becomes something else: refused, or harmless."""
    dataset = shutil.copytree(originals / "pairs-hdf5", tmp_path / "dataset")
    raw = load(dataset)
    outcomes = {True: 0, False: 0}
    for holder, key in list(_nodes(raw)):
        right = holder[key]
        for wrong in WRONG:
            holder[key] = wrong
            data = json.dumps(raw).encode()
            try:
                parse_info(data, "x")
            except IndexFileError:
                outcomes[False] += 1
            else:
                write_sealed(dataset, raw)
                use(dataset, tmp_path)
                outcomes[True] += 1
        holder[key] = right
    assert outcomes[False] > 500
    assert 0 < outcomes[True] < 400


# --- rows, names, find, sums --------------------------------------------------------------


def _header(folder: Path, old: bytes, new: bytes) -> None:
    path = folder / "train.rows"
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new.ljust(len(old)), 1))


FILES: dict[str, Callable[[Path], object]] = {
    "rows of objects": lambda d: _header(d, b"'<u8'", b"'|O' "),
    "rows of floats": lambda d: _header(d, b"'<i8'", b"'<f8'"),
    "rows in Fortran order": lambda d: _header(d, b"False", b"True "),
    "rows with other columns": lambda d: _header(d, b"name.start", b"name.stars"),
    "more rows than there are": lambda d: _header(d, b"'shape': (1", b"'shape': (9"),
    "rows of version 1": lambda d: _header(d, b"NUMPY\2", b"NUMPY\1"),
    "rows cut short": lambda d: os.truncate(d / "train.rows", 1000),
    "rows empty": lambda d: os.truncate(d / "train.rows", 0),
    "rows grown": lambda d: os.truncate(d / "train.rows", 1 << 20),
    "rows missing": lambda d: (d / "train.rows").unlink(),
    "rows a folder": lambda d: [(d / "train.rows").unlink(), (d / "train.rows").mkdir()],
    "rows a FIFO": lambda d: [(d / "train.rows").unlink(), os.mkfifo(d / "train.rows")],
    "rows a device": lambda d: [
        (d / "train.rows").unlink(),
        (d / "train.rows").symlink_to("/dev/zero"),
    ],
    "rows a link to itself": lambda d: [
        (d / "train.rows").unlink(),
        (d / "train.rows").symlink_to("train.rows"),
    ],
}


@pytest.mark.parametrize("case", FILES)
def test_hostile_rows_file(dataset: Path, tmp_path: Path, case: str) -> None:
    FILES[case](dataset)
    refused = use(dataset, tmp_path)
    assert sum("train.rows" in message for message in refused) >= 7, refused
    result = shardkit.verify(dataset)
    assert "train.rows" in [p.where for p in result.problems]


HEADERS = [
    case for case in FILES if case.startswith("rows of") or "columns" in case or "order" in case
]


@pytest.mark.parametrize("case", HEADERS)
def test_hostile_rows_header(dataset: Path, case: str) -> None:
    FILES[case](dataset)
    seal(dataset, load(dataset))
    with pytest.raises(IndexFileError, match="its header is not the one"):
        shardkit.open(dataset)


HUGE = 2**63 - 1

PLACES = {
    "start negative": {"start": -5},
    "start at the end": {"start": 10**7},
    "start enormous": {"start": HUGE},
    "size too large": {"size": 10**7},
    "a sum that overflows": {"start": HUGE - 9, "size": HUGE - 9},
}


@pytest.mark.parametrize("case", PLACES)
def test_ranges_outside_the_shard(dataset: Path, tmp_path: Path, case: str) -> None:
    def change(table: np.ndarray[Any, Any]) -> None:
        for part, value in PLACES[case].items():
            table[f"jpg.{part}"][3] = value

    forge_rows(dataset, change)
    ds = shardkit.open(dataset)
    assert len(ds.read([0, 1, 2])["jpg"]) == 3  # the others stay readable
    for step in (
        lambda: ds[3],
        lambda: ds.read([0, 3]),
        lambda: ds.read_into([3], "jpg", np.zeros(10**6, np.uint8)),
        lambda: ds.advise([3]),
        lambda: shardkit.open(dataset, verify=True)[3],
        lambda: shardkit.unpack(dataset, tmp_path / "unpacked"),
    ):
        with pytest.raises(IndexFileError, match="places a jpg outside its shard"):
            step()
    problems = shardkit.verify(dataset).problems
    assert [(p.key, p.shard) for p in problems] == [(ds.keys([3])[0], problems[0].shard)]


def test_sizes_below_minus_one_are_absent_values(dataset: Path) -> None:
    def change(table: np.ndarray[Any, Any]) -> None:
        table["jpg.size"][3] = -(2**63)
        table["jpg.start"][3] = HUGE

    forge_rows(dataset, change)
    assert "jpg" not in shardkit.open(dataset)[3]
    assert [p.key for p in shardkit.verify(dataset).problems] == [shardkit.open(dataset).keys()[3]]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("name.start", -1),
        ("name.start", HUGE),
        ("name.size", -1),
        ("name.size", 10**6),
    ],
)
def test_names_outside_the_names_file(
    dataset: Path, tmp_path: Path, column: str, value: int
) -> None:
    def change(table: np.ndarray[Any, Any]) -> None:
        table[column][5] = value

    forge_rows(dataset, change)
    ds = shardkit.open(dataset)
    assert len(ds.keys([0, 4, 6])) == 3
    for step in (
        lambda: ds.keys([5]),
        lambda: ds.keys(),
        lambda: ds[5],
        lambda: shardkit.unpack(dataset, tmp_path / "unpacked"),
    ):
        with pytest.raises(IndexFileError, match="row 5 of train: its name lies outside"):
            step()


def test_rows_that_share_one_huge_name(dataset: Path) -> None:
    (dataset / "train.names").write_bytes(bytes(2 << 20))

    def change(table: np.ndarray[Any, Any]) -> None:
        table["name.start"] = 0
        table["name.size"] = 2 << 20

    forge_rows(dataset, change)
    with pytest.raises(IndexFileError, match="its name lies outside"):
        shardkit.open(dataset).keys()


@pytest.mark.parametrize("row", [-1, 13, HUGE, -(2**63)])
def test_find_names_rows_that_are_not_there(dataset: Path, row: int) -> None:
    (dataset / "train.find").write_bytes(struct.pack("<q", row) * 13)
    seal(dataset, load(dataset))
    with pytest.raises(IndexFileError, match=r"train\.find names row"):
        shardkit.open(dataset).find("0003")


@pytest.mark.parametrize("kind", ["find", "sums", "names"])
@pytest.mark.parametrize("size", [0, 1, 7, 96, 4099])
def test_other_sizes(dataset: Path, tmp_path: Path, kind: str, size: int) -> None:
    (dataset / f"train.{kind}").write_bytes(bytes(size))
    assert any(f"train.{kind}" in p.where for p in shardkit.verify(dataset).problems)
    use(dataset, tmp_path)
    seal(dataset, load(dataset))
    refused = use(dataset, tmp_path)
    if kind != "sums":
        assert refused
    elif size:
        assert any("train.sums has" in message for message in refused)


# --- an index that contradicts itself -----------------------------------------------------


def _swap_all(table: np.ndarray[Any, Any]) -> None:
    table[[2, 3]] = table[[3, 2]]


def _swap(column: str) -> Callable[[np.ndarray[Any, Any]], None]:
    def change(table: np.ndarray[Any, Any]) -> None:
        table[column][[2, 3]] = table[column][[3, 2]]

    return change


def _set(column: str, row: int, value: int) -> Callable[[np.ndarray[Any, Any]], None]:
    def change(table: np.ndarray[Any, Any]) -> None:
        table[column][row] = value

    return change


def _swap_names(table: np.ndarray[Any, Any]) -> None:
    for column in ("name.start", "name.size", "name.xxh3", "key"):
        _swap(column)(table)


CONTRADICTIONS: dict[str, tuple[Callable[[np.ndarray[Any, Any]], None], set[int], str]] = {
    "swapped rows": (_swap_all, {2, 3, 4}, "its name does not follow that of the row before"),
    "another's name": (_swap_names, {2, 3, 4}, "its name does not follow that of the row before"),
    "key": (_set("key", 3, 7), {3}, "its key is not the one that the index has the hash of"),
    "name": (_set("name.xxh3", 3, 7), {3}, "its key and paths differ from those written"),
    "label": (_set("cls", 3, 5), {3}, "its label in the row index is 5, its value 0"),
    "no label": (_set("cls", 3, -(2**63)), {3}, "its label in the row index is none, its value 0"),
    "checksum": (_set("xxh3", 3, 7), {3}, "its bytes differ from those packed"),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_rows_that_contradict(dataset: Path, case: str) -> None:
    """Their hashes and the seal are right: only what they say is not."""
    change, rows, what = CONTRADICTIONS[case]
    forge_rows(dataset, change)
    problems = [p for p in shardkit.verify(dataset).problems if p.where != "train.rows"]
    assert all(what in p.what for p in problems), problems
    assert {int(re.findall(r"row (\d+)", p.where)[0]) for p in problems} == rows


def test_a_checksum_of_a_row_that_contradicts(dataset: Path) -> None:
    path = dataset / "train.rows"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    seal(dataset, load(dataset))
    (problem,) = shardkit.verify(dataset).problems
    assert problem.key and "(row 12, " in problem.where
    assert problem.what == "its entries in the row index differ from those written"


def test_a_key_that_two_samples_have(dataset: Path) -> None:
    blob = (dataset / "train.names").read_bytes().split(b"0001\0")[1].split(b"0002")[0]
    forge_names(dataset, {2: b"0001\0" + blob})
    table = np.load(dataset / "train.rows")
    order = np.argsort(table["key"], kind="stable").astype("<i8")
    (dataset / "train.find").write_bytes(order.tobytes())
    seal(dataset, load(dataset))
    repeated, fingerprint = shardkit.verify(dataset).problems
    assert repeated.key == "0001" and repeated.what == "row 1 has the same key"
    assert fingerprint.where == "train.rows" and "fingerprint" in fingerprint.what


@pytest.mark.parametrize("case", ["unsorted", "not all rows"])
def test_a_find_that_contradicts(dataset: Path, case: str) -> None:
    order = np.fromfile(dataset / "train.find", "<i8")
    order[3] = order[4] if case == "not all rows" else order[3]
    (order if case == "not all rows" else np.sort(order)).tofile(dataset / "train.find")
    seal(dataset, load(dataset))
    (problem,) = shardkit.verify(dataset).problems
    assert problem.where == "train.find" and "is not all rows, sorted by key" in problem.what


def test_names_that_go_on(dataset: Path) -> None:
    (dataset / "train.names").write_bytes((dataset / "train.names").read_bytes() + b"x")
    seal(dataset, load(dataset))
    (problem,) = shardkit.verify(dataset).problems
    assert problem.where == "train.names" and "names do not end there" in problem.what


def test_a_fingerprint_of_others(dataset: Path) -> None:
    raw = load(dataset)
    raw["splits"]["train"]["fingerprint"] = 32 * "0"
    write_sealed(dataset, raw)
    (problem,) = shardkit.verify(dataset).problems
    assert problem.what == "the fingerprint in shardkit.json is that of other samples"


def test_labels_without_a_class(originals: Path, tmp_path: Path, container: str) -> None:
    dataset = shutil.copytree(originals / f"images-{container}", tmp_path / "dataset")
    raw = load(dataset)
    raw["classes"].pop()
    write_sealed(dataset, raw)
    problems = shardkit.verify(dataset).problems
    assert len(problems) == 4
    assert {p.what for p in problems} == {"its label is 2, and classes are 0 to 1"}


REJECTED: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a folder": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "huge": lambda path: [path.touch(), os.truncate(path, 1 << 40)],
    "nested deeply": lambda path: path.write_bytes(b"[" * 1_000_000),
    "no text": lambda path: path.write_bytes(b"\xff"),
    "no path": lambda path: path.write_bytes(b"{}\n"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_hostile_list_of_rejects(originals: Path, tmp_path: Path, case: str) -> None:
    dataset = shutil.copytree(originals / "pairs-npy", tmp_path / "dataset")
    REJECTED[case](dataset / "rejected.jsonl")
    with pytest.raises(DataError, match=r"dataset/rejected\.jsonl "):
        shardkit.verify(dataset, against=originals / "pairs")
    assert shardkit.verify(dataset).ok
    if case in ("a FIFO", "a folder", "a device", "huge"):
        with pytest.raises(DataError, match=r"dataset/rejected\.jsonl "):
            shardkit.convert(dataset, tmp_path / "other", to="lmdb", workers=0)


# --- values -------------------------------------------------------------------------------


class Exploit:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("pwned",))


def _npy(header: str, data: bytes = b"", version: int = 1) -> bytes:
    size = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + header.encode() + data


def _of(descr: object, shape: object, data: bytes = b"") -> bytes:
    return _npy(f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}}}", data)


def _pickled() -> bytes:
    out = io.BytesIO()
    np.save(out, np.array([Exploit()], object), allow_pickle=True)
    return out.getvalue()


NPY = {
    "empty": b"",
    "short": b"\x93NUM",
    "no header": b"\x93NUMPY\1\0",
    "a pickle": _pickled(),
    "a pickle inside": _of([("a", "<i4"), ("b", "O")], (1,), b"\x80\x04."),
    "header larger than the file": b"\x93NUMPY\2\0\xff\xff\xff\x7f{}",
    "header of a megabyte": _npy(" " * 1_000_000 + "{}", version=2),
    "header without end": _npy("{'descr': '<f4', "),
    "header of brackets": _npy("(" * 9_000),
    "header of code": _npy("__import__('os').mkdir('pwned')"),
    "header no dictionary": _npy("[1]"),
    "header not text": b"\x93NUMPY\1\0\x04\0\xff\xfe\x00\x01",
    "unknown version": b"\x93NUMPY\x09\0" + _of("<f4", (0,))[8:],
    "shape of 2**62": _of("<f4", (2**62,)),
    "shape whose product wraps to zero": _of("<f4", (2**32, 2**32)),
    "shape beyond all integers": _of("<f4", (0, 2**70)),
    "shape with zero that numpy cannot make": _of("<f4", (0, 2**62, 8)),
    "shape negative": _of("<f4", (-2, -2), bytes(16)),
    "shape of too many axes": _of("<f4", (1,) * 99, bytes(4)),
    "items of no bytes": _of("<U0", (2**40,)),
    "void of no bytes": _of("V0", (2**40,)),
    "shape of True": _of("<f4", (True,), bytes(4)),
    "shape of zero and True": _of("<f4", (0, True)),
    "shape no tuple": _of("<f4", 1, bytes(4)),
    "shape of more digits than Python prints": _npy(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (0x" + "f" * 5000 + ",)}"
    ),
    "dtype no dtype": _of(8, (1,), bytes(8)),
    "dtype of bytes": _of(b"<f4", (1,), bytes(4)),
    "dtype that is no Python": _of("08", (1,), bytes(8)),
    "sub-array": _of(("<f4", (2**40,)), ()),
    "sub-array that fits": _of(("<f4", (2,)), (1,), bytes(8)),
    "sub-array of none": _of(("<f4", (2,)), (0,)),
    "less data than its shape": _of("<f4", (4,), bytes(15)),
    "more data than its shape": _of("<f4", (4,), bytes(17)),
}


ODD_NPY = {
    "times": _of("<M8[ns]", (2,), bytes(16)),
    "time spans": _of("<m8[s]", (2,), bytes(16)),
    "texts": _of("<U2", (2,), bytes(16)),
    "a structure": _of([("a", "<i4"), ("b", "<f4", (3,))], (1,), bytes(16)),
    "a structure in one": _of([("a", [("b", "<i4")])], (1,), bytes(4)),
    "void": _of("|V4", (1,), bytes(4)),
    "big-endian": _of(">f4", (1,), bytes(4)),
    "of 64 axes": _of("<f4", (1,) * 32, bytes(4)),
    "of no axes": _of("<f4", (), bytes(4)),
}
"""What an array may be, and is seldom."""

PICKLES = [case for case in NPY if "pickle" in case]


@pytest.mark.parametrize("case", PICKLES)
@pytest.mark.parametrize("corpus", ["paired", "arrays"])
def test_pickles_are_not_packed(tmp_path: Path, corpus: str, case: str) -> None:
    write(tmp_path / "in" / "0.emb.npy", NPY[case])
    write(tmp_path / "in" / "0.txt", "x")
    with pytest.raises(DataError, match=r"0\.emb\.npy: a \.npy of Python objects holds pickles"):
        shardkit.pack(tmp_path / "in", tmp_path / "out", to="npy", corpus=corpus, **OPTIONS)


@pytest.mark.parametrize("case", [case for case in NPY if case not in PICKLES])
def test_hostile_npy_values(
    tmp_path: Path, container: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in"
    for i, value in enumerate([NPY[case], _of("<f4", (2,), bytes(8))]):
        write(source / f"{i}.npy", value)
        write(source / f"{i}.txt", "x")
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    shardkit.pack(source, tmp_path / "out", to=container, corpus="paired", **OPTIONS)
    ds = shardkit.open(tmp_path / "out")
    with pytest.raises(FormatError, match=r"sample '0' \(row 0, train-00000\), field npy: "):
        ds[0]
    assert ds[1]["npy"].tolist() == [0, 0]
    raw = shardkit.open(tmp_path / "out", decode=False)
    assert bytes(raw[0]["npy"]) == NPY[case]  # packed, verified and restored all the same
    assert shardkit.verify(tmp_path / "out", against=source).ok
    shardkit.unpack(tmp_path / "out", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)
    assert not list((tmp_path / "cwd").iterdir())


@pytest.mark.parametrize("case", NPY)
def test_hostile_npy_costs_no_memory(case: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            parse_npy(NPY[case])
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("case", [case for case in NPY if case not in PICKLES])
def test_hostile_npy_among_arrays(case: str, tmp_path: Path) -> None:
    """One bad file of a folder of arrays fails the pack or is left out of it, as it is told."""
    for i, value in enumerate([NPY[case], _of("<f4", (2,), bytes(8))]):
        write(tmp_path / "in" / f"{i}.npy", value)
    options = {**OPTIONS, "corpus": "arrays"}
    with pytest.raises(DataError, match=r"0\.npy: "):
        shardkit.pack(tmp_path / "in", tmp_path / "out", to="npy", **options)
    skip = {"on_error": "skip", "max_rejects": 1}
    made = shardkit.pack(tmp_path / "in", tmp_path / "out", to="npy", **skip, **options)
    assert (made.num_samples, made.num_rejects) == (1, 1)


def test_hostile_npy_in_a_tar_of_others(tmp_path: Path) -> None:
    """Each is an error of ours when read, and comes through convert and unpack as it is."""
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for i, value in enumerate([*NPY.values(), *ODD_NPY.values()]):
            member = tarfile.TarInfo(f"{i:03d}.npy")
            member.size = len(value)
            tar.addfile(member, io.BytesIO(value))
    shardkit.convert(tmp_path / "x.tar", tmp_path / "hdf5", to="hdf5", workers=0)
    shardkit.unpack(tmp_path / "hdf5", tmp_path / "back")
    for i, value in enumerate([*NPY.values(), *ODD_NPY.values()]):
        assert (tmp_path / "back" / f"{i:03d}.npy").read_bytes() == value
    for path in (tmp_path / "x.tar", tmp_path / "hdf5"):
        ds = shardkit.open(path)
        for row in range(len(NPY)):
            with pytest.raises(FormatError, match=f"sample '{row:03d}' .*field npy: "):
                ds[row]
        for row in range(len(NPY), len(ds)):
            assert isinstance(ds[row]["npy"], np.ndarray)
        shardkit.show(path, rows=range(len(ds)))


DESCR = st.sampled_from(
    ["'<f4'", "'|b1'", "'<U0'", "'O'", "'M8[ns]'", "('<f4',(2,))", "[('a','<f4')]", "'f4,f4'", "8"]
)
LENGTH = st.sampled_from(
    ["True", "-1", "0", "1", "2", "1.0", "'1'", "None", "2**3", "0x" + "f" * 4000, "[1]", "()"]
)


@given(DESCR, st.lists(LENGTH, max_size=4), st.integers(0, 40), st.data())
@examples(3)
@pytest.mark.filterwarnings("ignore")
def test_no_header_gets_past(descr: str, shape: list[str], size: int, data: st.DataObject) -> None:
    lengths = "".join(f"{length}," for length in shape)
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': ({lengths})}}"
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(header) - 1))
        header = (
            header[:at] + data.draw(st.text("(){}[]'\",:*-\\0 x", max_size=2)) + header[at + 1 :]
        )
    value = _npy(header, bytes(size))
    for name in ("npy", "tokens"):
        encoding = choose_encoding(name, [value])
        assert Encoding.from_json(encoding.to_json()) == encoding
    try:
        array = parse_npy(value)
    except FormatError:
        return
    assert array.nbytes == len(value) - npy_header_size(value)


def test_npy_of_python_2() -> None:
    """Old, not hostile: numpy reads it with a warning."""
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2L,)}"
    with pytest.warns(UserWarning, match="Python 2"):
        assert parse_npy(_npy(header, bytes(8))).tolist() == [0, 0]


def test_an_array_under_the_encoding_of_another_kind(originals: Path, tmp_path: Path) -> None:
    """Layouts say how bytes are taken, so they are tried in all wrong combinations."""
    kinds: list[Json] = [
        {"kind": "bytes"},
        {"kind": "int"},
        {"kind": "array", "dtype": "<c16", "shape": []},
        {"kind": "array", "dtype": "|b1", "shape": [3, 7]},
        {"kind": "array", "dtype": "<i2", "shape": [4, 5], "codec": "zlib"},
        {"kind": "ragged", "dtype": "<i8", "shape": [-1, 0]},
        {"kind": "ragged", "dtype": "<i8", "shape": [-1, 7]},
    ]
    for container in CONTAINERS:
        for corpus in ("pairs", "arrays"):
            name = f"{corpus}-{container}"
            dataset = shutil.copytree(originals / name, tmp_path / name)
            raw = load(dataset)
            for kind in kinds:
                for layout in raw["splits"]["train"]["layouts"]:
                    layout |= dict.fromkeys(layout, kind)
                seal(dataset, raw)
                use(dataset, tmp_path)


GIANT = 4 << 30
TOO_MUCH = """
import resource, sys
from pathlib import Path
import numpy as np
import shardkit, test_hostile
for path, field in zip(sys.argv[1:], ("jpg", "npy")):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + test_hostile.GIANT // 4 * 5, -1))
    for decode in (True, False):
        try:
            shardkit.open(path, decode=decode)[0]
        except shardkit.errors.DataError as error:
            print(error)
    if field == "jpg":  # a view costs nothing
        assert len(shardkit.open(path).read([0])["jpg"][0]) == test_hostile.GIANT // 2
    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
"""


def test_more_than_memory(originals: Path, tmp_path: Path) -> None:
    """Sparse files cost their maker nothing: what does not fit into memory is an error of ours."""
    for kind, field in (("images", "jpg"), ("arrays", "npy")):
        dataset = shutil.copytree(originals / f"{kind}-npy", tmp_path / kind)
        raw = load(dataset)
        shard = f"train-00000.{field}.npy"
        os.truncate(dataset / shard, GIANT)
        _shards(raw)[0][2][shard] = GIANT
        if field == "npy":
            giant = Encoding("array", "<i2", (GIANT // 4,)).to_json()
            raw["splits"]["train"]["layouts"][0]["npy"] = giant
        write_sealed(dataset, raw)

        def change(table: np.ndarray[Any, Any], field: str = field) -> None:
            table[f"{field}.size"][0] = GIANT // 2

        forge_rows(dataset, change)
    said = run_python(TOO_MUCH, tmp_path / "images", tmp_path / "arrays")
    assert said.count("more than memory") == 4, said


BOMB = zlib.compress(bytes(100 << 20), 9)


@pytest.mark.parametrize(
    "data",
    [BOMB, b"", b"x", BOMB[:100], zlib.compress(bytes(39)), zlib.compress(bytes(41)), BOMB[50:]],
)
def test_zlib_bombs(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="zlib"):
            inflate(data, 40)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_shapes_that_no_zlib_data_can_fill() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=f"{len(BOMB)} bytes of zlib data cannot inflate to"):
            inflate(BOMB, 2**50)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert len(inflate(BOMB, 100 << 20)) == 100 << 20  # the densest there is
    assert inflate(zlib.compress(b""), 0) == b""


CLAIM = 96 << 20
PEAK = """
import sys
from pathlib import Path
import shardkit
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
ds = shardkit.open(sys.argv[1], decode=sys.argv[2] == "True")
for rows in ([1], [1], [2], [0, 3, 4], [0]):  # row 1 at first: so that everything is imported
    before = peak()
    try:
        ds.read(rows)
        said = "nothing"
    except shardkit.errors.DataError as error:
        said = error
    print(peak() - before, said)
"""


@pytest.mark.parametrize("decode", [True, False])
def test_what_a_small_file_claims_is_bounded(originals: Path, tmp_path: Path, decode: bool) -> None:
    """An array is in memory once at most, and one that is not there not at all."""
    dataset = shutil.copytree(originals / "arrays-hdf5", tmp_path / "dataset")
    raw = load(dataset)
    shape = (CLAIM // 2,)
    chunks = [zlib.compress(bytes(CLAIM), 9), zlib.compress(bytes(2), 9), b"x" * (CLAIM // 1000)]
    chunks[2] = chunks[1] + chunks[2]
    raw["splits"]["train"]["layouts"][0]["npy"] = Encoding("array", "<i2", shape, "zlib").to_json()
    raw["splits"]["train"]["layouts"] = raw["splits"]["train"]["layouts"][:1]
    for shard in _shards(raw):
        shard[1] = 0
    shard = next(iter(_shards(raw)[0][2]))
    (dataset / shard).write_bytes(b"".join(chunks))
    _shards(raw)[0][2][shard] = sum(map(len, chunks))

    def change(table: np.ndarray[Any, Any]) -> None:
        for row, (first, last) in enumerate([(0, 0), (1, 1), (2, 2), (0, 0), (0, 0)]):
            table["npy.start"][row] = sum(map(len, chunks[:first]))
            table["npy.size"][row] = sum(map(len, chunks[first : last + 1]))

    seal(dataset, raw)
    forge_rows(dataset, change)
    lines = [line.split(" ", 1) for line in run_python(PEAK, dataset, decode).splitlines()]
    _, small, padded, shared, whole = [(int(num_bytes), said) for num_bytes, said in lines]
    for num_bytes, said in (small, padded, shared):
        assert num_bytes < 8 << 20, said
    assert "bytes of zlib data cannot inflate to" in small[1]
    assert "zlib data inflates to other than" in padded[1]
    assert "values of npy share their bytes" in shared[1]
    assert whole[1] == "nothing" and CLAIM * 0.9 < whole[0] < CLAIM * 1.2


def test_json_and_text_values(tmp_path: Path, container: str) -> None:
    source = tmp_path / "in"
    for i, value in enumerate([b"[" * 1_000_000, b"9" * 1_000_000, b"{", b"", b"\xff\xfe"]):
        write(source / f"{i}.json", value)
        write(source / f"{i}.txt", b"\xff" if i == 4 else b"")
    shardkit.pack(source, tmp_path / "out", to=container, corpus="paired", **OPTIONS)
    for field, rows in {"json": range(5), "txt": [4]}.items():
        ds = shardkit.open(tmp_path / "out", fields=[field])
        for row in rows:
            with pytest.raises(DataError, match=f"sample '{row}' .*: field {field} does not"):
                ds[row]


# --- stored paths -------------------------------------------------------------------------

PATHS = {
    "above": b"=../outside",
    "far above": b"=a/b/../../../outside",
    "absolute": b"=/tmp/outside",
    "the folder itself": b"=.",
    "its parent": b"=..",
    "no name": b"=",
    "ends in a slash": b"=a/",
    "two slashes": b"=a//b",
    "a dot": b"=./a",
    "part above": b"@0:../outside",
    "part absolute": b"@0:/tmp/outside",
    "part without name": b"@0:",
    "after a hostile key": b"+",
}


@pytest.mark.parametrize("case", PATHS)
def test_paths_that_leave_the_destination(
    dataset: Path, tmp_path: Path, container: str, case: str
) -> None:
    key = b"../outside" if case == "after a hostile key" else b"k"
    forge_names(dataset, {0: b"\0".join([key, *[PATHS[case]] * 4])})
    with pytest.raises(UnsafePathError, match="refusing to unpack"):
        shardkit.unpack(dataset, tmp_path / "deep" / "unpacked")
    assert {p.name for p in tmp_path.iterdir()} == {"dataset", "deep"}
    assert {p.name for p in (tmp_path / "deep").iterdir()} == {"unpacked"}
    assert not Path("/tmp/outside").exists()


CODES = {
    "no code": b"path",
    "unknown code": b"?path",
    "offset is no number": b"@x:a",
    "offset negative": b"@-1:a",
    "offset endless": b"@" + b"9" * 4000 + b":a",
    "offset in other digits": "@\u0663:a".encode(),
    "no colon": b"@12",
    "too many paths": b"\0".join([b"=a"] * 9),
}


@pytest.mark.parametrize("case", CODES)
def test_paths_of_no_known_form(dataset: Path, tmp_path: Path, case: str) -> None:
    entry = CODES[case] if "many" in case else b"\0".join([CODES[case]] * 5)
    forge_names(dataset, {0: b"k\0" + entry})
    with pytest.raises(FormatError, match=r"is no stored path|original paths for fields"):
        shardkit.unpack(dataset, tmp_path / "unpacked")


@pytest.fixture
def lines(tmp_path: Path, container: str) -> Path:
    """A dataset whose samples are lines of one file."""
    write(tmp_path / "in.jsonl", "".join(f'{{"n": {i}}}\n' for i in range(13)))
    shardkit.pack(tmp_path / "in.jsonl", tmp_path / "lines", to=container, **OPTIONS)
    return tmp_path / "lines"


def test_offsets_make_no_giant_files(lines: Path, tmp_path: Path) -> None:
    """A stored offset only orders the parts of a file; it is never sought to."""
    forge_names(lines, {12: b"k\0@999999999999999999:in.jsonl"})
    result = shardkit.unpack(lines, tmp_path / "unpacked")
    assert result.num_bytes == (tmp_path / "in.jsonl").stat().st_size
    assert tree(tmp_path / "unpacked") == {"in.jsonl": (tmp_path / "in.jsonl").read_bytes()}


def test_parts_in_any_order_make_the_file(lines: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    shardkit.pack(source, tmp_path / "mixed", to="npy", shuffle=True, **OPTIONS)
    assert shardkit.open(tmp_path / "mixed").keys() != shardkit.open(lines).keys()
    shardkit.unpack(tmp_path / "mixed", tmp_path / "unpacked")
    assert tree(tmp_path / "unpacked") == {"in.jsonl": source.read_bytes()}


def test_parts_that_overlap(lines: Path, tmp_path: Path) -> None:
    forge_names(lines, {3: b"k\0@1:in.jsonl"})
    with pytest.raises(DataError, match=r"two samples hold the same part of in\.jsonl"):
        shardkit.unpack(lines, tmp_path / "unpacked")


def test_two_samples_hold_one_file(dataset: Path, tmp_path: Path) -> None:
    for row, paths in {3: [b"=a", b"=b", b"=a"], 4: [b"=0000.jpg"] * 3}.items():
        number = len(shardkit.open(dataset)[row]) - 1
        forge_names(dataset, {row: b"\0".join([b"k%d" % row, *(paths * 3)[:number]])})
    with pytest.raises(DataError, match="two samples hold the file"):
        shardkit.unpack(dataset, tmp_path / "unpacked")


@pytest.mark.parametrize("kinds", [("=", "@0:"), ("@0:", "=")])
def test_a_file_both_whole_and_in_parts(
    lines: Path, tmp_path: Path, kinds: tuple[str, str]
) -> None:
    forge_names(lines, {i: f"k{i}\0{kind}in.jsonl".encode() for i, kind in enumerate(kinds)})
    with pytest.raises(DataError, match=r"two samples hold the file in\.jsonl"):
        shardkit.unpack(lines, tmp_path / "unpacked")


def test_a_file_that_is_a_folder_too(lines: Path, tmp_path: Path) -> None:
    forge_names(lines, {0: b"k\0=a", 1: b"l\0=a/b"})
    with pytest.raises(DataError, match="unpacking into"):
        shardkit.unpack(lines, tmp_path / "unpacked")


def test_a_link_waiting_in_the_destination(lines: Path, tmp_path: Path) -> None:
    (tmp_path / "dest").mkdir()
    (tmp_path / "dest" / "in.jsonl").symlink_to(tmp_path / "victim")
    with pytest.raises(DestinationError, match="which is not of this dataset"):
        shardkit.unpack(lines, tmp_path / "dest")
    assert not (tmp_path / "victim").exists()


# --- calls that are wrong -------------------------------------------------------------------


def test_rows_that_are_no_rows(dataset: Path) -> None:
    ds = shardkit.open(dataset)
    for rows in ([0.5], [[0, 1]], 3, ["0"], [None], [2**70], [True], np.ones(13, bool)):
        with pytest.raises(UsageError, match="rows must be a list of integers"):
            ds.read(rows)
    for rows in ([2**63], np.array([2**64 - 1], np.uint64), [-1], [13]):
        with pytest.raises(IndexError):
            ds.read(rows)
    for rows in ([[1], [1, 2]], None, {1}, "12"):
        with pytest.raises(UsageError, match="rows must be a list of integers"):
            ds.read(rows)
    for rows in (3, [0.5], np.ones(13, bool), ["0"]):
        with pytest.raises(UsageError, match="rows must be a list of integers"):
            ds.keys(rows)
    for held in (ds, ds.select([0, 1])):
        for rows in ([-1], [13]):
            with pytest.raises(IndexError):
                held.keys(rows)
    for row in (0.5, "0003", None, slice(3)):
        with pytest.raises(UsageError, match="a row is an integer"):
            ds[row]
    with pytest.raises(UsageError, match=r"got a mask: use select\(mask\)"):
        ds.read(np.ones(13, bool))
    with pytest.raises(UsageError, match=r"a key is a str, as keys\(\) gives it, got b'0003'"):
        ds.find(b"0003")
    with pytest.raises(UsageError, match="fields must be a list of names, got 'jpg'"):
        shardkit.open(dataset, fields="jpg")
    with pytest.raises(UsageError, match="a mask of 3 for 13 samples"):
        ds.select(np.ones(3, bool))
    with pytest.raises(UsageError, match="rows must be a list of integers"):
        ds.select([0.0])
    assert len(ds.select([])) == 0 and ds.read(np.array([], np.uint8))["jpg"] == []


@pytest.mark.parametrize("path", [None, b"x", 3, ["x"], ""])
def test_paths_that_are_no_paths(path: Any, dataset: Path) -> None:
    for call in (shardkit.open, shardkit.info, shardkit.verify):
        with pytest.raises(UsageError, match=r"the dataset (must be a str or Path|is an empty)"):
            call(path)
    with pytest.raises(UsageError, match="the destination"):
        shardkit.unpack(dataset, path)


def test_buffers_that_cannot_be_filled(dataset: Path) -> None:
    ds = shardkit.open(dataset)
    read_only = np.zeros(10_000, np.uint8)
    read_only.flags.writeable = False
    for out in (np.zeros(10_000, np.int8), np.zeros(20_000, np.uint8)[::2], read_only):
        with pytest.raises(UsageError, match="out must be contiguous, writable uint8"):
            ds.read_into([0], "jpg", out)
    with pytest.raises(UsageError, match="no field 'png' here"):
        ds.read_into([0], "png", np.zeros(10, np.uint8))
    assert ds.read_into([], "jpg", np.zeros(0, np.uint8)).tolist() == [0]


# --- all at random ------------------------------------------------------------------------

CASES = 200


def spoil(folder: Path, rng: random.Random) -> None:
    """Do something to one file, and perhaps make the hashes fit again."""
    path = rng.choice(sorted(p for p in folder.iterdir() if p.stat().st_size))
    data = bytearray(path.read_bytes())
    action = rng.randrange(6)
    if action < 3:
        for _ in range(rng.choice([1, 1, 4, 50])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif action == 3:
        del data[rng.randrange(len(data)) :]
    elif action == 4:
        at = rng.randrange(len(data))
        data[at : at + 8] = rng.choice([bytes(8), b"\xff" * 8, b"\xff" * 7 + b"\x7f"])
    else:
        at = rng.randrange(len(data))
        data[at:at] = rng.randbytes(rng.randrange(1, 99))
    path.write_bytes(data)
    if rng.random() < 0.5:
        try:
            seal(folder, load(folder))
        except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError):
            pass  # not after what was done to shardkit.json


def fuzz(container: str, root: Path, scratch: Path) -> None:
    """Runs in a process of its own, with little memory to spare."""
    faulthandler.register(signal.SIGALRM, file=sys.__stderr__, chain=True)
    signal.alarm(120)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20),) * 2)
    rng = random.Random(container)
    noticed = 0
    for number in range(CASES):
        kind = rng.choice(list(MAKE))
        folder = shutil.copytree(root / f"{kind}-{container}", scratch / str(number))
        spoil(folder, rng)
        try:
            noticed += bool(use(folder, scratch)) or not shardkit.verify(folder).ok
        except BaseException:
            print(f"case {number} of {container}, made from {kind}:")
            raise
        shutil.rmtree(folder)
    assert noticed > 0.9 * CASES  # the rest was sealed again, and does no harm


def test_fuzz(originals: Path, tmp_path: Path, container: str) -> None:
    assert end_of(forked(lambda: fuzz(container, originals, tmp_path))) == 0


# --- libraries ----------------------------------------------------------------------------

READ = """
import sys
from pathlib import Path
import test_hostile
for number, path in enumerate(sorted(Path(sys.argv[1]).glob("*-*"))):
    for step in test_hostile.steps(path, Path(sys.argv[2], str(number))):
        try:
            step()
        except test_hostile.ShardkitError:
            assert "arrays" in path.name
assert not {"h5py", "lmdb", "torch", "webdataset"} & sys.modules.keys()
"""


def test_reading_uses_no_container_library(originals: Path, tmp_path: Path) -> None:
    """So no hostile LMDB or HDF5 file can reach theirs."""
    run_python(READ, originals, tmp_path)
