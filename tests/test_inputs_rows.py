"""The kind ``rows``: arrays in .npy, .npz and HDF5 files, a row a sample."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from array_files import IMAGES, LABELS, folder, hdf5, npy, npz
from conftest import nothing_left_open, write
from test_inputs_files import read_all

import shardkit
from shardkit.errors import CorpusError, FormatError, SampleError, ShardkitError
from shardkit.inputs.corpus import Look, Strength
from shardkit.inputs.detection import from_spec, open_corpus
from shardkit.inputs.rows.row_corpus import RowCorpus, npy_reading

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False}
GOOD = {"images": IMAGES, "labels": LABELS}
NUMBERS = [b"%d" % label for label in LABELS]

MAKE: dict[str, Callable[..., Path]] = {
    "npy": lambda path, **arrays: folder(path, **arrays),
    "npz": lambda path, **arrays: npz(path.with_suffix(".npz"), **arrays),
    "npz compressed": lambda path, **arrays: npz(path.with_suffix(".npz"), True, **arrays),
    "hdf5": lambda path, **arrays: hdf5(path.with_suffix(".h5"), **arrays),
}


def array(shape: str) -> Any:
    """Return labels, or other numbers if there are several axes."""
    axes = [*map(int, shape.split(","))]
    numbers = np.arange(np.prod(axes)).reshape(axes)
    return numbers.astype(np.uint8) if axes[1:] else numbers % 7


def make(root: Path, files: str) -> Path:
    """Make files: ``x.npz a:9,4 b:9 | y/ c:9,4`` is one of two arrays, and a folder of one .npy."""
    root.mkdir(exist_ok=True)
    for each in files.split(" | "):
        name, *arrays = each.split()
        how = {".npz": "npz", ".h5": "hdf5"}.get(Path(name).suffix)
        parts = [one.partition(":") for one in arrays]
        MAKE[how or "npy"](root / name, **{n: array(shape) for n, _, shape in parts})
    return root


def times(num: int, arrays: str) -> str:
    """Return the same arrays ``num`` times, with a number for ``#``."""
    return " ".join(arrays.replace("#", str(i)) for i in range(num))


def decoded(value: Any) -> Any:
    data = bytes(value)
    return np.load(io.BytesIO(data)) if data.startswith(b"\x93NUMPY") else data


def rows_of(source: Path, tmp: Path) -> dict[str, list[Any]]:
    """Field -> a decoded value for each row of split train."""
    batch = read_all(open_corpus(source), tmp / "scratch")["train"]
    assert not batch.rejects
    return {f: [decoded(value) for value in values] for f, values in batch.columns.items()}


def same(values: list[Any], expected: Any) -> bool:
    """Return True if values are the rows of an array, by dtype, shape and bits."""
    rows = [np.asarray(row, expected.dtype) for row in expected]
    return [(v.dtype, v.shape, v.tobytes()) for v in values] == [
        (row.dtype, row.shape, row.tobytes()) for row in rows
    ]


# --- layouts ------------------------------------------------------------------------------

SPLIT = {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES[:5], "y_test": LABELS[:5]}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ("x.npz x_train:20,4 y_train:20 x_test:5,4 y_test:5", "train:20 test:5 cls x.npy"),
        (". x_train:20,4 y_train:20 x_test:5,4 y_test:5", "train:20 test:5 cls x.npy"),
        (
            "train.h5 train_x:9,4 train_y:9 | test.h5 test_x:5,4 test_y:5",
            "train:9 test:5 cls x.npy",
        ),
        ("train x:9,4 labels:9 | val x:5,4 labels:5", "train:9 val:5 cls x.npy"),
        ("x.h5 train/x:9,4 train/y:9 test/x:5,4 test/y:5", "train:9 test:5 cls x.npy"),
        ("part-0.npz x:5,4 y:5 | part-1.npz x:9,4 y:9", "train:14 cls x.npy"),
        ("x.h5 cam0/a:9,4 cam1/a:9,4 Label:9", "train:9 cam0.a.npy cam1.a.npy cls"),
    ],
)
def test_layouts(files: str, expected: str, tmp_path: Path) -> None:
    source = write(make(tmp_path / "in", files) / "README.md", "#").parent
    claim = RowCorpus.claim(Look(source))
    assert claim is not None and claim.strength == Strength.MARKED
    corpus = open_corpus(source)
    batches = read_all(corpus, tmp_path / "scratch")
    worker = from_spec(source, corpus.spec())
    for run in corpus.runs(tmp_path / "scratch"):
        assert worker.read(run, tmp_path / "scratch") == corpus.read(run, tmp_path / "scratch")
    splits = [part.partition(":") for part in expected.split() if ":" in part]
    assert {split: len(batch) for split, batch in batches.items()} == {
        split: int(number) for split, _, number in splits
    }
    assert {*corpus.splits()} == {*batches}
    for batch in batches.values():
        assert sorted(batch.columns) == expected.split()[len(splits) :]
        rows = [int(key[-12:]) for key in batch.keys]
        if "cls" in batch.columns:
            assert [int(bytes(value)) for value in batch.columns["cls"]] == [r % 7 for r in rows]
        first = min({*batch.columns} - {"cls"})
        held = [decoded(value).reshape(-1) for value in batch.columns[first]]
        assert [own[0] for own in held] == [row * len(held[0]) % 256 for row in rows]


def test_what_is_left_out_is_noted(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"], file["more/y"], file["scalar"] = IMAGES, LABELS, 5
        file["z"], file["link"] = file["x"], h5py.SoftLink("/x")
        file["far"] = h5py.ExternalLink("other.h5", "x")
        file.create_dataset("outside", (20,), "u1", external=[(str(tmp_path / "raw"), 0, 20)])
        file.create_dataset("never", (20, 9), "u1")
        file.create_dataset("lists", 20, h5py.vlen_dtype(np.int32))[0] = [1, 2]
    write(tmp_path / "logs" / "run.log", "of it")
    corpus = open_corpus(tmp_path)
    read_all(corpus, tmp_path)
    assert corpus.ignored == {".log": 1}
    assert sorted(corpus.notes) == [
        "cls is 'more/y', from 0 to 6",
        "left out: far, link, z: it is a link, or another name of what is there",
        "left out: lists: its values are object, which no field can hold: docs/recipes/arrays.md",
        "left out: never: nothing was ever written to it",
        "left out: outside: its values lie in other files",
        "left out: scalar: it has no axis, so no rows",
    ]
    make(tmp_path / "shards", "0.npz x:9,4 | 1.npz x:9,4")
    said = "each row of 2 files is a sample (0.npz, 1.npz); if each file is one"
    assert open_corpus(tmp_path / "shards").notes[-1].startswith(said)


@pytest.mark.parametrize(
    ("labels", "field"),
    [
        ({"y": LABELS}, "cls"),
        ({"Labels": LABELS[:, None, None].astype(np.uint8)}, "cls"),
        ({"target": LABELS - 1}, "target.npy"),
        ({"y": LABELS / 2}, "y.npy"),
        ({"label": LABELS, "y": LABELS}, "label.npy"),
        ({"label": LABELS, "coarse_label": LABELS}, "coarse_label.npy"),
        ({"set_label": LABELS}, "set_label.npy"),
    ],
)
def test_what_is_a_label(labels: dict[str, Any], field: str, tmp_path: Path) -> None:
    """Whole numbers from 0 under a name that tells so; a column that only looks so is named."""
    source = npz(tmp_path / "x.npz", x=IMAGES, **labels)
    rows = rows_of(source, tmp_path)
    assert field in rows and ("cls" not in rows or rows["cls"] == NUMBERS)
    name = field.rpartition(".")[0]
    notes = "".join(open_corpus(source).notes)
    assert (f"cls is {next(iter(labels))!r}" if field == "cls" else name) in notes


def test_chosen_columns(tmp_path: Path) -> None:
    source = npz(tmp_path / "x.npz", **SPLIT, meta=np.array({"a": 1}, object))
    corpus = RowCorpus(source, fields=["y"])
    batches = read_all(corpus, tmp_path / "scratch")
    assert [*batches["train"].columns] == [*batches["test"].columns] == ["cls"]
    assert "left out: x_train.npy, x_test.npy: not in --fields" in corpus.notes
    assert any(n.startswith("left out: meta.npy: it holds pickled") for n in corpus.notes)
    for name in ("z", "meta"):
        with pytest.raises(CorpusError, match=rf"x\.npz has no column '{name}', only "):
            RowCorpus(source, fields=[name])
    for texts in (np.array([*"ab"]), np.array([b"a", b"b"]), np.array([np.void(b"a")] * 2)):
        source = npz(tmp_path / "t.npz", text=texts, label=np.arange(2))
        with pytest.raises(CorpusError, match=r"text\.npy: it holds a text or a file in each row"):
            RowCorpus(source)
        assert [*read_all(RowCorpus(source, ["label"]), tmp_path)["train"].columns] == ["cls"]


def test_shuffled_and_cut_into_splits(tmp_path: Path) -> None:
    """Entries that the packer moves to another split are still read as those of their own."""
    arrays = {**SPLIT, "x_test": IMAGES[:5] + 1}
    source = npz(tmp_path / "x.npz", **arrays)
    options = {"to": "npy", "shuffle": True, "val_fraction": 0.25, "shard_size": "60B"}
    packed = shardkit.pack(source, tmp_path / "out", **options, **OPTIONS)
    assert packed.splits == {"train": 15, "test": 5, "val": 5}
    seen = []
    for split in ("train", "val"):
        for sample in shardkit.open(tmp_path / "out", split):
            row = int(sample["__key__"].rpartition("/")[2])
            assert np.array_equal(sample["x.npy"], IMAGES[row]) and sample["cls"] == LABELS[row]
            seen.append(row)
    assert sorted(seen) == [*range(20)] and seen != sorted(seen)
    assert shardkit.verify(tmp_path / "out", against=source).ok


# --- values -------------------------------------------------------------------------------

EXACT = {
    "big-endian": np.arange(6, dtype=">f4").reshape(3, 2),
    "fortran": np.asfortranarray(np.arange(24.0).reshape(3, 4, 2)),
    "nan": np.array([np.nan, -0.0, np.inf], np.float16),
    "complex": np.array([1 + 2j, 3j, 0]),
    "empty rows": np.zeros((3, 0, 2), np.int16),
    "words of text": np.array([["a", "bc"], ["d", ""], ["e", "f"]]),
}


@pytest.mark.parametrize("name", EXACT)
def test_rows_are_exact_to_the_bit(name: str, tmp_path: Path) -> None:
    source = npz(tmp_path / "x.npz", a=EXACT[name], more=np.arange(3.0))
    assert same(rows_of(source, tmp_path)["a.npy"], EXACT[name])


# --- what is refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (f"x.h5 {times(9, '00#/image:4,4')}", r"9 arrays called alike \(000/image, 001/im"),
        ("x.h5 s0/x:4,4 s1/x:4,4 s0/y:4,4 s1/y:4,4", r"called alike \(s0/x, s1/x\)"),
        (f". {times(2, 'images_#:9,4 labels_#:9')}", "2 arrays called alike"),
        ("x.npz x:9,4 labels:8", r"several numbers of rows \(x\.npy 9, labels\.npy 8\)"),
        ("train_x.h5 x:9,4 | train_y.h5 y:9", "differ in x, y: pack them apart, or join"),
        ("a.npz x:9,4 | b.npz x:9,5", r"b\.npz and .*a\.npz differ in x\.npy"),
        ("y.npz a+b:9,4 a_b:9,5", r"'a\+b' and 'a_b' would both be the field a_b\.npy"),
        ("x.npz x:0,4", "no rows of arrays in"),
        ("a/x.h5 x:9,4 | b/x.h5 x:9,4", ""),
    ],
)  # fmt: skip
def test_layouts_that_are_refused(files: str, said: str, tmp_path: Path) -> None:
    make(tmp_path / "in", files)
    if not said:
        with pytest.raises(CorpusError, match="not called as splits are: pack each folder apart"):
            open_corpus(tmp_path / "in")
        assert len(read_all(open_corpus(tmp_path / "in", "rows"), tmp_path)["train"]) == 18
        return
    with pytest.raises(CorpusError, match=said) as caught:
        list(open_corpus(tmp_path / "in", "rows").runs(tmp_path))
    assert "\n" not in str(caught.value)


def hdf5_bomb(path: Path) -> None:
    with h5py.File(path / "x.h5", "w") as file:
        data = np.zeros((80, 1 << 20), np.uint8)
        file.create_dataset("x", data=data, compression="gzip")


def aliases(path: Path) -> None:
    with h5py.File(path / "x.h5", "w") as file:
        group = file
        for _ in range(40):
            group["a"] = inner = file.create_group(None)
            group["b"], group = inner, inner
        group["self"] = file


REFUSED: list[tuple[Callable[[Path], Any], str]] = [
    (hdf5_bomb, r"x\.h5: makes over 200 times its size"),
    (lambda p: npz(p / "x.npz", True, x=np.zeros((80, 1 << 20), "u1")), r"x\.npz: makes over 200"),
    (aliases, "no rows of arrays in"),
    (lambda p: os.mkfifo(folder(p, **GOOD) / "z.npy"), r"z\.npy: is no regular file"),
    (lambda p: (folder(p, **GOOD) / "z").symlink_to("nowhere"), "z: a symbolic link to nowhere"),
]


@pytest.mark.parametrize(("spoil", "said"), REFUSED, ids=[said[:20] for _, said in REFUSED])
def test_refused(spoil: Callable[[Path], Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    spoil(tmp_path / "in")
    with nothing_left_open(), pytest.raises(ShardkitError, match=said) as caught:
        list(open_corpus(tmp_path / "in", "rows").runs(tmp_path))
    assert "\n" not in str(caught.value)


# --- damage -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["npz", "hdf5"])
def test_damaged_files_give_one_line(how: str, tmp_path: Path) -> None:
    path = MAKE[how](tmp_path / "x", **GOOD)
    whole = path.read_bytes()
    for data in (b"", whole[: len(whole) // 2], b"hello, this is text" * 9):
        write(path, data)
        with nothing_left_open(), pytest.raises(FormatError, match="is damaged") as caught:
            open_corpus(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_checksums_of_zips_are_compared(tmp_path: Path) -> None:
    path = npz(tmp_path / "x.npz", x=np.arange(4000.0), y=np.arange(4000) % 10)
    data = bytearray(path.read_bytes())
    data[3000] ^= 1
    write(path, bytes(data))
    ((name, why),) = read_all(open_corpus(path), tmp_path / "scratch")["train"].rejects
    assert name == "x.npz" and why.startswith("is damaged")


def test_damage_in_one_chunk_spoils_its_rows_alone(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, (40, 512), dtype=np.uint8)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=data, chunks=(10, 512), fletcher32=True)
        place = file["x"].id.get_chunk_info(1).byte_offset
    raw = bytearray((tmp_path / "x.h5").read_bytes())
    raw[place + 99] ^= 1
    write(tmp_path / "x.h5", bytes(raw))
    batch = read_all(open_corpus(tmp_path / "x.h5"), tmp_path / "scratch")["train"]
    assert len(batch) == 30 and batch.rejects[0][0] == "x.h5 at row 10"
    with pytest.raises(SampleError, match=r"x\.h5 at row 10: is damaged"):
        shardkit.pack(tmp_path / "x.h5", tmp_path / "out", to="npy", **OPTIONS)


def test_a_change_is_noticed(tmp_path: Path) -> None:
    source = folder(tmp_path / "in", **GOOD)
    corpus = RowCorpus(source)
    (run,) = corpus.runs(tmp_path)
    os.utime(npy(source / "labels.npy", LABELS[::-1]), (10**9, 10**9))
    batch = from_spec(source, corpus.spec()).read(run, tmp_path)
    assert not batch.keys and batch.rejects[0] == ("in at row 0", "the file changed while packing")


# --- detection ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "reading"),
    [
        ("images:9,4 labels:9", "rows"),
        ("x_train:9,4 y_train:9 x_test:5,4 y_test:5", "rows"),
        ("x:9,4 z:9", "either"),
        ("train/x:9,4 train/labels:9 val/x:9,4 val/labels:9", "rows"),
        ("left:9,4 right:9,4", "either"),
        ("images:9,4", "either"),
        ("images:9,4 labels:5", "either"),
        ("a/x:9,4 a/labels:9 b/x:9,4", "either"),
        ("a/x:9,4 a/labels:9 b/c/x:9,4 b/c/labels:9", "either"),
        (times(2, "img_#:9,4 mask_#:9"), "either"),
        (times(5, "a_#:9,4"), "arrays"),
        (times(2, "cat_#:9,4 dog_#:9,4"), "arrays"),
        ("cat:9,4 dog:5,4", "arrays"),
        ("images:1,4 labels:1", "arrays"),
        ("cat/a:9,4 cat/b:9,5 dog/a:9,4 dog/b:9,5", "arrays"),
        (" ".join(f"c{'x' * i}:9,{i + 1}" for i in range(17)), "arrays"),
    ],
    ids=lambda text: text[:40],
)
def test_npy_reading(shapes: str, reading: str, tmp_path: Path) -> None:
    make(tmp_path, f". {shapes}")
    look = Look(tmp_path)
    assert npy_reading(look) == reading
    claim = RowCorpus.claim(look)
    strengths = {"rows": Strength.MARKED, "either": Strength.FILES, "arrays": None}
    assert (claim and claim.strength) == strengths[reading]
    if reading == "either":
        with pytest.raises(CorpusError, match=r"--corpus"):
            open_corpus(tmp_path)
    else:
        assert open_corpus(tmp_path).kind == reading


@pytest.mark.parametrize(
    ("beside", "strength"),
    [
        (["README.md", "classes.txt", "meta.json"], Strength.MARKED),
        (["preview.png"], Strength.FILES),
        ([f"{i}.txt" for i in range(20)], Strength.FILES),
        (["y.npy"], Strength.FILES),
    ],
)
def test_claim_of_files(beside: list[str], strength: Strength, tmp_path: Path) -> None:
    npz(tmp_path / "x.npz", x=IMAGES)
    for name in beside:
        write(tmp_path / name, "whatever it holds")
    claim = RowCorpus.claim(Look(tmp_path))
    assert claim is not None and claim.strength == strength


def test_pickles_are_refused(tmp_path: Path) -> None:
    for name in ("data_batch_1", "test_batch", "batches.meta"):
        write(tmp_path / name, pickle.dumps({"a": 1}, protocol=2))
    with pytest.raises(CorpusError, match=r"holds pickles \(data_batch_1, test_batch\).*recipes"):
        RowCorpus.claim(Look(tmp_path))
