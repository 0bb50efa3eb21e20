"""Files beside pictures that look like their labels are spoken of."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from conftest import picture, write

import shardkit
from shardkit.errors import CorpusError
from shardkit.images.sniff import IMAGE_EXTENSIONS
from shardkit.inputs import label_samples
from shardkit.inputs.label_files import advice, label_notes
from shardkit.inputs.label_samples import NamedSamples
from shardkit.inputs.open import open_corpus

NAMES = "abcdefghijkl"

METADATA = "write it as metadata.csv, its first column called file_name, and the others are fields"


def rows(text: str) -> str:
    """The line with an ``@`` once for each picture."""
    lines = (line.replace("@", c) for line in text.splitlines(True) for c in of(line))
    return "".join(lines)


def of(line: str) -> str:
    return NAMES if "@" in line else " "


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("labels.csv", "id,label\n@.jpg,1\n", "--labels HERE/labels.csv takes it"),
        ("x.csv", "pictures/@.jpg,cat\n", "--labels HERE/x.csv takes it"),
        ("train.tsv", "id\tlabel\n@.jpg\tcat\n", "--labels HERE/train.tsv takes it"),
        ("labels.txt", "@.jpg 1\n", "--labels HERE/labels.txt takes it"),
        ("attr.txt", "12\nYoung Male\n@.jpg 1 -1\n", "--labels HERE/attr.txt:Young takes it, or"),
        ("attr.txt", "11\nYoung Male\n@.jpg 1 -1\n", "HERE/attr.txt: its first line says that 11"),
        ("boxes.txt", "@.jpg 3 144 998\n", METADATA),
        (
            "several.txt",
            "a.jpg 1\nb.jpg 1 2\n",
            "HERE/several.txt: its rows have different numb",
        ),
        ("train.csv", "id,x,y\n@.jpg,1,2\n", "--labels HERE/train.csv:x takes it, or whichever"),
        ("train.csv", "n,id,Label\n7,@,1\n", "--labels HERE/train.csv:Label takes it, or"),
        ("l.csv", "id,From,LabelName\n@,x,1\n", "--labels HERE/l.csv:LabelName takes it, or"),
        ("l.csv", "id,n,m\n@,x,9@\n0,y,m\n", "--labels HERE/l.csv:n takes it, or"),
        ("boxes.txt", "@.jpg\tcat\t1\n", "--labels HERE/boxes.txt:2 takes it, or whichever"),
        ("family.txt", "@ Boeing 707\n", "--labels HERE/family.txt:2- takes all that follows"),
        ("family.txt", "@ Boeing 707\n0 A300\n", "--labels HERE/family.txt takes it"),
        ("train.csv", "id,label\n@,1\n", "--labels HERE/train.csv takes it"),
        ("train.csv", "id,label\na,1\n", "only some of the samples have a label there"),
        ("boxes.csv", "id,x\n@,1\na,2\n", "it has several rows for one file, the first of them a;"),
        ("ragged.csv", "id,x\n@,1\na,2,3\n", METADATA),
        ("train.csv", "id,label\ngone,1\n", ""),
        ("notes.txt", "of a and b\n", ""),
        ("odd.csv", "\0\xff", ""),
        ("info.json", '{"a": [1, 2]}', ""),
    ],
)
def test_what_is_said(name: str, text: str, said: str, tmp_path: Path) -> None:
    pictures(tmp_path / "in" / "pictures")
    write(tmp_path / "in" / name, rows(text))
    made = shardkit.pack(tmp_path / "in", tmp_path / "out", to="npy", workers=0, progress=False)
    start = f"{name} looks like labels, and is passed over: "
    found = [note.removeprefix(start) for note in made.notes if note.startswith(start)]
    assert len(found) == bool(said)
    assert all(note.startswith(said.replace("HERE", str(tmp_path / "in"))) for note in found)
    assert sum(made.ignored.values()) == 1
    if said.startswith("--labels"):
        labels = shlex.split(found[0])[1]
        corpus = open_corpus(tmp_path / "in", labels=labels)
        assert all(run.label is not None for run in corpus.runs(tmp_path))


def pictures(folder: Path) -> None:
    for i, name in enumerate(NAMES):
        write(folder / f"{name}.jpg", picture(i))


def test_lists_of_some_samples_are_spoken_of_once(tmp_path: Path) -> None:
    """As FGVC-Aircraft's, of three splits that no folder tells."""
    pictures(tmp_path / "images")
    for i, split in enumerate(("test", "train", "val")):
        write(tmp_path / f"family_{split}.txt", f"{NAMES[i]} Boeing 707\n")
    write(tmp_path / "family.json", json.dumps(dict.fromkeys(NAMES, "cat")))
    notes = label_notes(tmp_path, IMAGE_EXTENSIONS)
    assert notes[0].endswith(f"--labels {tmp_path}/family.json takes it")
    assert notes[1].startswith("family_test.txt, family_train.txt, family_val.txt look like labels")
    assert len(notes) == 2


def refused(source: Path) -> str:
    with pytest.raises(CorpusError) as caught:
        open_corpus(source)
    return str(caught.value)


def test_labels_beside_folders_that_are_no_classes(tmp_path: Path) -> None:
    """As NIH's chest X-rays: ``images_001/images/`` and so on, and one table."""
    for i in range(2):
        write(tmp_path / f"images_00{i}" / "images" / f"{i}.png", picture(i))
    write(tmp_path / "Data_Entry.csv", "Index,Age,Finding Labels\n0.png,9,Hernia\n1.png,8,None\n")
    option = f"{tmp_path}/Data_Entry.csv:Finding Labels"
    assert f"; Data_Entry.csv looks like labels: --labels '{option}' takes it" in refused(tmp_path)
    assert open_corpus(tmp_path, labels=option).classes == ["Hernia", "None"]


def test_labels_beside_texts_as_many_as_pictures(tmp_path: Path) -> None:
    """As CelebA's lists, had it few pictures."""
    for i in range(2):
        write(tmp_path / "img" / f"{i}.jpg", picture(i))
    attr = write(tmp_path / "attr.txt", "2\nSmiling Male\n0.jpg -1  1\n1.jpg  1 -1\n")
    write(tmp_path / "list.txt", "0.jpg 1\n1.jpg 1\n")
    advised = f"attr.txt looks like labels, with --corpus images: --labels {attr}:Smiling takes it"
    assert advised in refused(tmp_path)
    corpus = open_corpus(tmp_path, "images", labels=f"{attr}:Smiling")
    assert [run.label for run in corpus.runs(tmp_path)] == [-1, 1]


def test_labels_that_were_asked_for_are_no_stray(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / "in" / f"{name}.jpg", picture(1))
    labels = write(tmp_path / "in" / "labels.csv", "a.jpg,cat\nb.jpg,dog\n")
    options = {"to": "npy", "workers": 0, "progress": False}
    made = shardkit.pack(tmp_path / "in", tmp_path / "out", labels=labels, **options)
    assert made.notes == [f"cls is of 2 classes, named by {labels}: cat, dog"]


def test_names_are_looked_for_as_they_stand_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.jpg", picture(1))
    file = write(tmp_path / "x.csv", "id,label\na.jpg,1\n")
    seen: list[str] = []

    def is_file(path: Path) -> bool:
        seen.append(path.name)
        return path.is_file()

    monkeypatch.setattr(label_samples, "isfile", is_file)
    assert advice(file, NamedSamples(tmp_path, IMAGE_EXTENSIONS)) == f"--labels {file} takes it"
    assert seen == ["a.jpg"]
