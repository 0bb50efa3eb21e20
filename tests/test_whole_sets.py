"""Parts of datasets that look whole, and several datasets that look like one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from array_files import IMAGES, LABELS, folder
from conftest import Run, write
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from test_tfrecord import imagenet
from tf_records import records

import shardkit
from shardkit.corpus.open import open_corpus
from shardkit.corpus.tables.hub_configs import Config, config_folder, configs_of_card
from shardkit.corpus.whole_sets import notes_on_splits
from shardkit.errors import CorpusError
from shardkit.samples.numbered_files import missing_files

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False}


def table(path: Path, *texts: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table({"text": [*texts]}), path)
    return path


# --- files that are not there -------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "missing"),
    [
        (
            ["train-00000-of-00003.parquet"],
            ["train-00001-of-00003.parquet", "train-00002-of-00003.parquet"],
        ),
        (["a/x-00001-of-00002.parquet"], ["a/x-00000-of-00002.parquet"]),
        (["x-00001-of-00002", "x-00002-of-00002"], []),  # these count from 1
        (["x-00001-of-00003", "x-00003-of-00003"], ["x-00002-of-00003"]),
        (["x-00000-of-00002-ab.parquet", "x-00001-of-00002-cd.parquet"], []),
        (["x.tfrecord-00000-of-00002"], ["x.tfrecord-00001-of-00002"]),
        (["c4.00000-of-00002.json.gz"], ["c4.00001-of-00002.json.gz"]),
        (["a/x-00000-of-00001", "b/x-00000-of-00001", "0000.parquet", "2-of-3"], []),
        (["x-00000-of-00003-a.p", "x-00002-of-00003-b.p"], ["x-00001-of-00003*"]),
    ],
)
def test_missing_files(paths: list[str], missing: list[str]) -> None:
    assert missing_files(paths) == missing


@given(st.integers(1, 40), st.sets(st.integers(0, 39)))
def test_each_missing_file_is_named(total: int, gone: set[int]) -> None:
    every = [f"d/x-{i:05}-of-{total:05}.parquet" for i in range(total)]
    there = [path for i, path in enumerate(every) if i not in gone]
    lacking = [path for path in every if path not in there]
    assert missing_files(there) == (lacking if there else [])


def test_a_set_of_tables_that_lacks_some_is_refused(tmp_path: Path, run: Run) -> None:
    table(tmp_path / "in" / "train-00000-of-00003.parquet", "a")
    table(tmp_path / "in" / "train-00002-of-00003.parquet", "c")
    code, _, err = run("pack", "in", "out", "--to", "npy")
    assert code == 2 and err.startswith("shardkit: error: in lacks 1 file that the names of the")
    assert "train-00001-of-00003.parquet; fetch them" in err
    one = tmp_path / "in" / "train-00000-of-00003.parquet"
    assert shardkit.pack(one, tmp_path / "one", to="npy", **OPTIONS).num_samples == 1
    table(tmp_path / "in" / "train-00001-of-00003.parquet", "b")
    assert shardkit.pack("in", tmp_path / "all", to="npy", **OPTIONS).num_samples == 3


def test_a_set_of_records_that_lacks_some_is_refused(tmp_path: Path) -> None:
    source = records(tmp_path / "in" / "x.tfrecord-00000-of-00010", [imagenet(1)])
    with pytest.raises(CorpusError, match=r"lacks 9 files that .*x\.tfrecord-00001-of-00010, "):
        open_corpus(tmp_path / "in")
    path = tmp_path / "in" / "x.tfrecord-00000-of-00010"
    assert len([*open_corpus(path).runs(tmp_path)]) == 1, source


# --- configurations -----------------------------------------------------------------------


def test_configurations_in_folders_are_refused(tmp_path: Path, run: Run) -> None:
    for name in ("en", "de"):
        table(tmp_path / "in" / name / "train-00000-of-00001.parquet", f"{name} 1")
        table(tmp_path / "in" / name / "test-00000-of-00001.parquet", f"{name} 2")
    code, _, err = run("pack", "in", "out", "--to", "npy")
    assert code == 2 and "in holds 2 configurations, which are datasets of their own, by its" in err
    assert "de (de/train-00000-of-00001.parquet), en (en/train-" in err or "de (de/test-" in err
    assert shardkit.pack("in/en", "out", to="npy", **OPTIONS).num_samples == 2


def test_parts_in_folders_are_one_dataset(tmp_path: Path) -> None:
    """No name tells a split: as Spark and others write parts."""
    for name in ("year=2023", "year=2024"):
        table(tmp_path / "in" / name / "part-0.parquet", name)
    assert shardkit.pack(tmp_path / "in", tmp_path / "out", to="npy", **OPTIONS).num_samples == 2


CARD = """---
configs:
- config_name: en
  data_files:
  - split: train
    path: en_a.parquet
  - split: test
    path: en_b.parquet
- config_name: de
  data_files: "de_*.parquet"
{more}---
# Texts
"""


def hub(root: Path, more: str = "") -> Path:
    for name in ("en_a", "en_b", "de_a"):
        table(root / f"{name}.parquet", name)
    write(root / "README.md", CARD.format(more=more))
    return root


def test_configurations_of_a_card_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"2 configurations.*README\.md: en \(en_a.*, de \(de_a"):
        open_corpus(hub(tmp_path))
    (tmp_path / "de_a.parquet").unlink()
    assert sorted(open_corpus(tmp_path).splits()) == ["test", "train"]


def test_a_configuration_of_all_files_is_the_dataset(tmp_path: Path) -> None:
    hub(tmp_path, "- config_name: all\n  data_files:\n  - split: train\n    path: '*.parquet'\n")
    corpus = open_corpus(tmp_path)
    assert corpus.splits() == ["train"] and sum(len(run) for run in corpus.runs(tmp_path)) == 3


def test_a_card_tells_splits_that_names_do_not(tmp_path: Path) -> None:
    """``train_sft`` and ``train_gen`` are two splits, though both are called train."""
    card = "---\nconfigs:\n- config_name: default\n  data_files:\n"
    for name in ("train_sft", "train_gen"):
        table(tmp_path / "data" / f"{name}-00000-of-00001.parquet", name)
        card += f"  - split: {name}\n    path: data/{name}-*\n"
    write(tmp_path / "README.md", card + "---\n")
    for source in (tmp_path, tmp_path / "data"):
        assert open_corpus(source).splits() == ["train_gen", "train_sft"]


def test_cards_that_are_built_otherwise() -> None:
    entry = {"config_name": "a", "data_dir": "x", "data_files": None}
    assert configs_of_card({"configs": "all"}) == configs_of_card({}) == []
    assert configs_of_card({"configs": [None, entry]}) == [Config("a", (("", "x/**"),))]
    held = configs_of_card(
        {"configs": [{"data_files": {"train": "a.parquet", "test": ["b", "c"]}}]}
    )
    assert held[0].patterns == (("train", "a.parquet"), ("test", "b"), ("test", "c"))
    assert Config("a", (("", "data/**/x-*"),)).split_of("data/x-1") == ""


@pytest.mark.parametrize(
    ("path", "folder_"),
    [
        ("train.parquet", ""),
        ("data/train.parquet", ""),
        ("en/train/0.parquet", "en"),
        ("data/en/0.parquet", "data/en"),
        ("partial-train/0.parquet", ""),
    ],
)
def test_config_folder(path: str, folder_: str) -> None:
    assert config_folder(path) == folder_


# --- one split under two names ------------------------------------------------------------


def test_two_names_of_one_split_are_said(tmp_path: Path) -> None:
    for name in ("train", "val", "validation"):
        table(tmp_path / "t" / f"{name}.parquet", name)
        folder(tmp_path / "a" / name, images=IMAGES, labels=LABELS)
        records(tmp_path / "r" / name / "x.tfrecord", [imagenet(1)])
    for each in "tar":
        said = "'val' and 'validation' are two splits; rename one if they are one"
        assert said in open_corpus(tmp_path / each).notes
    assert notes_on_splits(["train", "val", "test", "dev"]) == []
