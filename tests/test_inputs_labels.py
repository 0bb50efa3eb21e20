"""Files of labels as Kaggle, ESC-50, Tiny-ImageNet and others write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import picture, write

import shardkit
from shardkit.cli import group
from shardkit.errors import CorpusError
from shardkit.inputs.labels import split_option
from shardkit.inputs.open import open_corpus

OPTIONS = {"to": "npy", "workers": 0, "progress": False}

DOGS = (
    "000bec180eb18c7604dcecc8fe0dba07",
    "001513dfcb2ffafc82cccf4d8bbaba97",
    "001cdf01b096e06d78",
)


def pictures(folder: Path, names: Sequence[str]) -> Path:
    for i, name in enumerate(names):
        write(folder / name, picture(i))
    return folder


def classes_of(packed: Path, split: str = "train") -> dict[str, str]:
    ds = shardkit.open(packed, split=split)
    names = ds.classes
    found = zip(ds.keys(), ds.column("cls").tolist(), strict=True)
    return {key: str(i) if names is None else names[i] for key, i in found}


def said(source: Path, labels: object, kind: str | None = None) -> str:
    with pytest.raises(CorpusError) as caught:
        open_corpus(source, kind, labels=labels)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- datasets as they are -----------------------------------------------------------------


def test_kaggles_names_without_endings_and_its_test_without_labels(tmp_path: Path) -> None:
    source = pictures(tmp_path / "dogs", [f"train/{name}.jpg" for name in DOGS])
    pictures(source, ["test/00a3edd22dc7859c487a64777fc8d093.jpg", "test/0.jpg"])
    breeds = ["boston_bull", "dingo", "pekinese"]
    rows = [f"{name},{breed}\n" for name, breed in zip(DOGS, breeds, strict=True)]
    labels = write(source / "labels.csv", "id,breed\n" + "".join(rows))
    made = shardkit.pack(source, tmp_path / "out", labels=labels, **OPTIONS)
    assert classes_of(tmp_path / "out") == dict(zip(DOGS, breeds, strict=True))
    assert "cls" not in shardkit.open(tmp_path / "out", split="test")[0]
    assert made.notes == [
        f"cls is of 3 classes, named by {labels}: boston_bull, dingo, pekinese",
        f"no cls in test: {labels} has no label for any of its 2 files",
    ]
    assert shardkit.verify(tmp_path / "out", against=source).ok


@pytest.mark.parametrize(
    ("name", "text", "is_named"),
    [
        ("labels.csv", "id,label\na.jpg,1\nb.jpg,2\n", True),
        ("train.tsv", "id\tlabel\na\t1\nb\t2\n", True),
        ("x.csv", "pictures/a.jpg,cat\n", True),
        ("boxes.txt", "a.jpg 3 144 998\n", True),
        ("family.txt", "a Boeing 707\n", True),
        ("l.json", '{"a.jpg": 1, "b.jpg": 2}', True),
        ("train.csv", "id,label\ngone,1\n", False),
        ("notes.txt", "of a and b\n", False),
        ("odd.csv", "\0\xff", False),
        ("info.json", '{"z": [1, 2]}', False),
    ],
)
def test_tables_that_name_samples_are_named(
    name: str, text: str, is_named: bool, tmp_path: Path
) -> None:
    source = pictures(tmp_path / "in", [f"pictures/{name}.jpg" for name in "abcdefghijkl"])
    write(source / name, text)
    made = shardkit.pack(source, tmp_path / "out", **OPTIONS)
    said = f"{name} looks like labels, and is passed over: --labels {source}/{name} takes a table"
    assert any(note.startswith(said) for note in made.notes) == is_named
    assert sum(made.ignored.values()) == 1


def test_labels_that_were_asked_for_are_no_stray(tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["a.jpg", "b.jpg"])
    labels = write(source / "my labels.csv", "a.jpg,cat\nb.jpg,dog\n")
    args = ["pack", str(source), str(tmp_path / "cli"), "--to", "npy", "--workers", "0", "--labels"]
    done = CliRunner().invoke(group, [*args, str(labels)])
    assert done.exit_code == 0 and "looks like labels" not in done.output
    assert classes_of(tmp_path / "cli") == {"a": "cat", "b": "dog"}


ESC = """filename,fold,target,category,esc10,src_file,take
1-100032-A-0.wav,1,0,dog,True,100032,A
1-100038-A-14.wav,1,14,chirping_birds,False,100038,A
1-100210-A-36.wav,1,36,vacuum_cleaner,False,100210,A
"""


def test_esc_50(tmp_path: Path) -> None:
    audio = tmp_path / "ESC-50" / "audio"
    for name in ("1-100032-A-0", "1-100038-A-14", "1-100210-A-36"):
        write(audio / f"{name}.wav", b"RIFF pretend")
    file = write(tmp_path / "ESC-50" / "meta" / "esc50.csv", ESC)
    shardkit.pack(audio, tmp_path / "out", labels=f"{file}:category", **OPTIONS)
    assert sorted(classes_of(tmp_path / "out").values()) == [
        "chirping_birds",
        "dog",
        "vacuum_cleaner",
    ]
    corpus = open_corpus(audio, labels=f"{file}:target")
    assert [run.label for run in corpus.runs(tmp_path)] == [0, 14, 36]
    assert corpus.notes == [f"cls is as {file}:target has it: 3 numbers, 0 to 36"]
    assert said(audio, file) == (
        f"{file} has 7 columns; say which holds the labels, as in --labels {file}:category; there"
        " are fold, target, category, esc10, src_file, take"
    )
    assert "has no one column 'kind'; say which" in said(audio, f"{file}:kind")


def test_tiny_imagenets_val(tmp_path: Path) -> None:
    source = pictures(tmp_path / "val", [f"images/val_{i}.JPEG" for i in range(12)])
    rows = [f"val_{i}.JPEG\tn0{3 + i % 2}444034\t0\t32\t{i}\t62\n" for i in range(12)]
    file = write(source / "val_annotations.txt", "".join(rows))
    shardkit.pack(source, tmp_path / "out", labels=f"{file}:2", **OPTIONS)
    found = classes_of(tmp_path / "out")
    assert found == {f"images/val_{i}": f"n0{3 + i % 2}444034" for i in range(12)}
    assert said(source, file) == (
        f"{file} has 6 columns, and no header; say which holds the labels, as in --labels {file}:2;"
        " there are 2 (n03444034), 3 (0), 4 (32), 5 (0), 6 (62)"
    )
    assert "no header" in said(source, f"{file}:n03444034")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("l.tsv", "file\tclass\na.jpg\tcat\nb.jpg\tdog\n"),
        ("l.csv", "file;class\na.jpg;cat\nb.jpg;dog\n"),
        ("l.CSV", "ISIC,truth\r\na,cat\r\nb,dog\r\n"),
        ("l.csv", "a,cat\nb,dog\n"),
        ("l.csv", "label,image\ncat,a.jpg\ndog,b.jpg\n"),
        ("l.json", '{"a": "cat", "b": "dog"}'),
    ],
)
def test_tables_of_two_columns(name: str, text: str, tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["a.jpg", "b.jpg"])
    corpus = open_corpus(source, labels=write(tmp_path / name, text))
    assert corpus.classes == ["cat", "dog"]
    assert {run.locators[0]: run.label for run in corpus.runs(tmp_path)} == {
        b"a.jpg": 0,
        b"b.jpg": 1,
    }


@pytest.mark.parametrize(
    "text", ["a.jpg cat\nb.jpg dog\n", "2\nYoung Male\na.jpg 1 -1\nb.jpg 1 1\n"]
)
def test_cells_between_blanks_name_the_recipe(text: str, tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["a.jpg", "b.jpg"])
    refused = said(source, write(tmp_path / "l.txt", text))
    assert "its cells are separated by blanks; write it as .csv, as docs/recipes/labels" in refused


def test_several_rows_a_picture(tmp_path: Path) -> None:
    """As Open Images has boxes."""
    source = pictures(tmp_path / "in", ["a.jpg", "b.jpg"])
    file = write(tmp_path / "l.csv", "id,From,LabelName\na,x,/m/1\na,x,/m/2\nb,x,/m/1\n")
    assert "has 3 columns; say which holds the labels" in said(source, file)
    assert "has several rows for one file: entry 3 labels a" in said(source, f"{file}:LabelName")


# --- paths that are not relative to the source -----------------------------------------------


@pytest.mark.parametrize(
    "rows",
    [
        "images\\x\\a.jpg,cat\nimages\\y\\b.jpg,dog\n",
        "../images/x/a.jpg,cat\n../images/y/b.jpg,dog\n",
        "x/a.jpg,cat\ny/b.jpg,dog\n",
        "file,label\nx\\a,cat\ny\\b,dog\n",
    ],
)
def test_paths_with_backslashes_or_from_elsewhere(rows: str, tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["images/x/a.jpg", "images/y/b.jpg"])
    corpus = open_corpus(source, "images", labels=write(source / "labels" / "l.csv", rows))
    found = {key: run.label for run in corpus.runs(tmp_path) for key in run.keys}
    assert found == {b"images/x/a": 0, b"images/y/b": 1}
    assert corpus.classes == ["cat", "dog"]
    [note] = [note for note in corpus.notes if "not those from the source on" in note]
    assert "is taken for images/x/a.jpg" in note


def test_paths_that_fit_below_several_folders(tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["p/x/a.jpg", "p/x/b.jpg", "q/x/a.jpg", "q/x/b.jpg"])
    file = write(tmp_path / "l.csv", "x/a.jpg,cat\nx/b.jpg,dog\n")
    assert "x/a.jpg fits both p/x/a.jpg and q/x/a.jpg" in said(source, file, "images")


# --- which column names files -------------------------------------------------------------


def test_addresses_that_end_as_files_do_are_no_names(tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["k/a1.jpg", "k/b2.jpg"])
    rows = "id,url,landmark\na1,http://x/7.jpg,5\nb2,http://x/8.jpg,6\n"
    file = write(tmp_path / "l.csv", rows)
    corpus = open_corpus(source, labels=f"{file}:landmark")
    assert [run.label for run in corpus.runs(tmp_path)] == [5, 6]


def test_two_columns_that_name_files_are_not_guessed_between(tmp_path: Path) -> None:
    """pandas writes its index as a first column; where files are numbered, it names some, too."""
    source = pictures(tmp_path / "in", [f"{i}.jpg" for i in range(4)])
    file = write(tmp_path / "l.csv", ",id,label\n0,3,a\n1,2,b\n2,1,c\n3,0,d\n")
    assert "columns '' and 'id' both name files" in said(source, f"{file}:label")


def test_numbers_that_are_labels_and_names_of_files(tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", [f"{i}.jpg" for i in range(12)])
    rows = "".join(f"{i},{i % 3}\n" for i in range(12))
    corpus = open_corpus(source, labels=write(tmp_path / "l.csv", "id,n\n" + rows))
    found = {key: run.label for run in corpus.runs(tmp_path) for key in run.keys}
    assert found == {str(i).encode(): i % 3 for i in range(12)}


def test_files_named_far_down_the_table(tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["z1.jpg", "z2.jpg"])
    rows = "".join(f"{'z' if i > 990 else 'y'}{i % 990},{i},{'cd'[i % 2]}\n" for i in range(1000))
    file = write(tmp_path / "l.csv", "id,n,kind\n" + rows)
    corpus = open_corpus(source, labels=f"{file}:kind")
    assert [run.label for run in corpus.runs(tmp_path)] == [0, 1] and corpus.classes == ["c", "d"]


def test_a_title_that_is_the_name_of_a_file_too(tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["image.jpg", "b.jpg"])
    file = write(tmp_path / "l.csv", "image,label\nimage.jpg,cat\nb.jpg,dog\n")
    assert open_corpus(source, labels=file).classes == ["cat", "dog"]
    file = write(tmp_path / "l.csv", "image.jpg,cat\nb.jpg,dog\n")
    assert open_corpus(source, labels=file).classes == ["cat", "dog"]


# --- which file a name is -----------------------------------------------------------------


def test_a_name_without_ending_that_fits_two_files(tmp_path: Path) -> None:
    file = write(tmp_path / "l.csv", "id,label\na,1\nb,2\n")
    source = pictures(tmp_path / "in", ["a.jpg", "b.jpg", "b.png"])
    assert "b fits both b.jpg and b.png" in said(source, file, "images")
    source = pictures(tmp_path / "folders", ["x/a.jpg", "y/a.jpg", "y/b.jpg"])
    assert "a fits both x/a.jpg and y/a.jpg" in said(source, file)
    by_path = write(tmp_path / "p.csv", "id,label\nx/a,1\ny/a,2\ny/b,3\n")
    found = open_corpus(source, labels=by_path).runs(tmp_path)
    assert {key: run.label for run in found for key in run.keys} == {
        b"x/a": 1,
        b"y/a": 2,
        b"y/b": 3,
    }


def test_names_in_several_forms(tmp_path: Path) -> None:
    """A name with its ending goes before one without."""
    source = pictures(tmp_path / "in", ["k/a.jpg", "k/b.c.jpg", "k/d.jpg", "k/e.jpg"])
    rows = "f,l\na,2\nk/b.c,3\nd.jpg,4\ngone,5\n"
    corpus = open_corpus(source, "images", labels=write(tmp_path / "l.csv", rows + "e.jpg,6\n"))
    found = {name: run.label for run in corpus.runs(tmp_path) for name in run.locators}
    assert found == {b"a.jpg": 2, b"b.c.jpg": 3, b"d.jpg": 4, b"e.jpg": 6}
    assert "1 of the 5 names there is of no file here" in corpus.notes


def test_a_split_with_some_labels_is_refused(tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["train/a.jpg", "test/b.jpg", "test/c.jpg"])
    file = write(tmp_path / "l.csv", "id,label\na,1\nc,2\n")
    assert "no label for 1 of the files, the first of them test/b.jpg" in said(source, file)
    pictures(tmp_path / "flat", ["x/a.jpg", "y/b.jpg"])
    assert "the first of them y/b.jpg" in said(tmp_path / "flat", file)
    none = write(tmp_path / "n.csv", "id,label\nu,1\nv,2\n")
    refused = said(source, none)
    assert "has no label for any of the files, the first of them test/b.jpg" in refused
    assert "as in 'v,2'" in refused


def test_classes_without_samples_and_a_single_class(tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["a.jpg", "b.jpg"])
    file = write(tmp_path / "l.csv", "a.jpg,cat\nb.jpg,cat\nc.jpg,ant\n")
    corpus = open_corpus(source, labels=file)
    list(corpus.runs(tmp_path))
    assert corpus.notes == [
        f"cls is of 2 classes, named by {file}: ant, cat",
        "1 of the 3 names there is of no file here",
        f"no sample is of 1 of these classes, which {file} has: ant",
        f"all labels are the same; look whether {file} is what you mean",
    ]


# --- FILE:COLUMN --------------------------------------------------------------------------


def test_a_file_whose_name_has_a_colon_is_that_file(tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["a.jpg", "b.jpg"])
    file = write(tmp_path / "odd:name.csv", "id,label,note\na,1,x\nb,2,y\n")
    assert "odd:name.csv has 3 columns" in said(source, file)
    assert open_corpus(source, labels=f"{file}:note").classes == ["x", "y"]
    column = write(tmp_path / "c.csv", "id,a:b\na,1\nb,2\n")
    assert split_option(f"{column}:a:b") == (column, "a:b")
    assert split_option("C:\\data\\train.csv") == (Path("C:\\data\\train.csv"), None)
    assert split_option("C:\\train.csv:breed") == (Path("C:\\train.csv"), "breed")
    assert "gone.csv cannot be read: No such file" in said(source, tmp_path / "gone.csv:breed")


def test_rows_of_other_columns_and_other_columns(tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["a.jpg", "b.jpg"])
    file = write(tmp_path / "l.csv", "id,x,y\na,1,2\nb,1\n")
    assert "entry 3 has 2 columns, expected 3 as in the first" in said(source, f"{file}:x")
    held = write(tmp_path / "l.json", json.dumps({"a": 1, "b": 2}))
    assert "no one column 'x'" in said(source, f"{held}:x")


def test_a_row_is_of_one_file_and_a_file_of_one_row(tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["s/x.jpg", "s/x.jpg.jpg", "t/y.jpg"])
    file = write(tmp_path / "l.csv", "s/x.jpg,cat\nt/y.jpg,dog\n")
    assert "no label for 1 of the files, the first of them s/x.jpg.jpg" in said(source, file)
    source = pictures(tmp_path / "two", ["s/a.jpg", "t/b.jpg"])
    file = write(tmp_path / "m.csv", "a.jpg,dog\ns/a.jpg,cat\nb.jpg,dog\n")
    assert "several rows for one file: entry 2 labels s/a.jpg 'cat', entry 1 'dog'" in said(
        source, file
    )
    for rows in ("a.jpg,1\ns/a.jpg,0\n", "b/a.jpg,1\na.jpg,0\n"):
        source = pictures(tmp_path / rows[0], ["s/a.jpg", "b/a.jpg"])
        file = write(tmp_path / "n.csv", rows)
        assert "a.jpg fits both b/a.jpg and s/a.jpg" in said(source, file)


def test_a_quote_that_is_not_closed_joins_no_rows(tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["train/1.jpg", "test/2.jpg", "test/3.jpg"])
    file = write(tmp_path / "l.csv", 'id,label\n1.jpg,"a\n2.jpg,b\n3.jpg,c\n')
    assert "has a line break in it; a quote before it is not closed" in said(source, file)


def test_a_number_is_a_column_and_no_cell_of_a_first_row_that_is_data(tmp_path: Path) -> None:
    """Tiny-ImageNet's boxes may hold a 2."""
    names = [f"val_{i}.JPEG" for i in range(4)]
    source = pictures(tmp_path / "in", names)
    rows = "".join(f"{name}\tn0{i}\t0\t2\t{i}\t6{i}\n" for i, name in enumerate(names))
    file = write(tmp_path / "val_annotations.txt", rows)
    assert open_corpus(source, labels=f"{file}:2").classes == ["n00", "n01", "n02", "n03"]
    file = write(tmp_path / "l.csv", "id,2,1\n" + "".join(f"{name},a,b\n" for name in names))
    assert open_corpus(source, labels=f"{file}:2").classes == ["a"]
    assert "none of its columns names one" in said(source, f"{file}:id")


def test_of_two_columns_that_could_name_files_one_is_asked_for(tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["0.jpg", "1.jpg", "2.jpg"])
    file = write(tmp_path / "l.csv", "label,id\n1,0\n2,1\n0,2\n")
    assert "columns 'label' and 'id' both name files; say which holds" in said(source, file)
    corpus = open_corpus(source, labels=f"{file}:label")
    assert [run.label for run in corpus.runs(tmp_path)] == [0, 1, 2]
    assert [run.locators for run in corpus.runs(tmp_path)] == [[b"2.jpg"], [b"0.jpg"], [b"1.jpg"]]
    file = write(tmp_path / "m.csv", "label,id\n1,0.jpg\n2,1.jpg\n0,2.jpg\n")
    assert [run.locators for run in open_corpus(source, labels=file).runs(tmp_path)] == [
        [b"2.jpg"],
        [b"0.jpg"],
        [b"1.jpg"],
    ]
