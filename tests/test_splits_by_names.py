"""Splits that names of folders and files tell, and texts that are refused for theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_inputs_files import tree

import shardkit
from shardkit.errors import CorpusError
from shardkit.inputs.folders import split_folders
from shardkit.inputs.single_files import TextCorpus


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("train.txt val.txt", "named as splits: move the files of each into a folder"),
        ("p.train.txt p.valid.txt README.md pictures/a.png", "named as splits"),
        ("a.txt test.txt train.txt", "one split, train, though test.txt name another"),
        ("test.txt", "one split, train, though test.txt name another"),
        ("train_1.txt train_2.txt", ""),
        ("train/a.txt val/test.txt", ""),
    ],
)
def test_texts_named_as_splits(names: str, said: str, tmp_path: Path) -> None:
    source = tree(tmp_path / "in", dict.fromkeys(names.split(), b"x"))
    if "move" in said or "README" in names:
        with pytest.raises(CorpusError, match=said):
            TextCorpus(source)
        return
    corpus = TextCorpus(source)
    assert sum(map(len, corpus.runs(tmp_path))) == len(names.split())
    assert corpus.notes == [said] * bool(said)


def test_eval_is_a_split(tmp_path: Path) -> None:
    assert split_folders(["train", "eval"]) == {"train": "train", "eval": "eval"}
    assert split_folders(["Evaluation", "training"]) == {
        "Evaluation": "evaluation",
        "training": "train",
    }
    source = tree(tmp_path / "in", {"train/1.txt": b"x", "eval/1.txt": b"x"})
    packed = shardkit.pack(source, tmp_path / "out", workers=0, to="npy", progress=False)
    assert packed.splits == {"train": 1, "eval": 1}
