"""Errors name options as they are typed."""

from __future__ import annotations

import pytest
from conftest import Run

from shardkit.cli import group
from shardkit.cli.option_names import options_of, with_options

PACK = options_of(group.commands["pack"])


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("to is missing: choose a format", "--to is missing: choose a format"),
        ("workers must be at least 0, got -1", "--workers must be at least 0, got -1"),
        (
            "max_rejects is a share from 0 to 1, got 2",
            "--max-rejects is a share from 0 to 1, got 2",
        ),
        (
            "eos is of tokens: pass tokenizer or train_tokenizer, too",
            "--eos is of tokens: pass --tokenizer or --train-tokenizer, too",
        ),
        (
            "pass either tokenizer or train_tokenizer, not both",
            "pass either --tokenizer or --train-tokenizer, not both",
        ),
        (
            "quality is for pictures that are written anew: pass resize, max_side, crop, or"
            " image_format jpeg or webp, too",
            "--quality is for pictures that are written anew: pass --resize, --max-side, --crop, or"
            " --image-format jpeg or webp, too",
        ),
        (
            "may differ in shape: pass crop, or choose hdf5 or npy",
            "may differ in shape: pass --crop, or choose hdf5 or npy",
        ),
        (
            "x holds a pack started with other options: shard_size was 3, now 4; use the same, or"
            " pass --overwrite to start afresh",
            "x holds a pack started with other options: --shard-size was 3, now 4; use the same, or"
            " pass --overwrite to start afresh",
        ),
        (
            "x holds a pack started with other options: limit was 3, now 4; use the same",
            "x holds a pack started with other options: --limit was 3, now 4; use the same",
        ),
        # Words that are no options.
        ("x has several columns of strings; pass --text-field", None),
        ("x already holds a dataset; pass --overwrite to replace it, or choose another", None),
        ("nothing to pack in x: it is empty", None),
        ("tokenizer x: no such file or folder", None),
        ("/data/shuffle/to exists and is no folder; choose another destination", None),
    ],
)
def test_names(said: str, expected: str | None) -> None:
    assert with_options(said, PACK) == (said if expected is None else expected)


def test_of_no_options_nothing_is_named() -> None:
    assert with_options("to is missing: pass max_rejects", {}) == "to is missing: pass max_rejects"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("pack pictures", "--to is missing: choose a format, one of lmdb, hdf5, webdataset, npy"),
        (
            "pack pictures --to npy --resize 0",
            "--resize is a number of pixels from 1 to 65535, got",
        ),
        ("pack pictures --to npy --max-rejects 3", "--max-rejects is a share from 0 to 1, got 3.0"),
        ("pack pictures --to npy --dali-index", "--dali-index is of the tars of webdataset; npy"),
        ("pack pictures --to npy --bos x", "--bos is of tokens: pass --tokenizer or --train-token"),
        ("pack pictures --to npy --limit 0", "--limit must be at least 1, got 0"),
        ("show d --num 0", "--num must be at least 1, got 0"),
        ("show d --num 1 --rows 1", "give either --rows or --num: those samples, or so many"),
        ("convert d --eos 3 --to npy", "--eos is for files of token ids; d is none"),
        ("convert d --crop 8 --to parquet", "--crop is for datasets; parquet files are written as"),
        ("convert d", "Missing option '--to'. Choose from: lmdb, hdf5, h5, webdataset, wds, tar,"),
        ("convert d --to zip", "Invalid value for '--to': 'zip' is not one of 'lmdb', 'hdf5',"),
        ("bench d --batch-size 0", "--batch-size must be at least 1, got 0"),
    ],
)
def test_on_the_command_line(words: str, said: str, run: Run) -> None:
    assert run("pack", "pictures", "d", "--to", "npy", "--workers", 0).code == 0
    got = run(*words.split())
    assert got.code == 2 and got.out == "" and got.err.count("\n") == 1
    assert got.err.startswith(f"shardkit: error: {said}"), got.err
