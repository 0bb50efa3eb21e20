"""Datasets of the Hugging Face hub: which configuration a folder is, and what its card says."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import Run, write
from pyarrow import parquet

import shardkit
from shardkit.errors import CorpusError
from shardkit.inputs.open import open_corpus
from shardkit.inputs.tables.card_patterns import matches
from shardkit.inputs.tables.hub_configs import Config, config_folder, configs_of_card

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False}


def table(path: Path, *texts: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table({"text": [*texts]}), path)
    return path


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
    data_dir = {"data_dir": "./x/", "data_files": ["./a.parquet", {"path": ["b", "c"]}]}
    (config,) = configs_of_card({"configs": [{**data_dir, "default": True}]})
    assert config.patterns == (("train", "x/a.parquet"), ("train", "x/b"), ("train", "x/c"))
    assert config.is_default


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


# --- lines of JSON ------------------------------------------------------------------------


def lines(root: Path, *names: str) -> None:
    for name in names:
        write(root / name, json.dumps({"text": name}) + "\n")


def test_a_card_tells_splits_of_lines(tmp_path: Path, run: Run) -> None:
    lines(tmp_path / "in", "a.jsonl", "train.jsonl", "old.jsonl", "b.csv")
    write(tmp_path / "in/c.jsonl.gz", gzip.compress(b'{"text": "c"}\n'))
    card_ = card(("train", "train.jsonl"), ("held", "[a.jsonl, 'c.jsonl*']"))
    write(tmp_path / "in/README.md", card_)
    code, out, _ = run("pack", "in", "out", "--to", "npy", "--text-field", "text")
    assert code == 0 and "splits: train 1, held 2" in out
    assert "left out: 1 file not in README.md: old.jsonl" in out and "1 .jsonl" in out
    assert "splits are folders" not in out
    ds = shardkit.open("out", split="held")
    assert [sample["txt"] for sample in ds] == ["a.jsonl", "c"]
    assert open_corpus(tmp_path / "in").splits() == ["held", "train"]
    assert shardkit.verify("out", against="in").ok


def test_lines_of_several_configurations_are_refused(tmp_path: Path) -> None:
    lines(tmp_path, "en.jsonl", "de.jsonl")
    entries = "".join(f"- config_name: {n}\n  data_files: {n}.jsonl\n" for n in ("en", "de"))
    write(tmp_path / "README.md", f"---\nconfigs:\n{entries}---\n")
    with pytest.raises(CorpusError, match=r"2 configurations.*: en \(en\.jsonl\), de \(de\.js"):
        [*open_corpus(tmp_path).runs(tmp_path)]


def test_folders_of_lines_are_splits_where_the_card_says_none(tmp_path: Path) -> None:
    lines(tmp_path, "train/a.jsonl", "test/b.jsonl")
    write(tmp_path / "README.md", "---\nconfigs:\n- config_name: default\n---\n")
    assert splits_of(tmp_path) == {"test": ["test/b.jsonl"], "train": ["train/a.jsonl"]}
    write(tmp_path / "README.md", card(("train", "'*/a.jsonl'"), ("dev", "'*/b.jsonl'")))
    assert splits_of(tmp_path) == {"dev": ["test/b.jsonl"], "train": ["train/a.jsonl"]}


# --- patterns, as datasets 5 resolves them ------------------------------------------------

PATHS = (
    "train.parquet",
    "test.parquet",
    "data/train-0.parquet",
    "data/train-1.parquet",
    "data/en/train-0.parquet",
    "data/en/x/train-0.parquet",
    "data/__old__/train-0.parquet",
    "other/train-0.parquet",
)

FOUND = {
    "train.parquet": [0],
    "*.parquet": [0, 1],
    "t*": [0, 1],
    "data/train-*": [2, 3],
    "data/train-[01].parquet": [2, 3],
    "data/train-[!0].parquet": [3],
    "data/train-?.parquet": [2, 3],
    "data/*/train-*": [4],
    "data/__old__/*": [6],
    "data/__*/*": [6],
    "data/*": [2, 3],
    "data/**": [2, 3, 4, 5],
    "data/**/*.parquet": [2, 3, 4, 5],
    "data/**/train-*": [2, 3, 4, 5],
    "**/*.parquet": [0, 1, 2, 3, 4, 5, 7],
    "**/train*": [0, 2, 3, 4, 5, 7],
    "**/en/**": [4, 5],
    "**": [0, 1, 2, 3, 4, 5, 7],
    "*/train-0.parquet": [2, 7],
    "*": [0, 1],
    "data": [],
    "data/": [],
    "Data/*": [],
    "*.{parquet,csv}": [],
}


@pytest.mark.parametrize("pattern", FOUND)
def test_patterns(pattern: str) -> None:
    assert [i for i, path in enumerate(PATHS) if matches(path, pattern)] == FOUND[pattern]


def test_a_pattern_that_means_nothing() -> None:
    with pytest.raises(CorpusError, match=r"'data/\*\*\.parquet'.*a part of a name.*'\*\*/\*"):
        matches("data/x.parquet", "data/**.parquet")


def card(*entries: tuple[str, Any], more: str = "") -> str:
    lines = [f"  - split: {split}\n    path: {path}\n" for split, path in entries]
    return f"---\nconfigs:\n- config_name: default\n  data_files:\n{''.join(lines)}{more}---\n"


def splits_of(source: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for run in open_corpus(source).runs(source):
        found.setdefault(run.split, []).append(run.base)
    return found


def test_a_file_of_two_splits_is_refused(tmp_path: Path, run: Run) -> None:
    for name in ("train-0", "train-1"):
        table(tmp_path / "in" / f"{name}.parquet", name)
    write(tmp_path / "in/README.md", card(("train", "train-*"), ("test", "'*-1.parquet'")))
    code, _, err = run("pack", "in", "out", "--to", "npy")
    assert code == 2
    assert err == (
        "shardkit: error: README.md of in gives train-1.parquet to 2 splits, 'train' and 'test';"
        " change its patterns, so that each file is of one split\n"
    )


@pytest.mark.parametrize("folders", [False, True])
def test_files_that_a_card_does_not_name_are_said(tmp_path: Path, run: Run, folders: bool) -> None:
    slash = "/" if folders else "-"
    for name in ("train/0", "train/old", "test/0"):
        table(tmp_path / "in" / f"{name.replace('/', slash)}.parquet", name)
    named = [(split, f"{split}{slash}0.parquet") for split in ("train", "test")]
    write(tmp_path / "in/README.md", card(*named))
    code, out, _ = run("pack", "in", "out", "--to", "npy")
    assert code == 0
    assert f"left out: 1 file not in README.md: train{slash}old.parquet" in out
    assert "files passed over: 1 .md, 1 .parquet" in out
    ds = shardkit.open("out", split="train")
    assert [sample["txt"] for sample in ds] == ["train/0"]
    assert ds.keys()[0].startswith("0.parquet/" if folders else "train-0.parquet/")


def test_a_card_may_say_other_splits_than_the_folders(tmp_path: Path) -> None:
    for name in ("train/a", "train/b", "test/c"):
        table(tmp_path / f"{name}.parquet", name)
    write(tmp_path / "README.md", card(("train", "train/a*"), ("dev", "'*/[bc]*'")))
    assert splits_of(tmp_path) == {
        "dev": ["test/c.parquet", "train/b.parquet"],
        "train": ["train/a.parquet"],
    }


def test_lists_of_paths_and_folders_of_data(tmp_path: Path) -> None:
    for name in ("x/a", "x/b", "x/c/d"):
        table(tmp_path / f"{name}.parquet", name)
    more = "  data_dir: x\n"
    write(tmp_path / "README.md", card(("train", "[a.parquet, b*]"), ("t", "c/**"), more=more))
    assert splits_of(tmp_path) == {
        "t": ["x/c/d.parquet"],
        "train": ["x/a.parquet", "x/b.parquet"],
    }


def test_patterns_without_a_split_are_train(tmp_path: Path) -> None:
    for name in ("train", "test"):
        table(tmp_path / f"{name}.parquet", name)
    write(tmp_path / "README.md", "---\nconfigs:\n- data_files: '*.parquet'\n---\n")
    assert splits_of(tmp_path) == {"train": ["test.parquet", "train.parquet"]}
    assert "test.parquet is of split train by README.md" in open_corpus(tmp_path).notes


def test_files_that_a_card_names_and_that_are_not_there(tmp_path: Path) -> None:
    table(tmp_path / "data/a.parquet", "a")
    entries = [("train", "data/a.parquet"), ("test", "data/b.parquet"), ("dev", "data/dev-*")]
    write(tmp_path / "README.md", card(*entries))
    for source in (tmp_path, tmp_path / "data"):
        with pytest.raises(CorpusError, match=r"lacks 1 file that README.md names: data/b.parq"):
            open_corpus(source)
    table(tmp_path / "data/b.parquet", "b")
    assert "split 'dev' of README.md has no file here" in open_corpus(tmp_path).notes


def test_a_card_that_names_no_file_of_these(tmp_path: Path) -> None:
    for name in ("train", "test"):
        table(tmp_path / f"{name}.parquet", name)
    write(tmp_path / "README.md", card(("train", "train.csv"), ("test", "test.csv")))
    assert splits_of(tmp_path) == {"test": ["test.parquet"], "train": ["train.parquet"]}
    assert "README.md names no file here, so that it tells no splits" in open_corpus(tmp_path).notes


def test_configurations_that_split_the_same_files_otherwise(tmp_path: Path) -> None:
    for name in ("a", "b"):
        table(tmp_path / f"{name}.parquet", name)
    entries = "---\nconfigs:\n"
    for name, splits in (("one", "ab"), ("two", "cd")):
        paths = [f"{{split: {s}, path: {p}.parquet}}" for s, p in zip(splits, "ab", strict=True)]
        entries += f"- config_name: {name}\n  data_files: [{', '.join(paths)}]\n"
    write(tmp_path / "README.md", entries + "---\n")
    with pytest.raises(CorpusError, match=r"holds 2 configurations.*by its README\.md: one "):
        open_corpus(tmp_path)
    write(tmp_path / "README.md", entries + "  default: true\n---\n")
    assert splits_of(tmp_path) == {"c": ["a.parquet"], "d": ["b.parquet"]}


def test_a_split_that_cannot_be_a_folder(tmp_path: Path) -> None:
    table(tmp_path / "a.parquet", "a")
    write(tmp_path / "README.md", card(("'a/b'", "a.parquet")))
    with pytest.raises(CorpusError, match="has a split 'a/b', which cannot be the name"):
        open_corpus(tmp_path)


def test_without_fsspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.utils", None)
    with pytest.raises(CorpusError, match=r"need fsspec 2023\.12\.2 or newer: pip install"):
        matches("a.parquet", "never/seen/*")
    assert matches("a.parquet", "a.parquet")


@pytest.mark.parametrize("pattern", ["*a" * 14 + "b.parquet", "**/a/" * 10 + "b.parquet"])
def test_patterns_that_would_take_hours_are_refused(pattern: str) -> None:
    with pytest.raises(CorpusError, match="of more than 4 stars, which takes too long"):
        matches("a" * 60 + ".parquet", pattern)
    assert matches("x/a.parquet", "**/" * 20 + "*.parquet")


@pytest.mark.parametrize("paths", [[["a"]], {"a": 1}, [None]])
def test_what_is_no_path_in_a_card_names_no_file(paths: Any) -> None:
    (config,) = configs_of_card({"configs": [{"data_files": [{"split": "test", "path": paths}]}]})
    assert config.patterns == ()
