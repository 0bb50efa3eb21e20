"""Folders of text files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from test_corpus_files import JPG, read_all, tree

from shardkit.corpus import from_spec
from shardkit.corpus.text import TextCorpus
from shardkit.errors import CorpusError


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


def test_an_ignored_file_does_not_take_a_stem(tmp_path: Path) -> None:
    batch = read_all(
        TextCorpus(tree(tmp_path, {"a.txt": b"1", "a.xyz": b"2", "a": b"3"})), tmp_path
    )
    assert batch["train"].keys == [b"a"]


def test_splits_and_workers(tmp_path: Path) -> None:
    corpus = TextCorpus(tree(tmp_path, {"train/x/a.txt": b"1", "validation/a.txt": b"2"}))
    runs = {run.split: run for run in corpus.runs(tmp_path)}
    assert runs.keys() == {"train", "validation"}
    batch = from_spec(tmp_path, corpus.spec()).read(runs["train"], tmp_path)
    assert (batch.keys, batch.paths) == ([b"x/a"], [b"=train/x/a.txt"])


def test_text_beside_folders_named_as_splits_makes_them_folders(tmp_path: Path) -> None:
    batches = read_all(TextCorpus(tree(tmp_path, {"train/a.txt": b"1", "a.txt": b"2"})), tmp_path)
    assert {split: batch.keys for split, batch in batches.items()} == {"train": [b"a", b"train/a"]}


def test_a_fifo_is_a_reject(tmp_path: Path) -> None:
    tree(tmp_path, {"a.txt": b"", "c.txt": b"3"})
    os.mkfifo(tmp_path / "b.txt")
    batch = read_all(TextCorpus(tmp_path), tmp_path)["train"]
    assert batch.rejects == [("b.txt", "is a FIFO, not a file")]
    assert batch.columns == {"txt": [b"", b"3"]}


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"no text in .*; check the path"):
        list(TextCorpus(tmp_path).runs(tmp_path))
