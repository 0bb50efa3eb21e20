"""TFRecord files: Examples, what features become, and damage."""

from __future__ import annotations

import gzip
import io
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tf_records
from conftest import Run, nothing_left_open, picture, write
from hypothesis import given
from hypothesis import strategies as st
from test_inputs_files import read_all
from tf_records import example, frame, imagenet, piece, records

import shardkit
from shardkit.errors import CorpusError, SampleError
from shardkit.inputs.corpus import Look, Strength
from shardkit.inputs.detection import from_spec, open_corpus
from shardkit.inputs.lines import max_unpacked
from shardkit.inputs.records.containers import TfRecordCorpus
from shardkit.samples.sample import SampleBatch
from shardkit.samples.tf_records import first_records, masked_crc32c, parse_example

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False}


def packed(tmp_path: Path, *examples: dict[str, list[Any]], **options: Any) -> SampleBatch:
    """The samples of one file of these records."""
    path = records(tmp_path / "x.tfrecord", examples)
    return read_all(TfRecordCorpus(path, **options), tmp_path / "scratch")["train"]


# --- Examples -----------------------------------------------------------------------------


VALUES = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=90),
    st.lists(st.floats(width=32, allow_nan=False), max_size=40),
    st.lists(st.binary(max_size=9), max_size=5),
)


@given(st.dictionaries(st.text(max_size=9), VALUES, max_size=6), st.booleans())
def test_examples_come_back(features: dict[str, list[Any]], is_packed: bool) -> None:
    found = parse_example(example(features, is_packed))
    assert found.keys() == features.keys()
    for name, values in features.items():
        held = found[name]
        assert (held is None) == (not values)
        if isinstance(held, np.ndarray):
            assert held.dtype == (np.float32 if isinstance(values[0], float) else np.int64)
        assert held is None or [*held] == values


def test_the_checksum() -> None:
    assert tf_records.crc32c(b"123456789") == 0xE3069283
    assert masked_crc32c(b"foo").to_bytes(4, "little") == tf_records.masked(b"foo")


# --- claims and splits --------------------------------------------------------------------


GOOD, BAD = frame(example({"a": [1]})), b"just text, and no records"
TFDS = {f"mnist-{split}.tfrecord-00000-of-00001": GOOD for split in ("train", "test")}
TFDS |= {"dataset_info.json": b"{}", "features.json": b"{}", "label.labels.txt": b"0\n1"}


@pytest.mark.parametrize(
    ("files", "strength", "splits"),
    [
        ({"x.tfrecord": GOOD}, Strength.MARKED, ["train"]),
        ({"a/x.tfrecord": GOOD, "b/test.tfrecord": GOOD}, None, ["train"]),
        ({"train-00000-of-00001": GOOD, "README.md": b"#"}, Strength.MARKED, ["train"]),
        ({"train/a.tfrecord": GOOD, "test/a.tfrecord": GOOD}, Strength.MARKED, ["test", "train"]),
        ({"a-train.tfrecord": GOOD, "a-val.tfrecord": GOOD}, Strength.MARKED, ["train", "val"]),
        (TFDS, Strength.MARKED, ["test", "train"]),
        ({"x.tfrecord": BAD}, Strength.FILES, ["train"]),
        ({"x.tfrecord": GOOD, "preview.png": b""}, Strength.FILES, ["train"]),
        ({"train-00000-of-00001": BAD}, None, []),
        ({"x.tfrecord-00000-of-00001": GOOD}, Strength.MARKED, ["train"]),
        ({"x.tfrecord.txt": GOOD, ".tfrecord": GOOD, "train": GOOD}, None, []),
    ],
)
def test_claims(
    files: dict[str, bytes], strength: Strength | None, splits: list[str], tmp_path: Path
) -> None:
    for name, data in files.items():
        write(tmp_path / name, data)
    if "b/test.tfrecord" in files:
        with pytest.raises(CorpusError, match=r"is of a split by its name, and a/x.* names none"):
            open_corpus(tmp_path)
        return
    claim = TfRecordCorpus.claim(Look(tmp_path))
    assert (claim and claim.strength) == strength
    if claim is not None:
        assert sorted(open_corpus(tmp_path, "tfrecord").splits()) == splits
    if strength == Strength.MARKED:
        assert open_corpus(tmp_path).kind == "tfrecord"


# --- fields -------------------------------------------------------------------------------


def test_imagenet(tmp_path: Path) -> None:
    for shard in range(2):
        name = f"train-{shard:05d}-of-00002"
        records(tmp_path / name, [imagenet(i) for i in range(shard * 10, shard * 10 + 10)])
    records(tmp_path / "validation-00000-of-00001", [imagenet(i) for i in range(3)])
    corpus = open_corpus(tmp_path)
    assert corpus.has_pictures and not corpus.has_text
    assert corpus.notes == [
        "cls is 'image/class/label' as it is stored: 1 to 5 in the first records",
    ]
    with nothing_left_open():
        batches = read_all(corpus, tmp_path / "scratch")
    batch = batches["train"]
    assert [*batches] == ["train", "validation"]
    assert batch.keys[12] == b"train-00001-of-00002/000000000002"
    assert batch.paths[12].split(b"\0")[0] == b"+.cls"
    assert batch.columns["jpg"] == [picture(i) for i in range(20)]
    assert batch.columns["cls"] == [b"%d" % (i % 5 + 1) for i in range(20)]
    assert batch.columns["image.class.text.txt"][3] == "class 3 é".encode()
    heights = [np.load(io.BytesIO(v)) for v in batch.columns["image.height.npy"] if v]
    assert [a.tolist() for a in heights] == [[16]] * 20
    boxes = batch.columns["image.object.bbox.xmin.npy"]
    box = np.load(io.BytesIO(boxes[2] or b""))
    assert boxes[0] is None and box.tolist() == [0, 0.25] and box.dtype == np.float32
    assert batch.columns["image.object.names.json"][2] == b'["a", "b"]'


PNG = picture(2, kind="PNG")


@pytest.mark.parametrize(
    ("features", "fields", "note"),
    [
        ({"text": [b"one"], "id": [1]}, {"txt": b"one", "id.npy": None}, ""),
        ({"l": [picture(1)], "r": [PNG]}, {"l.jpg": picture(1), "r.png": PNG}, ""),
        ({"label": [b"cat"]}, {"label.txt": b"cat"}, "label: not cls"),
        (
            {"a/y": [1], "b/y": [2]},
            {"a.y.npy": None, "b.y.npy": None},
            "a/y, b/y: not cls",
        ),
        ({"names": [b"a", b"b"]}, {"names.json": b'["a", "b"]'}, ""),
    ],
)
def test_what_features_become(
    features: dict[str, list[Any]], fields: dict[str, bytes | None], note: str, tmp_path: Path
) -> None:
    found = packed(tmp_path, features).columns
    assert found.keys() == fields.keys()
    assert all(data is None or found[name] == [data] for name, data in fields.items())
    notes = open_corpus(tmp_path / "x.tfrecord").notes
    texts = packed(tmp_path, features, tokenized=True).columns
    assert sorted(texts) == (["txt"] if "txt" in fields else sorted(fields))
    assert any(each.startswith(note) for each in notes) if note else not notes


def test_what_a_feature_is_does_not_depend_on_the_sample(tmp_path: Path) -> None:
    first = {"a": [b"text"], "n": [1], "b": [b"\0\1"], "label": [3], "i": [picture(1)]}
    cases: list[tuple[dict[str, list[Any]], str]] = [
        ({"a": [b"\xff\xfe"]}, "feature 'a' is not UTF-8"),
        ({"a": [b"x", b"y"]}, "feature 'a' is 2 x bin, and txt in the first"),
        ({"n": [1.5]}, "feature 'n' is 1 x float, and int64 in the first records"),
        ({"n": [b"x"]}, "feature 'n' is 1 x bin, and int64 in the first records"),
        ({"label": [1, 2]}, "feature 'label' is 2 x int64, and cls in"),
        ({"i": [b"x"]}, "feature 'i' holds pictures in the first records, and here not an image"),
        ({}, "has no feature that holds anything"),
    ]
    batch = packed(tmp_path, *[first] * 100, *(case for case, _ in cases))
    assert len(batch) == 100
    assert sorted(batch.columns) == ["a.txt", "b.bin", "cls", "jpg", "n.npy"]
    for number, ((where, why), (_, said)) in enumerate(zip(batch.rejects, cases, strict=True)):
        assert where == f"x.tfrecord at record {100 + number}" and said in why


def test_chosen_features(tmp_path: Path) -> None:
    path = records(tmp_path / "x.tfrecord", map(imagenet, range(9)))
    corpus = TfRecordCorpus(path, fields=["image/class/label", "image/encoded"])
    assert corpus.notes[-1].startswith("left out: 'image/class/text', 'image/height', ")
    (run,) = corpus.runs(tmp_path)
    assert sorted(from_spec(path, corpus.spec()).read(run, tmp_path).columns) == ["cls", "jpg"]
    with pytest.raises(CorpusError, match=r"has no feature 'label', only \['image/class/label'"):
        TfRecordCorpus(path, fields=["label"])


@pytest.mark.parametrize(
    ("features", "what"),
    [
        ([{"a": [b"\0", b"\1"]}], "feature 'a' holds several byte strings that are not text"),
        ([{"a": [1]}, {"a": [b"x"]}], "feature 'a' is bin and int64 in its first records"),
        ([{"a b": [1], "a_b": [2]}], "'a b' and 'a_b' would both be the field a_b.npy"),
        ([{"x" * 80: [1]}], "cannot name a field"),
    ],
)
def test_features_that_no_field_can_hold(features: list[Any], what: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=what):
        open_corpus(records(tmp_path / "x.tfrecord", features))


# --- damage -------------------------------------------------------------------------------

WHOLE = [frame(example(imagenet(i))) for i in range(3)]
FLIPPED = b"".join(WHOLE).replace(picture(1)[-50:], bytes(50))


@pytest.mark.parametrize(
    ("data", "good", "where", "why"),
    [
        (FLIPPED, [0, 2], "x.tfrecord at record 1", "is damaged: its checksum (CRC-32C) does not"),
        (b"".join(WHOLE)[: len(WHOLE[0]) + 5], [0], "x.tfrecord", "is cut short: no record begins"),
        (WHOLE[0] + b"\1" + WHOLE[1], [0], "x.tfrecord", "is damaged, or no TFRecord file: no"),
        (b"\x1f\x8bno gzip, though it begins so", [], "x.tfrecord", "is damaged: "),
        (frame(piece(2, b"")), [], "x.tfrecord at record 0", "is a tf.train.SequenceExample: only"),
        (frame(b"\0\0"), [], "x.tfrecord at record 0", "is no tf.train.Example, but another"),
    ],
)
def test_damage(data: bytes, good: list[int], where: str, why: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.tfrecord", data)
    batch = read_all(open_corpus(path, "tfrecord"), tmp_path / "scratch")["train"]
    assert batch.columns.get("jpg", []) == [picture(i) for i in good]
    assert [(name, found[: len(why)]) for name, found in batch.rejects] == [(where, why)]
    with pytest.raises(SampleError, match=r"x\.tfrecord.* is "):
        shardkit.pack(path, tmp_path / "out", to="npy", **OPTIONS)


def test_lengths_are_not_believed(tmp_path: Path, run: Run) -> None:
    """A file cut short, and a bomb of 80 KB that makes 80 MB."""
    for name, size in (("x.tfrecord", 2**50), ("y.tfrecord.gz", 80 << 20)):
        length = size.to_bytes(8, "little")
        data = length + tf_records.masked(length) + bytes(min(size, 80 << 20))
        path = write(tmp_path / name, gzip.compress(data) if name.endswith("gz") else data[:99])
        tracemalloc.start()
        assert not first_records(path, 9, 999, max_unpacked)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
        tracemalloc.stop()
    code, _, err = run("pack", "y.tfrecord.gz", "out", "--to", "npy")
    assert code == 1 and "y.tfrecord.gz: makes over 200 times its size" in err
