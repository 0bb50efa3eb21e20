"""Splits of lines of JSON and of texts that the names of their files tell."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from test_corpus_files import read_all, tree
from test_corpus_jsonl import zst

import shardkit
from shardkit.errors import CorpusError, SampleError
from shardkit.inputs.folders import split_folders
from shardkit.inputs.tables.jsonl import JsonlCorpus
from shardkit.inputs.text import TextCorpus
from shardkit.inputs.text_splits import CHANCE
from shardkit.samples.split_names import mixed_names

OPTIONS: dict[str, Any] = {"to": "npy", "progress": False}


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def paths_of(source: Path, corpus: TextCorpus | JsonlCorpus) -> dict[str, list[str]]:
    """The files of each split, in the order in which splits are listed."""
    made: dict[str, list[str]] = {}
    for run in corpus.runs(source.parent):
        own = [os.fsdecode(name) for name in run.locators] if corpus.kind == "text" else [run.base]
        made[run.split] = made.get(run.split, []) + own
    assert [*made] == corpus.splits()
    return made


# --- lines of JSON ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "splits",
    [
        {"test": ["test.jsonl", "test_socratic.jsonl"], "train": ["train.jsonl"]},
        {"dev": ["nli_1.0_dev_a.jsonl", "nli_1.0_dev_b.jsonl"], "train": ["nli_1.0_train.jsonl"]},
        {
            "train": ["c4-train.00000-of-00002.jsonl", "c4-train.00001-of-00002.jsonl"],
            "validation": ["c4-validation.00000-of-00001.jsonl"],
        },
        {"test": ["test.jsonl"], "train": ["train/00.jsonl", "train/01.jsonl"]},
        {"evaluation": ["data/evaluation.ndjson"], "train": ["data/Train.jsonl"]},
        {"test": ["test.jsonl"]},
    ],
)
def test_names_tell_the_splits_of_lines(splits: dict[str, list[str]], tmp_path: Path) -> None:
    names = [name for own in splits.values() for name in own]
    corpus = JsonlCorpus(tree(tmp_path / "in", dict.fromkeys(names, b"1\n")))
    assert paths_of(corpus.source, corpus) == splits
    assert corpus.notes == []


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ["extra.jsonl", "test.jsonl", "train.jsonl"],
            "test.jsonl too, since extra.jsonl names no",
        ),
        (["a.jsonl", "x_val.jsonl"], "x_val.jsonl too, since a.jsonl names no split"),
        (["dev.jsonl", "x/dev/train.jsonl"], "since x/dev/train.jsonl names several splits"),
        (["a.jsonl", "train.jsonl"], ""),
    ],
)
def test_lines_of_which_some_names_tell_none(names: list[str], said: str, tmp_path: Path) -> None:
    corpus = JsonlCorpus(tree(tmp_path / "in", dict.fromkeys(names, b"1\n")))
    assert paths_of(corpus.source, corpus) == {"train": names}
    assert len(corpus.notes) == bool(said) and said in "".join(corpus.notes)


def test_folders_of_splits_go_before_names_of_lines(tmp_path: Path) -> None:
    """Whatever lies in ``train/`` is of train; no name there is a matter of a note."""
    tree(tmp_path / "in", {"train/test.jsonl": b"1\n", "train/b.jsonl": b"1\n"})
    corpus = JsonlCorpus(tree(tmp_path / "in", {"val/train.jsonl": b"1\n"}))
    assert paths_of(corpus.source, corpus) == {
        "train": ["train/b.jsonl", "train/test.jsonl"],
        "val": ["val/train.jsonl"],
    }
    assert corpus.notes == []


def test_one_file_of_lines_is_of_train(tmp_path: Path) -> None:
    source = tree(tmp_path, {"test.jsonl": b"1\n"}) / "test.jsonl"
    assert JsonlCorpus(source).splits() == ["train"]


def test_a_card_goes_before_names_of_lines(tmp_path: Path) -> None:
    card = (
        "---\nconfigs:\n- config_name: default\n  data_files:\n"
        '  - {split: train, path: "a_test.jsonl"}\n  - {split: held, path: "a_train.jsonl"}\n---\n'
    )
    names = {"a_test.jsonl": b"1\n", "a_train.jsonl": b"2\n", "README.md": card.encode()}
    corpus = JsonlCorpus(tree(tmp_path / "in", names))
    assert paths_of(corpus.source, corpus) == {"held": ["a_train.jsonl"], "train": ["a_test.jsonl"]}


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
        (["test.txt"], "test.txt too, since no other name tells another split"),
        (["test.txt", "train.txt", "x/a.txt"], "test.txt too, since there are texts in x/ as well"),
        (["train_1.txt", "train_2.txt"], ""),
        (["test.txt", *(f"essay{i}.txt" for i in range(CHANCE - 1))], "since essay0.txt names no"),
        (["test.txt", *(f"essay{i}.txt" for i in range(CHANCE))], ""),
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

LINES = {
    f"{split}-{i}.jsonl.zst": zst(b'{"text": "%s %d"}\n' % (split.encode(), i) * 50)
    for split in ("train", "test")
    for i in range(3)
}
TEXTS = {f"{split}_{i}.txt": b"text %d " % i * 99 for split in ("train", "val") for i in range(9)}


@pytest.mark.parametrize("contents", [LINES, TEXTS], ids=["lines", "texts"])
def test_splits_of_names_there_and_back(contents: dict[str, bytes], tmp_path: Path) -> None:
    """The same bytes with any number of workers, and every file where it was."""
    source = tree(tmp_path / "in", contents)
    for workers in (0, 2):
        dest = tmp_path / f"out{workers}"
        shardkit.pack(source, dest, workers=workers, shard_size=1000, **OPTIONS)
    assert files(tmp_path / "out0") == files(tmp_path / "out2")
    assert shardkit.pack(source, tmp_path / "out0", shard_size=1000, **OPTIONS).was_complete
    assert shardkit.verify(tmp_path / "out0", against=source).ok
    shardkit.unpack(tmp_path / "out0", tmp_path / "back")
    plain = {name.removesuffix(".zst") for name in contents}
    assert plain == {*files(tmp_path / "back")}


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
