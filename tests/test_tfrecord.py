"""TFRecord files: framing, checksums, Examples, and what features become."""

from __future__ import annotations

import gzip
import io
import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tf_records
from conftest import CONTAINERS, Run, nothing_left_open, picture, tree, write
from hypothesis import given
from hypothesis import strategies as st
from test_corpus_files import read_all
from tf_records import example, frame, piece, records, varint

import shardkit
from shardkit.errors import CorpusError, FormatError, SampleError
from shardkit.inputs.containers import crc32c as checksums
from shardkit.inputs.containers.crc32c import crc32c, masked_crc32c
from shardkit.inputs.containers.tf_example import parse_example, unpack_varints
from shardkit.inputs.containers.tfrecord import TfRecordCorpus
from shardkit.inputs.containers.tfrecord_file import first_records, is_record_name
from shardkit.inputs.detect import detect
from shardkit.inputs.kinds import from_spec
from shardkit.inputs.open import open_corpus

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False}


def imagenet(number: int) -> dict[str, list[Any]]:
    """As TensorFlow's own scripts write ImageNet: classes from 1."""
    return {
        "image/encoded": [picture(number)],
        "image/class/label": [number % 5 + 1],
        "image/class/text": [f"class {number % 5} é".encode()],
        "image/height": [16],
        "image/object/bbox/xmin": [0.25 * i for i in range(number % 3)],
        "image/object/names": [b"a", b"b"][: number % 3],
    }


def arrays(values: list[Any]) -> list[Any]:
    return [None if v is None else np.load(io.BytesIO(v)) for v in values]


# --- the checksum -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_crc32c_of_rfc_3720(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc == tf_records.crc32c(data)


@given(st.integers(0, 3000), st.integers(0, 2**32))
def test_crc32c_of_any_length(size: int, seed: int) -> None:
    data = random.Random(seed).randbytes(size)
    assert crc32c(data) == crc32c(memoryview(data)) == tf_records.crc32c(data)


@pytest.mark.parametrize("extra", [0, 1, 3, 4, 63, 512, 513])
def test_crc32c_of_several_pieces(extra: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "_PIECE", 2048)
    data = random.Random(extra).randbytes(3 * 2048 + extra)
    assert crc32c(data) == tf_records.crc32c(data)


def test_masked() -> None:
    assert masked_crc32c(b"foo").to_bytes(4, "little") == tf_records.masked(b"foo")


# --- Examples -----------------------------------------------------------------------------

INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(
    st.lists(INT64, max_size=90),
    st.lists(st.floats(width=32, allow_nan=False), max_size=40),
    st.lists(st.binary(max_size=9), max_size=5),
)


@given(st.dictionaries(st.text(max_size=9), VALUES, max_size=6), st.booleans())
def test_examples_come_back(features: dict[str, list[Any]], packed: bool) -> None:
    found = parse_example(example(features, packed))
    assert found.keys() == features.keys()
    for name, values in features.items():
        held = found[name]
        if not values:
            assert held is None
        elif isinstance(values[0], bytes):
            assert held == values
        else:
            assert isinstance(held, np.ndarray) and held.tolist() == values
            assert held.dtype == (np.float32 if isinstance(values[0], float) else np.int64)


def test_empty_lists_say_their_type() -> None:
    data = piece(1, piece(1, piece(1, b"x") + piece(2, piece(3, b""))))
    held = parse_example(data)["x"]
    assert isinstance(held, np.ndarray) and held.dtype == np.int64 and not len(held)


@given(st.binary(max_size=60))
def test_any_bytes_are_an_example_or_refused(data: bytes) -> None:
    try:
        parse_example(data)
    except FormatError:
        pass


@given(st.lists(INT64, min_size=1, max_size=200), st.integers(0, 400))
def test_varints_cut_short(values: list[int], at: int) -> None:
    data = b"".join(map(varint, values))
    assert unpack_varints(memoryview(data)).tolist() == values
    cut = data[:at]
    if cut and cut[-1] >= 0x80:
        with pytest.raises(FormatError, match="has no end"):
            unpack_varints(memoryview(cut))


def test_sequence_examples_are_refused(tmp_path: Path, run: Run) -> None:
    lists = piece(2, piece(1, piece(1, b"frames") + piece(2, b"")))
    path = write(tmp_path / "x.tfrecord", frame(example({"a": [1]}) + lists))
    code, _, err = run("pack", path, "out", "--to", "npy")
    assert code == 1 and err.count("\n") == 1
    assert "x.tfrecord at record 0: is a tf.train.SequenceExample: only" in err


# --- corpora ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("x.tfrecord", True),
        ("x.tfrecords", True),
        ("x.TFRecord.gz", True),
        ("x.tfrecord-00000-of-00010", True),
        ("mnist-train.tfrecord-00000-of-00001", True),
        ("a.tfrec", True),
        ("train-00000-of-01024", True),
        ("train-00000-of-01024.gz", True),
        ("train-00000-of-00002.parquet", False),
        ("data-00000-of-00001.arrow", False),
        (".tfrecord", False),
        ("x.tfrecord.txt", False),
        ("train", False),
    ],
)
def test_record_names(name: str, expected: bool) -> None:
    assert is_record_name(name) is expected


def test_imagenet(tmp_path: Path) -> None:
    for shard in range(2):
        name = f"train-{shard:05d}-of-00002"
        records(tmp_path / name, [imagenet(i) for i in range(shard * 10, shard * 10 + 10)])
    records(tmp_path / "validation-00000-of-00001", [imagenet(i) for i in range(3)])
    assert detect(tmp_path) == "tfrecord"
    corpus = open_corpus(tmp_path)
    assert isinstance(corpus, TfRecordCorpus) and corpus.has_pictures and not corpus.has_text
    assert corpus.notes == [
        "cls is 'image/class/label' as it is stored: 1 to 5 in the first 10 records",
        "'image/encoded' holds pictures",
    ]
    with nothing_left_open():
        batches = read_all(corpus, tmp_path / "scratch")
    assert [*batches] == ["train", "validation"]
    batch = batches["train"]
    assert batch.keys[12] == b"train-00001-of-00002/000000000002"
    assert batch.paths[12].split(b"\0")[0] == b"+.cls"
    assert batch.columns["jpg"] == [picture(i) for i in range(20)]
    assert batch.columns["cls"] == [b"%d" % (i % 5 + 1) for i in range(20)]
    assert batch.columns["image.class.text.txt"][3] == "class 3 é".encode()
    assert [a.tolist() for a in arrays(batch.columns["image.height.npy"])] == [[16]] * 20
    boxes = arrays(batch.columns["image.object.bbox.xmin.npy"])
    assert boxes[0] is None and boxes[2].tolist() == [0, 0.25] and boxes[2].dtype == np.float32
    assert json.loads(batch.columns["image.object.names.json"][2] or b"") == ["a", "b"]


@pytest.mark.parametrize("to", CONTAINERS)
def test_packed_verified_and_read_back(to: str, tmp_path: Path) -> None:
    records(tmp_path / "in" / "x.tfrecord-00000-of-00002", map(imagenet, range(20)))
    records(tmp_path / "in" / "x.tfrecord-00001-of-00002.gz", map(imagenet, range(20, 30)))
    write(tmp_path / "in" / "labels.txt", "a\nb\n")
    source, size = tmp_path / "in", "2kB"
    packed = shardkit.pack(source, tmp_path / "out", to=to, shard_size=size, **OPTIONS)
    assert (packed.num_samples, packed.kind, packed.ignored) == (30, "tfrecord", {".txt": 1})
    assert packed.num_shards > 3
    checked = shardkit.verify(tmp_path / "out", against=source)
    assert checked.ok and checked.num_compared == 30, checked.problems
    shardkit.convert(source, tmp_path / "two", to=to, workers=2, overwrite=True)
    shardkit.pack(source, tmp_path / "one", to=to, **OPTIONS)
    assert tree(tmp_path / "two") == tree(tmp_path / "one")
    ds = shardkit.open(tmp_path / "out")
    assert ds.column("cls").tolist() == [i % 5 + 1 for i in range(30)]
    assert bytes(ds[25]["jpg"]) == picture(25)
    assert shardkit.pack(source, tmp_path / "out", to=to, shard_size=size, **OPTIONS).was_complete
    shardkit.unpack(tmp_path / "out", tmp_path / "back")
    name = "x.tfrecord-00001-of-00002/000000000004.jpg"
    assert (tmp_path / "back" / name).read_bytes() == picture(24)


def test_splits_by_folders_and_by_words(tmp_path: Path) -> None:
    for name in ("train", "test"):
        records(tmp_path / "folders" / name / "a.tfrecord", [imagenet(1)])
        records(tmp_path / "words" / f"mnist-{name}.tfrecord-00000-of-00001", [imagenet(1)])
    records(tmp_path / "none" / "a.tfrecord", [imagenet(1)])
    records(tmp_path / "none" / "train.tfrecord", [imagenet(1)])
    write(tmp_path / "folders" / "README.md", "#")
    for name, splits in (("folders", {"train", "test"}), ("words", {"train", "test"})):
        assert detect(tmp_path / name) == "tfrecord"
        assert set(open_corpus(tmp_path / name).splits()) == splits
    assert open_corpus(tmp_path / "none").splits() == ["train"]
    assert not any("split" in note for note in open_corpus(tmp_path / "none").notes)
    records(tmp_path / "none" / "test.tfrecord", [imagenet(1)])
    told = "all of split train, test.tfrecord too, since a.tfrecord names no split"
    assert told in open_corpus(tmp_path / "none").notes
    corpus = open_corpus(tmp_path / "folders")
    batches = read_all(corpus, tmp_path / "s")
    assert corpus.ignored == {".md": 1}
    assert batches["test"].keys == [b"a.tfrecord/000000000000"]
    assert batches["test"].paths[0].split(b"\0")[0] == b"=test/a.tfrecord/000000000000.cls"


def test_gzip_without_a_name_for_it(tmp_path: Path) -> None:
    """TensorFlow's writer compresses files of any name."""
    path = records(tmp_path / "x.tfrecord", map(imagenet, range(5)))
    write(path, gzip.compress(path.read_bytes()))
    (batch,) = read_all(open_corpus(path), tmp_path / "scratch").values()
    assert batch.columns["jpg"] == [picture(i) for i in range(5)]


def test_texts_of_one_name_are_txt(tmp_path: Path) -> None:
    path = records(tmp_path / "x.tfrecord", [{"text": [b"one"], "id": [1]}])
    corpus = open_corpus(path)
    assert corpus.has_text
    assert read_all(corpus, tmp_path)["train"].columns["txt"] == [b"one"]
    alone = TfRecordCorpus(path, tokenized=True)
    assert [*read_all(alone, tmp_path)["train"].columns] == ["txt"]


def test_several_pictures_keep_their_names(tmp_path: Path) -> None:
    pictures = {"left": [picture(1)], "right": [picture(2, kind="PNG")]}
    corpus = open_corpus(records(tmp_path / "x.tfrecord", [pictures]))
    columns = read_all(corpus, tmp_path)["train"].columns
    assert columns == {"left.jpg": [picture(1)], "right.png": [picture(2, kind="PNG")]}
    assert not corpus.has_pictures


def test_what_a_feature_is_does_not_depend_on_the_sample(tmp_path: Path) -> None:
    first = {"a": [b"text"], "n": [1], "b": [b"\0\1"], "label": [3]}
    cases: list[tuple[dict[str, list[Any]], str]] = [
        ({"a": [b"\xff\xfe"]}, "feature 'a' is not UTF-8"),
        ({"a": [b"x", b"y"]}, "feature 'a' holds 2 values, and one byte string"),
        ({"n": [1.5]}, "feature 'n' is float, and int64 in the first records"),
        ({"n": [b"x"]}, "feature 'n' is bytes, and int64 in the first records"),
        ({"label": [1, 2]}, "feature 'label' holds 2 values, and one integer"),
        ({}, "has no feature that holds anything"),
    ]
    path = records(tmp_path / "x.tfrecord", [first] * 100 + [case for case, _ in cases])
    (batch,) = read_all(open_corpus(path), tmp_path / "scratch").values()
    assert len(batch) == 100 and sorted(batch.columns) == ["a.txt", "b.bin", "cls", "n.npy"]
    for number, ((where, why), (_, said)) in enumerate(zip(batch.rejects, cases, strict=True)):
        assert where == f"x.tfrecord at record {100 + number}"
        assert said in why


def test_features_that_come_later(tmp_path: Path) -> None:
    """Nothing is lost: numbers are arrays, and bytes .bin, whatever these hold."""
    later = {"a": [1], "new": [2.0], "late/text": [b"text"]}
    path = records(tmp_path / "x.tfrecord", [{"a": [1]}] * 100 + [later])
    (batch,) = read_all(open_corpus(path), tmp_path / "scratch").values()
    assert batch.columns["late.text.bin"][-2:] == [None, b"text"]
    assert arrays(batch.columns["new.npy"])[-1].tolist() == [2.0]


def test_chosen_features(tmp_path: Path) -> None:
    path = records(tmp_path / "x.tfrecord", map(imagenet, range(9)))
    corpus = TfRecordCorpus(path, fields=["image/class/label", "image/encoded"])
    assert sorted(read_all(corpus, tmp_path)["train"].columns) == ["cls", "jpg"]
    assert corpus.notes[-1].startswith("left out: 'image/class/text', 'image/height', ")
    worker = from_spec(path, corpus.spec())
    (run,) = corpus.runs(tmp_path)
    assert sorted(worker.read(run, tmp_path).columns) == ["cls", "jpg"]
    with pytest.raises(CorpusError, match=r"has no feature 'label', only 'image/class/label'"):
        TfRecordCorpus(path, fields=["label"])


@pytest.mark.parametrize(
    ("features", "what"),
    [
        ({"a": [b"\0", b"\1"]}, "feature 'a' holds several byte strings that are not text"),
        ({"a b": [1], "a_b": [2]}, "'a b' and 'a_b' would both be the field a_b.npy"),
        ({"...": [1]}, "cannot name a field"),
        ({"x" * 80: [1]}, "cannot name a field"),
    ],
)
def test_features_that_no_field_can_hold(
    tmp_path: Path, features: dict[str, list[Any]], what: str
) -> None:
    with pytest.raises(CorpusError, match=what):
        open_corpus(records(tmp_path / "x.tfrecord", [features]))


# --- damage -------------------------------------------------------------------------------


def test_a_flipped_bit_spoils_one_record(tmp_path: Path) -> None:
    path = records(tmp_path / "x.tfrecord", map(imagenet, range(20)))
    data = bytearray(path.read_bytes())
    at = data.index(picture(7)) + 100
    data[at] ^= 4
    write(path, bytes(data))
    (batch,) = read_all(open_corpus(path), tmp_path / "scratch").values()
    assert len(batch) == 19
    what = "is damaged: its checksum (CRC-32C) does not fit its bytes"
    assert batch.rejects == [("x.tfrecord at record 7", what)]
    with pytest.raises(SampleError, match=r"x\.tfrecord at record 7: is damaged: its checksum"):
        shardkit.pack(path, tmp_path / "out", to="npy", **OPTIONS)


@pytest.mark.parametrize("cut", [1, 5, 300])
def test_a_file_cut_short(tmp_path: Path, cut: int) -> None:
    path = records(tmp_path / "x.tfrecord", map(imagenet, range(5)))
    write(path, path.read_bytes()[:-cut])
    (batch,) = read_all(open_corpus(path), tmp_path / "scratch").values()
    assert batch.columns["jpg"] == [picture(i) for i in range(4)]
    ((where, why),) = batch.rejects
    assert where == "x.tfrecord" and why.startswith("is cut short: the record at byte ")


def test_a_length_that_is_damaged(tmp_path: Path) -> None:
    whole = [frame(example(imagenet(i))) for i in range(3)]
    spoilt = bytearray(whole[1])
    spoilt[2] ^= 1
    path = write(tmp_path / "x.tfrecord", whole[0] + bytes(spoilt) + whole[2])
    (batch,) = read_all(open_corpus(path), tmp_path / "scratch").values()
    assert len(batch) == 1
    assert batch.rejects[0][1].startswith(
        f"is damaged, or no TFRecord file: no record begins at byte {len(whole[0])}; fetch"
    )


@pytest.mark.parametrize(
    "data", [b"hello, this is text", b"\x1f\x8bno gzip, though it begins so", b"\0" * 40]
)
def test_what_is_no_record_file(tmp_path: Path, data: bytes, run: Run) -> None:
    write(tmp_path / "x.tfrecord", data)
    code, _, err = run("pack", "x.tfrecord", "out", "--to", "npy")
    assert code == 1 and err.count("\n") == 1 and "x.tfrecord: is damaged" in err


def test_a_length_is_not_believed(tmp_path: Path) -> None:
    length = (2**50).to_bytes(8, "little")
    path = write(tmp_path / "x.tfrecord", length + tf_records.masked(length) + b"few")
    assert not first_records(path, 9, 999)
    write(path, gzip.compress(path.read_bytes()))
    assert not first_records(path, 9, 999)


def test_a_length_that_a_bomb_keeps_is_not_read(tmp_path: Path, run: Run) -> None:
    length = (80 << 20).to_bytes(8, "little")
    packed = gzip.compress(length + tf_records.masked(length) + bytes(80 << 20))
    path = write(tmp_path / "x.tfrecord.gz", packed)
    tracemalloc.start()
    assert not first_records(path, 9, 999)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    code, _, err = run("pack", "x.tfrecord.gz", "out", "--to", "npy")
    assert code == 1 and "x.tfrecord.gz: makes over 200 times its size" in err


def test_shards_without_an_ending_are_looked_into(tmp_path: Path) -> None:
    write(tmp_path / "train-00000-of-00002", "just text")
    write(tmp_path / "train-00001-of-00002", "just text")
    with pytest.raises(CorpusError, match="none of a known kind"):
        detect(tmp_path)


def test_a_change_is_noticed(tmp_path: Path) -> None:
    path = records(tmp_path / "x.tfrecord", map(imagenet, range(5)))
    corpus = open_corpus(path)
    (run,) = corpus.runs(tmp_path)
    records(path, map(imagenet, range(5, 10)))
    batch = from_spec(path, corpus.spec()).read(run, tmp_path)
    assert [why for _, why in batch.rejects] == ["the file changed or vanished while packing"] * 5


def test_what_the_tfrecord_library_writes(tmp_path: Path) -> None:
    library = pytest.importorskip("tfrecord")
    writer = library.TFRecordWriter(str(tmp_path / "x.tfrecord"))
    for i in range(5):
        writer.write(
            {"image": (picture(i), "byte"), "label": (i, "int"), "box": ([0.5, i], "float")}
        )
    writer.close()
    (batch,) = read_all(open_corpus(tmp_path / "x.tfrecord"), tmp_path / "scratch").values()
    assert batch.columns["jpg"] == [picture(i) for i in range(5)]
    assert batch.columns["cls"] == [b"%d" % i for i in range(5)]
    assert arrays(batch.columns["box.npy"])[3].tolist() == [0.5, 3]
