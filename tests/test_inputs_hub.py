"""Files of tables in splits: by names, by the card of a hub dataset; and the recipes for tables."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import write
from pyarrow import csv, feather
from tables import parquet

import shardkit
from shardkit.errors import CorpusError
from shardkit.inputs.corpus import Look
from shardkit.inputs.detection import open_corpus
from shardkit.inputs.sample_files import splits_of_paths
from shardkit.inputs.tables.tabular import SavedCorpus
from shardkit.samples.numbered_files import missing_files

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False}


def tables(root: Path, *names: str, card: str = "") -> Path:
    for name in names:
        write(root / f"{name}.parquet", parquet([name]))
    write(root / "README.md", card)
    return root


def splits_of(source: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for run in open_corpus(source).runs(source):
        found.setdefault(run.split, []).append(run.base.removesuffix(".parquet"))
    return found


# --- by names -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train.parquet", "data/val-1.parquet"], ["train", "val"]),
        (["train.parquet", "other.parquet"], ["train", "train"]),
        (["x/train/0000.parquet", "x/partial-test/0000.parquet"], ["train", "test"]),
        (["test/train-0.parquet", "test/val/x.parquet"], ["train", "val"]),
        (["x/test-00000-of-00001.p", "x/extra-00000-of-00001.p"], ["test", "extra"]),
        (["train_sft-00000-of-00001.p", "train_gen-0.p"], ["train_sft", "train"]),
        (["a/part-0.parquet", "b/part-0.parquet"], ["train", "train"]),
        (["test.parquet", "other.parquet"], "of a split by its name, and other.parquet names none"),
        (["en/train-0.parquet", "de/train-0.parquet"], "are of one split in configurations"),
    ],
)
def test_names_tell_the_splits(names: list[str], splits: list[str] | str) -> None:
    if isinstance(splits, list):
        assert splits_of_paths(names, Path("in")) == splits
        return
    with pytest.raises(CorpusError, match=splits):
        splits_of_paths(names, Path("in"))


def test_folders_and_names_on_disk(tmp_path: Path) -> None:
    names = [f"data/{name}" for name in ("train-00000-of-00002", "train-00001-of-00002", "val")]
    hub = tables(tmp_path / "a", *names)
    assert splits_of(hub) == {"train": names[:2], "val": names[2:]}
    assert splits_of(tables(tmp_path / "b", "train/x/a", "test/test-0"))["test"] == ["test/test-0"]
    assert SavedCorpus.claim(Look(hub)) is None


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (["_delta_log/0.json"], "its log, _delta_log, says which files it has"),
        ([".hoodie/x"], r"its log, \.hoodie"),
        (["train/_delta_log/0.json"], "in/train is no table that can be read file by file"),
        (["year=2023/a.parquet"], "year=2023 is no table .*: a column is in names of folders"),
        (["train.parquet", "train-00000-of-00001.parquet"], "are not of one set"),
        (["train-00000-of-00002.parquet"], r"lacks 1 file that .*train-00001-of-00002\.parquet"),
    ],
)
def test_tables_that_are_not_what_they_seem(tmp_path: Path, names: list[str], what: str) -> None:
    for name in ("train/old.parquet", *names):
        write(tmp_path / "in" / name, parquet(["x"]))
    with pytest.raises(CorpusError, match=what):
        open_corpus(tmp_path / "in", "parquet")
    if "year" in what:
        assert open_corpus(tmp_path / "in", "parquet", fields=["text"]).splits() == ["train"]


@pytest.mark.parametrize(
    ("paths", "missing"),
    [
        (["a/x-00001-of-00002.parquet"], ["a/x-00000-of-00002.parquet"]),
        (["x-00001-of-00002", "x-00002-of-00002"], []),  # these count from 1
        (["a/x-00000-of-00001", "b/x-00000-of-00001", "0000.parquet", "2-of-3"], []),
        (["x-00000-of-00003-a.p", "x-00002-of-00003-b.p"], ["x-00001-of-00003*"]),
        (["d/0/x-00000-of-00003.p", "d/1/x-00001-of-00003.p"], ["d/*/x-00002-of-00003.p"]),
        (
            ["train/x-00000-of-00002.p", "val/x-00001-of-00002.p"],
            ["train/x-00001-of-00002.p", "val/x-00000-of-00002.p"],
        ),
    ],
)
def test_missing_files(paths: list[str], missing: list[str]) -> None:
    assert missing_files(paths) == missing


# --- with a card --------------------------------------------------------------------------


def card(*splits: str, more: str = "") -> str:
    files = "".join(f"  - split: {split}\n    path: data/{split}-*\n" for split in splits)
    return f"---\nconfigs:\n- config_name: default\n  data_files:\n{files}{more}---\n# Texts\n"


EN = "- config_name: en\n  data_files: en.parquet\n"
SFT = ("train_sft", "train_gen")


@pytest.mark.parametrize(
    ("names", "head", "what"),
    [
        ([f"data/{split}-00000-of-00001" for split in SFT], card(*SFT), []),
        (["train"], card("train", more="dtype: {class_label: {}}\n"), ["README.md names classes"]),
        (["train", "val", "validation"], "", ["'val' and 'validation' are two splits"]),
        (["a"], card("held"), "has splits held, and files are of train by name; load it with"),
        (["train", "de"], card("train", more=EN), "has 2 configurations; load it with datasets"),
    ],
)
def test_a_card_of_other_splits(
    tmp_path: Path, names: list[str], head: str, what: list[str] | str
) -> None:
    source = tables(tmp_path, *names, card=head)
    if isinstance(what, str):
        with pytest.raises(CorpusError, match=what):
            open_corpus(source)
        return
    corpus = open_corpus(source)
    assert len(corpus.notes) == len(what)
    assert all(note.startswith(start) for note, start in zip(corpus.notes, what, strict=True))
    assert corpus.splits() == [*SFT[::-1]] or head != card(*SFT)


# --- recipes ------------------------------------------------------------------------------

csv.read_csv(io.BytesIO(b"a\n1\n"))  # pyarrow opens a pipe for signals, once in a process

PAGE = (Path(__file__).parents[1] / "docs" / "recipes" / "tables.md").read_text("utf-8")
RECIPES = {
    part.partition("\n")[0]: re.findall(r"```python\n(.*?)```", part, re.DOTALL)[0]
    for part in PAGE.split("\n## ")[1:]
}


def delta() -> None:
    held = SimpleNamespace(to_pyarrow_table=lambda: pa.table({"text": ["new"], "n": [1]}))
    sys.modules["deltalake"] = SimpleNamespace(DeltaTable=lambda path: held)  # type: ignore[assignment]


def arrow() -> None:
    feather.write_feather(pa.table({"text": ["a"], "label": [1]}), "table.arrow")


PIXELS = "label," + ",".join(f"pixel{i}" for i in range(784)) + "\n"
PARAGRAPH = {"context": "c", "qas": [{"id": "1", "question": "q", "answers": []}] * 2}
MADE: dict[str, tuple[Any, str, list[dict[str, Any]]]] = {
    "CSV, TSV": (
        {"ag_news_csv/train.csv": '"1","a","b"\n', "ag_news_csv/test.csv": '"3","A, b","test"\n'},
        "ag_news/test",
        [{"cls": 3, "title.txt": "A, b", "txt": "test"}],
    ),
    "Text labels become classes": (
        {"reviews/train.parquet": parquet(["a", "b"], category=["dog", "cat"])},
        "reviews_lmdb/train",
        [{"txt": "a", "cls": 1}, {"txt": "b", "cls": 0}],
    ),
    "Splits of other columns": (
        {
            "contest/train.parquet": parquet(["a"], label=[1]),
            "contest/test.parquet": parquet(["b"], id=[7]),
        },
        "contest_npy/test",
        [{"txt": "b", "id.npy": 7}],
    ),
    "Rows that name files": (
        {
            "cv-corpus/en/clips/1.mp3": b"ID3\x01",
            "cv-corpus/en/train.tsv": 'client_id\tpath\tsentence\nme\t1.mp3\t"NA\n',
        },
        "common_voice/train",
        [{"mp3": b"ID3\x01", "txt": '"NA'}],
    ),
    "Partitioned tables: folders called key=value": (
        {f"events/year={y}/part-0.parquet": parquet([f"in {y}"]) for y in (2023, 2024)},
        "events_npy/train",
        [{"txt": "in 2023", "year.npy": 2023}, {"txt": "in 2024", "year.npy": 2024}],
    ),
    "Delta Lake, Iceberg, Hudi": (delta, "sales_npy/train", [{"txt": "new"}]),
    "CSV of pixels": ({"digits.csv": PIXELS + ("7" + ",5" * 784 + "\n") * 2}, "", []),
    "One JSON document": (
        {"train-v2.0.json": json.dumps({"data": [{"paragraphs": [PARAGRAPH]}]})},
        "squad/train",
        [{"json": {"context": "c", "id": "1", "question": "q", "answers": []}}] * 2,
    ),
    "Parallel text": (
        {"wmt/train.en": "one\u2028more\ntwo\n", "wmt/train.de": "eins\nzwei\n"},
        "wmt_npy/train",
        [{"en.txt": "one\u2028more", "de.txt": "eins"}, {"en.txt": "two", "de.txt": "zwei"}],
    ),
    "Arrow and Feather files": (arrow, "table_npy/train", [{"txt": "a", "cls": 1}]),
}


@pytest.mark.parametrize("title", [title for title in RECIPES if "hub dataset" not in title])
def test_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, title: str) -> None:
    made, dest, expected = MADE[title]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    for name, data in made.items() if isinstance(made, dict) else made() or ():
        write(Path(name), data)
    assert len(RECIPES[title].splitlines()) <= 16
    exec(RECIPES[title], {"__name__": "recipe"})
    if title == "CSV of pixels":
        held = np.load(io.BytesIO(Path("digits.npz").read_bytes()))
        assert held["images"].shape == (2, 28, 28) and held["labels"].tolist() == [7, 7]
        return
    ds = shardkit.open(Path(dest).parent, split=Path(dest).name)
    for row, wanted in zip(ds, expected, strict=True):
        assert {name: row[name] for name in wanted} == wanted
    assert ds.classes == (["cat", "dog"] if "reviews" in dest else None)
