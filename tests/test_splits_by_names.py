"""Splits of texts that the names of their files tell."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from test_inputs_files import read_all, tree

import shardkit
from shardkit.errors import CorpusError, SampleError
from shardkit.inputs.folders import split_folders
from shardkit.inputs.text import TextCorpus
from shardkit.samples.split_names import mixed_names

OPTIONS: dict[str, Any] = {"to": "npy", "progress": False}


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def paths_of(source: Path, corpus: TextCorpus) -> dict[str, list[str]]:
    """The files of each split, in the order in which splits are listed."""
    made: dict[str, list[str]] = {}
    for run in corpus.runs(source.parent):
        made[run.split] = made.get(run.split, []) + [os.fsdecode(name) for name in run.locators]
    assert [*made] == corpus.splits()
    return made


# --- texts --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("splits", "beside"),
    [
        ({"test": ["test.txt"], "train": ["train.txt"], "val": ["val.txt"]}, []),
        ({"test": ["p.test.txt"], "train": ["p.train.txt"], "valid": ["p.valid.txt"]}, []),
        ({"train": ["V2-GPT4-train.txt"], "valid": ["V2-GPT4-valid.txt"]}, ["README.md", "x.pdf"]),
        ({"eval": ["eval.txt"], "train": ["train.txt"]}, ["pictures/a.png"]),
        ({s: [f"{s}_{i:03}.txt" for i in range(100)] for s in ("dev", "train")}, []),
    ],
)
def test_names_tell_the_splits_of_texts(
    splits: dict[str, list[str]], beside: list[str], tmp_path: Path
) -> None:
    names = [*beside, *(name for own in splits.values() for name in own)]
    corpus = TextCorpus(tree(tmp_path / "in", dict.fromkeys(names, b"x")))
    assert paths_of(corpus.source, corpus) == splits
    assert (corpus.notes, corpus.ignored.get(".md", 0)) == ([], "README.md" in beside)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a.txt", "test.txt", "train.txt"], "test.txt too, since a.txt names no split"),
        (["test.txt"], "test.txt too"),
        (["test.txt", "train.txt", "x/a.txt"], "test.txt too"),
        (["train_1.txt", "train_2.txt"], ""),
    ],
)
def test_names_that_tell_no_splits_of_texts(names: list[str], said: str, tmp_path: Path) -> None:
    corpus = TextCorpus(tree(tmp_path / "in", dict.fromkeys(names, b"x")))
    assert paths_of(corpus.source, corpus).keys() == {"train"}
    notes = [note for note in corpus.notes if note.startswith("all of split train")]
    assert len(notes) == bool(said) and said in "".join(notes)


def test_two_names_of_one_split_are_said(tmp_path: Path) -> None:
    source = tree(tmp_path / "in", {"a_val.txt": b"x", "b_valid.txt": b"x", "train.txt": b"x"})
    packed = shardkit.pack(source, tmp_path / "out", workers=0, **OPTIONS)
    assert packed.notes == ["'val' and 'valid' are two splits; rename one if they are one"]


def test_a_text_that_comes_while_listing(tmp_path: Path) -> None:
    corpus = TextCorpus(tree(tmp_path / "in", {"test.txt": b"x", "train.txt": b"x"}))
    tree(tmp_path / "in", {"z/test.txt": b"x"})
    with pytest.raises(CorpusError, match=r"z/test\.txt came while listing; run it again"):
        list(corpus.runs(tmp_path))


def test_a_link_that_leads_nowhere_is_a_reject_of_the_last_split(tmp_path: Path) -> None:
    source = tree(tmp_path / "in", {"test.txt": b"x", "train.txt": b"x"})
    (source / "a_test.txt").symlink_to("nowhere")
    batches = read_all(TextCorpus(source), tmp_path)
    assert {split: len(batch) for split, batch in batches.items()} == {"test": 1, "train": 1}
    assert [path for path, _ in batches["train"].rejects] == ["a_test.txt"]


# --- packed -------------------------------------------------------------------------------

TEXTS = {f"{split}_{i}.txt": b"text %d " % i * 99 for split in ("train", "val") for i in range(9)}


def test_splits_of_names_there_and_back(tmp_path: Path) -> None:
    """The same bytes with any number of workers, and every file where it was."""
    source = tree(tmp_path / "in", TEXTS)
    for workers in (0, 2):
        dest = tmp_path / f"out{workers}"
        shardkit.pack(source, dest, workers=workers, shard_size=1000, **OPTIONS)
    assert files(tmp_path / "out0") == files(tmp_path / "out2")
    assert shardkit.pack(source, tmp_path / "out0", shard_size=1000, **OPTIONS).was_complete
    assert shardkit.verify(tmp_path / "out0", against=source).ok
    shardkit.unpack(tmp_path / "out0", tmp_path / "back")
    assert files(tmp_path / "back") == TEXTS


def test_a_pack_of_such_splits_goes_on(tmp_path: Path) -> None:
    """It stopped at a text of the last split; the tokenizer is trained on train alone."""
    source = tree(tmp_path / "in", TEXTS)
    options = {**OPTIONS, "train_tokenizer": 300, "shard_size": 1000}
    whole = shardkit.pack(source, tmp_path / "whole", workers=0, **options)
    assert whole.notes[0].endswith("entries on train")
    last = source / "val_8.txt"
    stamp, good = last.stat().st_mtime_ns, last.read_bytes()
    last.write_bytes(b"\xff" * len(good))
    os.utime(last, ns=(stamp, stamp))
    with pytest.raises(SampleError, match="is not UTF-8"):
        shardkit.pack(source, tmp_path / "out", workers=0, **options)
    last.write_bytes(good)
    os.utime(last, ns=(stamp, stamp))
    assert shardkit.pack(source, tmp_path / "out", workers=2, **options).resumed_shards > 0
    assert files(tmp_path / "out") == files(tmp_path / "whole")


# --- names of splits ----------------------------------------------------------------------


def test_eval_is_a_split(tmp_path: Path) -> None:
    assert split_folders(["train", "eval"]) == {"train": "train", "eval": "eval"}
    assert split_folders(["Evaluation", "training"]) == {
        "Evaluation": "evaluation",
        "training": "train",
    }
    source = tree(tmp_path / "in", {"train/1.txt": b"x", "eval/1.txt": b"x"})
    packed = shardkit.pack(source, tmp_path / "out", workers=0, **OPTIONS)
    assert packed.splits == {"train": 1, "eval": 1}


def test_what_is_said_of_mixed_names() -> None:
    assert mixed_names(["train_a", "test_a"]) == mixed_names(["a", "b_train"]) == []
    assert mixed_names(["val_x", "train_val_y"]) == [
        "all of split train, val_x too, since train_val_y names several splits"
    ]
