"""``convert`` to files of other tools: what is in them, and that they are there whole or not."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import CONTAINERS, Run, make_arrays, make_images, make_pairs, picture, tree, write
from dying import dies_before_change
from pyarrow import parquet as pq
from test_inputs_tables import labels_of, save_parquet, with_features
from text_data import make_tokenizer
from token_data import documents, npy, pack_tokens

import shardkit
from shardkit.commit.work_folder import WorkFolder
from shardkit.errors import (
    ChecksumError,
    DataError,
    DestinationError,
    SampleError,
    StorageError,
    UsageError,
)
from shardkit.operations import export_ids, export_table, exports
from shardkit.operations.exports import EXPORTS, MARKER
from shardkit.tokens.id_files import open_token_file

OPTIONS = {"workers": 0, "progress": False}


def convert(dataset: Path, dest: Path, to: str, **options: Any) -> shardkit.PackResult:
    return shardkit.convert(dataset, dest, to=to, progress=False, **options)


# --- token ids ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts as tokens, in two splits, with the tokenizer beside them: for tests that only read."""
    root = tmp_path_factory.mktemp("texts")
    for split, count in {"train": 30, "val": 5}.items():
        for i in range(count):
            write(root / "in" / split / f"{i:02d}.txt", "" if i == 3 else f"text {i} " * i)
    tokenizer = make_tokenizer(root / "t.json")
    options = {**OPTIONS, "tokenizer": tokenizer, "shard_size": "400B"}
    for to in CONTAINERS:
        shardkit.pack(root / "in", root / to, to=to, **options)
    return root


def ids_of(dataset: Path, split: str) -> list[list[int]]:
    ds = shardkit.open(dataset, split)
    return [np.asarray(ids).tolist() for ids in ds.read(range(len(ds)))["tokens"]]


def test_bin(container: str, texts: Path, tmp_path: Path) -> None:
    result = convert(texts / container, tmp_path / "out", "bin")
    assert sorted(tree(tmp_path / "out")) == [
        MARKER,
        "meta.json",
        "tokenizer.json",
        "train.bin",
        "val.bin",
    ]
    spec = shardkit.open(texts / container, "val").info.provenance.tokens
    assert spec is not None
    total = 0
    for split in ("train", "val"):
        expected = ids_of(texts / container, split)
        ids = np.memmap(
            tmp_path / "out" / f"{split}.bin", dtype=np.uint16, mode="r"
        )  # as nanoGPT does
        assert ids.tolist() == [i for document in expected for i in document]
        total += len(ids)
        back = tmp_path / f"back-{split}"
        shardkit.convert(
            tmp_path / "out" / f"{split}.bin", back, to="npy", eos=spec["eos"], **OPTIONS
        )
        assert ids_of(back, "train") == expected
    assert (result.container, result.num_tokens, result.num_shards) == ("bin", total, 2)
    assert result.splits == {"train": 30, "val": 5} and result.notes == []
    meta = json.loads((tmp_path / "out" / "meta.json").read_text())
    assert (meta["vocab_size"], meta["dtype"]) == (spec["vocab_size"], "uint16")
    assert (meta["eos"], meta["bos"], meta["tokenizer"]) == (spec["eos"], None, "tokenizer.json")
    assert meta["splits"]["val"]["documents"] == 5
    assert tree(tmp_path / "out")["tokenizer.json"] == tree(texts / container)["tokenizer.json"]


def test_megatron(
    container: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_ids, "INDEX_STEP", 4)
    convert(texts / container, tmp_path / "out", "megatron")
    names = [f"{split}.{ending}" for split in ("train", "val") for ending in ("bin", "idx")]
    assert sorted(tree(tmp_path / "out")) == [MARKER, "meta.json", "tokenizer.json", *names]
    for split in ("train", "val"):
        found = open_token_file(tmp_path / "out" / f"{split}.idx")
        expected = ids_of(texts / container, split)
        assert found.document_ends is not None and found.dtype == np.dtype("<u2")
        assert found.document_ends.tolist() == np.cumsum([*map(len, expected)]).tolist()
        assert found.data.tolist() == [i for document in expected for i in document]
    shardkit.convert(tmp_path / "out" / "train.idx", tmp_path / "back", to="npy", **OPTIONS)
    assert ids_of(tmp_path / "back", "train") == ids_of(texts / container, "train")


@pytest.mark.parametrize(
    ("top", "stored", "in_bin", "in_megatron"),
    [
        (255, "|u1", "uint16", "uint16"),
        (65_400, "<u2", "uint16", "uint16"),
        (65_499, "<u2", "uint16", "int32"),
        (65_535, "<u2", "uint16", "int32"),
        (65_536, "<u4", "uint32", "int32"),
        (2**31 - 1, "<u4", "uint32", "int32"),
        (70_000, "<i8", "uint32", "int32"),
    ],
)
def test_dtypes(top: int, stored: str, in_bin: str, in_megatron: str, tmp_path: Path) -> None:
    """Of ids whose tokenizer nobody knows the largest decides."""
    docs = [np.array([0, top], stored), np.array([], stored), np.array([5], stored)]
    dataset = pack_tokens(tmp_path, docs)
    for to, dtype in {"bin": in_bin, "megatron": in_megatron}.items():
        result = convert(dataset, tmp_path / to, to)
        meta = json.loads((tmp_path / to / "meta.json").read_text())
        assert (meta["vocab_size"], meta["dtype"], meta["tokenizer"]) == (top + 1, dtype, None)
        assert np.fromfile(tmp_path / to / "train.bin", dtype).tolist() == [0, top, 5]
        assert any("reads uint16" in note for note in result.notes) == (dtype == "uint32")


def test_what_is_lost_is_said(tmp_path: Path) -> None:
    for i in range(4):
        write(tmp_path / "in" / f"{i}.tokens", npy(np.arange(i, dtype="<u2")))
        write(tmp_path / "in" / f"{i}.txt", "text")
    write(tmp_path / "in" / "9.txt", "no tokens")
    shardkit.pack(tmp_path / "in", tmp_path / "d", to="npy", corpus="paired", **OPTIONS)
    assert convert(tmp_path / "d", tmp_path / "bin", "bin").notes == [
        "train: left out 1 without tokens",
        "left out: txt (bin files hold tokens alone)",
        "there is no val.bin, which nanoGPT reads, too: pack with --val-fraction",
        "no id ends documents, so nothing says where they end; megatron files do",
    ]
    notes = convert(tmp_path / "d", tmp_path / "megatron", "megatron").notes
    assert notes == [
        "train: left out 1 without tokens",
        "left out: txt (megatron files hold tokens alone)",
    ]


def test_what_is_no_ids_is_refused(tmp_path: Path) -> None:
    for name, array in {"float": np.zeros(3), "square": np.zeros((2, 2), "<u2")}.items():
        dataset = pack_tokens(tmp_path / name, [array])
        with pytest.raises(DataError, match=r"'000000' .*: its tokens are .*, expected ids"):
            convert(dataset, tmp_path / "out", "bin")
    dataset = pack_tokens(tmp_path / "negative", [np.array([-1, 3])])
    with pytest.raises(DataError, match="id -1 does not fit uint16"):
        convert(dataset, tmp_path / "out", "bin")
    dataset = pack_tokens(tmp_path / "none", [np.array([], "<u2")])
    with pytest.raises(DataError, match=r"split train of .* has no token"):
        convert(dataset, tmp_path / "out", "megatron")
    make_images(tmp_path / "pictures")
    shardkit.pack(tmp_path / "pictures", tmp_path / "p", to="npy", **OPTIONS)
    with pytest.raises(
        UsageError, match="holds cls, jpg, and bin files hold tokens alone; pack it"
    ):
        convert(tmp_path / "p", tmp_path / "out", "bin")
    assert not (tmp_path / "out").exists() and not (tmp_path / ".out.exporting").exists()


# --- parquet ------------------------------------------------------------------------------


def table_of(folder: Path, split: str = "train") -> pa.Table:
    return pa.concat_tables(
        pq.read_table(p) for p in sorted(folder.glob(f"data/{split}-*.parquet"))
    )


def features_in(folder: Path) -> dict[str, Any]:
    schema = pq.read_schema(next(folder.glob("data/*.parquet")))
    found: dict[str, Any] = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert list(found) == schema.names
    return found


def test_parquet_of_pictures(container: str, tmp_path: Path) -> None:
    source = make_images(tmp_path / "source" / "train").parent
    make_images(source / "val", per_class=1)
    write(source / "train" / "class1" / "odd.JPEG", picture(3, kind="PNG"))
    shardkit.pack(source, tmp_path / "d", to=container, shard_size="3kB", **OPTIONS)
    result = convert(tmp_path / "d", tmp_path / "out", "parquet")
    files = sorted(tree(tmp_path / "out"))
    count = len(files) - 2
    assert files == [
        MARKER,
        *(f"data/train-{i:05d}-of-{count:05d}.parquet" for i in range(count)),
        "data/val-00000-of-00001.parquet",
    ]
    assert count > 5 and result.num_shards == count + 1
    assert result.notes == ["columns: image, label, __key__"]
    assert features_in(tmp_path / "out") == {
        "image": {"_type": "Image"},
        "label": {"names": ["class0", "class1", "class2"], "_type": "ClassLabel"},
        "__key__": {"dtype": "string", "_type": "Value"},
    }
    rows = table_of(tmp_path / "out").to_pylist()
    ds = shardkit.open(tmp_path / "d", "train", decode=False)
    assert [row["__key__"] for row in rows] == ds.keys()
    for row, sample in zip(rows, ds, strict=True):
        assert row["image"]["bytes"] == bytes(sample.get("jpg") or sample["png"])
        assert row["image"]["bytes"] == (source / row["image"]["path"]).read_bytes()
        assert row["label"] == int(bytes(sample["cls"]))


def test_parquet_of_anything(container: str, tmp_path: Path) -> None:
    """Absent fields, odd labels, arrays of several shapes, names with dots."""
    shardkit.pack(make_pairs(tmp_path / "in"), tmp_path / "d", to=container, **OPTIONS)
    result = convert(tmp_path / "d", tmp_path / "out", "parquet")
    assert result.notes == ["columns: image, label, json, text, feat, __key__"]
    assert features_in(tmp_path / "out")["feat"] == {
        "feature": {"feature": {"dtype": "float32", "_type": "Value"}, "_type": "Sequence"},
        "_type": "Sequence",
    }
    ds = shardkit.open(tmp_path / "d")
    for row, sample in zip(table_of(tmp_path / "out").to_pylist(), ds, strict=True):
        assert row["__key__"] == sample["__key__"]
        assert row["image"]["bytes"] == sample["jpg"]
        assert row["label"] == sample.get("cls")
        assert row["text"] == sample.get("txt")
        assert (None if row["json"] is None else json.loads(row["json"])) == sample.get("json")
        feat = sample.get("feat.npy")
        assert row["feat"] == (None if feat is None else feat.tolist())


def test_parquet_of_further_labels(container: str, tmp_path: Path) -> None:
    """CIFAR-100 has two columns of classes, and a list of them is a column, too."""
    fine, coarse = labels_of("cat", "rose"), labels_of("animal", "flower")
    table = pa.table(
        {
            "fine_label": pa.array([0, 1], pa.uint8()),
            "coarse_label": pa.array([0, -1], pa.int8()),
            "tags": [[0], [1, 0]],
            "inner": [{"kind": 0}, {"kind": 1}],
        }
    )
    tags = {"feature": fine, "_type": "Sequence"}
    inner = {"kind": coarse}
    table = with_features(table, fine_label=fine, coarse_label=coarse, tags=tags, inner=inner)
    save_parquet(tmp_path / "in", table)
    shardkit.pack(tmp_path / "in", tmp_path / "d", to=container, **OPTIONS)
    result = convert(tmp_path / "d", tmp_path / "out", "parquet")
    found = features_in(tmp_path / "out")
    assert (found["fine_label"], found["coarse_label"], found["tags"]) == (fine, coarse, tags)
    rows = table_of(tmp_path / "out")
    assert rows.schema.field("fine_label").type == pa.int64()
    assert rows.column("coarse_label").to_pylist() == [0, -1]
    assert rows.column("tags").to_pylist() == [[0], [1, 0]]
    assert result.notes[1:] == []


def test_names_of_classes_that_are_lost_are_named(tmp_path: Path) -> None:
    """Equal names, as of the two cranes of ImageNet, are no ``ClassLabel``."""
    table = pa.table({"label": [0, 1], "text": ["a", "b"]})
    save_parquet(tmp_path / "in", with_features(table, label=labels_of("crane", "crane")))
    shardkit.pack(tmp_path / "in", tmp_path / "d", to="npy", **OPTIONS)
    result = convert(tmp_path / "d", tmp_path / "out", "parquet")
    assert features_in(tmp_path / "out")["label"] == {"dtype": "int64", "_type": "Value"}
    assert result.notes[1:] == ["left out: the names of 2 classes, since some are equal"]


def test_arrays(container: str, tmp_path: Path) -> None:
    def save(name: str, array: Any) -> None:
        write(tmp_path / "in" / name, npy(np.asarray(array)))

    for i in range(5):
        save(f"{i}.scalar.npy", np.float64(i / 3))
        save(f"{i}.cube.npy", np.arange(24, dtype=">i2").reshape(2, 3, 4) + i)
        save(f"{i}.flags.npy", [True, i > 2])
        save(f"{i}.mixed.npy", np.zeros([1] * (1 + i % 2), np.uint8))
        save(f"{i}.complex.npy", np.zeros(2, np.complex64))
        if i != 2:
            save(f"{i}.some.npy", np.zeros((0, i), np.float16))
            save(f"{i}.number.npy", np.int32(i))
    shardkit.pack(tmp_path / "in", tmp_path / "d", to=container, corpus="paired", **OPTIONS)
    convert(tmp_path / "d", tmp_path / "out", "parquet")
    rows = table_of(tmp_path / "out").to_pylist()
    for i, row in enumerate(rows):
        assert row["scalar"] == i / 3
        assert row["cube"] == (np.arange(24).reshape(2, 3, 4) + i).tolist()
        assert row["flags"] == [True, i > 2]
        assert row["some"] == (None if i == 2 else [])
        assert row["number"] == (None if i == 2 else i)
        assert row["mixed.npy"][:6] == row["complex.npy"][:6] == b"\x93NUMPY"
    types = {field.name: str(field.type) for field in table_of(tmp_path / "out").schema}
    assert types["cube"].count("list") == 3 and "int16" in types["cube"]


def test_row_groups_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_arrays(tmp_path / "in")
    shardkit.pack(tmp_path / "in", tmp_path / "d", to="npy", **OPTIONS)
    monkeypatch.setattr("shardkit.shards.stored.ROWS_AT_ONCE", 3)
    convert(tmp_path / "d", tmp_path / "out", "parquet")
    (path,) = tmp_path.glob("out/data/*.parquet")
    meta = pq.read_metadata(path)
    assert [meta.row_group(i).num_rows for i in range(meta.num_row_groups)] == [3, 3, 3, 1]
    assert [row["npy"] for row in table_of(tmp_path / "out").to_pylist()] == [
        np.full((4, 5), i).tolist() for i in range(10)
    ]


def test_what_fits_no_column_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "in" / "a.jpg", picture(1))
    write(tmp_path / "in" / "a.txt", b"caf\xe9")
    shardkit.pack(tmp_path / "in", tmp_path / "d", to="npy", corpus="paired", **OPTIONS)
    with pytest.raises(
        SampleError, match=r"sample 'a' .*: its txt fits no column of text: 'utf-8'"
    ):
        convert(tmp_path / "d", tmp_path / "out", "parquet")
    monkeypatch.setattr(export_table, "MAX_VALUE_BYTES", 9)
    with pytest.raises(SampleError, match=r"its jpg fits no .*: \d+ bytes, .* has up to 9"):
        convert(tmp_path / "d", tmp_path / "out", "parquet")
    assert not (tmp_path / "out").exists()


def test_names_that_are_no_text(tmp_path: Path) -> None:
    write(tmp_path / os.fsdecode(b"in/\xff") / "a.jpg", picture(1))
    shardkit.pack(tmp_path / "in", tmp_path / "d", to="npy", **OPTIONS)
    convert(tmp_path / "d", tmp_path / "out", "parquet")
    (row,) = table_of(tmp_path / "out").to_pylist()
    assert (row["__key__"], row["image"]["path"]) == ("\\xff/a", "\\xff/a.jpg")
    assert features_in(tmp_path / "out")["label"]["names"] == ["\udcff"]


@pytest.mark.parametrize("number", [1, 2])
def test_a_refusal_names_the_tars_and_not_our_index_of_them(number: int, tmp_path: Path) -> None:
    options = {**OPTIONS, "to": "wds", "shard_size": "5kB"}
    made = shardkit.pack(make_images(tmp_path / "p"), tmp_path / "d", **options)
    shards = sorted(made.dest.glob("*.tar"))[:number]
    for shard in shards:
        write(tmp_path / "theirs" / f"x-{shard.name[6:]}", shard.read_bytes())
    shown = tmp_path / "theirs" / "x-00000.tar" if number == 1 else tmp_path / "theirs"
    for to in ("bin", "megatron"):
        with pytest.raises(UsageError) as refused:
            convert(tmp_path / "theirs", tmp_path / "out", to)
        assert str(refused.value).startswith(f"{shown} holds cls, jpg, and {to} files hold")


def test_tars_made_by_others(tmp_path: Path) -> None:
    shardkit.pack(make_images(tmp_path / "in"), tmp_path / "d", to="webdataset", **OPTIONS)
    write(tmp_path / "theirs" / "x-7.tar", (tmp_path / "d" / "train-00000.tar").read_bytes())
    convert(tmp_path / "theirs", tmp_path / "out", "parquet")
    rows = table_of(tmp_path / "out").to_pylist()
    assert len(rows) == 36 and rows[0]["image"]["path"] == "class0/img%2E000.jpg"
    assert features_in(tmp_path / "out")["label"] == {"dtype": "int64", "_type": "Value"}


# --- whole or not there -------------------------------------------------------------------


@pytest.fixture(params=EXPORTS)
def to(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tokens")
    return pack_tokens(root, documents([50, 60, 70] * 20), shard_size="2kB")


@pytest.fixture
def dataset(tokens: Path, tmp_path: Path) -> Path:
    """A copy of a test's own, which it may write to."""
    return Path(shutil.copytree(tokens, tmp_path / "npy"))


def others(folder: Path) -> set[str]:
    """What lies in a folder besides what a test made there."""
    return {path.name for path in folder.iterdir()} - {"npy"}


def test_damage_is_not_passed_on(to: str, dataset: Path, tmp_path: Path) -> None:
    path = dataset / "train-00002.tokens.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ChecksumError, match="its bytes differ from those packed"):
        convert(dataset, tmp_path / "out", to)
    assert others(tmp_path) == set()


def test_what_is_there_is_refused(to: str, dataset: Path, tmp_path: Path) -> None:
    convert(dataset, tmp_path / "out", to)
    before = tree(tmp_path / "out")
    with pytest.raises(DestinationError, match="out already exists; pass --overwrite to replace"):
        convert(dataset, tmp_path / "out", to)
    assert tree(tmp_path / "out") == before
    write(tmp_path / "out" / "meta.pkl", "mine")
    with pytest.raises(DestinationError, match=r"meta\.pkl was written by no export, and would be"):
        convert(dataset, tmp_path / "out", to, overwrite=True)
    (tmp_path / "out" / "meta.pkl").unlink()
    other = "bin" if to == "parquet" else "parquet"
    convert(dataset, tmp_path / "out", other, overwrite=True)
    convert(dataset, tmp_path / "out", to, overwrite=True)
    assert tree(tmp_path / "out") == before
    assert others(tmp_path) == {"out"}


def test_nothing_else_is_replaced(dataset: Path, tmp_path: Path) -> None:
    write(tmp_path / "file", "mine")
    write(tmp_path / "mine" / "train.bin", "mine")
    write(tmp_path / "forged" / MARKER, '{"format": "shardkit export"}')
    cases = {
        "file": "exists and is no folder",
        "mine": "exists and is no export, so nothing in it will be replaced",
        "forged": "exists and is no export",
        "npy": "overlap",
        "npy/x": "overlap",
    }
    shardkit.pack(make_images(tmp_path / "p"), tmp_path / "other", to="npy", **OPTIONS)
    cases |= {"other": "exists and is no export", "other/x": "lies in the dataset"}
    before = tree(tmp_path)
    for name, what in cases.items():
        for overwrite in (False, True):
            with pytest.raises(DestinationError, match=what):
                convert(dataset, tmp_path / name, "bin", overwrite=overwrite)
    (tmp_path / ".link.exporting").symlink_to(tmp_path / "mine")
    with pytest.raises(DestinationError, match="is a symbolic link"):
        convert(dataset, tmp_path / "link", "bin")
    assert tree(tmp_path) == before


def test_an_empty_folder_is_fine(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    with pytest.raises(DestinationError, match=r"is in use, .* name a folder in it"):
        convert(dataset, Path("."), "bin")
    monkeypatch.chdir(tmp_path)
    convert(dataset, Path("out"), "bin")
    assert (tmp_path / "out" / "train.bin").exists()


def test_a_failure_leaves_nothing(
    to: str, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x")

    for overwrite in (False, True):
        before = tree(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(exports, "fsync_path", fail)
            with pytest.raises(
                StorageError, match=r"the disk is full .*free some space and run the"
            ):
                convert(dataset, tmp_path / "out", to, overwrite=overwrite)
        assert tree(tmp_path) == before
        convert(dataset, tmp_path / "out", to, overwrite=overwrite)


@pytest.mark.parametrize("at", [1, 2])
def test_an_old_export_comes_back(
    at: int, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename of the two that swap them fails."""
    convert(dataset, tmp_path / "out", "bin")
    before, calls, rename = tree(tmp_path), [0], Path.rename

    def failing(self: Path, target: Path) -> Path:
        calls[0] += 1
        if calls[0] == at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", failing)
        with pytest.raises(StorageError, match="Input/output error"):
            convert(dataset, tmp_path / "out", "parquet", overwrite=True)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("is_there", [False, True], ids=["new", "replaced"])
def test_killed_before_any_step(is_there: bool, dataset: Path, tmp_path: Path) -> None:
    """What has the name is whole: the old one or the new one, or nothing; the same call again ends
    in the same bytes, and leaves nothing over."""
    convert(dataset, tmp_path / "expected", "bin")
    expected, number, died = tree(tmp_path / "expected"), 0, True
    while died:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        old = {}
        if is_there:
            convert(dataset, tmp_path / "out", "parquet")
            old = tree(tmp_path / "out")
        died = dies_before_change(
            number,
            lambda: convert(dataset, tmp_path / "out", "bin", overwrite=is_there),
        )
        if (tmp_path / "out").exists():
            assert tree(tmp_path / "out") in (old, expected)
        convert(dataset, tmp_path / "out", "bin", overwrite=True)
        assert tree(tmp_path / "out") == expected
        assert others(tmp_path) == {"out", "expected"}
        number += 1
    assert number > 5


def _hold(path: Path, held: Any, done: Any) -> None:
    with WorkFolder(path.parent / "out", path):
        held.set()
        done.wait(30)


def test_two_at_once(dataset: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    held, done = context.Event(), context.Event()
    work = tmp_path / ".out.exporting"
    process = context.Process(target=_hold, args=(work, held, done))
    process.start()
    try:
        assert held.wait(30)
        with pytest.raises(DestinationError, match="out is being written by another process"):
            convert(dataset, tmp_path / "out", "bin")
    finally:
        done.set()
        process.join()
        process.close()
    convert(dataset, tmp_path / "out", "bin")


# --- options, and the command line --------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"resize": 8}, "resize is for datasets; bin files are written as the dataset is"),
        ({"dali_index": True}, "dali_index is for datasets"),
        ({"on_error": "skip"}, "on_error is for datasets"),
        ({"compression": 3}, "compression is for datasets"),
        ({"eos": 3}, "eos is for files of token ids; .* is none"),
        ({"colour": 3}, "convert takes no option 'colour'"),
    ],
)
def test_options_of_datasets_are_refused(
    options: dict[str, Any], what: str, dataset: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=what):
        convert(dataset, tmp_path / "out", "bin", **options)
    assert others(tmp_path) == set()


def test_files_of_ids_are_converted_by_way_of_a_dataset(tmp_path: Path) -> None:
    write(tmp_path / "a.bin", np.arange(9, dtype="<u2").tobytes())
    with pytest.raises(
        UsageError, match=r"a\.bin is a file of ids: convert it to npy first, and that"
    ):
        convert(tmp_path / "a.bin", tmp_path / "out", "megatron")


def test_without_pyarrow(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match=r"need the pyarrow library: pip install 'shardkit\[parq"):
        convert(dataset, tmp_path / "out", "parquet")
    assert others(tmp_path) == set()


def test_the_command(run: Run, tmp_path: Path) -> None:
    assert run("pack", "pictures", "--to", "npy", "--shard-size", "3kB", "--workers", 0).code == 0
    got = run("convert", "pictures-npy", "--to", "parquet")
    assert got.code == 0 and got.err == ""
    assert got.out == (
        "converted 36 samples (dataset) into 9 shards of parquet:"
        f" {tmp_path}/pictures-npy-parquet\n  SIZE in, SIZE out, TIME\n"
        "  columns: image, label, __key__\n"
    )
    again = run("convert", "pictures-npy", "--to", "parquet")
    assert again.code == 2 and again.err == (
        f"shardkit: error: {tmp_path}/pictures-npy-parquet already exists; pass --overwrite to"
        " replace it, or choose another destination\n"
    )
    assert run("convert", "pictures-npy", "--to", "parquet", "--overwrite", "--json").code == 0


def test_the_command_knows_all_exports() -> None:
    from shardkit.cli.packing_commands import EXPORTS as NAMES

    assert [*EXPORTS] == NAMES


def test_an_interrupted_command_says_that_nothing_was_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("pack", "pictures", "--to", "npy", "--workers", 0).code == 0

    def interrupt(*_: object) -> Callable[[], None]:
        raise KeyboardInterrupt

    monkeypatch.setattr(exports, "fsync_path", interrupt)
    got = run("convert", "pictures-npy", "--to", "parquet")
    assert got.code == 130 and got.err.endswith("interrupted; nothing was written\n")
    assert {path.name for path in tmp_path.iterdir()} == {"pictures", "pictures-npy"}
