"""Folders that Hugging Face ``datasets`` saved, as a corpus."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import CONTAINERS, Run, nothing_left_open, write
from tables import arrow_stream, save, save_dict, state
from test_corpus_files import read_all
from test_corpus_parquet import texts_of

import shardkit
from shardkit.errors import CorpusError, FormatError
from shardkit.inputs.detect import detect
from shardkit.inputs.open import open_corpus

TEXTS = [f"row {i} é" for i in range(50)]
OPTIONS = {"workers": 0, "progress": False}


def test_one_dataset(tmp_path: Path) -> None:
    save(tmp_path, [TEXTS[:30], TEXTS[30:]])
    assert detect(tmp_path) == "hf"
    corpus = open_corpus(tmp_path)
    assert corpus.spec() == {"kind": "hf", "text_field": "text"}
    found = read_all(corpus, tmp_path / "scratch")
    assert list(found) == ["train"]
    assert found["train"].columns["txt"] == [text.encode() for text in TEXTS]
    assert found["train"].keys[30] == b"data-00001-of-00002.arrow/000000000000"
    assert found["train"].paths[30] == b"+.txt"


@pytest.mark.parametrize(
    ("saved", "split"), [("test", "test"), (None, "train"), ("train[:10%]", "train")]
)
def test_the_split_it_was_saved_of(tmp_path: Path, saved: str | None, split: str) -> None:
    save(tmp_path, [TEXTS], _split=saved)
    assert open_corpus(tmp_path).splits() == [split]


@pytest.mark.parametrize("to", CONTAINERS)
def test_several_splits(tmp_path: Path, to: str) -> None:
    source = save_dict(tmp_path / "in", {"train": [TEXTS[:20], TEXTS[20:]], "test_sft": [["e"]]})
    assert detect(source) == "hf"
    packed = shardkit.pack(source, tmp_path / "out", to=to, shard_size="100B", workers=2)
    assert packed.splits == {"train": 50, "test_sft": 1}
    assert texts_of(tmp_path / "out", "train") == [text.encode() for text in TEXTS]
    checked = shardkit.verify(tmp_path / "out", against=source)
    assert checked.ok and checked.num_compared == 51


def test_rows_in_any_order(tmp_path: Path) -> None:
    corpus = open_corpus(save(tmp_path, [TEXTS]))
    runs = [run.slice(i, i + 1) for run in corpus.runs(tmp_path) for i in range(len(run))]
    for row in (49, 0, 20, 21, 3):
        with nothing_left_open():
            held = corpus.read(runs[row], tmp_path)
        assert held.columns == {"txt": [TEXTS[row].encode()]}


def test_null_is_a_reject(tmp_path: Path) -> None:
    (batch,) = read_all(open_corpus(save(tmp_path, [["a", None]])), tmp_path).values()
    assert batch.rejects == [("data-00000-of-00001.arrow at row 1", "column 'text' is null")]


def test_dictionaries_and_compression(tmp_path: Path) -> None:
    table = pa.table({"text": pa.array(["a", "b", "a"]).dictionary_encode(), "n": [1, 2, 3]})
    out = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(out, table.schema, options=options) as stream:
        stream.write_table(table)
    save(tmp_path, [["x"]])
    write(tmp_path / "data-00000-of-00001.arrow", out.getvalue().to_pybytes())
    (batch,) = read_all(open_corpus(tmp_path), tmp_path / "scratch").values()
    assert batch.columns["txt"] == [b"a", b"b", b"a"]


# --- what is wrong ------------------------------------------------------------------------


def test_a_saved_selection_is_refused(tmp_path: Path, run: Run) -> None:
    save(tmp_path / "in", [TEXTS], _indices_data_files=[{"filename": "indices.arrow"}])
    code, _, err = run("pack", "in", "out", "--to", "npy")
    assert code == 1 and err.count("\n") == 1
    assert "(_indices_data_files), which shardkit does not read; load it and save" in err


@pytest.mark.parametrize("name", ["../x.arrow", "/etc/passwd", "..", "", "a/b.arrow", "a\0", 7])
def test_names_that_leave_the_folder(tmp_path: Path, name: str) -> None:
    save(tmp_path, [TEXTS])
    write(tmp_path / "state.json", state([name]))
    with pytest.raises(FormatError, match="which is no file beside it"):
        open_corpus(tmp_path)


@pytest.mark.parametrize("splits", ["train", [".."], ["a/b"], [7], None, [[]]])
def test_splits_that_are_no_folders(tmp_path: Path, splits: object) -> None:
    write(tmp_path / "dataset_dict.json", json.dumps({"splits": splits}))
    with pytest.raises(FormatError, match="names no splits, or one that cannot be a folder"):
        open_corpus(tmp_path)


@pytest.mark.parametrize("data", ["", "[]", "{", "[" * 100_000, b"\xff"])
def test_a_damaged_state(tmp_path: Path, data: str | bytes) -> None:
    save(tmp_path, [TEXTS])
    write(tmp_path / "state.json", data)
    with pytest.raises(FormatError, match=r"state\.json is damaged: .*; save the dataset again"):
        open_corpus(tmp_path)


@pytest.mark.parametrize("how", ["empty", "cut", "head", "offsets", "file format"])
def test_a_damaged_file(tmp_path: Path, run: Run, how: str) -> None:
    table = pa.table({"text": TEXTS})
    good = arrow_stream(table, 10)
    at = good.index(b"row 0")
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, table.schema) as file:
        file.write_table(table)
    data = {
        "empty": b"",
        "cut": good[: len(good) // 2],
        "head": b"\xff" * 20 + good[20:],
        # Those of the first batch lie before its data: the last of eleven is made huge.
        "offsets": good[: at - 20] + b"\xff\xff\xff\x7f" * 5 + good[at:],
        "file format": out.getvalue().to_pybytes(),
    }[how]
    save(tmp_path / "in", [["good"], ["x"]])
    bad = tmp_path / "in" / "data-00001-of-00002.arrow"
    write(bad, data)
    code, _, err = run("pack", "in", "out", "--to", "npy", "--workers", 0)
    assert code == 1 and err.count("\n") == 1
    assert err.startswith("shardkit: error: data-00001-of-00002.arrow")
    skip = ["--on-error", "skip", "--max-rejects", "1", "--overwrite"]
    code, _, err = run("pack", "in", "out", "--to", "npy", "--workers", 0, *skip)
    assert (code, err) == (0, "")
    assert texts_of(tmp_path / "out")[0] == b"good"


def test_a_folder_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no rows of hf in"):
        list(open_corpus(tmp_path, "hf").runs(tmp_path))
