"""Files beside pictures that look like their labels are spoken of."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import picture, write

import shardkit
from shardkit.corpus.label_files import advice
from shardkit.images.sniff import IMAGE_EXTENSIONS

METADATA = "write it as metadata.csv, its first column called file_name, and the others are fields"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("labels.csv", "id,label\na.jpg,1\nb.jpg,2\n", "--labels HERE/labels.csv takes it"),
        ("x.csv", "pictures/a.jpg,cat\n", "--labels HERE/x.csv takes it"),
        ("l.json", '{"a.jpg": "cat", "b.jpg": 2}', "--labels HERE/l.json takes it"),
        ("train.tsv", "id\tlabel\na.jpg\tcat\n", "--labels HERE/train.tsv takes it"),
        ("labels.txt", "a.jpg 1\nb.jpg 2\n", "--labels HERE/labels.txt takes it"),
        ("list_attr.txt", "2\nSmiling Young\na.jpg 1 -1\n", METADATA),
        ("train.csv", "id,x,y\na.jpg,1,2\n", "--labels HERE/train.csv:x takes it, or whichever"),
        ("train.csv", "n,id,Label\n7,a,1\n", "--labels HERE/train.csv:Label takes it, or"),
        ("boxes.txt", "a.jpg\tcat\t1\n", "--labels HERE/boxes.txt:2 takes it, or whichever"),
        ("train.csv", "id,label\na,1\n", "--labels HERE/train.csv takes it"),
        ("train.csv", "id,label\ngone,1\n", ""),
        ("notes.txt", "of a and b\n", ""),
        ("odd.csv", "\0\xff", ""),
        ("info.json", '{"a": [1, 2]}', ""),
    ],
)
def test_what_is_said(name: str, text: str, said: str, tmp_path: Path) -> None:
    for i in range(12):
        write(tmp_path / "in" / "pictures" / f"{'abcdefghijkl'[i]}.jpg", picture(i))
    write(tmp_path / "in" / name, text)
    made = shardkit.pack(tmp_path / "in", tmp_path / "out", to="npy", workers=0, progress=False)
    start = f"{name} looks like labels, and is passed over: "
    found = [note.removeprefix(start) for note in made.notes if note.startswith(start)]
    assert len(found) == bool(said)
    assert all(note.startswith(said.replace("HERE", str(tmp_path / "in"))) for note in found)
    assert sum(made.ignored.values()) == 1


def test_labels_that_were_asked_for_are_no_stray(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / "in" / f"{name}.jpg", picture(1))
    labels = write(tmp_path / "in" / "labels.csv", "a.jpg,cat\nb.jpg,dog\n")
    options = {"to": "npy", "workers": 0, "progress": False}
    made = shardkit.pack(tmp_path / "in", tmp_path / "out", labels=labels, **options)
    assert made.notes == [f"cls is of 2 classes, named by {labels}: cat, dog"]


def test_names_are_looked_for_as_they_stand_first() -> None:
    seen: list[str] = []

    def is_there(name: str) -> bool:
        seen.append(name)
        return name == "a.jpg"

    rows = [["id", "label"], ["a.jpg", "1"]]
    assert advice(Path("x.csv"), rows, IMAGE_EXTENSIONS, is_there) == "--labels x.csv takes it"
    assert seen == ["a.jpg"]
