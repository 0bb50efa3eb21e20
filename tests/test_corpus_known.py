"""Layouts of well-known datasets that once came out otherwise than they are, without a word."""

from __future__ import annotations

import gzip
import io
import json
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
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


def test_pickles_of_cifar_are_refused_with_lines_that_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in"
    data = np.arange(24, dtype=np.uint8).reshape(4, 6)
    batch = {"data": data, "labels": [0, 1, 1, 0], "batch_label": "training batch 1 of 1"}
    write(source / "data_batch_1", pickle.dumps(batch, protocol=2))
    write(source / "readme.html", "<html></html>")
    with pytest.raises(CorpusError, match=r"holds pickles \(data_batch_1, \.\.\.\)") as refused:
        pack(source)
    monkeypatch.chdir(source)
    exec("\n".join(refused.value.__notes__), {})
    with np.load(io.BytesIO((source / "plain" / "data_batch_1.npz").read_bytes())) as plain:
        assert np.array_equal(plain["data"], data) and plain["labels"].tolist() == [0, 1, 1, 0]
    with pytest.raises(CorpusError, match=rf"then pack {source}/plain"):
        pack(source)
    assert shardkit.pack(source / "plain", tmp_path / "out", **OPTIONS).num_samples == 4


def cifar(root: Path, kind: str) -> dict[str, Any]:
    """Pickles as CIFAR-10's and CIFAR-100's are, with fewer rows; the rows of each split."""
    rng = np.random.default_rng(0)
    rows: dict[str, Any] = {"train": [], "test": []}
    ten = {f"data_batch_{i}": "train" for i in range(1, 6)} | {"test_batch": "test"}
    for name, split in (ten if kind == "10" else {"train": "train", "test": "test"}).items():
        batch = {
            "data": rng.integers(0, 256, (13, 3072), np.uint8),
            "filenames": [f"{name}_{i}.png" for i in range(13)],
            "batch_label": f"{name} of 5",
        }
        labels = [i % 10 for i in range(13)]
        own = {"labels": labels} if kind == "10" else {"coarse_labels": [x // 5 for x in labels]}
        batch |= own | ({} if kind == "10" else {"fine_labels": labels})
        write(root / name, pickle.dumps(batch, protocol=2))
        rows[split].append(batch)
    names = [f"class {i}" for i in range(10)]
    if kind == "10":
        meta: Any = {"label_names": names, "num_vis": 3072, "num_cases_per_batch": 13}
        write(root / "batches.meta", pickle.dumps(meta, protocol=2))
        write(root / "readme.html", "<html></html>")
    else:
        meta = {"fine_label_names": names, "coarse_label_names": ["one", "two"]}
        write(root / "meta", pickle.dumps(meta, protocol=2))
        write(root / "file.txt~", "")
    return rows


@pytest.mark.parametrize("kind", ["10", "100"])
def test_what_the_lines_for_cifar_make_is_packed_as_it_is(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in"
    rows = cifar(source, kind)
    with pytest.raises(CorpusError, match="holds pickles") as refused:
        pack(source)
    (lines,) = refused.value.__notes__
    assert max(map(len, lines.split("\n"))) < 100
    monkeypatch.chdir(source)
    exec(lines, {})
    packed = shardkit.pack(source / "plain", tmp_path / "out", **OPTIONS)
    assert packed.splits == {"test": 13, "train": 65 if kind == "10" else 13}
    for split, batches in rows.items():
        ds = shardkit.open(tmp_path / "out", split)
        assert ds.classes == [f"class {i}" for i in range(10)]
        read = ds.read(range(len(ds)))
        data = np.concatenate([batch["data"] for batch in batches])
        assert read["images.npy"].dtype == np.uint8 and read["images.npy"].shape[1:] == (32, 32, 3)
        assert np.array_equal(read["images.npy"][:, 3, 4, 2], data[:, 2 * 1024 + 3 * 32 + 4])
        fine = "labels" if kind == "10" else "fine_labels"
        assert read["cls"].tolist() == [label for batch in batches for label in batch[fine]]
        assert ds[5]["filenames.txt"] == batches[0]["filenames"][5]
    assert "names of classes are those of label_names" in packed.notes
    assert ("left out: num_vis" in "".join(packed.notes)) is (kind == "10")
    if kind == "100":
        kept = json.loads((tmp_path / "out" / "shardkit.json").read_text())["corpus"]["names"]
        assert kept == {"coarse_labels": {"0": "one", "1": "two"}}
        assert read["coarse_labels.npy"].tolist() == rows["test"][0]["coarse_labels"]


def test_lines_for_cifar_are_for_cifar_alone(tmp_path: Path) -> None:
    cifar(tmp_path / "in", "100")
    write(tmp_path / "in" / "extra", pickle.dumps({"data": [1]}, protocol=2))
    with pytest.raises(CorpusError) as refused:
        pack(tmp_path / "in")
    assert "for name in ['extra', 'meta', 'test', 'train']:" in refused.value.__notes__[0]


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


def test_attributes_of_groups_are_named(tmp_path: Path) -> None:
    source = tmp_path / "in.h5"
    with h5py.File(source, "w") as file:
        for i in range(3):
            group = file.create_group(f"{i:03}")
            group["image"] = np.full((4, 4), i)
            group["image"].attrs["unit"] = "mm"
            group.attrs["label"] = i
    with pytest.raises(CorpusError, match=r"they leave out the attributes of groups, label\n"):
        pack(source)


def lines_of(source: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the lines that the refusal gives, in the folder of the file; what it says."""
    with pytest.raises(CorpusError) as refused:
        pack(source)
    monkeypatch.chdir(source.parent)
    exec("\n".join(refused.value.__notes__), {})
    return str(refused.value)


def test_lines_for_groups_say_what_they_leave_and_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for i, value in enumerate([1, 2, 300, -7]):
            file[f"a{{b}}/{i}/x"] = np.array([value], np.int16 if i > 1 else np.uint8)
        file["labels"] = np.arange(4)
    assert "; they leave out labels" in lines_of(tmp_path / "in.h5", monkeypatch)
    with h5py.File(tmp_path / "rows-in.h5") as rows:
        assert rows["x"][()].tolist() == [[1], [2], [300], [-7]]


def test_times_as_names_of_groups_stay_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for i in range(3):
            file[f"1403.{i}/image"] = np.zeros((4, 5 + i))
            file[f"1403.{i}/y"] = i
    lines_of(tmp_path / "in.h5", monkeypatch)
    assert pack(tmp_path / "samples-in", corpus="paired").num_samples == 3


def test_arrays_in_a_series_are_said_to_be_columns(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for i in range(9):
            file[f"img_{i}"] = np.zeros((4, 5))
    (said,) = pack(tmp_path / "in.h5").notes
    assert said.startswith("9 arrays called in a series (img_0, img_1, ...) are columns")


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


def test_logs_beside_arrays_say_nothing_of_them(tmp_path: Path) -> None:
    source = tmp_path / "in"
    write(source / "logs" / "run.log", "of it")
    np.save(source / "images.npy", np.zeros((6, 4, 4), np.uint8))
    np.save(source / "labels.npy", np.arange(6))
    result = pack(source)
    assert (result.kind, result.num_samples, result.ignored) == ("rows", 6, {".log": 1})


@pytest.mark.parametrize("other", [[0.7, 1.7], [[0, 1], [1, 0]], ["a", "b"], [float("nan"), 1.0]])
def test_labels_that_only_one_split_has_as_numbers_are_no_classes(
    other: list[Any], tmp_path: Path
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for split, labels in {"train": other, "test": [0, 1]}.items():
        np.savez(source / f"{split}.npz", x=np.zeros((2, 3)), labels=np.array(labels))
    result = pack(source)
    assert result.notes[-1].startswith("no cls: 'labels' has no whole numbers in train.npz")
    train = shardkit.open(tmp_path / "out", split="train")
    assert "cls" not in train.fields


def test_names_of_further_numbers_go_to_parquet_from_rows(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    np.savez(
        source / "train.npz",
        images=np.zeros((2, 4, 4), np.uint8),
        labels=np.array([0, 1]),
        coarse_labels=np.array([1, 0], np.uint8),
        label_names=np.array(["cat", "dog", "owl"]),
        coarse_label_names=np.array(["animal", "plant", "thing"]),
    )
    pack(source)
    result = shardkit.convert(tmp_path / "out", tmp_path / "table", to="parquet", progress=False)
    assert not any("left out" in note for note in result.notes)
    (file,) = (tmp_path / "table").rglob("*.parquet")
    features = json.loads(pq.read_schema(file).metadata[b"huggingface"])["info"]["features"]
    assert features["coarse_labels"]["names"] == ["animal", "plant", "thing"]


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


def test_files_of_which_each_may_be_a_sample_are_said(tmp_path: Path) -> None:
    """Slices of volumes, as TransUNet's Synapse has them, and tensors in files of their own."""
    (tmp_path / "npz").mkdir()
    for i in range(3):
        values = {"image": np.zeros((16, 16)), "label": np.zeros((16, 16))}
        np.savez(tmp_path / "npz" / f"case0_slice{i:03}.npz", **values)
    told = pack(tmp_path / "npz").notes[-1]
    assert told.startswith("each row of 3 files of 16 rows is a sample (case0_slice000.npz, case0_")


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
