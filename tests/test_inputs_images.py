"""Folders of images."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from layouts import JPG, PNG
from test_inputs_files import read_all, tree

from shardkit.errors import CorpusError
from shardkit.inputs.class_folders import ImageCorpus
from shardkit.inputs.detection import from_spec, open_corpus
from shardkit.samples.sample import SampleBatch, pack_paths, unpack_paths


def read_images(source: Path, **options: Path) -> dict[str, SampleBatch]:
    return read_all(ImageCorpus(source, **options), source)


def labels_of(batch: SampleBatch) -> dict[bytes, object]:
    return dict(zip(batch.keys, batch.columns["cls"], strict=True))


def paths_of(batch: SampleBatch) -> list[bytes]:
    """Original paths, of samples of one file each."""
    found = []
    for i, (key, packed) in enumerate(zip(batch.keys, batch.paths, strict=True)):
        present = [name for name, column in batch.columns.items() if column[i] is not None]
        ((_, path, offset),) = unpack_paths(key, packed, present)
        assert offset is None
        assert packed == pack_paths(key, [path])
        found.append(path)
    return found


# --- layouts ------------------------------------------------------------------------------


def test_class_folders_in_sorted_order_empty_ones_too(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {"n2/a.jpg": JPG, "n10/b.jpg": JPG, "empty/": b"", "N1/c.jpg": JPG, ".x/d.jpg": JPG},
    )
    corpus = ImageCorpus(tmp_path)
    assert corpus.classes == sorted(["n2", "n10", "empty", "N1"])  # as torchvision's ImageFolder
    batch = read_all(corpus, tmp_path)["train"]
    assert labels_of(batch) == {b"N1/c": b"0", b"n10/b": b"2", b"n2/a": b"3"}
    assert batch.keys == [b"N1/c", b"n10/b", b"n2/a"]
    assert paths_of(batch) == [b"N1/c.jpg", b"n10/b.jpg", b"n2/a.jpg"]
    assert batch.columns["jpg"] == [JPG] * 3


def test_splits_share_their_classes(tmp_path: Path) -> None:
    tree(tmp_path, {"train/cat/a.jpg": JPG, "train/dog/b.jpg": JPG, "val/ant/c.jpg": JPG})
    tree(tmp_path, {"val/dog/b.jpg": PNG, "test/d.jpg": JPG, "README.md": b"hello"})
    corpus = ImageCorpus(tmp_path)
    assert corpus.classes == ["ant", "cat", "dog"]
    batches = read_all(corpus, tmp_path)
    assert labels_of(batches["train"]) == {b"cat/a": b"1", b"dog/b": b"2"}
    assert labels_of(batches["val"]) == {b"ant/c": b"0", b"dog/b": b"2"}
    assert batches["test"].columns == {"jpg": [JPG]}
    assert paths_of(batches["test"]) == [b"test/d.jpg"]
    assert batches["train"].paths == [b"=train/cat/a.jpg", b"=train/dog/b.jpg"]
    assert corpus.ignored == {".md": 1}


def test_a_path_that_begins_with_its_key_by_chance(tmp_path: Path) -> None:
    """The split's name may be the beginning of a key."""
    tree(tmp_path, {"train/train.jpg": JPG, "train/trai.jpg": JPG, "val/train/v.jpg": JPG})
    batches = read_images(tmp_path)
    assert sorted(paths_of(batches["train"])) == [b"train/trai.jpg", b"train/train.jpg"]


def test_masks_among_images_are_named(tmp_path: Path) -> None:
    """Detection looks at some names only, so the first masks may lie behind those."""
    names = ["a/1.jpg", "a/1_mask.png", "a/2.jpg", "b/mask_1.jpg", "b/x_mask.jpg"]
    tree(tmp_path, dict.fromkeys(names, JPG))
    corpus = ImageCorpus(tmp_path)
    assert sum(len(run) for run in corpus.runs(tmp_path)) == 5
    assert [note for note in corpus.notes if "mask" in note] == [
        "1 images are named as masks of others (a/1_mask.png), and are samples, too; --corpus"
        " companions makes a field of each"
    ]


def test_a_class_called_train_stays_a_class(tmp_path: Path) -> None:
    tree(tmp_path, {"train/a.jpg": JPG, "car/b.jpg": JPG})
    corpus = ImageCorpus(tmp_path)
    assert corpus.classes == ["car", "train"]
    assert labels_of(read_all(corpus, tmp_path)["train"]) == {b"car/b": b"0", b"train/a": b"1"}


@pytest.mark.parametrize("where", ["", "train/"])
def test_images_beside_class_folders_are_refused(tmp_path: Path, where: str) -> None:
    tree(tmp_path, {f"{where}b/x.jpg": JPG, f"{where}z.jpg": JPG, f"{where}a.png": PNG})
    with pytest.raises(
        CorpusError, match=r"holds 2 images \(a.png, ...\) beside 1 folders \(b, ...\)"
    ):
        ImageCorpus(tmp_path)


def test_listing_again_is_the_same(tmp_path: Path) -> None:
    corpus = ImageCorpus(tree(tmp_path, {"a/x.jpg": JPG, "b/y.jpg": JPG, "b/z.txt": b"1"}))
    assert list(corpus.runs(tmp_path)) == list(corpus.runs(tmp_path))
    assert corpus.ignored == {".txt": 1}


# --- names --------------------------------------------------------------------------------


def test_odd_names_survive(tmp_path: Path) -> None:
    odd = [
        b"a b.jpg",
        b"a%20b.jpg",
        b"new\nline.jpg",
        b"\xff\xfe.jpg",
        b"x" * 251 + b".jpg",
        b"d.o.t.jpg",
    ]
    for folder in (b"c\xff", b"c d", b"c\n"):
        os.mkdir(os.path.join(os.fsencode(tmp_path), folder))
        for name in odd:
            with open(os.path.join(os.fsencode(tmp_path), folder, name), "wb") as out:
                out.write(JPG + folder + name)
    corpus = ImageCorpus(tmp_path)
    assert corpus.classes == ["c\n", "c d", "c\udcff"]
    again = from_spec(tmp_path, json.loads(json.dumps(corpus.spec())))
    assert again.classes == corpus.classes
    batch = SampleBatch()
    for run in corpus.runs(tmp_path):
        batch.extend(again.read(run, tmp_path))
    assert not batch.rejects
    for path, value in zip(paths_of(batch), batch.columns["jpg"], strict=True):
        assert value == JPG + path.replace(b"/", b"", 1)
    assert len(set(batch.keys)) == 18


# --- contents -----------------------------------------------------------------------------


def test_content_names_the_field(tmp_path: Path) -> None:
    tree(tmp_path, {"a.JPEG": PNG, "b.JPEG": JPG, "c.png": b"GIF89a..."})
    batch = read_images(tmp_path)["train"]
    assert batch.columns == {
        "gif": [None, None, b"GIF89a..."],
        "jpg": [None, JPG, None],
        "png": [PNG, None, None],
    }
    assert paths_of(batch) == [b"a.JPEG", b"b.JPEG", b"c.png"]


def test_bad_files_are_rejects_and_the_others_stay_in_line(tmp_path: Path) -> None:
    contents = {"a.jpg": JPG + b"a", "b.jpg": b"", "c.jpg": b"this is text", "d.jpg": PNG + b"d"}
    tree(tmp_path, {f"k/{name}": data for name, data in contents.items()})
    os.mkfifo(tmp_path / "k/e.jpg")
    (tmp_path / "k/f.jpg").write_bytes(JPG + b"f")
    batch = read_images(tmp_path)["train"]
    assert batch.rejects == [
        ("k/b.jpg", "empty file"),
        ("k/c.jpg", "not an image: begins with b'this is text'"),
        ("k/e.jpg", "is no regular file; remove it"),
    ]
    assert batch.keys == [b"k/a", b"k/d", b"k/f"]
    assert paths_of(SampleBatch(batch.keys, batch.paths, {"x": [b""] * 3})) == [
        b"k/a.jpg",
        b"k/d.jpg",
        b"k/f.jpg",
    ]
    assert batch.columns == {
        "jpg": [JPG + b"a", None, JPG + b"f"],
        "png": [None, PNG + b"d", None],
        "cls": [b"0", b"0", b"0"],
    }


def test_files_that_change_between_listing_and_reading(tmp_path: Path) -> None:
    tree(tmp_path, {"a.jpg": JPG, "b.jpg": JPG, "c.jpg": JPG, "d.jpg": JPG})
    corpus = ImageCorpus(tmp_path)
    (run,) = corpus.runs(tmp_path)
    (tmp_path / "a.jpg").write_bytes(JPG[:-1])
    (tmp_path / "b.jpg").write_bytes(JPG + b"1")
    (tmp_path / "c.jpg").unlink()
    batch = corpus.read(run, tmp_path)
    assert batch.keys == [b"d"]
    assert [path for path, _ in batch.rejects] == ["a.jpg", "b.jpg", "c.jpg"]
    assert "changed while packing" in batch.rejects[0][1]
    assert "vanished" in batch.rejects[2][1]


def test_a_slice_of_a_run_reads_alone(tmp_path: Path) -> None:
    tree(tmp_path, {f"k/{i}.jpg": JPG + b"%d" % i for i in range(9)})
    corpus = ImageCorpus(tmp_path)
    (run,) = corpus.runs(tmp_path)
    batch = corpus.read(run.slice(3, 5), tmp_path)
    assert batch.keys == [b"k/3", b"k/4"]
    assert batch.columns["jpg"] == [JPG + b"3", JPG + b"4"]


# --- labels -------------------------------------------------------------------------------


def write(path: Path, text: str) -> Path:
    path.write_text(text, errors="surrogateescape")
    return path


# --- workers ------------------------------------------------------------------------------


def test_a_worker_needs_neither_labels_nor_a_listing(tmp_path: Path) -> None:
    tree(tmp_path / "src", {"a.jpg": JPG})
    file = write(tmp_path / "l.csv", "a.jpg,dog\n")
    corpus = open_corpus(tmp_path / "src", labels=file)
    (run,) = corpus.runs(tmp_path)
    file.unlink()
    spec = json.loads(json.dumps(corpus.spec()))
    assert spec == {"kind": "images", "classes": ["dog"], "labels": True}
    worker = from_spec(tmp_path / "src", spec)
    assert worker.read(run, tmp_path) == corpus.read(run, tmp_path)


def test_a_class_folder_that_comes_while_listing(tmp_path: Path) -> None:
    corpus = ImageCorpus(tree(tmp_path, {"a/a.jpg": JPG, "c/c.jpg": JPG}))
    tree(tmp_path, {"b/b.jpg": JPG})
    with pytest.raises(CorpusError, match="class folder b came while listing"):
        list(corpus.runs(tmp_path))
