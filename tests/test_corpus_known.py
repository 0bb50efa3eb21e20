"""Layouts of well-known datasets that once came out otherwise than they are, without a word."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import picture, write
from pyarrow import parquet as pq

import shardkit
from shardkit.errors import CorpusError
from shardkit.inputs.annotations.yolo_files import lists_of_splits
from shardkit.inputs.open import open_corpus

OPTIONS: dict[str, Any] = {"to": "npy", "workers": 0, "progress": False}


def pack(source: Path, **options: Any) -> Any:
    return shardkit.pack(source, source.with_name("out"), **OPTIONS, **options)


@pytest.mark.parametrize("with_readme", [False, True])
@pytest.mark.parametrize("kind", ["metadata", "paired", "text"])
def test_splits_in_the_only_folder_are_no_single_split(
    kind: str, with_readme: bool, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    for split in ("train", "test"):
        for i in range(3):
            write(source / "data" / split / f"{i}.txt", f"{split} {i}")
            if kind != "text":
                write(source / "data" / split / f"{i}.jpg", picture(i))
        if kind == "metadata":
            rows = "".join(f"{i}.jpg,{i}\n" for i in range(3))
            write(source / "data" / split / "metadata.csv", f"file_name,label\n{rows}")
            for i in range(3):
                (source / "data" / split / f"{i}.txt").unlink()
    if with_readme:
        write(source / "README.md", "of it")
    with pytest.raises(CorpusError, match=r"nothing but data, in which test, train are splits"):
        pack(source)
    packed = shardkit.pack(source / "data", tmp_path / "out", **OPTIONS)
    assert dict(packed.splits.items()) == {"test": 3, "train": 3}


def test_a_folder_of_code_with_tests_in_it_is_text(tmp_path: Path) -> None:
    for name in ("package/test/a.py", "package/core/b.py", "README.md"):
        write(tmp_path / "in" / name, name)
    assert pack(tmp_path / "in").num_samples == 3


def test_tiny_imagenet_has_no_class_called_images(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for i, folder in enumerate(["train/n01/images", "train/n02/images", "val/images"]):
        write(source / folder / "0.JPEG", picture(i))
    with pytest.raises(CorpusError, match=r"val/images would be a class, and is called as any"):
        pack(source)
    packed = shardkit.pack(source / "train", tmp_path / "out", **OPTIONS)
    assert packed.num_samples == 2 and shardkit.open(tmp_path / "out").classes == ["n01", "n02"]


def test_librispeech_has_no_classes_called_after_splits(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for folder in ("train-clean-100/19/198", "train-clean-100/26/495", "dev-clean/84/121"):
        write(source / folder / "0.flac", "fLaC")
    with pytest.raises(CorpusError, match=r"dev-clean, train-clean-100 are called after splits"):
        pack(source)
    assert pack(source / "train-clean-100").num_samples == 2


def test_a_split_without_class_folders_is_named(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for i, folder in enumerate(["train/n01", "train/n02", "val"]):
        write(source / folder / "0.jpg", picture(i))
    assert pack(source).notes == [
        "cls is of 2 classes, the folders: n01, n02",
        "no cls in val: there are no class folders there",
    ]


def test_lists_of_yolo_are_said(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for i in range(4):
        write(source / "images" / f"{i}.jpg", picture(i))
        write(source / "labels" / f"{i}.txt", "0 0.5 0.5 0.2 0.2\n")
    write(source / "data.yaml", "train: train.txt\nval: 'lists/val.txt'\nnames: [a]\n")
    write(source / "train.txt", "images/0.jpg\n")
    said = "data.yaml names its splits by lists of files (train.txt, lists/val.txt), which are not"
    assert [note for note in pack(source).notes if note.startswith(said)]
    assert lists_of_splits("path: x\ntrain: images/train\nval: images/val\n") == []


def test_a_file_without_an_ending_is_passed_over_beside_more_of_text(tmp_path: Path) -> None:
    write(tmp_path / "in" / "cache", pickle.dumps([1]))
    for i in range(2):
        write(tmp_path / "in" / f"{i}.txt", "a text of some length")
    assert pack(tmp_path / "in").num_samples == 2


def test_names_of_classes_beside_heavier_data_are_no_dataset(tmp_path: Path) -> None:
    """CIFAR-100's binary version."""
    for name in ("train", "test"):
        write(tmp_path / "in" / f"{name}.bin", bytes(3_074))
    for name in ("fine", "coarse"):
        write(tmp_path / "in" / f"{name}_label_names.txt", "apple")
    with pytest.raises(CorpusError, match=r"2 files \(.bin 2\) of other kinds; choose with"):
        pack(tmp_path / "in")


def test_two_sets_of_one_name_are_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in ("00000-of-00001", "00000-of-00002", "00001-of-00002"):
        write(tmp_path / "in" / f"train-{name}.parquet", "")
        parquet.write_table(pa.table({"x": [1]}), tmp_path / "in" / f"train-{name}.parquet")
    with pytest.raises(CorpusError, match=r"which are not of one set"):
        pack(tmp_path / "in")


def notes_of(source: Path, kind: str, tmp_path: Path) -> list[str]:
    corpus = open_corpus(source, kind)
    assert [*corpus.runs(tmp_path)]
    return [*corpus.notes]


def test_folders_below_classes_are_told(tmp_path: Path) -> None:
    """Places365 has its classes one folder further down, ModelNet its splits."""
    for name in ("a/abbey", "a/alley", "b/bar"):
        write(tmp_path / "places" / name / "0.jpg", picture(0))
    told = notes_of(tmp_path / "places", "images", tmp_path)
    assert told == [
        "cls is of 2 classes, the folders: a, b",
        "3 folders lie within those of classes, and say nothing but keys: a/abbey, a/alley, b/bar",
    ]
    for name in ("chair/train", "chair/test", "desk/test"):
        write(tmp_path / "model" / name / "0.off", "OFF")
    assert (
        "keys, though called as splits: chair/test"
        in notes_of(tmp_path / "model", "files", tmp_path).pop()
    )
    for name in ("n01/images", "n02/images"):
        write(tmp_path / "tiny" / name / "0.jpg", picture(0))
    assert len(notes_of(tmp_path / "tiny", "images", tmp_path)) == 1


def test_a_kind_that_was_given_says_what_speaks_against_its_classes(tmp_path: Path) -> None:
    """UCF101's lists of splits lie beside the folder of its classes."""
    source = tmp_path / "ucf"
    for name in ("Archery", "Biking"):
        write(source / "UCF-101" / name / "v.avi", "film")
    write(source / "ucfTrainTestlist" / "classInd.txt", "1 Archery")
    odd = (
        "the folders may be no classes: all media lie in UCF-101, and there are other files in"
        f" ucfTrainTestlist; if so, pack {source}/UCF-101"
    )
    assert odd in notes_of(source, "media", tmp_path)
    write(tmp_path / "model" / "README.txt", "of it")
    for name in ("chair", "desk"):
        write(tmp_path / "model" / "ModelNet10" / name / "0.off", "OFF")
    assert any(
        "all of it lies in ModelNet10" in n for n in notes_of(tmp_path / "model", "files", tmp_path)
    )
    assert len(notes_of(tmp_path / "model" / "ModelNet10", "files", tmp_path)) == 1


@pytest.mark.parametrize("microphones", [[""], ["_mic1"], ["_mic1", "_mic2"]])
def test_sound_and_text_in_folders_side_by_side(microphones: list[str], tmp_path: Path) -> None:
    """VCTK, older and newer."""
    source = tmp_path / "in"
    for i in range(3):
        write(source / "txt" / "p225" / f"p225_{i}.txt", f"text {i}")
        for own in microphones:
            write(source / "wav48" / "p225" / f"p225_{i}{own}.flac", f"sound {i}{own}")
    write(source / "speaker-info.txt", "ID AGE")
    with pytest.raises(CorpusError, match="--corpus parallel, since files in txt and wav48 are of"):
        pack(source)
    pack(source, corpus="parallel")
    dataset = shardkit.open(tmp_path / "out")
    samples = [dataset[i] for i in range(len(dataset))]
    last = microphones[-1].removeprefix("_")
    sound = f"wav48_{last}.flac" if len(microphones) > 1 else "wav48.flac"
    assert [sample["txt.txt"] for sample in samples] == ["text 0", "text 1", "text 2"]
    assert bytes(samples[2][sound]) == f"sound 2{microphones[-1]}".encode()


def test_the_folders_of_medical_pictures_are_splits(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for name in ("imagesTr/hip_1", "labelsTr/hip_1", "imagesTs/hip_2"):
        write(source / f"{name}.nii.gz", name)
    write(source / "dataset.json", "{}")
    with pytest.raises(CorpusError, match="--corpus parallel, since files in images and labels"):
        pack(source)
    assert dict(pack(source, corpus="parallel").splits) == {"train": 1, "test": 1}
    train = shardkit.open(tmp_path / "out", split="train")
    assert bytes(train[0]["labels.nii.gz"]) == b"labelsTr/hip_1"


def test_splits_further_down_than_an_annotation_file_tells_them(tmp_path: Path) -> None:
    for i, split in enumerate(("train", "test")):
        write(tmp_path / "in" / "data" / split / f"{i}.jpg", picture(i))
    write(tmp_path / "in" / "metadata.csv", "file_name,n\ndata/train/0.jpg,0\ndata/test/1.jpg,1\n")
    told = notes_of(tmp_path / "in", "metadata", tmp_path)[-1]
    assert told.startswith("one split, train: data/test, data/train are called as splits are")
    moved = tmp_path / "in" / "data" / "metadata.csv"
    write(moved, "file_name,n\ntrain/0.jpg,0\ntest/1.jpg,1\n")
    (tmp_path / "in" / "metadata.csv").unlink()
    assert len(notes_of(moved.parent, "metadata", tmp_path)) == 1
    assert open_corpus(moved.parent).splits() == ["test", "train"]


def test_a_set_that_was_fetched_twice_is_refused(tmp_path: Path) -> None:
    for name in ("aaaa", "bbbb"):
        path = tmp_path / "in" / f"train-00000-of-00001-{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"text": [name]}), path)
    with pytest.raises(CorpusError, match=r"aaaa.parquet beside train-0.*are not of one set"):
        pack(tmp_path / "in")


def test_lines_of_json_that_are_called_as_a_document(tmp_path: Path) -> None:
    """C4's and Dolma's."""
    write(tmp_path / "in" / "c4-train.00000-of-00001.json.gz", gzip.compress(b'{"text": "a"}\n'))
    with pytest.raises(CorpusError, match=r"holds lines of JSON, call it c4.*00001.jsonl.gz") as e:
        pack(tmp_path / "in")
    (tmp_path / "in" / str(e.value).rpartition(" ")[2]).write_bytes(gzip.compress(b'{"a": 1}\n'))
    (tmp_path / "in" / "c4-train.00000-of-00001.json.gz").unlink()
    assert pack(tmp_path / "in").kind == "jsonl"


def test_classes_that_may_be_one_are_said(tmp_path: Path) -> None:
    for name in ("Cat", "cat", "dog"):
        write(tmp_path / "in" / name / "0.jpg", picture(0))
    assert "; Cat and cat differ in case alone" in notes_of(tmp_path / "in", "images", tmp_path)[0]
    for name in ("caf\u00e9", "cafe\u0301"):
        write(tmp_path / "two" / name / "0.jpg", picture(0))
    told = notes_of(tmp_path / "two", "images", tmp_path)[0]
    assert told.endswith("differ in how accents are written alone")


def test_splits_without_a_class_in_common_are_said(tmp_path: Path) -> None:
    """CheXpert's folders are patients."""
    for split, names in {"train": ("p1", "p2"), "valid": ("p3",)}.items():
        for name in names:
            write(tmp_path / "in" / split / name / "0.jpg", picture(0))
    told = "the folders may be no classes: none of train is in valid; --labels takes classes"
    assert any(note.startswith(told) for note in notes_of(tmp_path / "in", "images", tmp_path))
    write(tmp_path / "in" / "valid" / "p1" / "0.jpg", picture(0))
    assert len(notes_of(tmp_path / "in", "images", tmp_path)) == 1


def test_labels_whose_paths_begin_above_the_source(tmp_path: Path) -> None:
    source = tmp_path / "in" / "train"
    for i in range(2):
        write(source / f"patient{i}" / "study1" / "view1.jpg", picture(i))
    rows = [f"CheXpert-v1.0-small/train/patient{i}/study1/view1.jpg,AP,{i}" for i in range(2)]
    file = write(tmp_path / "train.csv", "\n".join(["Path,AP/PA,Edema", *rows]))
    corpus = open_corpus(source, labels=f"{file}:Edema")
    assert [run.label for run in corpus.runs(tmp_path)] == [0, 1]
    assert f"paths in {file} are taken without CheXpert-v1.0-small/train/" in corpus.notes
