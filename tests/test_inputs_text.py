"""Folders of text files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_inputs_files import JPG, read_all, tree

import shardkit
from shardkit.inputs.single_files import TextCorpus


def test_bytes_as_they_are(tmp_path: Path) -> None:
    contents = {"a.txt": b"\xff\xfe\r\n\0", "b/c.md": b"# hi", "b/e.PY": b"", "b/x.jpg": JPG}
    corpus = TextCorpus(tree(tmp_path, contents))
    batch = read_all(corpus, tmp_path)["train"]
    assert batch.keys == [b"a", b"b/c", b"b/e"]
    assert batch.columns == {"txt": [b"\xff\xfe\r\n\0", b"# hi", b""]}
    assert batch.paths == [b"+.txt", b"+.md", b"+.PY"]
    assert not batch.rejects
    assert corpus.ignored == {".jpg": 1}
    assert corpus.classes is None


def test_stems_that_meet(tmp_path: Path) -> None:
    batch = read_all(TextCorpus(tree(tmp_path, {"a.c": b"1", "a.h": b"2", "b.c": b"3"})), tmp_path)
    assert batch["train"].keys == [b"a.c", b"a.h", b"b"]
    assert batch["train"].paths == [b"+", b"+", b"+.c"]


# --- class folders ------------------------------------------------------------------------

IMDB = {
    f"{split}/{name}/{i}_7.txt": f"{split} {name} {i}".encode()
    for split, names in {"train": ("neg", "pos", "unsup"), "test": ("neg", "pos")}.items()
    for name in names
    for i in range(2)
}
"""As aclImdb has it, whose README lies beside the splits."""

SIDES = [(split, name) for split in ("train", "test") for name in ("neg", "pos")]


def test_class_folders_of_text(tmp_path: Path) -> None:
    source = tree(tmp_path / "in", {**IMDB, "README": b"", "README.md": b"of it"})
    corpus = TextCorpus(source)
    assert corpus.classes == ["neg", "pos", "unsup"]
    batches = read_all(corpus, tmp_path)
    assert {split: batch.columns["cls"] for split, batch in batches.items()} == {
        "train": [b"0", b"0", b"1", b"1", b"2", b"2"],
        "test": [b"0", b"0", b"1", b"1"],
    }
    assert batches["test"].keys == [b"neg/0_7", b"neg/1_7", b"pos/0_7", b"pos/1_7"]
    assert corpus.ignored == {"": 1, ".md": 1}
    assert corpus.notes == ["cls is of 3 classes, the folders: neg, pos, unsup"]


def test_few_texts_above_class_folders_are_passed_over(tmp_path: Path) -> None:
    """aclImdb itself: a hundred thousand reviews, and six lists."""
    reviews = {f"{split}/{name}/{i}.txt": b"x" for split, name in SIDES for i in range(50)}
    above = {"imdbEr.txt": b"1", "train/urls_pos.txt": b"2"}
    beside = {"imdb.vocab": b"3", "train/labeledBow.feat": b"4"}
    source = tree(tmp_path / "in", {**reviews, **above, **beside})
    corpus = TextCorpus(source)
    batches = read_all(corpus, tmp_path)
    assert {split: len(batch.keys) for split, batch in batches.items()} == {
        "train": 100,
        "test": 100,
    }
    assert corpus.classes == ["neg", "pos"]
    assert corpus.ignored == {".txt": 2, ".vocab": 1, ".feat": 1}
    said = "files above the folders of classes are passed over: imdbEr.txt, train/urls_pos.txt"
    assert corpus.notes == ["cls is of 2 classes, the folders: neg, pos", said]
    (source / "test" / "urls_pos.txt").write_bytes(b"a third one of 200")
    corpus = TextCorpus(source)
    assert corpus.classes is None and len(read_all(corpus, tmp_path)["train"].keys) == 203
    lost = "one split, train: test, train are named as splits, and imdbEr.txt lies beside them"
    assert corpus.notes == [
        "no cls: folders are a part of keys, since imdbEr.txt lies beside them",
        f"{lost}; move it away to keep them apart",
    ]


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["a.txt", "b.txt"], ""),
        (["a/1.txt", "b/1.txt", "2.txt"], "2.txt lies beside them"),
        (["a/1.txt", "b/x/1.txt"], "b/x/1.txt lies further down"),
        (["train/a/1.txt", "train/b/2.txt", "test/3.txt"], "test/3.txt lies beside them"),
        (["a/1.txt"], "there is one alone"),
        (["train/a/1.txt", "test/a/1.txt"], "there is one alone"),
        (["train/1.txt", "test/1.txt"], ""),
        (["train/1.txt", "extra/1.txt"], "train is not named as a class is"),
        (["source/1.txt", "target/1.txt"], "source is not named as a class is"),
    ],
)
def test_folders_that_are_no_classes_of_text(names: list[str], why: str, tmp_path: Path) -> None:
    corpus = TextCorpus(tree(tmp_path / "in", dict.fromkeys(names, b"x")))
    assert all("cls" not in batch.columns for batch in read_all(corpus, tmp_path).values())
    assert corpus.classes is None and corpus.spec() == {"kind": "text"}
    said = [f"no cls: folders are a part of keys, since {why}"] if why else []
    assert corpus.notes == said


def test_a_readme_beside_splits_leaves_them_apart(tmp_path: Path) -> None:
    """All were one split without a word, what is to be validated with among them."""
    names = ["README.md", "LICENSE.txt", "train/1.txt", "train/README.md", "val/2.txt"]
    source = tree(tmp_path / "in", dict.fromkeys(names, b"x"))
    options: dict[str, Any] = {"to": "npy", "workers": 0, "progress": False}
    result = shardkit.pack(source, tmp_path / "out", **options)
    assert result.splits == {"train": 2, "val": 1}
    assert result.ignored == {".md": 1, ".txt": 1}
    assert result.notes == ["among the samples: train/README.md; move away what is none"]
    tree(source, {"notes.txt": b"y"})
    result = shardkit.pack(source, tmp_path / "other", **options)
    assert result.splits == {"train": 6}
    assert result.notes == [
        "among the samples: LICENSE.txt, README.md; move away what is none",
        "one split, train: train, val are named as splits, and notes.txt lies beside them;"
        " move it away to keep them apart",
    ]


def test_tokens_are_of_text_alone(tmp_path: Path) -> None:
    source = tree(tmp_path / "in", IMDB)
    options: dict[str, Any] = {"to": "npy", "workers": 0, "progress": False}
    made = shardkit.pack(source, tmp_path / "out", train_tokenizer=260, **options)
    said = "cls is left out, as the text alone is packed: 3 classes, the folders: neg, pos, unsup"
    assert made.notes[0] == said
    info = shardkit.info(tmp_path / "out")
    assert info.classes is None and info.fields == ["tokens"]
    assert shardkit.verify(tmp_path / "out", against=source).ok
