"""Parquet files as a corpus: one column of text."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import CONTAINERS, Run, nothing_left_open, tree, write
from forked_workers import workers_for
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet as pq
from tables import parquet
from test_corpus_files import read_all

import shardkit
from shardkit.errors import CorpusError, SampleError
from shardkit.inputs.detect import detect
from shardkit.inputs.kinds import from_spec
from shardkit.inputs.open import open_corpus
from shardkit.inputs.tables import parquet as parquet_module
from shardkit.inputs.tables.column_plan import choose_column
from shardkit.inputs.tables.table_splits import splits_of_paths

OPTIONS = {"workers": 0, "progress": False}
TEXTS = [f"row {i} é\r\n" * (i % 5) for i in range(50)]


def texts_of(folder: Path, split: str | None = None) -> list[bytes]:
    ds = shardkit.open(folder, split=split, decode=False)
    return [bytes(text) for text in ds.read(range(len(ds)))["txt"]]


# --- what is read -------------------------------------------------------------------------


@pytest.mark.parametrize("group", [1000, 7, 1])
def test_rows_are_samples(tmp_path: Path, group: int) -> None:
    write(tmp_path / "a.parquet", parquet(TEXTS, group=group))
    corpus = open_corpus(tmp_path)
    assert corpus.spec() == {"kind": "parquet", "text_field": "text"}
    (batch,) = read_all(corpus, tmp_path / "scratch").values()
    assert batch.columns == {"txt": [text.encode() for text in TEXTS]}
    assert batch.keys[12] == b"a.parquet/000000000012"
    assert batch.paths[12] == b"+.txt"


def test_no_file_stays_open(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", parquet(TEXTS, group=7))
    corpus = open_corpus(tmp_path)
    (run, *_) = corpus.runs(tmp_path)
    with nothing_left_open():
        assert len(corpus.read(run.slice(2, 4), tmp_path)) == 2
    assert len(corpus.read(run.slice(4, 7), tmp_path)) == 3


def test_one_file(tmp_path: Path) -> None:
    source = write(tmp_path / "a.parquet", parquet(TEXTS))
    assert detect(source) == "parquet"
    (batch,) = read_all(open_corpus(source), tmp_path / "scratch").values()
    assert batch.keys[0] == b"a.parquet/000000000000" and len(batch) == 50


@pytest.mark.parametrize(
    "held",
    [
        pa.array(["ä", "", "b"], pa.large_string()),
        pa.array(["ä".encode(), b"", b"b"], pa.binary()),
        pa.array(["ä".encode(), b"", b"b"], pa.large_binary()),
        pa.array(["ä", "", "b"]).dictionary_encode(),
    ],
    ids=lambda held: str(held.type)[:12],
)
def test_every_type_of_text(tmp_path: Path, held: pa.Array) -> None:
    write(tmp_path / "a.parquet", parquet(held))
    (batch,) = read_all(open_corpus(tmp_path, text_field="text"), tmp_path).values()
    assert batch.columns["txt"] == ["ä".encode(), b"", b"b"]


@given(st.lists(st.binary(max_size=9)), st.integers(1, 9), st.integers(1, 40), st.data())
def test_any_rows_in_any_order(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[bytes],
    group: int,
    batch_bytes: int,
    data: st.DataObject,
) -> None:
    """Whatever is asked for after what, as when a pack is shuffled or resumed."""
    folder = tmp_path_factory.mktemp("any")
    write(folder / "a.parquet", parquet(pa.array(texts, pa.binary()), group=group))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_module, "BATCH_BYTES", batch_bytes)
        corpus = from_spec(folder, {"kind": "parquet", "text_field": "text"})
        runs = list(corpus.runs(folder)) if texts else []
        assert sum(map(len, runs)) == len(texts)
        for run in runs:
            for start in data.draw(st.lists(st.integers(0, len(run)), max_size=5)):
                stop = data.draw(st.integers(start, len(run)))
                batch = corpus.read(run.slice(start, stop), folder)
                rows = [int(locator) for locator in run.locators[start:stop]]
                assert batch.columns.get("txt", []) == [texts[row] for row in rows]


def test_a_row_that_is_null_is_a_reject(tmp_path: Path) -> None:
    source = write(tmp_path / "in" / "a.parquet", parquet(["x", None, "y"])).parent
    with pytest.raises(SampleError, match=r"^a\.parquet at row 1: column 'text' is null; pass"):
        shardkit.pack(source, tmp_path / "out", to="npy", **OPTIONS)
    shardkit.pack(source, tmp_path / "out", to="npy", on_error="skip", max_rejects=0.5, **OPTIONS)
    assert texts_of(tmp_path / "out") == [b"x", b"y"]
    assert shardkit.verify(tmp_path / "out", against=source).ok


# --- which column -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "wanted", "chosen"),
    [
        ({"id": "string", "text": "string"}, None, "text"),
        ({"id": "int64", "body": "large_string"}, None, "body"),
        ({"text": "binary", "id": "string"}, None, "text"),
        ({"id": "string", "text": "string"}, "id", "id"),
        ({"raw": "binary"}, "raw", "raw"),
    ],
)
def test_the_column(columns: dict[str, str], wanted: str | None, chosen: str) -> None:
    assert choose_column(columns, wanted, "x") == chosen


@pytest.mark.parametrize(
    ("columns", "wanted", "what"),
    [
        (
            {"a": "string", "n": "int64", "b": "string"},
            None,
            "x has several columns of strings: 'a', 'b'; pass --text-field",
        ),
        (
            {"n": "int64", "text": "list<element: string>"},
            None,
            "x has columns 'n' (int64), 'text' (list<element: string>): none holds strings, so"
            " there is no text",
        ),
        ({}, None, "x has no columns: none holds strings, so there is no text"),
        ({"n": "int64"}, "n", "x has columns 'n' (int64): column 'n' is int64, expected strings"),
        ({"a": "string"}, "b", "x has columns 'a' (string): column 'b' is not there"),
    ],
)
def test_no_column(columns: dict[str, str], wanted: str | None, what: str) -> None:
    with pytest.raises(CorpusError) as caught:
        choose_column(columns, wanted, "x")
    assert str(caught.value) == what


def test_a_file_without_the_column_is_a_reject(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", parquet(["x"]))
    write(tmp_path / "b.parquet", parquet(["y"], "other"))
    (batch,) = read_all(open_corpus(tmp_path), tmp_path / "scratch").values()
    assert batch.rejects == [
        ("b.parquet", "has columns 'other' (string): column 'text' is not there")
    ]


def test_a_wrong_column_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.parquet", parquet(["x"]))
    with pytest.raises(CorpusError, match="'body' is not there"):
        shardkit.pack(tmp_path / "in", tmp_path / "out", to="npy", text_field="body", **OPTIONS)


# --- splits -------------------------------------------------------------------------------


def test_splits_by_folder(tmp_path: Path) -> None:
    write(tmp_path / "train/x/a.parquet", parquet(["t"]))
    write(tmp_path / "test/test-0.parquet", parquet(["e"]))
    found = read_all(open_corpus(tmp_path), tmp_path / "scratch")
    assert {split: batch.keys for split, batch in found.items()} == {
        "test": [b"test-0.parquet/000000000000"],
        "train": [b"x/a.parquet/000000000000"],
    }


def test_splits_by_name_as_on_the_hub(tmp_path: Path) -> None:
    names = ["train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001", "test.x"]
    for name in names:
        write(tmp_path / "in/data" / f"{name}.parquet", parquet([name]))
    write(tmp_path / "in/README.md", "# card")
    packed = shardkit.pack(tmp_path / "in", tmp_path / "out", to="npy", **OPTIONS)
    assert packed.splits == {"train": 2, "test": 1, "validation": 1}
    assert packed.ignored == {".md": 1}
    assert texts_of(tmp_path / "out", "train") == [name.encode() for name in names[:2]]
    assert open_corpus(tmp_path / "in").splits() == ["test", "train", "validation"]


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train.parquet", "data/val-1.parquet"], ["train", "val"]),
        (["validation_0.parquet"], ["validation"]),
        (["train.parquet", "other.parquet"], ["train", "train"]),
        (["training-0.parquet"], ["train"]),
        (["my-train-0.parquet"], ["train"]),
        (["part-00000-of-00002.parquet", "part-00001-of-00002.parquet"], ["train", "train"]),
        (["x/train/0000.parquet", "x/partial-test/0000.parquet"], ["train", "test"]),
        (["test/train-0.parquet"], ["train"]),
        (
            [f"x/{name}-00000-of-00001.parquet" for name in ("test", "train", "unsupervised")],
            ["test", "train", "unsupervised"],
        ),
    ],
)
def test_split_names(names: list[str], splits: list[str]) -> None:
    assert splits_of_paths(names, Path("in")) == splits


@pytest.mark.parametrize(
    ("log", "reader"),
    [
        ("_delta_log/00000000000000000000.json", "deltalake.DeltaTable('{}')"),
        ("metadata/v10.metadata.json", "from_metadata('{}/metadata/v10.metadata.json')"),
        (".hoodie/hoodie.properties", "from_base_uri('{}')"),
    ],
)
@pytest.mark.parametrize("above", ["", "train"])
def test_a_table_of_which_a_log_chooses_the_files_is_refused(
    log: str, reader: str, above: str, tmp_path: Path
) -> None:
    folder = tmp_path / "in" / above
    write(folder / "data/a.parquet", parquet(["old"]))
    write(folder / "data/b.parquet", parquet(["new"]))
    write(folder / log, "{}")
    if log.startswith("metadata"):
        write(folder / "metadata/v9.metadata.json", "{}")
    with pytest.raises(CorpusError, match="says which of the files there are part of it") as caught:
        open_corpus(tmp_path / "in", "parquet")
    assert reader.format(folder) in str(caught.value)


def test_a_file_of_no_split_is_not_mixed_with_those_of_some(tmp_path: Path) -> None:
    write(tmp_path / "in/test.parquet", parquet(["a"]))
    write(tmp_path / "in/other.parquet", parquet(["b"]))
    with pytest.raises(
        CorpusError, match=r"test\.parquet in .* is of split 'test' .* other\.parquet names"
    ):
        open_corpus(tmp_path / "in")


# --- packing ------------------------------------------------------------------------------


@pytest.mark.parametrize("to", CONTAINERS)
def test_packs_into_every_container(tmp_path: Path, to: str) -> None:
    source = tmp_path / "in"
    for i in range(3):
        write(source / f"part{i}.parquet", parquet(TEXTS[i * 10 :], group=11))
    trees = []
    for workers in (0, 2):
        dest = tmp_path / f"out{workers}"
        with workers_for(to):
            shardkit.pack(source, dest, to=to, shard_size="300B", workers=workers, progress=False)
        trees.append(tree(dest))
        checked = shardkit.verify(dest, against=source)
        assert checked.ok and checked.num_compared == 120
    assert trees[0] == trees[1]
    assert texts_of(tmp_path / "out0") == [t.encode() for i in range(3) for t in TEXTS[i * 10 :]]
    shardkit.unpack(tmp_path / "out0", tmp_path / "back")
    back = tree(tmp_path / "back")
    assert back["part2.parquet/000000000003.txt"] == TEXTS[23].encode()


def test_against_finds_what_changed(tmp_path: Path) -> None:
    source = write(tmp_path / "in" / "a.parquet", parquet(TEXTS)).parent
    shardkit.pack(source, tmp_path / "out", to="npy", **OPTIONS)
    write(source / "a.parquet", parquet([*TEXTS[:4], "other", *TEXTS[5:49]]))
    problems = shardkit.verify(tmp_path / "out", against=source).problems
    assert [str(p.what) for p in problems] == [
        "its txt differs from the original",
        f"has no original in {source}",
    ]


def test_shuffled(tmp_path: Path) -> None:
    source = write(tmp_path / "in" / "a.parquet", parquet(TEXTS, group=9)).parent
    options = {**OPTIONS, "shuffle": True, "shard_size": "200B", "val_fraction": 0.2}
    shardkit.pack(source, tmp_path / "out", to="npy", **options)
    held = texts_of(tmp_path / "out", "train") + texts_of(tmp_path / "out", "val")
    assert held != [t.encode() for t in TEXTS] and sorted(held) == sorted(map(str.encode, TEXTS))


# --- what is wrong ------------------------------------------------------------------------


def damage(data: bytes, how: str) -> bytes:
    middle = len(data) // 3
    return {
        "empty": b"",
        "cut": data[: len(data) // 2],
        "pages": data[:4] + b"\xff" * middle + data[4 + middle :],
        "footer": data[:-60] + b"\xff" * 40 + data[-20:],
        "other": b"version https://git-lfs.github.com/spec/v1\n",
    }[how]


@pytest.mark.parametrize("how", ["empty", "cut", "pages", "footer", "other"])
def test_a_damaged_file_is_named_in_one_line(tmp_path: Path, run: Run, how: str) -> None:
    whole = parquet([f"{i} {os.urandom(20).hex()}" for i in range(500)], group=100)
    write(tmp_path / "in" / "a.parquet", parquet(["good"]))
    write(tmp_path / "in" / "b.parquet", damage(whole, how))
    code, _, err = run("pack", "in", "out", "--to", "npy", "--workers", 0)
    assert code == 1
    assert err.startswith("shardkit: error: b.parquet")
    assert "is damaged: " in err and err.count("\n") == 1
    skip = ["--on-error", "skip", "--max-rejects", "1", "--overwrite"]
    code, _, err = run("pack", "in", "out", "--to", "npy", "--workers", 0, *skip)
    assert (code, err) == (0, "")
    assert texts_of(tmp_path / "out")[0] == b"good"


def test_a_damaged_group_costs_its_rows_only(tmp_path: Path) -> None:
    held = [f"{i:09d}" for i in range(40)]
    path = tmp_path / "a.parquet"
    plain: dict[str, Any] = {"compression": "NONE", "use_dictionary": False}
    pq.write_table(pa.table({"text": held}), path, row_group_size=10, **plain)
    data = path.read_bytes()
    at = data.index(b"000000012", data.index(b"000000013") - 13) - 4
    write(path, data[:at] + b"\xff\xff\xff\x7f" + data[at + 4 :])  # its length
    (batch,) = read_all(open_corpus(tmp_path), tmp_path / "scratch").values()
    assert batch.columns["txt"] == [text.encode() for text in held[:10] + held[20:]]
    rejected = [f"a.parquet at row {row}" for row in range(10, 20)]
    assert [where for where, _ in batch.rejects] == rejected


def test_a_file_that_changes_while_packing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", parquet(TEXTS))
    corpus = open_corpus(tmp_path)
    (run,) = corpus.runs(tmp_path)
    assert len(corpus.read(run.slice(0, 5), tmp_path)) == 5
    write(path, parquet(["other"] * 50))
    os.utime(path, ns=(1, 1))
    rejects = corpus.read(run.slice(5, 6), tmp_path).rejects
    assert rejects == [("a.parquet at row 5", "the file changed while packing")]
    path.unlink()
    rejects = corpus.read(run.slice(5, 6), tmp_path).rejects
    assert rejects == [("a.parquet at row 5", "vanished since it was listed")]


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff'.parquet")
    source = write(tmp_path / "in" / name, parquet(["x"])).parent
    shardkit.pack(source, tmp_path / "out", to="npy", **OPTIONS)
    assert shardkit.verify(tmp_path / "out", against=source).ok


def test_without_pyarrow(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "in" / "a.parquet", parquet(["x"]))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, _, err = run("pack", "in", "out", "--to", "npy")
    what = "in/a.parquet needs the pyarrow library: pip install 'shardkit[parquet]'"
    assert (code, err) == (2, f"shardkit: error: {what}\n")


def test_the_command_line_says_what_was_packed(tmp_path: Path, run: Run) -> None:
    write(tmp_path / "in" / "a.parquet", parquet(["x", "yy"], "body", title=["a", "b"]))
    code, _, err = run("pack", "in", "out", "--train-tokenizer", "300")
    assert (code, err) == (
        2,
        "shardkit: error: in/a.parquet has several columns of strings: 'title', 'body'; pass"
        " --text-field\n",
    )
    code, out, _ = run("pack", "in", "out", "--to", "npy", "--text-field", "body", "--workers", 0)
    assert code == 0
    assert out.startswith("packed 2 samples (parquet) into 1 shard of npy: ")
    assert "\n  columns: 'body' is field txt; each other column is a field of its own name\n" in out


def test_memory_does_not_grow_with_a_row_group(tmp_path: Path) -> None:
    """Of a row group of 64 MB only a batch and a page are held."""
    texts = [os.urandom(1 << 11).hex() for _ in range(1 << 14)]
    write(tmp_path / "a.parquet", parquet(texts, group=1 << 14))
    corpus = open_corpus(tmp_path)
    (run,) = corpus.runs(tmp_path)
    before = pa.total_allocated_bytes()
    most = 0
    for row in range(0, 1 << 14, 100):
        corpus.read(run.slice(row, row + 1), tmp_path)
        most = max(most, pa.total_allocated_bytes() - before)
    assert 0 < most < 24 << 20
