"""Annotation files: what is read of them, and what is refused."""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from conftest import write
from hypothesis import given
from hypothesis import strategies as st
from layouts import coco, csv_of, jsonl, parquet_of

from shardkit.errors import CorpusError
from shardkit.inputs.annotations.captions import read_captions
from shardkit.inputs.annotations.class_names import find_class_names
from shardkit.inputs.annotations.coco_file import CocoFile, looks_like_coco, read_coco
from shardkit.inputs.annotations.metadata_columns import plan_columns
from shardkit.inputs.annotations.metadata_files import find_metadata, names_files, read_rows
from shardkit.inputs.annotations.named_files import base_of, clean_path, none_there, place_names

_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)
"""A kilobyte of YAML that stands for 9**10 texts."""

# --- columns ------------------------------------------------------------------------------


def values(cells: list[Any], is_text: bool = False, name: str = "c") -> list[Any]:
    """What one column's cells become, with the field's name before them."""
    rows = [{"file_name": "a.jpg", name: cell} for cell in cells]
    plan = plan_columns(rows, is_text, "here")
    if name in plan.left_out:
        return [plan.left_out[name]]
    (column,) = plan.columns.values()
    return [column.field, *(plan.values(row).get(column.field) for row in rows)]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([1, 2], ["c.npy", 1, 2]),
        ([1, None], ["c.npy", 1, None]),
        ([1, 2.5], ["c.npy", 1.0, 2.5]),
        ([True, False], ["c.npy", True, False]),
        ([True, 1], ["c.json", "true", "1"]),
        ([2**63, 1], ["c.json", str(2**63), "1"]),
        ([2**60 + 1, 0.5], ["c.json", str(2**60 + 1), "0.5"]),
        (["a", ""], ["c.txt", "a", ""]),
        (["a", 1], ["c.json", '"a"', "1"]),
        ([[1, 2], {"a": None}], ["c.json", "[1, 2]", '{"a": null}']),
        (["\ud800", "a"], ["c.json", '"\\ud800"', '"a"']),
        ([None, None], ["it is empty"]),
        ([b"x"], ["it holds bytes, which JSON has not"]),
        ([[{"d": date(2020, 1, 1)}]], ["it holds date, which JSON has not"]),
    ],
)
def test_columns(cells: list[Any], expected: list[Any]) -> None:
    found = values(cells)
    assert found == expected and [*map(type, found)] == [*map(type, expected)]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "-2", "0"], ["c.npy", 1, -2, 0]),
        (["1", "2.50", "1e3", ".5"], ["c.npy", 1.0, 2.5, 1000.0, 0.5]),
        (["007", "1"], ["c.txt", "007", "1"]),
        (["12345678901234567890"], ["c.txt", "12345678901234567890"]),
        (["0.1234567890123456789"], ["c.txt", "0.1234567890123456789"]),
        (["nan"], ["c.txt", "nan"]),
        (["1e999"], ["c.txt", "1e999"]),
        (["1_0"], ["c.txt", "1_0"]),
        (["True", None], ["c.txt", "True", None]),
    ],
)
def test_columns_of_text(cells: list[Any], expected: list[Any]) -> None:
    found = values(cells, is_text=True)
    assert found == expected and [*map(type, found)] == [*map(type, expected)]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_come_through_a_csv(number: float) -> None:
    field, found = values([repr(number)], is_text=True)
    assert (field, float(found)) == ("c.npy", number)


@pytest.mark.parametrize(
    ("name", "cell", "field"),
    [
        ("text", "x", "txt"),
        ("caption", "x", "txt"),
        ("text", 1, "text.npy"),
        ("My Column", "x", "my_column.txt"),
        ("été", "x", "_t_.txt"),
        ("a.b", 1, "a.b.npy"),
        ("-x", 1, "x.npy"),
        ("cls", 1, "cls.npy"),
        ("", "x", "it has no name"),
    ],
)
def test_names_of_fields(name: str, cell: Any, field: str) -> None:
    assert values([cell], name=name)[0] == field


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"a": 1}, "here has no column file_name"),
        ({"file_names": ["a.jpg"]}, "column 'file_names' names several files of one row"),
        ({"file_name": "a", "A b": 1, "a_b": 2}, "columns 'A b' and 'a_b' would both be called"),
        ({"m_file_name": "a", "M_file_name": "b"}, "would both be called 'm' as fields"),
    ],
)
def test_columns_that_are_refused(row: dict[str, Any], what: str) -> None:
    with pytest.raises(CorpusError, match=what):
        plan_columns([row], False, "here")


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("metadata.csv", "file_name,a\nx.jpg\n", "line 2 has 1 columns, and the header 2"),
        ("metadata.csv", "file_name,a,a\nx.jpg,1,2\n", "'a' is there twice"),
        ("metadata.csv", b"file_name\n\xff.jpg\n", "can't decode"),
        ("metadata.csv", 'file_name\n"x"y\n', "expected after"),
        ("metadata.jsonl", "{\n", "line 1: "),
        ("metadata.jsonl", '{"a": 1, "a": 2}\n', "line 1: 'a' is there twice"),
        ("metadata.jsonl", "\n[1]\n", "line 2 is no JSON object"),
        ("metadata.parquet", "PAR1", "is damaged"),
    ],
)
def test_metadata_that_cannot_be_read(
    name: str, data: str | bytes, what: str, tmp_path: Path
) -> None:
    with pytest.raises(CorpusError, match=what) as info:
        read_rows(write(tmp_path / name, data))
    assert name in str(info.value) and "\n" not in str(info.value)


def test_rows_of_each_kind_are_the_same(tmp_path: Path) -> None:
    rows = [{"file_name": f"{i}.jpg", "text": f"é, {i}\n"} for i in range(3)]
    columns = ("file_name", "text")
    made = {".csv": csv_of(rows, columns), ".jsonl": jsonl(rows), ".parquet": parquet_of(rows)}
    for ending, data in made.items():
        assert read_rows(write(tmp_path / f"x{ending}", data)) == rows


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl", "metadata.parquet"])
def test_backslashes_in_metadata_are_slashes_unless_a_name_has_them(
    tmp_path: Path, name: str
) -> None:
    write(tmp_path / "k" / "a.jpg", b"1")
    write(tmp_path / "k\\b.jpg", b"1")
    rows = [{"file_name": f"k\\{one}.jpg", "text": "a\\b"} for one in "ab"]
    make = {".csv": csv_of, ".jsonl": jsonl, ".parquet": parquet_of}[Path(name).suffix]
    write(tmp_path / name, make(rows))
    assert names_files(tmp_path / name)
    assert [[*row.values()][:2] for row in read_rows(tmp_path / name)] == [
        ["k/a.jpg", "a\\b"],
        ["k\\b.jpg", "a\\b"],
    ]


def test_two_metadata_files_in_one_folder(tmp_path: Path) -> None:
    write(tmp_path / "data" / "metadata.csv", "")
    assert find_metadata(tmp_path) == ["data/metadata.csv"]
    write(tmp_path / "data" / "metadata.jsonl", "")
    with pytest.raises(
        CorpusError, match=r"data/metadata.csv and data/metadata.jsonl, which would"
    ):
        find_metadata(tmp_path)


# --- COCO ---------------------------------------------------------------------------------


def read(tmp_path: Path, data: Any) -> CocoFile:
    text = data if isinstance(data, str | bytes) else json.dumps(data)
    return read_coco(write(tmp_path / "x.json", text))


def records(found: CocoFile) -> list[dict[str, Any]]:
    with found.path.open("rb") as file:
        return [json.loads(found.record(file.fileno(), i)) for i in range(len(found.names))]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("order", [1, -1])
def test_records_are_found(
    indent: int | None, ascii_only: bool, order: int, tmp_path: Path
) -> None:
    made = coco(["a/\u00e9.jpg", "b.jpg", "\U0001f600.jpg", "d.jpg"])
    shuffled = {name: made[name] for name in [*made][::order]}
    text = json.dumps(shuffled, indent=indent, ensure_ascii=ascii_only)
    for mark in ("", "\ufeff"):
        found = read(tmp_path, mark + text + "\n")
        assert found.names == ["a/\u00e9.jpg", "b.jpg", "\U0001f600.jpg", "d.jpg"]
        assert found.rest == {n: made[n] for n in ("info", "licenses", "categories")}
        for image, held in zip(made["images"], records(found), strict=True):
            own = [each for each in made["annotations"] if each["image_id"] == image["id"]]
            assert (held["image"], held["annotations"]) == (image, own)


def test_ids_of_other_kinds(tmp_path: Path) -> None:
    images = [{"id": "é", "file_name": "a"}, {"id": 1.0, "file_name": "b"}]
    annotations = [{"image_id": 1, "x": 1}, {"image_id": "é", "x": 2}, {"image_id": 7}]
    made = {"images": images, "annotations": annotations}
    for text in (json.dumps(made), json.dumps(made, ensure_ascii=False)):
        found = read(tmp_path, text)
        assert [[a["x"] for a in held["annotations"]] for held in records(found)] == [[2], [1]]
        assert found.num_strays == 1
    assert "annotations" not in records(read(tmp_path, {"images": images}))[0]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ("", "it holds no object"),
        ("[]", "it holds no object"),
        ("{", "at byte 1"),
        ("{}", "it has no entry 'images'"),
        ('{"images": {}}', "its 'images' is no array"),
        ('{"images": [1]}', "one of its images is no object"),
        ('{"images": [{"id": 1}]}', "an image has no file_name"),
        ('{"images": [{"file_name": "a"}]}', "an image has no id"),
        ('{"images": [{"file_name": "a", "id": true}]}', "an image has no id"),
        ('{"images": [{"file_name": "a", "id": 1}, {"file_name": "b", "id": 1}]}', "have id 1"),
        ('{"images": [], "annotations": [{}]}', "an annotation has no image_id"),
        ('{"images": [], "images": []}', "two entries 'images'"),
        ('{"images": []} x', "there is more after its end"),
        ('{"images": [] "info": 1}', "',' or '}' expected at byte 14"),
        ('{"images": [], "categories": 1}', "'categories' are no array"),
        ('{"images": [], "categories": [{"name": "a"}]}', "a category has no id"),
        ('{"images": [], "x": ' + "[" * 100_000, "is no annotation file"),
        (b'{"images": [{"file_name": "\xff", "id": 1}]}', "can't decode"),
    ],
)
def test_what_is_no_file_of_coco(data: str | bytes, what: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=what) as info:
        read(tmp_path, data)
    assert "\n" not in str(info.value) and len(str(info.value)) < 500


def test_the_beginning_tells(tmp_path: Path) -> None:
    for number, (text, expected) in enumerate(
        [
            (json.dumps(coco(["a.jpg"])), True),
            ("\ufeff\n " + json.dumps(coco(["a.jpg"]), indent=1), True),
            ('{"openapi": 3, "images": []}', False),
            ('{"info": {}, "version": 1}', False),
            ("", False),
        ]
    ):
        assert looks_like_coco(write(tmp_path / f"{number}.json", text)) is expected
    assert not looks_like_coco(tmp_path / "gone.json")


# --- captions and names of classes --------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("image,caption\na.jpg,one, two\n", "entry 2 has 3 columns, expected image,caption"),
        ("a.jpg#0\tone\nb.jpg two\n", "line 2 has no tab"),
        (b"a.jpg,\xff\n", "can't decode"),
    ],
)
def test_captions_that_cannot_be_read(text: str | bytes, what: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=what):
        read_captions(write(tmp_path / "captions.txt", text))


def test_captions_are_as_they_stand(tmp_path: Path) -> None:
    text = 'image,caption\r\na.jpg,"one, ""two"""\r\nb.jpg,"more\nlines"\r\n\r\n'
    found = read_captions(write(tmp_path / "captions.txt", text))
    assert found == [("a.jpg", 'one, "two"'), ("b.jpg", "more\nlines")]


@pytest.mark.parametrize(
    ("name", "text", "names"),
    [
        ("data.yaml", "nc: 2\nnames: ['a', 'b']\n", ["a", "b"]),
        ("data.yaml", "names:\n- a\n- 1\n", ["a", "1"]),
        ("coco.yml", "names:\n  1: b\n  0: a\n", ["a", "b"]),
        ("classes.txt", "a\r\n\r\nb", ["a", "b"]),
        ("obj.names", "\ufeffa\nb\n", ["a", "b"]),
        ("data.yaml", "nc: 2\n", None),
        ("other.txt", "a\n", None),
    ],
)
def test_names_of_classes(name: str, text: str, names: list[str] | None, tmp_path: Path) -> None:
    write(tmp_path / name, text)
    found = find_class_names(tmp_path, [])
    assert found.names == names
    assert [*found.files] == ([name] if names else [])


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"data.yaml": "names: {0: a, 2: b}"}, "names 2 classes, but none of number 1"),
        ({"data.yaml": "names: [a", "x.txt": ""}, "data.yaml is no YAML file"),
        ({"data.yaml": "names: [2001-99-99]"}, "no YAML file: month must be in"),
        ({"data.yaml": _BOMB + "names: *j"}, "aliases stand for over 1,000,000 entries; mend it"),
        ({"data.yaml": "names: &a [*a]"}, "no YAML file: maximum recursion"),
        ({"data.yaml": "names: [a]", "classes.txt": "b\n"}, "have other names of classes"),
        ({"classes.txt": b"\xff"}, "cannot be read for names of classes"),
    ],
)
def test_names_of_classes_that_are_refused(
    files: dict[str, str | bytes], what: str, tmp_path: Path
) -> None:
    for name, data in files.items():
        write(tmp_path / name, data)
    with pytest.raises(CorpusError, match=what) as info:
        find_class_names(tmp_path, [])
    assert "\n" not in str(info.value)


# --- names in annotation files ------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "name", "path"),
    [
        ("", "a.jpg", "a.jpg"),
        ("k", "./b/../a.jpg", "k/a.jpg"),
        ("k", "../a.jpg", "a.jpg"),
        ("k", "../../a.jpg", None),
        ("", "..", None),
        ("", "/a.jpg", None),
        ("", "//a.jpg", None),
        ("", "a\0.jpg", None),
        ("", "\ud800.jpg", None),
        ("", "\udcff.jpg", "\udcff.jpg"),
        ("", "a", None),
        ("", "a.j pg", None),
        ("", 7, None),
        ("", None, None),
    ],
)
def test_paths(base: str, name: object, path: str | None) -> None:
    assert clean_path(base, name) == path


@pytest.mark.parametrize(
    ("names", "folders", "file", "split", "base"),
    [
        (["a.jpg"], {}, "x.json", None, None),
        (["a.jpg"], {"a.jpg": [""]}, "x.json", None, ""),
        (["k/a.jpg"], {"a.jpg": ["images/k", "other"]}, "x.json", None, "images"),
        (["k/a.jpg"], {"a.jpg": ["k"]}, "x.json", None, ""),
        (["a.jpg", "b.jpg"], {"a.jpg": ["x", "y"], "b.jpg": ["y"]}, "x.json", None, "y"),
        (["a.jpg"], {"a.jpg": ["train", "val"]}, "x.json", "val", "val"),
        (["a.jpg"], {"a.jpg": ["train", "valid"]}, "x.json", "val", "valid"),
        (["a.jpg"], {"a.jpg": ["train2017"]}, "x.json", "val", None),
        (["a.jpg"], {"a.jpg": ["k", "l"]}, "k/x.json", None, "k"),
    ],
)
def test_which_folder_names_are_of(
    names: list[str], folders: dict[str, list[str]], file: str, split: str | None, base: str | None
) -> None:
    assert base_of(names, folders, file, split) == base


def test_names_that_may_be_of_two_folders() -> None:
    with pytest.raises(CorpusError, match=r"x.json may name the pictures in k or those in l"):
        base_of(["a.jpg"], {"a.jpg": ["k", "l"]}, "x.json", None)


@pytest.mark.parametrize(
    ("names", "base", "split", "expected"),
    [
        (["images/{}.jpg"], "images", None, "images/1.jpg"),
        (["images\\{}.jpg"], "images", None, "images/1.jpg"),
        ([r"C:\data\k\{}.jpg"], "k", None, "k/1.jpg"),
        (["/home/me/k/l/{}.jpg"], "x/k/l", None, ""),
        (["/home/me/k/l/{}.jpg"], "k/l", None, "k/l/1.jpg"),
        (["images/1/{}.jpg"], "images", None, "images/1.jpg"),
        (["images/1/{}.jpg", "images/2/x{}.jpg"], "images", None, "images/1.jpg"),
        ([r"..\..\media\upload\4\{}.jpg"], "images", None, "images/1.jpg"),
        (["../upload/{}.jpg"], "", None, "1.jpg"),
        (["images/train/{}.jpg"], "train", None, "train/1.jpg"),
        (["images/train/{}.jpg"], "val", None, ""),
        (["images/{}.jpg"], "val", "train", ""),
        (["train/{}.jpg", "val/x{}.jpg"], "images", None, ""),
        (["camera1/{}.jpg"], "camera2", None, ""),
        (["a/1/{}.jpg", "a/2/{}.jpg"], "images", None, ""),
    ],
)
def test_names_as_others_write_them(
    names: list[str], base: str, split: str | None, expected: str
) -> None:
    """``expected``: the path of the first picture; ``""`` if it may be another one's."""
    given = [name.format(i) for i in range(1, 4) for name in names]
    folders = {f"{start}{i}.jpg": [base] for i in range(1, 4) for start in ("", "x")}
    found, folder = place_names(given, folders, "x.json", split)
    assert (clean_path(folder, found[0]) if folder is not None else "") == expected
    assert len(found) == len({*found})


def test_what_may_be_meant_is_named() -> None:
    said = none_there(["camera1/1.jpg"], {"1.jpg": ["camera2"]}, None)
    assert said.endswith(
        "; if 'camera1/1.jpg' is camera2/1.jpg, correct the names in it, else fetch them"
    )
    said = none_there(["1.jpg"], {"1.jpg": ["val"]}, "train")
    assert said == "none of the 1 pictures that it names is there; fetch them"


def test_a_file_that_cannot_be_opened_is_said(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.json")
    with pytest.raises(CorpusError, match="is no annotation file"):
        read_coco(tmp_path / "x.json")
