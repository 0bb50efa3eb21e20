"""Which corpus an input is taken for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import nothing_left_open
from test_inputs_files import WALKED, one_of_each, tree

from shardkit.cli.option_sets import KINDS as NAMES
from shardkit.errors import CorpusError
from shardkit.inputs.corpus import Look
from shardkit.inputs.detection import CORPORA, KINDS, detect, open_corpus
from shardkit.inputs.files import extension


def folder(root: Path, names: list[str]) -> Path:
    return tree(root, dict.fromkeys(names, b"1"))


def kind_of(source: Path) -> str:
    return detect(Look(source))


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("images", ["a.jpg"]),
        ("images", ["k/a.JPEG", "k/b.PNG", "l/c.webp"]),
        ("companions", ["a.jpg", "a.png"]),
        ("images", ["a.jpg", "README.md", "LICENSE.txt", "labels.csv"]),
        ("images", ["train/k/a.jpg", "val/k/b.jpg"]),
        ("images", ["k/a.jpg", "k/b.jpg", "k/b.xml", "k/c.jpg"]),
        ("images", [f"{i}.jpg" for i in range(200)] + ["classes.txt", "make.py"]),
        ("paired", ["a.jpg", "a.txt"]),
        ("paired", ["a.jpg", "a.json", "b.jpg"]),
        ("paired", ["k/a.JPG", "k/a.cls", "l/b.png", "l/b.npy"]),
        ("paired", ["a.jpg", "a.seg.png", "a.xml"]),
        ("paired", ["a.npy", "a.cls"]),
        ("text", ["a.txt", "b.md", "c/d.py"]),
        ("text", ["a.txt", "a.xyz"]),
        ("jsonl", ["a.jsonl"]),
        ("jsonl", ["a.jsonl.gz", "b.NDJSON.zst", "README.md"]),
        ("arrays", ["a.npy", "b.npy"]),
        ("media", ["a.wav", "b.mp3", "README.md"]),
        ("media", ["k/a.MP4", "l/b.webm", "labels.csv"]),
        ("paired", ["a.wav", "a.txt", "b.wav", "b.txt"]),
        ("images", [f"{i}.jpg" for i in range(10)] + ["c.mp4"]),
    ],
)
def test_detected(tmp_path: Path, kind: str, names: list[str]) -> None:
    assert kind_of(folder(tmp_path, names)) == kind
    assert open_corpus(str(tmp_path)).kind == kind


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.jsonl.gz", "a.JSONL.ZST"])
def test_one_file_of_lines(tmp_path: Path, name: str) -> None:
    assert kind_of(folder(tmp_path, [name]) / name) == "jsonl"


@pytest.mark.parametrize(
    ("names", "what"),
    [
        ([], "nothing to pack in HERE: it is empty"),
        (["a/", "b/c/"], "nothing to pack in HERE: 3 folders and no file"),
        ([".a.jpg", ".git/x.txt"], "nothing to pack in HERE: it is empty"),
        (
            ["a.xyz", "b.xyz", "c", "d.csv"],
            "nothing to pack in HERE: 4 files (.xyz 2, no extension 1, .csv 1), none of a known"
            " kind; choose --corpus files, which takes any, or see docs/recipes",
        ),
        (
            [f"{i}.jpg" for i in range(10)] + ["x.png", "y.png"] + [f"{i}.txt" for i in "abcdefg"],
            "HERE may be read in several ways: each image a sample, 12 files (.jpg 10, .png 2)"
            " (--corpus images); or each text a sample, 7 files (.txt 7) (--corpus text); choose"
            " one",
        ),
        (
            ["a.jpg", "x.tfrecord"],
            "HERE may be read in several ways: each image a sample, 1 file (.jpg 1) (--corpus"
            " images); or TFRecord files, each entry a sample (--corpus tfrecord); choose one",
        ),
        (
            ["a.jsonl", "b.npy", "c.xyz"],
            "HERE may be read in several ways: a sample is a row of lines of JSON, 1 file"
            " (.jsonl 1) (--corpus jsonl); or each .npy file is a sample, 1 file (.npy 1) (--corpus"
            " arrays); or 1 file (.xyz 1) of other kinds (--corpus files takes any); choose one",
        ),
        (
            ["a.jsonl", "x.csv", "y.csv"],
            "HERE may be read in several ways: a sample is a row of lines of JSON, 1 file"
            " (.jsonl 1) (--corpus jsonl); or 2 files (.csv 2) of other kinds (--corpus files takes"
            " any); choose one",
        ),
        (
            ["README.txt", "a.off", "b.off"],
            "nothing to pack in HERE: 2 files (.off 2), none of a known kind; choose --corpus"
            " files, which takes any, or see docs/recipes",
        ),
        (
            ["shardkit.json", "train-00000.tar"],
            "HERE is a shardkit dataset already; use: shardkit convert",
        ),
        (
            ["a-000.tar", "a-001.tar", "README.md"],
            "HERE is a folder of tar files; use: shardkit convert",
        ),
        (["a.tar.gz", "x.csv"], "HERE is a folder of tar files; use: shardkit convert"),
    ],
)
def test_refused(tmp_path: Path, names: list[str], what: str) -> None:
    folder(tmp_path, names)
    with nothing_left_open(), pytest.raises(CorpusError) as info:
        kind_of(tmp_path)
    assert str(info.value) == what.replace("HERE", str(tmp_path))


@pytest.mark.parametrize("beside", ["images.zip", "train/images.zip", "a.tar.xz"])
@pytest.mark.parametrize("name", ["metadata.jsonl", "b.npy", "list.txt", "data.parquet", "b.jpg"])
def test_a_few_files_beside_a_larger_archive_are_not_all(
    tmp_path: Path, name: str, beside: str
) -> None:
    line = b'{"a": 1}\n'
    tree(tmp_path, {name: line, beside: line + b"\0"})
    with pytest.raises(CorpusError, match=r"; unpack the \.(zip|xz) if the samples are in there"):
        kind_of(tmp_path)
    tree(tmp_path, {beside: line})
    kinds = {".jsonl": "jsonl", ".npy": "arrays", ".txt": "text", ".parquet": "parquet"}
    assert kind_of(tmp_path) == kinds.get(extension(name), "images")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("missing", "does not exist"),
        ("a.tar", "is a tar file; use: shardkit convert"),
        ("a.tgz", "is a tar file; use: shardkit convert"),
        (
            "a.jpg",
            r"is one file, of no kind that holds many samples; give a folder, or see docs/rec",
        ),
        (
            "a.csv",
            "is one file, of no kind that holds many samples; .* docs/recipes for tables",
        ),
        ("dangling", "is no folder"),
    ],
)
@pytest.mark.parametrize("kind", [None, "images"])
def test_refused_sources(tmp_path: Path, name: str, what: str, kind: str | None) -> None:
    folder(tmp_path, ["a.tar", "a.tgz", "a.jpg", "a.csv"])
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(
        CorpusError, match=what if kind is None or name[0] != "a" else "is no folder"
    ):
        open_corpus(tmp_path / name, kind)


# --- opening ------------------------------------------------------------------------------


def test_the_table() -> None:
    assert [*KINDS] == NAMES == [*CORPORA]
    assert all(made.kind == kind for kind, made in CORPORA.items())


def test_the_kind_can_be_chosen(tmp_path: Path) -> None:
    folder(tmp_path, ["a.jpg", "a.txt", "a.jsonl", "a.parquet"])
    for kind in CORPORA:
        assert open_corpus(tmp_path, kind).kind == kind
    assert open_corpus(tmp_path / "a.jsonl", "jsonl").kind == "jsonl"
    with pytest.raises(
        CorpusError, match="'pictures' is no kind of corpus; choose one of images, "
    ):
        open_corpus(tmp_path, "pictures")


@pytest.mark.parametrize(
    ("names", "options", "what"),
    [
        (["a.jpg"], {"text_field": "t"}, "--text-field does not go with images, which is what"),
        (["a.txt"], {"labels": "l.csv"}, "--labels does not go with text"),
        (["a.jpg", "a.txt"], {"labels": "l.csv"}, "--labels does not go with paired"),
    ],
)
def test_options_of_another_kind(
    tmp_path: Path, names: list[str], options: dict[str, str], what: str
) -> None:
    with pytest.raises(CorpusError, match=what):
        open_corpus(folder(tmp_path, names), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", CORPORA)
def test_every_corpus_keeps_the_seam(tmp_path: Path, kind: str) -> None:
    """An empty folder is an error when listed, a spec is JSON, nothing is read to open one."""
    corpus = open_corpus(tmp_path, kind)
    assert json.loads(json.dumps(corpus.spec())) == corpus.spec()
    assert corpus.spec()["kind"] == kind
    with pytest.raises(CorpusError, match=r"no .* in .*check the path, or choose --corpus"):
        list(corpus.runs(tmp_path / "scratch"))


@pytest.mark.parametrize("kind", [kind for kind in WALKED if kind != "rows"])
@pytest.mark.parametrize("link", ["far", "far.jpg", "far.jsonl", "lost in\n.x y"])
def test_a_dangling_link_is_a_reject_of_every_corpus(tmp_path: Path, kind: str, link: str) -> None:
    """It may be a class folder: to pass it over would lose a class in silence."""
    one_of_each(tmp_path / "k")
    (tmp_path / "k" / link).symlink_to("nowhere")
    corpus = open_corpus(tmp_path, kind)
    batches = [corpus.read(run, tmp_path) for run in corpus.runs(tmp_path / "scratch")]
    assert sum(map(len, batches)) == (7 if kind == "files" else 1)
    what = "a symbolic link to nowhere, which leads nowhere; remove it"
    assert [reject for batch in batches for reject in batch.rejects] == [(f"k/{link}", what)]
