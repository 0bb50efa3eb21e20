"""Arrays of which each row belongs to a sample: .npy side by side, .npz, .safetensors, HDF5."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from array_files import IMAGES, LABELS, folder, hdf5, npy, npz, safetensors
from conftest import CONTAINERS, Run, nothing_left_open, picture, tree, write
from forked_workers import workers_for
from test_corpus_files import read_all

import shardkit
from shardkit.errors import CorpusError, FormatError, ResumeError, SampleError
from shardkit.inputs.containers.npy_reading import reading_of
from shardkit.inputs.containers.row_columns import ArrayColumn, divide
from shardkit.inputs.containers.row_series import is_series
from shardkit.inputs.containers.rows import RowCorpus
from shardkit.inputs.detect import detect
from shardkit.inputs.kinds import from_spec
from shardkit.inputs.open import open_corpus

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False}


def rows_of(source: Path, scratch: Path, split: str = "train") -> dict[str, list[Any]]:
    """Field -> a decoded value for each row."""
    batch = read_all(open_corpus(source), scratch)[split]
    assert not batch.rejects
    return {
        name: [_decoded(name, value) for value in values] for name, values in batch.columns.items()
    }


def _decoded(name: str, value: Any) -> Any:
    if value is None or not name.endswith("npy"):
        return value
    return np.load(io.BytesIO(bytes(value)))


def same(values: list[Any], array: Any) -> bool:
    """Whether values are the rows of an array, dtype, shape and bits."""
    rows = [np.asarray(row, array.dtype) for row in array]
    return len(values) == len(rows) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(values, rows, strict=True)
    )


MAKE = {
    "npy": lambda path, **arrays: folder(path, **arrays),
    "npz": lambda path, **arrays: npz(path.with_suffix(".npz"), **arrays),
    "npz compressed": lambda path, **arrays: npz(path.with_suffix(".npz"), True, **arrays),
    "safetensors": lambda path, **arrays: safetensors(path.with_suffix(".safetensors"), arrays),
    "hdf5": lambda path, **arrays: hdf5(path.with_suffix(".h5"), **arrays),
}


@pytest.mark.parametrize("how", MAKE)
def test_every_file_gives_its_rows(how: str, tmp_path: Path) -> None:
    source = MAKE[how](tmp_path / "mnist", images=IMAGES, labels=LABELS)
    assert detect(source) == "rows"
    with nothing_left_open():
        rows = rows_of(source, tmp_path / "scratch")
    assert same(rows["images.npy"], IMAGES)
    assert rows["cls"] == [b"%d" % label for label in LABELS]
    assert open_corpus(source).notes == ["cls is 'labels', from 0 to 6"]


@pytest.mark.parametrize("to", CONTAINERS)
@pytest.mark.parametrize("how", MAKE)
def test_packed_verified_and_read_back(how: str, to: str, tmp_path: Path) -> None:
    source = MAKE[how](tmp_path / "in" / "x", images=IMAGES, labels=LABELS)
    packed = shardkit.pack(source, tmp_path / "out", to=to, shard_size="90B", **OPTIONS)
    assert (packed.num_samples, packed.num_rejects, packed.kind) == (20, 0, "rows")
    assert packed.num_shards > 3
    assert packed.notes == ["cls is 'labels', from 0 to 6"]
    ds = shardkit.open(tmp_path / "out")
    batch = ds.read(range(20))
    assert np.array_equal(batch["images.npy"], IMAGES) and batch["cls"].tolist() == LABELS.tolist()
    checked = shardkit.verify(tmp_path / "out", against=source)
    assert checked.ok and checked.num_compared == 20, checked.problems
    with workers_for(to):
        shardkit.pack(source, tmp_path / "two", to=to, shard_size="90B", workers=2)
    assert tree(tmp_path / "two") == tree(tmp_path / "out")
    again = shardkit.pack(source, tmp_path / "out", to=to, shard_size="90B", **OPTIONS)
    assert again.was_complete


def test_unpacked_rows_pack_to_the_same(tmp_path: Path) -> None:
    """One file a field of each row; together they are pairs."""
    source = npz(tmp_path / "d.npz", x_train=IMAGES, y_train=LABELS, x_test=IMAGES[:3])
    shardkit.pack(source, tmp_path / "out", to="npy", **OPTIONS)
    shardkit.unpack(tmp_path / "out", tmp_path / "back")
    files = tree(tmp_path / "back")
    assert len(files) == 43
    assert files["train/d.npz/000000000007.cls"] == b"0"
    assert np.array_equal(np.load(tmp_path / "back/test/d.npz/000000000002.x.npy"), IMAGES[2])
    shardkit.pack(tmp_path / "back", tmp_path / "again", to="npy", **OPTIONS)
    for split in ("train", "test"):
        one, two = (shardkit.open(tmp_path / name, split) for name in ("out", "again"))
        assert one.keys() == two.keys()
        assert np.array_equal(one.read(range(3))["x.npy"], two.read(range(3))["x.npy"])


def test_a_change_is_noticed(tmp_path: Path) -> None:
    source = folder(tmp_path / "in", images=IMAGES, labels=LABELS)
    corpus = RowCorpus(source)
    (run,) = corpus.runs(tmp_path)
    worker = from_spec(source, corpus.spec())
    npy(source / "labels.npy", LABELS[::-1])
    batch = worker.read(run, tmp_path)
    assert not batch.keys
    assert batch.rejects[0] == ("in at row 0", "the file changed while packing")
    assert len(batch.rejects) == 20


def test_a_started_pack_refuses_changed_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = npz(tmp_path / "x.npz", x=IMAGES, y=LABELS)
    with monkeypatch.context() as patch:
        patch.setattr("shardkit.packing.conclude.assemble", None)
        with pytest.raises(TypeError):
            shardkit.pack(source, tmp_path / "out", to="npy", **OPTIONS)
    os.utime(npz(source, x=IMAGES[::-1], y=LABELS), (10**9, 10**9))
    with pytest.raises(ResumeError, match=r"input files changed since this pack was started"):
        shardkit.pack(source, tmp_path / "out", to="npy", **OPTIONS)


# --- splits -------------------------------------------------------------------------------


def test_splits_by_the_names_of_arrays(tmp_path: Path) -> None:
    arrays = {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES[:5], "y_test": LABELS[:5]}
    for source in (npz(tmp_path / "mnist.npz", **arrays), folder(tmp_path / "files", **arrays)):
        assert sorted(open_corpus(source).splits()) == ["test", "train"]
        train, test = (rows_of(source, tmp_path / "s", name) for name in ("train", "test"))
        assert sorted(train) == sorted(test) == ["cls", "x.npy"]
        assert same(train["x.npy"], IMAGES) and same(test["x.npy"], IMAGES[:5])
        assert test["cls"] == [b"%d" % label for label in LABELS[:5]]


def test_splits_by_the_names_of_files_and_by_folders(tmp_path: Path) -> None:
    for name in ("train.h5", "test.h5"):
        hdf5(tmp_path / "files" / name, images=IMAGES, labels=LABELS)
    for name in ("train", "val"):
        folder(tmp_path / "folders" / name, images=IMAGES, labels=LABELS)
    write(tmp_path / "folders" / "README.md", "#")
    assert sorted(open_corpus(tmp_path / "files").splits()) == ["test", "train"]
    corpus = open_corpus(tmp_path / "folders")
    assert corpus.splits() == ["train", "val"]
    batches = read_all(corpus, tmp_path / "scratch")
    assert batches["val"].keys[0] == b"000000000000"
    assert batches["val"].paths[0] == b"=val/000000000000.cls\0=val/000000000000.images.npy"
    assert corpus.ignored == {".md": 1}


def test_groups_of_hdf5(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name, number in (("train", 20), ("test", 4)):
            file[f"{name}/images"], file[f"{name}/labels"] = IMAGES[:number], LABELS[:number]
    corpus = open_corpus(tmp_path / "x.h5")
    assert corpus.splits() == ["test", "train"]
    assert len(read_all(corpus, tmp_path / "scratch")["test"]) == 4


def test_shards_follow_one_another(tmp_path: Path) -> None:
    for i in range(3):
        npz(tmp_path / "in" / f"part-{i}.npz", x=IMAGES[i * 5 : i * 5 + 5], y=LABELS[:5])
    batch = read_all(open_corpus(tmp_path / "in"), tmp_path / "scratch")["train"]
    assert batch.keys[5] == b"part-1.npz/000000000000"
    assert same([_decoded("npy", v) for v in batch.columns["x.npy"]], IMAGES[:15])


def test_shards_built_otherwise_are_refused(tmp_path: Path) -> None:
    npz(tmp_path / "a.npz", x=IMAGES, y=LABELS)
    npz(tmp_path / "b.npz", x=IMAGES.astype(np.float32), y=LABELS)
    said = r"b\.npz is built .*a\.npz: 'x' has rows of float32\[4, 3\] as npy in 'x\.npy'"
    with pytest.raises(CorpusError, match=said):
        open_corpus(tmp_path)


# --- values -------------------------------------------------------------------------------

EXACT = {
    "big-endian": np.arange(6, dtype=">f4").reshape(3, 2),
    "fortran": np.asfortranarray(np.arange(24.0).reshape(3, 4, 2)),
    "nan": np.array([np.nan, -0.0, np.inf], np.float16),
    "complex": np.array([1 + 2j, 3j, 0]),
    "bool": np.array([True, False, True]),
    "bytes": np.array([b"a\0b", b"c", b""]),
    "dates": np.array(["2020-01-01", "2021-02-03", "NaT"], "M8[s]"),
    "record": np.array([(1, 2.5), (3, 4.5), (5, 6.5)], [("a", "<i4"), ("b", "<f8")]),
    "empty rows": np.zeros((3, 0, 2), np.int16),
    "words of text": np.array([["a", "bc"], ["d", ""], ["e", "f"]]),
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("compressed", [False, True])
def test_rows_are_exact_to_the_bit(name: str, compressed: bool, tmp_path: Path) -> None:
    array = EXACT[name]
    source = npz(tmp_path / "x.npz", compressed, a=array, more=np.arange(3.0))
    assert same(rows_of(source, tmp_path / "scratch")["a.npy"], array)
    shardkit.pack(source, tmp_path / "out", to="hdf5", **OPTIONS)
    assert shardkit.verify(tmp_path / "out", against=source).ok


def test_huge_rows_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardkit.inputs.containers.rows.HUGE_BYTES", 10)
    monkeypatch.setattr("shardkit.inputs.containers.rows._CHUNK_BYTES", 7)
    npy(tmp_path / "x.npy", IMAGES)
    batch = read_all(open_corpus(tmp_path / "x.npy"), tmp_path / "scratch")["train"]
    values = batch.columns["x.npy"]
    assert {type(value) for value in values} == {memoryview}
    assert same([_decoded("x.npy", value) for value in values], IMAGES)


def test_texts_pictures_and_ragged_rows_of_hdf5(tmp_path: Path) -> None:
    pictures = [picture(i) for i in range(3)] + [picture(4, kind="PNG")]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["text"] = ["one", "zwei é", "", "four"]
        file["deep/caption"] = np.array([b"a", b"bb", b"", b"d"])
        ragged = file.create_dataset("ids", 4, h5py.vlen_dtype(np.int32))
        held = file.create_dataset("image", 4, h5py.vlen_dtype(np.uint8))
        for i in range(4):
            ragged[i] = np.arange(i, dtype=np.int32)
            held[i] = np.frombuffer(pictures[i], np.uint8)
        file.attrs["classes"] = "a,b"
        file["scalar"] = 5
        file["mean"] = np.zeros(3)
    corpus = open_corpus(tmp_path / "x.h5")
    assert corpus.has_pictures and corpus.has_text
    batch = read_all(corpus, tmp_path / "scratch")["train"]
    assert batch.columns["txt"] == [b"one", "zwei é".encode(), b"", b"four"]
    assert batch.columns["deep.caption.txt"] == [b"a", b"bb", b"", b"d"]
    assert batch.columns["jpg"] == [*pictures[:3], None]
    assert batch.columns["png"] == [None, None, None, pictures[3]]
    ids = [_decoded("npy", value).tolist() for value in batch.columns["ids.npy"]]
    assert ids == [[], [0], [0, 1], [0, 1, 2]]
    said = "\n".join(corpus.notes)
    assert "left out: the attributes of the file of" in said and ": classes" in said
    assert "left out: scalar of" in said and "left out: mean of" in said
    assert "it has 3 rows where 'image' has 4" in said or "it has 3 rows where" in said
    alone = RowCorpus(tmp_path / "x.h5", tokenized=True)
    assert [*read_all(alone, tmp_path)["train"].columns] == ["txt"]


@pytest.mark.parametrize("how", ["strings", "opaque"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP"])
def test_pictures_padded_to_one_length(how: str, kind: str, tmp_path: Path) -> None:
    """As fixed-length strings or as opaque bytes; of a BMP nobody knows which zeros are padding."""
    pictures = [picture(i, kind=kind) for i in range(20)]
    size = max(map(len, pictures)) + 5
    padded = [each.ljust(size, b"\0") for each in pictures]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["image"] = np.array(padded if how == "strings" else [*map(np.void, padded)])
        file["y"] = np.arange(20)
        file["hash"] = np.array([np.void(b"ab\0\0%d" % (i % 9)) for i in range(20)])
    corpus = open_corpus(tmp_path / "x.h5")
    batch = read_all(corpus, tmp_path / "scratch")["train"]
    field = {"JPEG": "jpg"}.get(kind, kind.lower())
    assert corpus.has_pictures and sorted(batch.columns) == sorted(["cls", field, "hash.npy"])
    assert batch.columns[field] == (padded if kind == "BMP" else pictures)


def test_strings_that_end_at_their_first_zero_are_no_pictures(tmp_path: Path) -> None:
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(2000)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        data = h5py.h5d.create(file.id, b"image", kind, h5py.h5s.create_simple((3,)))
        pictures = np.array([picture(i) for i in range(3)], "S2000")
        data.write(h5py.h5s.ALL, h5py.h5s.ALL, pictures, mtype=kind)
    batch = read_all(open_corpus(tmp_path / "x.h5"), tmp_path / "scratch")["train"]
    assert (
        not batch
        and [why[:40] for _, why in batch.rejects]
        == ["column 'image': is no text in UTF-8: inv"] * 3
    )


@pytest.mark.parametrize("ending", ["npz", "h5"])
def test_a_bomb_is_refused_before_it_is_unpacked(ending: str, tmp_path: Path) -> None:
    path, zeros = tmp_path / f"x.{ending}", np.zeros((80, 1 << 20), np.uint8)
    if ending == "npz":
        np.savez_compressed(path, x=zeros)
    else:
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=zeros, compression="gzip")
    with pytest.raises(FormatError, match=rf"x\.{ending}: makes over 200 times its size \(67,1"):
        open_corpus(path)


def test_a_row_that_is_no_picture_is_a_reject(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        held = file.create_dataset("image", 30, h5py.vlen_dtype(np.uint8))
        for i in range(30):
            held[i] = np.frombuffer(picture(i) if i != 20 else b"text", np.uint8)
    batch = read_all(open_corpus(tmp_path / "x.h5"), tmp_path / "scratch")["train"]
    assert len(batch) == 29
    assert batch.rejects == [
        ("x.h5 at row 20", "column 'image': not an image: begins with b'text'")
    ]


def test_what_is_a_label(tmp_path: Path) -> None:
    """Whole numbers from 0 under a name that says so, in all splits; else arrays."""
    cases: list[tuple[dict[str, Any], str | None, str]] = [
        ({"y": LABELS}, "cls", "cls is 'y', from 0 to 6"),
        ({"Labels": LABELS[:, None].astype(np.uint8)}, "cls", "cls is 'Labels', from 0 to 6"),
        ({"target": LABELS - 1}, "target.npy", "no cls: 'target' holds numbers from -1 to 5"),
        ({"x2": LABELS}, "x2.npy", ""),
        ({"y": LABELS / 2}, "y.npy", "no cls: y has no whole number for each row"),
        ({"Labels": LABELS.astype(str)}, "labels.txt", "no cls: Labels has no whole number for"),
        ({"label": LABELS, "y": LABELS}, "y.npy", "no cls: 'label', 'y' could be the classes"),
        ({"labels": np.stack([LABELS] * 2, 1)}, "labels.npy", "no cls: labels has no whole number"),
    ]
    for number, (arrays, field, said) in enumerate(cases):
        source = npz(tmp_path / f"{number}.npz", x=IMAGES, **arrays)
        corpus = open_corpus(source)
        assert said in "\n".join(corpus.notes) and bool(said) == bool(corpus.notes)
        assert field in rows_of(source, tmp_path / "scratch")


def test_chosen_columns(tmp_path: Path) -> None:
    source = npz(tmp_path / "x.npz", x_train=IMAGES, y_train=LABELS, x_test=IMAGES, y_test=LABELS)
    corpus = RowCorpus(source, fields=["y"])
    assert corpus.spec()["fields"] == ["y"]
    batches = read_all(corpus, tmp_path / "scratch")
    assert [*batches["train"].columns] == [*batches["test"].columns] == ["cls"]
    assert sum("not among --fields" in note for note in corpus.notes) == 2
    with pytest.raises(CorpusError, match=r"x\.npz has no column 'z', only "):
        RowCorpus(source, fields=["z"])


def test_names_of_fields(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["Sensor A/accel x"] = IMAGES
        file["b-c_d.E"] = IMAGES
    assert sorted(rows_of(tmp_path / "x.h5", tmp_path)) == ["b-c_d.e.npy", "sensor_a.accel_x.npy"]
    npz(tmp_path / "y.npz", **{"a b": IMAGES, "a_b": IMAGES})
    with pytest.raises(CorpusError, match=r"'a b' and 'a_b' would both be the field a_b\.npy"):
        open_corpus(tmp_path / "y.npz")


# --- what is refused ----------------------------------------------------------------------


@pytest.mark.parametrize("form", ["npy", "npz"])
def test_pickles_are_refused_with_what_makes_them_safe(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines that the message gives make a file that is packed."""
    names = np.array(["a", "b"] * 10, object)
    source = tmp_path / "in" if form == "npy" else tmp_path / "in" / "x.npz"
    if form == "npy":
        folder(source, images=IMAGES)
        npy(source / "labels.npy", names, allow_pickle=True)
    else:
        npz(source, images=IMAGES, labels=names)
    with pytest.raises(CorpusError, match="holds pickled Python objects, which can run") as caught:
        open_corpus(source)
    assert "\n" not in str(caught.value)
    monkeypatch.chdir(tmp_path / "in")
    (lines,) = caught.value.__notes__
    assert lines.count("\n") < 32 and max(map(len, lines.split("\n"))) < 100
    held: dict[str, Any] = {}
    exec(lines, held)
    getattr(held["old"], "close", int)()
    if form == "npy":
        (tmp_path / "in" / "plain-labels.npy").replace(source / "labels.npy")
    else:
        source = tmp_path / "in" / "plain-x.npz"
    rows = rows_of(source, tmp_path / "scratch")
    assert rows["labels.txt"] == [b"a", b"b"] * 10


def test_lines_that_make_pickles_safe_change_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other arrays of the file keep their dtype; a dict in a .npy becomes a .npz."""
    labels = np.arange(20, dtype=np.int16)
    ragged = np.array([IMAGES[0]] * 20 + [None], object)[:20]
    npz(tmp_path / "x.npz", images=IMAGES, labels=labels, odd=ragged)
    npy(tmp_path / "y.npy", np.array({"images": IMAGES, "labels": labels}), allow_pickle=True)
    monkeypatch.chdir(tmp_path)
    for name in ("x.npz", "y.npy"):
        with pytest.raises(CorpusError, match="holds pickled Python objects") as caught:
            open_corpus(tmp_path / name)
        (lines,) = caught.value.__notes__
        held: dict[str, Any] = {}
        exec(lines, held)
        getattr(held["old"], "close", int)()
        with np.load(f"plain-{name[0]}.npz") as new:
            assert new["labels"].dtype == np.int16 and new["images"].dtype == IMAGES.dtype
            assert "odd" not in new or new["odd"].dtype == IMAGES.dtype


OBJECTS: dict[str, Any] = {
    "a dict": {"sizes": np.arange(3), 1: b"x", "by": {"a": (1, 2)}},
    "a dict of odd keys": {(1, 2): 3},
    "rows of several lengths": [np.arange(i % 3) for i in range(20)],
    "dicts": [{"a": i} for i in range(20)],
    "texts and others": ["a", None, 3, float("nan")] * 5,
    "rows of fields": np.array([(i, f"n{i}") for i in range(20)], [("a", "O"), ("b", "O")]),
    "texts": ["b", "a"] * 10,
    "numbers": np.array([*range(20)], object),
}


def as_objects(held: Any) -> Any:
    """An array of objects, as NumPy makes of what is no array."""
    if isinstance(held, list):
        return np.fromiter(held, object, len(held))
    return held if isinstance(held, np.ndarray) else np.array(held, object)


@pytest.mark.parametrize("what", OBJECTS)
@pytest.mark.parametrize("form", ["npz", "npy", "dict"])
def test_lines_that_make_pickles_safe_end(
    what: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they make is packed: dSprites has a dict beside its pictures, which stayed a pickle."""
    objects = as_objects(OBJECTS[what])
    if form == "npz":
        source = npz(tmp_path / "in" / "x.npz", images=IMAGES, more=objects)
    elif form == "dict":
        held: Any = {"images": IMAGES, "more": OBJECTS[what]}
        source = npy(tmp_path / "in" / "x.npy", np.array(held, object), allow_pickle=True)
    else:
        folder(tmp_path / "in", images=IMAGES)
        source = npy(tmp_path / "in" / "more.npy", objects, allow_pickle=True)
    with pytest.raises(CorpusError, match="the lines below, run there, make it safe") as caught:
        open_corpus(tmp_path / "in", "rows")
    monkeypatch.chdir(tmp_path / "in")
    names: dict[str, Any] = {}
    exec("\n".join(caught.value.__notes__), names)
    getattr(names["old"], "close", int)()
    (made,) = Path().glob("plain-*")
    if form == "npy" and what.startswith("a dict"):  # an array an entry
        with np.load(made) as arrays:
            assert len(arrays.files) == len(OBJECTS[what]) and all(
                arrays[n].dtype != object for n in arrays
            )
        return
    source.unlink()
    made.replace(made.name.removeprefix("plain-"))
    packed = shardkit.pack(tmp_path / "in", tmp_path / "out", to="npy", corpus="rows", **OPTIONS)
    ds = shardkit.open(tmp_path / "out")
    if what.startswith("a dict"):
        assert "left out: more.npy of " in "".join(packed.notes)
        assert "it has no axis, so no rows" in "".join(packed.notes)
    assert packed.num_samples == 20 and np.array_equal(ds[7]["images.npy"], IMAGES[7])
    expected = {
        "rows of several lengths": [[], [0], [0, 1]],
        "dicts": [{"a": i} for i in range(3)],
        "texts and others": ["a", None, 3],
        "rows of fields": [{"a": i, "b": f"n{i}"} for i in range(3)],
    }
    if what in expected:
        assert [json.loads(ds[i]["more.txt"]) for i in range(3)] == expected[what]
    elif what == "texts":
        assert ds[0]["more.txt"] == "b"
    elif what == "numbers":
        assert ds[7]["more.npy"].dtype == np.int64 and int(ds[7]["more.npy"]) == 7


@pytest.mark.parametrize("form", ["npz", "npy"])
def test_pickles_that_are_not_chosen_are_left_out(form: str, tmp_path: Path) -> None:
    metadata = np.array({"sizes": [1, 2]}, object)
    source = tmp_path / "in"
    if form == "npz":
        npz(source / "x.npz", imgs=IMAGES, latents=LABELS, metadata=metadata)
    else:
        folder(source, imgs=IMAGES, latents=LABELS)
        npy(source / "metadata.npy", metadata, allow_pickle=True)
    with pytest.raises(CorpusError, match=r"choose the others: --fields imgs,latents\n"):
        open_corpus(source, "rows")
    options: dict[str, Any] = {"to": "npy", "corpus": "rows", "workers": 0, "progress": False}
    packed = shardkit.pack(source, tmp_path / "out", fields=["imgs", "latents"], **options)
    assert (packed.num_samples, packed.num_rejects) == (20, 0)
    said = "it holds pickled Python objects, which are never read"
    assert any("left out: metadata.npy of" in n and n.endswith(said) for n in packed.notes)
    with pytest.raises(CorpusError, match=r"metadata\.npy holds pickled Python objects"):
        shardkit.pack(source, tmp_path / "b", fields=["metadata"], **options)


@pytest.mark.parametrize(("other", "kind"), [("preview.png", "images"), ("z.npy", "arrays")])
def test_a_container_beside_other_files_is_not_passed_over(
    other: str, kind: str, tmp_path: Path
) -> None:
    """A picture beside an .npz was the whole dataset, but for large ones."""
    npz(tmp_path / "x.npz", images=IMAGES, labels=LABELS)
    npy(tmp_path / other, IMAGES[0, 0])
    with pytest.raises(CorpusError, match=rf"x.npz beside {other}, .*--corpus rows\|{kind}, or mo"):
        detect(tmp_path)
    write(tmp_path / other, bytes(9000))
    assert detect(tmp_path) == kind


def test_arrays_of_several_lengths(tmp_path: Path) -> None:
    source = npz(tmp_path / "x.npz", a=np.zeros((10, 9)), b=np.zeros((7, 9)))
    with pytest.raises(CorpusError, match=r"lengths \(a.npy 10 rows, b.npy 7"):
        open_corpus(source)


def test_hdf5_that_leads_elsewhere(tmp_path: Path) -> None:
    hdf5(tmp_path / "other.h5", x=IMAGES)
    with h5py.File(tmp_path / "link.h5", "w") as file:
        file["x"] = h5py.ExternalLink("other.h5", "x")
    with pytest.raises(CorpusError, match=r"link\.h5: 'x' is a link to another file"):
        open_corpus(tmp_path / "link.h5")
    layout = h5py.VirtualLayout((20, 4, 3), np.uint8)
    layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", (20, 4, 3))
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    with pytest.raises(CorpusError, match="the values of 'x' lie in other files"):
        open_corpus(tmp_path / "virtual.h5")
    write(tmp_path / "raw", b"secret" * 20)
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        external = [(str(tmp_path / "raw"), 0, 120)]
        file.create_dataset("x", (120,), np.uint8, external=external)
    with pytest.raises(CorpusError, match="the values of 'x' lie in other files"):
        open_corpus(tmp_path / "raw.h5")


def test_dtypes_that_numpy_has_not(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "x.safetensors", {"x": np.zeros((3, 2), np.float16)})
    data = path.read_bytes()[8:].replace(b'"F16", "shape"', b'"BF16","shape"')
    write(path, (len(data) - 12).to_bytes(8, "little") + data)
    with pytest.raises(CorpusError, match=r"x\.safetensors: 'x' is BF16, which NumPy has not"):
        open_corpus(path)


GOOD = {"x": IMAGES, "y": LABELS}


@pytest.mark.parametrize("ending", ["npz", "safetensors", "h5"])
def test_damaged_files_give_one_line(ending: str, tmp_path: Path) -> None:
    """Cut short, empty, another thing, or spoilt at the front."""
    makers: dict[str, Any] = {
        "npz": lambda path: npz(path, **GOOD),
        "safetensors": lambda path: safetensors(path, GOOD),
        "h5": lambda path: hdf5(path, **GOOD),
    }
    whole = makers[ending](tmp_path / f"x.{ending}").read_bytes()
    for data in (b"", whole[: len(whole) // 2], b"hello, this is text" * 9, b"\xff" * 64 + whole):
        path = write(tmp_path / f"bad.{ending}", data)
        if ending == "npz" and data[:1] == b"\xff":
            continue  # a zip may begin anywhere
        with nothing_left_open(), pytest.raises(FormatError) as caught:
            open_corpus(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("compressed", [False, True])
def test_checksums_of_zips_are_looked_at(compressed: bool, tmp_path: Path) -> None:
    path = npz(tmp_path / "x.npz", compressed, x=np.arange(4000.0), y=np.arange(4000) % 10)
    data = bytearray(path.read_bytes())
    data[3000] ^= 1
    write(path, bytes(data))
    with pytest.raises(FormatError, match=r"x\.npz: is damaged: .*; fetch or write it again"):
        read_all(open_corpus(path), tmp_path / "scratch")


SPOILT = {
    "length": lambda header: (2**40).to_bytes(8, "little") + header[8:],
    "json": lambda header: header[:8] + b"[" + header[9:],
    "offsets": lambda header: header.replace(b'"data_offsets": [0', b'"data_offsets": [9'),
    "shape": lambda header: header.replace(b'"shape": [20', b'"shape": [21'),
    "negative": lambda header: header.replace(b'"shape": [20', b'"shape": [-2'),
}


@pytest.mark.parametrize("what", SPOILT)
def test_hostile_safetensors(what: str, tmp_path: Path) -> None:
    path = safetensors(tmp_path / "x.safetensors", GOOD)
    write(path, SPOILT[what](path.read_bytes()))
    with pytest.raises(FormatError, match=r"x\.safetensors: is damaged"):
        open_corpus(path)


def test_a_link_to_nowhere_is_a_reject(tmp_path: Path) -> None:
    folder(tmp_path, images=IMAGES, labels=LABELS)
    (tmp_path / "far").symlink_to("nowhere")
    batch = read_all(open_corpus(tmp_path, "rows"), tmp_path / "s")["train"]
    assert len(batch) == 20
    assert batch.rejects == [("far", "a symbolic link to nowhere, which leads nowhere; remove it")]


# --- detection ----------------------------------------------------------------------------


def column(name: str, *shape: int, dtype: str = "<f4") -> ArrayColumn:
    return ArrayColumn(f"{name}.npy", shape, np.dtype(dtype))


@pytest.mark.parametrize(
    ("columns", "reading"),
    [
        ([column("images", 9, 4, 4), column("labels", 9, dtype="<i8")], "rows"),
        ([column("x", 9, 4), column("z", 9)], "rows"),
        ([column("x_train", 9, 4), column("y_train", 9), column("x_test", 5, 4)], "either"),
        (
            [column(f"{a}_{b}", n, 4) for b, n in (("train", 9), ("test", 5)) for a in "xy"],
            "rows",
        ),
        (
            [column("images", 900, 40), column("labels", 900, dtype="|u1"), column("mean", 3)],
            "rows",
        ),
        ([column("left", 9, 4), column("right", 9, 4)], "either"),
        ([column("train", 9, 4), column("test", 5, 4)], "either"),
        ([column("x", 9, dtype="<i8"), column("y", 9, dtype="<i8")], "either"),
        ([column(f"a{i}", 9, 4) for i in range(3)], "arrays"),
        ([column("a1", 9, 4), column("a2", 9, 5)], "arrays"),
        ([column("cat", 9, 4), column("dog", 5, 4)], "arrays"),
        ([column("images", 1, 4), column("labels", 1, dtype="<i8")], "arrays"),
        ([column("images", 9, 4)], "arrays"),
        (
            [column(f"{name}_{i}", 5, 4) for i in range(3) for name in ("images", "labels")]
            + [column("mean", 4)],
            "either",
        ),
        ([column(f"y_{i}", 5) for i in range(3)] + [column(f"y_{i}", 4) for i in (3, 4)], "arrays"),
        ([column("images", 9, 4), None], "arrays"),
        ([column(f"c{i}{'x' * i}", 9, i + 1) for i in range(65)], "arrays"),
        ([], "arrays"),
    ],
)
def test_reading_of(columns: list[ArrayColumn | None], reading: str) -> None:
    assert reading_of(columns) == reading


def test_divide_loses_no_column() -> None:
    columns = [column("x_train", 9), column("train_x", 9), column("x", 9)]
    groups = divide(columns, "here").groups
    assert sorted(c.name for group in groups.values() for c in group.values()) == [
        "train_x.npy",
        "x.npy",
        "x_train.npy",
    ]
    named = divide(columns[:2], "here").groups["train"]
    assert [*named] == ["x", "train_x"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a1", "a2", "a10"], True),
        (["0001", "0002"], True),
        (["x_1_2", "x_3_40"], True),
        (["a1", "b1"], False),
        (["a", "b"], False),
        (["a1"], False),
    ],
)
def test_is_series(names: list[str], expected: bool) -> None:
    assert is_series(names) is expected


def test_either_is_refused_with_both_readings(tmp_path: Path, run: Run) -> None:
    folder(tmp_path / "in", left=IMAGES, right=IMAGES)
    code, _, err = run("pack", "in", "out", "--to", "npy")
    assert code == 2 and err.count("\n") == 1
    assert "each file may be a sample, or each row of all of them; choose with --corpus" in err
    assert shardkit.pack("in", "a", to="npy", corpus="arrays", **OPTIONS).num_samples == 2
    assert shardkit.pack("in", "b", to="npy", corpus="rows", **OPTIONS).num_samples == 20


@pytest.mark.parametrize("split", ["", "train_", "test_"])
def test_labels_of_another_length_are_named_with_it(split: str, tmp_path: Path, run: Run) -> None:
    other = {"test_images": IMAGES, "test_labels": LABELS} if split == "train_" else {}
    arrays = {f"{split}images": IMAGES, f"{split}labels": LABELS[:19], **other}
    folder(tmp_path / "in", **arrays)
    said = f"{split}images.npy of 20 rows and {split}labels.npy of 19 rows, which do not fit each "
    for more, advice in (((), "is a sample, choose --corpus arrays"), (("--corpus", "rows"), "")):
        code, _, err = run("pack", "in", "out", "--to", "npy", *more)
        assert code == 2 and err.count("\n") == 1 and f"in holds {said}" in err and advice in err
    with pytest.raises(CorpusError, match=r"labels\.npy of 19 rows, which do not fit .*--fields"):
        open_corpus(npz(tmp_path / "x.npz", **arrays))


def test_what_stays_as_it_was(tmp_path: Path) -> None:
    """One array a sample; pictures beside a file of arrays."""
    for i in range(5):
        npy(tmp_path / "many" / f"a{i}.npy", IMAGES)
    assert detect(tmp_path / "many") == "arrays"
    folder(tmp_path / "classes" / "cat", a=IMAGES, b=LABELS)
    folder(tmp_path / "classes" / "dog", a=IMAGES, b=LABELS)
    assert detect(tmp_path / "classes") == "arrays"
    write(tmp_path / "mixed" / "a.jpg", picture(1))
    npz(tmp_path / "mixed" / "features.npz", x=IMAGES)
    assert detect(tmp_path / "mixed") == "images"


def test_files_of_two_ways_in_one_folder(tmp_path: Path) -> None:
    folder(tmp_path, x=IMAGES)
    npz(tmp_path / "y.npz", y=IMAGES)
    with pytest.raises(CorpusError, match=r"holds both x\.npy and y\.npz"):
        open_corpus(tmp_path, "rows")


def test_convert_takes_them_too(tmp_path: Path) -> None:
    source = npz(tmp_path / "x.npz", **GOOD)
    shardkit.convert(source, tmp_path / "a", to="lmdb", workers=0)
    shardkit.pack(source, tmp_path / "b", to="lmdb", **OPTIONS)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_what_the_safetensors_library_writes(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    numpy.save_file(GOOD, tmp_path / "x.safetensors", metadata={"made": "here"})
    rows = rows_of(tmp_path / "x.safetensors", tmp_path / "scratch")
    assert same(rows["x.npy"], IMAGES)
    assert "left out: __metadata__" in open_corpus(tmp_path / "x.safetensors").notes[-1]


def test_damage_in_one_chunk_spoils_its_rows_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (40, 512), dtype=np.uint8)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=data, chunks=(10, 512), fletcher32=True)
        place = file["x"].id.get_chunk_info(1).byte_offset
    raw = bytearray((tmp_path / "x.h5").read_bytes())
    raw[place + 99] ^= 1
    write(tmp_path / "x.h5", bytes(raw))
    batch = read_all(open_corpus(tmp_path / "x.h5"), tmp_path / "scratch")["train"]
    assert len(batch) == 30 and len(batch.rejects) == 10
    assert batch.rejects[0][0] == "x.h5 at row 10"
    with pytest.raises(SampleError, match=r"x\.h5 at row 10: is damaged"):
        shardkit.pack(tmp_path / "x.h5", tmp_path / "out", to="npy", **OPTIONS)


def test_shuffled_and_cut_into_splits(tmp_path: Path) -> None:
    """Entries that the packer moves to another split are still read as those of their own."""
    arrays = {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES[:5] + 1, "y_test": LABELS[:5]}
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


@pytest.mark.parametrize(
    "columns",
    [
        [column("labels", 90, dtype="<i8"), column("x", 90, 3), column("mean", 224, 224, 3)],
        [column("ids", 90, dtype="<i8"), column("x", 90, 3), column("mean", 224, 224, 3)],
        [column("wte", 5000, 8), column("wpe", 1000, 8), column("ln", 8)],
        [column("x", 900, 8), column("mean", 3), column("std", 3)],
    ],
)
def test_which_rows_are_samples_is_not_guessed(columns: list[ArrayColumn]) -> None:
    with pytest.raises(CorpusError, match="arrays of several lengths"):
        divide(columns, "here")


# --- names of numbers ---------------------------------------------------------------------


def enumerated(path: Path, names: dict[str, int], labels: Any = LABELS, key: str = "label") -> Path:
    with h5py.File(path, "a") as file:
        file["images"] = IMAGES
        file.create_dataset(key, data=labels, dtype=h5py.enum_dtype(names, "u1"))
    return path


DAYS = {name: i for i, name in enumerate(["mo", "tu", "we", "th", "fr", "sa", "su"])}


@pytest.mark.parametrize("shape", [(20,), (20, 1), (20, 1, 1, 1)])
def test_names_of_an_enumeration_are_classes(shape: tuple[int, ...], tmp_path: Path) -> None:
    source = enumerated(tmp_path / "x.h5", DAYS, LABELS.reshape(shape))
    packed = shardkit.pack(source, tmp_path / "out", to="npy", **OPTIONS)
    ds = shardkit.open(tmp_path / "out")
    assert ds.classes == [*DAYS] and ds.read(range(20))["cls"].tolist() == LABELS.tolist()
    assert not any("names" in note for note in packed.notes)
    assert shardkit.verify(tmp_path / "out", against=source).ok


@pytest.mark.parametrize("key", ["label", "day"])
def test_other_names_are_kept_beside_the_data(key: str, tmp_path: Path) -> None:
    """Numbers that do not begin at 0 have no list of classes; neither has what is no label."""
    first = 1 if key == "label" else 0
    names = {name: number + first for name, number in DAYS.items()}
    source = enumerated(tmp_path / "x.h5", names, LABELS + first, key)
    packed = shardkit.pack(source, tmp_path / "out", to="npy", **OPTIONS)
    kept = json.loads((tmp_path / "out" / "shardkit.json").read_text())["corpus"]["names"]
    assert kept == {key: {str(number): name for name, number in names.items()}}
    assert f"names of numbers of {key!r} are in shardkit.json" in "".join(packed.notes)
    assert shardkit.open(tmp_path / "out").classes is None


def test_files_that_name_numbers_otherwise_are_refused(tmp_path: Path) -> None:
    enumerated(tmp_path / "train.h5", DAYS)
    enumerated(tmp_path / "test.h5", {name: 6 - i for name, i in DAYS.items()})
    with pytest.raises(CorpusError, match="gives numbers of 'label' other names than the files"):
        open_corpus(tmp_path)
