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


# --- names of splits ----------------------------------------------------------------------


def test_eval_is_a_split(tmp_path: Path) -> None:
    assert split_folders(["train", "eval"]) == {"train": "train", "eval": "eval"}
    assert split_folders(["Evaluation", "training"]) == {
        "Evaluation": "evaluation",
        "training": "train",
    }
    source = tree(tmp_path / "in", {"train/1.txt": b"x", "eval/1.txt": b"x"})
    packed = shardkit.pack(source, tmp_path / "out", workers=0, to="npy", progress=False)
    assert packed.splits == {"train": 1, "eval": 1}
