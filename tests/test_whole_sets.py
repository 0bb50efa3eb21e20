"""Parts of datasets that look whole, and several datasets that look like one."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from array_files import IMAGES, LABELS, folder
from conftest import Run, write
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from tables import save, save_dict, state
from test_tfrecord import imagenet
from tf_records import records

import shardkit
from shardkit.errors import CorpusError
from shardkit.inputs.open import open_corpus
from shardkit.inputs.whole_sets import notes_on_splits
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
        (["0/x-00000-of-00002.p", "1/x-00001-of-00002.p"], []),  # spread over folders
        (["d/0/x-00000-of-00003.p", "d/1/x-00001-of-00003.p"], ["d/*/x-00002-of-00003.p"]),
        (
            ["0/x-00000-of-00002.p", "1/x-00000-of-00002.p"],
            ["0/x-00001-of-00002.p", "1/x-00001-of-00002.p"],
        ),
        (
            ["train/x-00000-of-00002.p", "val/x-00001-of-00002.p"],
            ["train/x-00001-of-00002.p", "val/x-00000-of-00002.p"],
        ),
        (
            ["d/0/x-00000-of-00002.p", "e/1/x-00001-of-00002.p"],
            ["d/0/x-00001-of-00002.p", "e/1/x-00000-of-00002.p"],
        ),
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
    assert "train-00001-of-00003.parquet; fetch it, or" in err
    one = tmp_path / "in" / "train-00000-of-00003.parquet"
    assert shardkit.pack(one, tmp_path / "one", to="npy", **OPTIONS).num_samples == 1
    table(tmp_path / "in" / "train-00001-of-00003.parquet", "b")
    assert shardkit.pack("in", tmp_path / "all", to="npy", **OPTIONS).num_samples == 3


@pytest.mark.parametrize("folder_", ["", "train/", "parts/train-data/"])
def test_a_set_of_tables_in_a_folder_that_lacks_some(tmp_path: Path, folder_: str) -> None:
    table(tmp_path / f"{folder_}x-00000-of-00002.parquet", "a")
    table(tmp_path / "test/y-00000-of-00001.parquet", "b")
    with pytest.raises(CorpusError, match=f"lacks 1 file that .*: {folder_}x-00001-of-00002.parq"):
        open_corpus(tmp_path)


def test_a_set_of_tables_spread_over_folders(tmp_path: Path) -> None:
    for number in range(3):
        table(tmp_path / f"part{number}" / f"x-0000{number}-of-00003.parquet", f"{number}")
    assert sum(len(run) for run in open_corpus(tmp_path).runs(tmp_path)) == 3
    (tmp_path / "part1/x-00001-of-00003.parquet").unlink()
    with pytest.raises(CorpusError, match=r"lacks 1 file that .*: \*/x-00001-of-00003\.parquet;"):
        open_corpus(tmp_path)


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".ndjson.zst"])
@pytest.mark.parametrize("folder_", ["", "train/"])
def test_a_set_of_lines_that_lacks_some_is_refused(
    tmp_path: Path, run: Run, ending: str, folder_: str
) -> None:
    line = b'{"text": "a"}\n'
    packed = {".gz": gzip.compress, ".zst": zstandard.compress}.get(Path(ending).suffix, bytes)
    for number in (0, 2):
        write(tmp_path / "in" / f"{folder_}x-0000{number}-of-00003{ending}", packed(line))
    code, _, err = run("pack", "in", "out", "--to", "npy")
    assert code == 2
    assert err.startswith(
        "shardkit: error: in lacks 1 file that the names of the others tell of:"
        f" {folder_}x-00001-of-00003{ending}; fetch it, or, if the rest alone is meant, give it"
    )
    one = tmp_path / "in" / f"{folder_}x-00000-of-00003{ending}"
    assert shardkit.pack(one, tmp_path / "one", to="npy", **OPTIONS).num_samples == 1
    write(tmp_path / "in" / f"{folder_}x-00001-of-00003{ending}", packed(line))
    assert shardkit.pack("in", tmp_path / "all", to="npy", **OPTIONS).num_samples == 3


def test_a_saved_dataset_that_lacks_a_file_is_refused(tmp_path: Path) -> None:
    save_dict(tmp_path, {"train": [["a"], ["b"], ["c"]], "test": [["d"]]})
    (tmp_path / "train/data-00001-of-00003.arrow").unlink()
    with pytest.raises(CorpusError, match=r"train lacks 1 file .*: data-00001-of-00003\.arrow;"):
        open_corpus(tmp_path)


def test_a_saved_dataset_whose_state_forgets_a_file_is_refused(tmp_path: Path) -> None:
    save(tmp_path, [["a"], ["b"]])
    write(tmp_path / "state.json", state(["data-00000-of-00002.arrow"]))
    with pytest.raises(CorpusError, match=r"lacks 1 file .*: data-00001-of-00002\.arrow;"):
        open_corpus(tmp_path)


def test_tables_of_an_older_saved_dataset_are_said(tmp_path: Path, run: Run) -> None:
    save(tmp_path / "in", [["a"], ["b"], ["c"]])
    save(tmp_path / "in", [["d"]])
    code, out, _ = run("pack", "in", "out", "--to", "npy")
    assert code == 0 and "files passed over: 3 .arrow" in out
    assert (
        "left out: 3 files not in state.json: data-00000-of-00003.arrow,"
        " data-00001-of-00003.arrow, data-00002-of-00003.arrow" in out
    )


def test_a_set_of_records_that_lacks_some_is_refused(tmp_path: Path) -> None:
    source = records(tmp_path / "in" / "x.tfrecord-00000-of-00010", [imagenet(1)])
    with pytest.raises(CorpusError, match=r"lacks 9 files that .*x\.tfrecord-00001-of-00010, "):
        open_corpus(tmp_path / "in")
    path = tmp_path / "in" / "x.tfrecord-00000-of-00010"
    assert len([*open_corpus(path).runs(tmp_path)]) == 1, source


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
