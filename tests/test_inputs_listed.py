"""Annotation files: tables, COCO's, and which files their names mean."""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from conftest import picture, write
from layouts import ROWS, coco, jsonl, make_coco, make_metadata, pack, samples

import shardkit
from shardkit.errors import CorpusError, SampleError
from shardkit.inputs.annotations.coco import CocoCorpus, CocoFile
from shardkit.inputs.annotations.listed import MetadataCorpus, choose_form, place_names, read_rows
from shardkit.inputs.named_files import MAX_LINE, NamedFiles

# --- small tables -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("x.csv", "file_name,a\nx.jpg\n", "line 2 has 1 columns, and the first 2"),
        ("x.csv", "file_name,a,a\nx.jpg,1,2\n", "'a' is there twice"),
        ("x.csv", b"file_name\n\xff.jpg\n", "can't decode"),
        ("x.csv", b"a" * (MAX_LINE + 9), "line 1 has over 16,777,216 bytes"),
        ("x.jsonl", "{\n", "line 1: "),
        ("x.jsonl", "[" * 100_000, "recursion"),
        ("x.jsonl", "\n[1]\n", "line 2 is no JSON object"),
        ("x.parquet", "PAR1", "is damaged"),
        ("fifo.csv", "", "is no regular file"),
    ],
)
def test_tables_that_cannot_be_read(
    name: str, data: str | bytes, what: str, tmp_path: Path
) -> None:
    if name == "fifo.csv":
        os.mkfifo(tmp_path / name)
    else:
        write(tmp_path / name, data)
    with pytest.raises(CorpusError, match=what) as info:
        read_rows(tmp_path / name)
    assert name in str(info.value) and "\n" not in str(info.value)


@pytest.mark.parametrize(
    ("cells", "is_text", "ending", "expected"),
    [
        ([1, 2.5], False, "npy", [1.0, 2.5]),
        ([True, False], False, "npy", [True, False]),
        ([2**63, 1], False, "json", [str(2**63), "1"]),
        ([[1, 2], {"a": None}], False, "json", ["[1, 2]", '{"a": null}']),
        (["\ud800", "a"], False, "", []),
        ([[{"d": date(2020, 1, 1)}]], False, "", []),
        ([], False, "", []),
        (["1", "-2", "0"], True, "npy", [1, -2, 0]),
        (["1", "2.50", "1e3", ".5"], True, "npy", [1.0, 2.5, 1000.0, 0.5]),
        (["007", "1"], True, "txt", ["007", "1"]),
        (["12345678901234567890"], True, "txt", ["12345678901234567890"]),
        (["0.1234567890123456789"], True, "txt", ["0.1234567890123456789"]),
    ],
)
def test_columns(cells: list[Any], is_text: bool, ending: str, expected: list[Any]) -> None:
    found_ending, convert = choose_form(cells, is_text)
    assert found_ending == ending
    found = [convert(cell) for cell in cells] if ending else []
    assert found == expected and [*map(type, found)] == [*map(type, expected)]


# --- metadata -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["metadata.jsonl", "metadata.csv", "metadata.parquet"])
def test_columns_become_fields(name: str, tmp_path: Path) -> None:
    packed = pack(make_metadata(tmp_path / "source", name))
    held = samples(packed)
    for row in ROWS:
        sample = held[row["file_name"].removesuffix(".jpg")]
        assert (sample["txt"], sample["cls"], sample["id.txt"]) == (
            row["text"],
            row["label"],
            row["id"],
        )
        assert (sample["score.npy"], sample["score.npy"].dtype) == (row["score"], float)
        assert sample.get("objects.json") == (
            row["objects"] if "jsonl" in name or "par" in name else None
        )
    assert packed.ignored == {".jpg": 1}
    assert packed.notes == [f"annotations of {name}", "1 files that it does not name: 6.jpg"]


def metadata(root: Path, rows: list[dict[str, Any]], *names: str) -> MetadataCorpus:
    for i, name in enumerate(names):
        write(root / name, picture(i))
    write(root / "metadata.jsonl", jsonl(rows))
    return MetadataCorpus(root)


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        ({"caption": "x"}, {"caption": "txt"}),
        ({"text": 1}, {"text": "text.npy"}),
        ({"My Column": "x", "a.b": 1}, {"My Column": "my_column.txt", "a.b": "a.b.npy"}),
        ({"Label": 3}, {"Label": "cls"}),
        ({"label": 10**18 + 1}, {"label": "label.npy"}),
        ({"label": "cat"}, {"label": "label.txt"}),
        ({"a": None, "": 1}, {}),
    ],
)
def test_names_of_fields(row: dict[str, Any], fields: dict[str, str], tmp_path: Path) -> None:
    corpus = metadata(tmp_path, [{"file_name": "a.jpg", **row}], "a.jpg")
    assert corpus.spec()["annotations"] == {"metadata.jsonl": {"fields": fields}}
    left = [name for name in row if name not in fields or fields[name].startswith("label")]
    assert all(name in " ".join(corpus.told) for name in left), "what is not taken is named"


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([{"a": 1}], "has no column file_name"),
        ([{"file_name": "a.jpg", "A b": 1, "a_b": 2}], "two columns would be field 'a_b.npy'"),
        ([{"file_name": "a.jpg"}, {"file_name": None}], "row 2 names no file"),
        ([{"file_name": "a.jpg"}, {"file_name": "b.jpg\0"}], "which cannot be a part of a sample"),
        ([{"file_name": "a.jpg"}, {"file_name": "a.jpg"}], "a.jpg is named twice"),
        ([{"file_name": "a.jpg", "m_file_name": "a.jpg"}], "m_file_name names more files of a row"),
        ([{"file_name": f"x{i}.jpg"} for i in range(5)], "names 5 files .*, and none is there"),
        ([{"file_name": f"{n}.jpg"} for n in "abcde"], "5 files, of which only 1 are there"),
    ],
)
def test_metadata_that_is_refused(rows: list[dict[str, Any]], what: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=what) as info:
        metadata(tmp_path, rows, "a.jpg")
    assert ("\n" not in str(info.value) and "metadata.jsonl" in str(info.value)) or "two" in what


def test_folders_that_are_no_classes_are_named(tmp_path: Path) -> None:
    corpus = metadata(tmp_path, [{"file_name": f"{n}/0.jpg"} for n in "ab"], "a/0.jpg", "b/0.jpg")
    assert corpus.classes is None and "no cls: folders are a part of keys (a, b)" in corpus.told


def test_a_row_whose_file_is_not_there_is_a_reject(tmp_path: Path) -> None:
    source = make_metadata(tmp_path / "source")
    write(source / "metadata.jsonl", jsonl([*ROWS, {"file_name": "gone.jpg"}]))
    with pytest.raises(SampleError, match=r"gone.jpg is named in metadata.jsonl, and is not there"):
        pack(source)
    assert pack(source, on_error="skip", max_rejects=0.9, overwrite=True).num_rejects == 1


def test_an_archive_next_to_its_table_is_named(tmp_path: Path) -> None:
    write(tmp_path / "images.zip", b"PK")
    write(tmp_path / "metadata.jsonl", jsonl(ROWS))
    with pytest.raises(CorpusError, match=r"names files that are not there; unpack images.zip"):
        pack(tmp_path)


# --- COCO ---------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, -1])
def test_records_are_found(order: int, tmp_path: Path) -> None:
    made = coco(["a/\u00e9.jpg", "b.jpg", "\U0001f600.jpg", "d.jpg"])
    made["annotations"].append({"image_id": 7, "category_id": 1})
    shuffled = {name: made[name] for name in [*made][::order]}
    text = json.dumps(shuffled, indent=2, ensure_ascii=order > 0)
    found = CocoFile(write(tmp_path / "x.json", text))
    assert [*found.images.values()] == ["a/\u00e9.jpg", "b.jpg", "\U0001f600.jpg", "d.jpg"]
    assert found.kept == made["categories"]
    found.spill(tmp_path / "spilled")
    assert found.num_strays == 1
    for image in made["images"]:
        held = json.loads(found.json(image["id"]))
        own = [each for each in made["annotations"] if each["image_id"] == image["id"]]
        assert (held["image"], held["annotations"]) == (image, own)
        assert held["categories"] == ({"1": "person", "18": "dog"} if own else {})


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ('{"images": [', "COCO's: "),
        ('{"images": [{"id": 1}]}', "image 1 has no file_name"),
        ('{"images": [{"file_name": "a", "id": true}]}', "one of its images has no id"),
        (
            '{"images": [{"file_name": "a", "id": 1}, {"file_name": "b", "id": 1}]}',
            "or is there tw",
        ),
        ('{"images": [{"file_name": "a", "id": 1}], "annotations": [{}]}', "has no image_id"),
        ('{"images": [{"file_name": "a", "id": 1}], "categories": [{"name": "a"}]}', "has no id"),
        ('{"images": [{"file_name": "a", "id": 1}], "x": ' + "[" * 100_000, "1,000 deep"),
        (b'{"images": [{"file_name": "\xff", "id": 1}]}', "COCO's: "),
    ],
)
def test_what_is_no_file_of_coco(data: str | bytes, what: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=what) as info:
        CocoFile(write(tmp_path / "x.json", data)).spill(tmp_path / "spilled")
    assert "\n" not in str(info.value) and len(str(info.value)) < 500


def test_several_files_hold_one_image(tmp_path: Path) -> None:
    source = make_coco(tmp_path / "source")
    made = coco([f"{i:012d}.jpg" for i in range(5)])
    captions = [{"id": 1, "image_id": 500, "caption": "a dog"}, {"id": 2, "image_id": 77}]
    text = json.dumps({"images": made["images"], "annotations": captions})
    write(source / "annotations" / "captions_train2017.json", text)
    packed = pack(source)
    assert (packed.splits, shardkit.open(packed.dest).classes) == (
        {"train": 5, "val": 3},
        ["person", "dog"],
    )
    sample = samples(packed)["000000000000"]
    assert sample.keys() == {"jpg", "captions.json", "instances.json"}
    assert sample["captions.json"]["annotations"] == captions[:1]
    assert samples(packed, "val")["000000000000"].keys() == {"jpg", "instances.json"}
    assert any("passed over 1 annotations of images not listed" in note for note in packed.notes)


def test_images_that_were_not_fetched(tmp_path: Path) -> None:
    """Check that those of the other split, which are called alike, are not taken for them."""
    source = make_coco(tmp_path / "source")
    for path in (source / "train2017").iterdir():
        path.unlink()
    packed = pack(source)
    assert (packed.splits, packed.ignored) == ({"val": 3}, {".json": 1})
    assert "instances_train2017.json is passed over: none of its 5 images is" in packed.notes[1]
    write(source / "train2017" / "000000000004.jpg", picture(4))
    with pytest.raises(CorpusError, match="names 5 files, of which only 1 are there"):
        pack(source, "other")


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"train.json": "a.jpg", "val.json": "a.jpg"}, "a.jpg is in split train and, by val.json"),
        ({"x.json": "a.jpg", "1/x.json": "a.jpg"}, "images/a.jpg is named twice in"),
        ({"x.json": "b.jpg"}, "x.json is passed over: none of its 1 images is there"),
    ],
)
def test_coco_that_is_refused(files: dict[str, str], what: str, tmp_path: Path) -> None:
    write(tmp_path / "images" / "a.jpg", picture(1))
    for name, own in files.items():
        write(tmp_path / name, json.dumps(coco([own])))
    with pytest.raises(CorpusError, match=what):
        CocoCorpus(tmp_path)


# --- names in annotation files ------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "files", "table", "split", "expected"),
    [
        ("a.jpg b.jpg", "k/a.jpg k/b.jpg", "x", None, "k/a.jpg k/b.jpg"),
        ("a b", "k/a.jpg k/b.jpg", "x", None, "k/a.jpg k/b.jpg"),
        ("a.jpg b.jpg", "a.jpg k/b.jpg", "x", None, "in two places, as a.jpg or k/b.jpg"),
        ("k/a.jpg k/b.jpg", "images/k/a.jpg images/k/b.jpg l/a.jpg", "x", None, "images/k/a.jpg"),
        (r"C:\data\k\a.jpg", "k/a.jpg", "x", None, "k/a.jpg"),
        ("../k/a.jpg", "k/a.jpg a.jpg", "l/x", None, "k/a.jpg"),
        ("a.jpg b.jpg", "k/a.jpg", "x", None, "k/a.jpg k/b.jpg"),
        ("a.jpg", "a.jpg.json b.jpg", "x", None, ""),
        # Of other folders, whatever they are called.
        ("/home/me/k/l/a.jpg", "x/k/l/a.jpg", "x", None, ""),
        ("camera1/a.jpg", "camera2/a.jpg", "x", None, ""),
        ("images/a.jpg", "val/a.jpg", "x", "train", ""),
        ("1/a.jpg 2/a.jpg", "images/a.jpg", "x", None, ""),
        # Of the table's own folder, or split.
        ("a.jpg b.jpg", "k/a.jpg l/a.jpg l/b.jpg", "k/x", None, "k/a.jpg k/b.jpg"),
        ("a.jpg", "train/i/a.jpg val/i/a.jpg", "train/j/x", None, "train/i/a.jpg"),
        ("a.jpg", "train/a.jpg val/a.jpg", "j/x", "val", "val/a.jpg"),
        ("a.jpg", "valid/a.jpg", "x", "val", "valid/a.jpg"),
        ("a.jpg b.jpg", "k/a.jpg l/a.jpg", "x", None, "in two places, as k/a.jpg or l/a.jpg"),
        ("a.jpg", "k/a.jpg k/a.png", "x", None, "k/a.jpg"),
        ("a", "k/a.jpg k/a.png", "x", None, "in two places, as k/a.jpg or k/a.png"),
        ("a.jpg b.jpg c.jpg", "a.jpg", "x", None, "names 3 files, of which only 1 are there"),
    ],
)
def test_names_as_others_write_them(
    names: str, files: str, table: str, split: str | None, expected: str
) -> None:
    """``expected``: the first paths, or the error; nothing if none is there."""
    given_names, known = names.split(), NamedFiles(files.split())
    if " in two " in f" {expected}" or expected.startswith("names"):
        with pytest.raises(CorpusError, match=expected):
            place_names(given_names, known, table, split)
        return
    found = place_names(given_names, known, table, split)
    assert found[: len(expected.split())] == expected.split() and bool(found) == bool(expected)
