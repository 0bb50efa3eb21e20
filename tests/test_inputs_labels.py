"""Tables of labels as Kaggle, ESC-50, Tiny-ImageNet and others write them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import picture, write

import shardkit
from shardkit.cli import group
from shardkit.errors import CorpusError
from shardkit.inputs.detection import open_corpus

OPTIONS = {"to": "npy", "workers": 0, "progress": False}


def pictures(folder: Path, names: Sequence[str]) -> Path:
    for i, name in enumerate(names):
        write(folder / name, picture(i))
    return folder


def classes_of(packed: Path, split: str = "train") -> dict[str, str]:
    ds = shardkit.open(packed, split=split)
    names = ds.classes
    found = zip(ds.keys(), ds.column("cls").tolist(), strict=True)
    return {key: str(i) if names is None else names[i] for key, i in found}


def test_kaggles_names_without_endings_and_its_test_without_labels(tmp_path: Path) -> None:
    source = pictures(tmp_path / "dogs", ["train/0a.jpg", "train/0b.jpg", "test/7.jpg"])
    labels = write(source / "labels.csv", "id,breed\n0a,pug\n0b,lab\ngone,pug\n")
    made = shardkit.pack(source, tmp_path / "out", labels=labels, **OPTIONS)
    assert classes_of(tmp_path / "out") == {"0a": "pug", "0b": "lab"}
    assert "cls" not in shardkit.open(tmp_path / "out", split="test")[0]
    assert made.notes == [
        f"cls is of 2 classes, named by {labels}: lab, pug",
        f"{labels}: 1 of 3 names are of no file here",
        f"no cls in test: {labels} has no label for any of its 1 file",
    ]
    assert shardkit.verify(tmp_path / "out", against=source).ok


def test_tables_that_nobody_asked_for_are_named(tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", ["pictures/a.jpg", *(f"pictures/{i}.jpg" for i in range(9))])
    for name in ("labels.csv", "README.txt"):
        write(source / name, "a,1\n")
    made = shardkit.pack(source, tmp_path / "out", **OPTIONS)
    (note,) = [note for note in made.notes if "labels" in note]
    assert note.startswith("labels.csv may hold labels, and is passed over: --labels FILE takes a")
    args = ["pack", str(source), str(tmp_path / "cli"), "--to", "npy", "--workers", "0", "--labels"]
    labels = write(source / "my labels.csv", "a,cat\n" + "".join(f"{i},dog\n" for i in range(9)))
    done = CliRunner().invoke(group, [*args, str(labels)])
    assert done.exit_code == 0 and "may hold labels" not in done.output


A_AND_B = "a.jpg b.jpg"
NUMBERED = " ".join(f"{i}.jpg" for i in range(12))


@pytest.mark.parametrize(
    ("files", "name", "text", "expected"),
    [
        # Columns and headers.
        (A_AND_B, "l.tsv", "file\tclass\na.jpg\tcat\nb.jpg\tdog\n", "a=cat b=dog"),
        (A_AND_B, "l.csv", "file;class\r\na.jpg;cat\r\nb.jpg;dog\r\n", "a=cat b=dog"),
        (A_AND_B, "l.txt", "a,cat\nb,dog\n", "a=cat b=dog"),
        (A_AND_B, "l.csv", "label,image\ncat,a.jpg\ndog,b.jpg\n", "a=cat b=dog"),
        (A_AND_B, "l.csv:breed", "x,id,breed\na,a,cat\na,b,dog\n", "a=cat b=dog"),
        (A_AND_B, "l.csv:2", "id,2,1\na,x,y\nb,z,y\n", "a=x b=z"),
        (A_AND_B, "v.txt:2", "a.jpg\tn3\t0\t2\nb.jpg\tn4\t0\t9\n", "a=n3 b=n4"),
        (A_AND_B, "odd:name.csv", "a,cat\nb,dog\n", "a=cat b=dog"),
        # Numbers are indices, unless one is a name.
        (A_AND_B, "l.csv", "a,5\nb,0\n", "a=5 b=0"),
        (A_AND_B, "l.csv", "a,007\nb,0\n", "a=007 b=0"),
        (A_AND_B, "l.csv", "a,1.0\nb,-1\n", "a=1.0 b=-1"),
        (A_AND_B, "l.csv", '\ufeffspecies,filename\n\n"c, d",a.jpg\ne,b.jpg\n', "b=e"),
        # Of several columns that may name files.
        (A_AND_B, "l.csv:n", "id,url,n\na,http://x/b.jpg,5\nb,http://x/a.jpg,6\n", "a=5 b=6"),
        ("0.jpg 1.jpg", "l.csv:label", "label,id\n1,0\n0,1\n", "0=1 1=0"),
        (NUMBERED, "l.csv", "id,n\n" + "".join(f"{i},{i % 3}\n" for i in range(12)), "3=0 4=1 5=2"),
        (A_AND_B, "l.csv:k", "id,n,k\n" + "y,1,e\n" * 99 + "a,1,c\nb,1,d\n", "a=c b=d"),
        # Paths that begin elsewhere, and bare names.
        (
            "k/x/a.jpg k/y/b.jpg",
            "l.csv",
            "k\\x\\a.jpg,cat\nk\\y\\b.jpg,dog\n",
            "k/x/a=cat k/y/b=dog",
        ),
        ("k/x/a.jpg k/y/b.jpg", "l.csv", "../k/x/a.jpg,cat\n../k/y/b,dog\n", "k/x/a=cat k/y/b=dog"),
        ("k/x/a.jpg k/y/a.jpg", "l.csv", "x/a.jpg,cat\ny\\a,dog\n", "k/x/a=cat k/y/a=dog"),
        ("k/x/a.jpg", "l.csv", "/home/me/k/x/a.jpg,cat\n", "k/x/a=cat"),
        ("k/a.jpg k/b.c.jpg", "l.csv", "f,l\na.jpg,2\nk/b.c,3\ngone,4\n", "k/a=2 k/b.c=3"),
    ],
)
def test_tables(files: str, name: str, text: str, expected: str, tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", files.split())
    path = tmp_path / (name if name.startswith("odd") else name.partition(":")[0])
    write(path, text)
    corpus = open_corpus(source, "images", labels=tmp_path / name)
    found = {key.decode(): run.label for run in corpus.runs(tmp_path) for key in run.keys}
    classes = corpus.classes
    for item in expected.split():
        key, _, label = item.partition("=")
        assert found[key] == (classes.index(label) if classes else int(label))
    if "me/k" in text or "../" in text or "x/a.jpg,cat\ny" in text:
        assert "are not those from the source on: " in " ".join(corpus.notes)


FOLDERS = "x/a.jpg y/a.jpg y/b.jpg"
SPLITS = "train/a.jpg test/b.jpg test/c.jpg"


@pytest.mark.parametrize(
    ("files", "name", "text", "what"),
    [
        (
            A_AND_B,
            "l.json",
            '{"a": 1, "b": 2}',
            "labels must be a .csv, .tsv, .txt file of path,la",
        ),
        (A_AND_B, "l.csv", "a.jpg\nb.jpg\n", "holds no two columns"),
        (A_AND_B, "l.csv", 'a,"' + "x" * 200_000 + '"\n', "field larger"),
        (A_AND_B, "gone.csv:breed", "", "gone.csv cannot be read: it is not there"),
        (A_AND_B, "l.csv", "", "holds no labels"),
        (A_AND_B, "l.csv", "id,label\n\n", "none of its columns names one"),
        (A_AND_B, "l.csv", b"id,label\na,\xff\n", "can't decode byte"),
        (A_AND_B, "l.csv", "a,1\nb,\n", "the label of b is empty"),
        (A_AND_B, "l.txt", "a.jpg cat\nb.jpg dog\n", "write it as .csv, as docs/recipes/labels.md"),
        (A_AND_B, "l.csv:x", "id,x,y\na,1,2\nb,1\n", "line 3 has 2 columns, and the first 3"),
        (A_AND_B, "l.csv", 'id,label\na,"cat\nb,dog\n', "unexpected end of data"),
        # The column is not known.
        (
            A_AND_B,
            "esc.csv",
            "filename,fold,category\na.jpg,1,dog\nb.jpg,1,cat\n",
            "has 3 columns; say which holds the labels, as in --labels HERE/esc.csv:fold; there are"
            " fold, category",
        ),
        (A_AND_B, "l.csv", "a,1,cat\nb,2,dog\n", "and no header; .* there are 2 (1), 3 (cat)"),
        (A_AND_B, "l.csv:kind", "id,n\na,1\nb,2\n", "has no column 'kind' of labels; say which"),
        (A_AND_B, "l.csv:1", "id,n\na,1\nb,2\n", "has no column '1' of labels; .*there are n"),
        ("0.jpg 1.jpg", "l.csv:label", ",id,label\n0,1,a\n1,0,b\n", "'' and 'id' both name files"),
        (
            "0.jpg 1.jpg",
            "l.csv",
            "label,id\n1,0\n0,1\n",
            "columns 'label' and 'id' both name files",
        ),
        # A file is of one row, and a row of one file.
        (
            A_AND_B,
            "l.csv",
            "a,1\na.jpg,2\nb,1\n",
            "several rows for one file: a.jpg is '1' and '2'",
        ),
        ("a.jpg b.jpg b.png", "l.csv", "a,1\nb,2\n", "b fits both b.jpg and b.png"),
        (FOLDERS, "l.csv", "a,1\nb,2\n", "a fits both x/a.jpg and y/a.jpg"),
        ("p/x/a.jpg q/x/a.jpg", "l.csv", "x/a.jpg,1\n", "fits both p/x/a.jpg and q/x/a.jpg"),
        ("x/a.jpg x/a.jpg.jpg", "l.csv", "x/a.jpg,1\n", "no label for 1 of .* x/a.jpg.jpg"),
        # All files of a split have labels, or none.
        (
            SPLITS,
            "l.csv",
            "a,1\nc,2\n",
            "no label for 1 of the files, the first of them test/b.jpg",
        ),
        (SPLITS, "l.csv", "u,1\nv,2\n", "has no label for any of the files, .* as in 'v,2'"),
    ],
)
def test_refusals(files: str, name: str, text: str | bytes, what: str, tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", files.split())
    if text or ":" not in name:
        write(tmp_path / name.partition(":")[0], text)
    with pytest.raises(CorpusError) as info:
        open_corpus(source, "images", labels=tmp_path / name)
    place = -1
    for part in what.replace("HERE", str(tmp_path)).split(".*"):
        place = str(info.value).find(part.strip(), place + 1)
        assert place >= 0, str(info.value)
    assert "\n" not in str(info.value)
