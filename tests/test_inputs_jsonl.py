"""Lines of JSON as inputs, and what cuts and decompresses them."""

from __future__ import annotations

import gzip
import io
import json
import os
import tempfile
import tracemalloc
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import zstandard
from conftest import EACH_FORMAT, Run, make_jsonl, nothing_left_open, tree, write
from hypothesis import given
from hypothesis import strategies as st
from test_inputs_files import read_all

import shardkit
from shardkit.errors import CorpusError, DataError
from shardkit.inputs import lines
from shardkit.inputs.detection import from_spec, open_corpus
from shardkit.inputs.files import input_stamp
from shardkit.inputs.lines import BLANK, line_pieces, map_range, read_pieces
from shardkit.inputs.tables.jsonl import JsonlCorpus
from shardkit.samples.sample import SampleBatch

OPTIONS: dict[str, Any] = {"to": "npy", "workers": 0, "progress": False}
LINES = b'\n{"text": "a"}\r\n\n{"text": "b", "n": 1.50}\n{"text":"c"}'
ROWS = [
    {"text": "one \u00e9", "label": 1, "id": "a", "score": 0.5, "tags": ["x", None]},
    {"text": "", "label": 0, "id": None, "score": 2},
    {"label": 3, "id": "c", "text": "three"},
]
JSONL = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def read_lines(source: Path, scratch: Path, **options: Any) -> SampleBatch:
    with nothing_left_open():
        (batch,) = read_all(JsonlCorpus(source, **options), scratch).values()
    return batch


# --- what a line becomes ------------------------------------------------------------------


@pytest.mark.parametrize("to", EACH_FORMAT)
def test_lines_come_back_to_the_byte(tmp_path: Path, to: str) -> None:
    source = make_jsonl(tmp_path / "in")
    write(source / "c.jsonl.gz", gzip.compress(LINES) + bytes(10_000))  # padded
    write(source / "sub/d.ndjson.zst", zst(LINES) + zst(LINES))
    write(source / "e.csv.gz", b"1")
    trees = []
    for workers in (0, 2):
        dest = tmp_path / f"out{workers}"
        options = {**OPTIONS, "to": to, "workers": workers}
        packed = shardkit.pack(source, dest, shard_size="300B", **options)
        assert packed.ignored == {".gz": 1} and packed.num_samples == 40 + 3 + 6
        trees.append(tree(dest))
    assert trees[0] == trees[1] and shardkit.verify(dest, against=source).ok
    shardkit.unpack(dest, tmp_path / "back")
    plain = tree(source) | {"c.jsonl": LINES, "sub/d.ndjson": LINES + LINES}
    for name in ("c.jsonl.gz", "sub/d.ndjson.zst", "e.csv.gz"):
        del plain[name]
    assert tree(tmp_path / "back") == plain


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "A.NDJSON"])
def test_some_keys_are_fields(tmp_path: Path, name: str) -> None:
    data = JSONL.encode()
    source = write(tmp_path / "in" / name, gzip.compress(data) if "gz" in name else data).parent
    packed = shardkit.pack(source, tmp_path / "out", fields="text,label,id,tags", **OPTIONS)
    assert packed.notes == []
    batch = shardkit.open(tmp_path / "out").read(range(3))
    assert batch["cls"].tolist() == [1, 0, 3] and batch["txt"] == ["one \u00e9", "", "three"]
    assert batch["id.txt"] == ["a", None, "c"] and batch["tags.json"] == [["x", None], None, None]
    assert shardkit.verify(tmp_path / "out", against=source).ok
    shardkit.unpack(tmp_path / "out", tmp_path / "back")
    back = tree(tmp_path / "back")
    assert back[f"{name.removesuffix('.gz')}/000000000000.cls"] == b"1"


ODD = b'{"v": {"b" : 1.50,\t"a":[1]}, "n": 1e3, "\\u00e9": {"}":"\\"}"}}'
WRITTEN: list[tuple[bytes, dict[str, Any], dict[str, bytes]]] = [
    (ODD, {"fields": ["v", "n"]}, {"v.json": b'{"b": 1.5, "a": [1]}', "n.json": b"1000.0"}),
    (b"\xef\xbb\xbf " + ODD, {"fields": ["\u00e9"]}, {"_.json": b'{"}": "\\"}"}'}),
    (b'{"label": true, "cls": 4}', {"fields": ["label", "cls"]}, {"label.json": b"true"}),
    (b'{"label": 7, "text": "x"}', {"fields": ["label"]}, {"cls": b"7"}),
    (b'{"body": "\\ud83d\\ude00"}', {"text_field": "body"}, {"txt": "\U0001f600".encode()}),
]


@pytest.mark.parametrize(("line", "options", "found"), WRITTEN)
def test_values_of_keys(
    tmp_path: Path, line: bytes, options: dict[str, Any], found: dict[str, bytes]
) -> None:
    batch = read_lines(write(tmp_path / "a.jsonl", line), tmp_path, **options)
    made = {name: values[0] for name, values in batch.columns.items() if name != "cls.json"}
    assert made == found


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"nothing", "is not JSON: Expecting value"),
        (b'{"text": "\xff"}', "is not JSON: 'utf-8' codec"),
        (b"[" * 100_000, "is not JSON: "),
        (b"[1]", "is no JSON object, so it has no field 'text'"),
        (b'{"text": 1.0}', "field 'text' is float, expected a string"),
        (b'{"text": null}', "field 'text' is NoneType, expected a string"),
        (b'{"a": 1}', "has none of 'text'"),
        (b'{"text": "\\ud800"}', "holds half a surrogate pair"),
    ],
)
def test_a_line_that_cannot_be_packed_is_named(tmp_path: Path, line: bytes, why: str) -> None:
    write(tmp_path / "a.jsonl", b'{"text": "x"}\n' + line)
    batch = read_lines(tmp_path, tmp_path, text_field="text")
    ((where, reason),) = batch.rejects
    assert where == "a.jsonl at byte 14" and reason.startswith(why) and len(batch) == 1


def test_what_is_chosen_and_not_there(tmp_path: Path, run: Run) -> None:
    rows = [{"text": "x", "category": "a", "label": 0.5}] * 3
    write(tmp_path / "in/a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    code, out, _ = run("pack", "in", "out", "--to", "npy", "--fields", "text,category,label,lable")
    assert code == 0
    assert "category, label: not cls, though named as labels" in out
    assert "the first lines of the first file have no 'lable'" in out
    assert shardkit.pack("in", "lines", **OPTIONS).notes == []
    with pytest.raises(CorpusError, match="would be one field"):
        JsonlCorpus(tmp_path, None, ["a", "A"])


def test_tokens_and_labels_of_lines(tmp_path: Path) -> None:
    source = write(tmp_path / "in/a.jsonl", JSONL).parent
    options = {"train_tokenizer": 300, "workers": 0, "progress": False}
    shardkit.pack(source, tmp_path / "out", fields=["text", "label"], **options)
    assert shardkit.open(tmp_path / "out").fields == ["cls", "tokens"]
    assert shardkit.verify(tmp_path / "out", against=source).ok
    with pytest.raises(CorpusError, match="pass --text-field NAME to say which"):
        shardkit.pack(source, tmp_path / "none", fields=["id"], **options)


# --- splits -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("splits", "said"),
    [
        ({"test": ["test.jsonl", "test_b.jsonl"], "train": ["train.jsonl"]}, ""),
        ({"train": ["c4-train.00000-of-00001.jsonl"], "validation": ["c4-validation.jsonl"]}, ""),
        ({"train": ["train/b.jsonl", "train/test.jsonl"], "val": ["val/train.jsonl"]}, ""),
        ({"val": ["val.jsonl"], "validation": ["validation.jsonl"]}, "rename one if they are one"),
    ],
)
def test_names_tell_the_splits(tmp_path: Path, splits: dict[str, list[str]], said: str) -> None:
    for name in chain(*splits.values()):
        write(tmp_path / "in" / name, b"1\n")
    corpus, found = JsonlCorpus(tmp_path / "in"), dict[str, list[str]]()
    for run in corpus.runs(tmp_path):
        found.setdefault(run.split, []).append(run.base)
    assert found == splits and corpus.splits() == [*splits]
    assert len(corpus.notes) == bool(said) and said in "".join(corpus.notes)
    assert JsonlCorpus(tmp_path / "in" / next(iter(splits.values()))[0]).splits() == ["train"]


# --- what lies in the way -----------------------------------------------------------------

GZIPPED = gzip.compress(LINES, mtime=0)
DAMAGED = {
    "cut.jsonl.gz": GZIPPED[:-9],
    "flipped.jsonl.gz": GZIPPED[:-6] + bytes(6),
    "tail.jsonl.gz": GZIPPED + b"garbage",
    "cut2.jsonl.zst": zst(LINES) + zst(LINES)[:5],
    "text.jsonl.zst": LINES,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_a_reject_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    write(tmp_path / "src" / name, DAMAGED[name])
    (tmp_path / "scratch").mkdir()
    batch = read_lines(tmp_path / "src", tmp_path / "scratch")
    ((path, reason),) = batch.rejects
    assert path == name and len(batch) == 0 and reason.startswith("is damaged: ")
    assert "\n" not in reason and list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_bomb_fills_no_disk(ending: str, tmp_path: Path) -> None:
    """80 MB of one line, in some kilobytes: refused, or left out, with nothing left behind."""
    data = b'"' + b"a" * (80 << 20) + b'"'
    write(tmp_path / f"src/a.jsonl{ending}", gzip.compress(data) if ending == ".gz" else zst(data))
    write(tmp_path / "src/b.jsonl", LINES)
    with pytest.raises(DataError, match=rf"a\.jsonl{ending}: makes over 200 times its size \(67,1"):
        shardkit.pack(tmp_path / "src", tmp_path / "out", **OPTIONS)
    assert [p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_size > 1 << 20] == []
    skip = {"on_error": "skip", "max_rejects": 1}
    made = shardkit.pack(tmp_path / "src", tmp_path / "out", **OPTIONS, **skip)
    assert (made.num_samples, made.num_rejects) == (3, 1)


def test_a_line_without_an_end_is_refused_within_a_limit(tmp_path: Path) -> None:
    """A sparse file of a terabyte: what lies before it is packed, and nothing is held."""
    path = write(tmp_path / "a.jsonl", b'{"text": "x"}\n"')
    os.truncate(path, 1 << 40)
    runs = list(JsonlCorpus(tmp_path).runs(tmp_path))
    batches = [JsonlCorpus(tmp_path).read(run, tmp_path) for run in runs]
    assert sum(map(len, batches)) == 0
    ((where, why),) = batches[-1].rejects
    assert where == "a.jsonl" and why.startswith("has a line of over 64 MiB, from byte 14 on")


def test_decompressing_needs_little_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "b.zst", zst(b"1," * 20_000_000))
    tracemalloc.start()
    try:
        lines.plain_copy(path, path.name, input_stamp(path), tmp_path / "scratch")
        assert tracemalloc.get_traced_memory()[1] < 70_000_000
    finally:
        tracemalloc.stop()


def test_what_is_no_file_of_lines(tmp_path: Path) -> None:
    write(tmp_path / "a/x.jsonl", b"  \n\r\n\t")
    with pytest.raises(CorpusError, match="no lines of JSON"):
        list(JsonlCorpus(tmp_path / "a").runs(tmp_path))
    write(tmp_path / "b/test.jsonl", LINES)
    write(tmp_path / "b/x.jsonl", LINES)
    with pytest.raises(CorpusError, match=r"is of a split by its name, and x\.jsonl names none"):
        JsonlCorpus(tmp_path / "b").splits()


@pytest.mark.parametrize("keep_time", [False, True])
def test_a_file_that_changes_between_listing_and_reading(tmp_path: Path, keep_time: bool) -> None:
    """Also if the time of change is then set back."""
    path = write(tmp_path / "a.jsonl", LINES)
    before = path.stat().st_mtime_ns
    corpus = JsonlCorpus(tmp_path)
    (run,) = corpus.runs(tmp_path)
    path.write_bytes(LINES[:16] + b'{"text')
    os.utime(path, ns=(before, before + (not keep_time)))
    batch = corpus.read(run, tmp_path)
    assert len(batch) == 0 and {why for _, why in batch.rejects} == {
        "the file changed while packing"
    }
    path.unlink()
    assert len(corpus.read(run, tmp_path).rejects) == 3


# --- cutting into lines -------------------------------------------------------------------


def cut(data: bytes, block: int, at_most: int) -> list[tuple[int, int]]:
    stream = io.BytesIO(data)
    found = []
    for pieces in line_pieces(lambda size: stream.read(block), at_most):
        assert 0 < len(pieces) <= at_most
        found += pieces
    return found


def expected_samples(data: bytes) -> list[bytes]:
    """The rule, put simply: blank lines join the sample before, those at the start the first."""
    samples: list[bytes] = []
    waiting = b""
    for line in io.BytesIO(data):
        if line.strip(BLANK):
            samples.append(waiting + line)
            waiting = b""
        elif samples:
            samples[-1] += line
        else:
            waiting += line
    return samples


some_lines = st.lists(st.text("a{ \t\r\n\n\n\x0b\x00é", max_size=6)).map(
    lambda x: "".join(x).encode()
)


@given(some_lines | st.binary(max_size=60), st.integers(1, 9), st.integers(1, 5))
def test_samples_one_after_another_are_the_file(data: bytes, block: int, at_most: int) -> None:
    samples = [data[offset : offset + size] for offset, size in cut(data, block, at_most)]
    assert samples == expected_samples(data)
    assert b"".join(samples) == (data if samples else b"")


@given(st.binary(max_size=60), st.integers(1, 20), st.integers(1, 30), st.data())
def test_pieces_of_any_size(data: bytes, huge: int, block: int, drawn: st.DataObject) -> None:
    places = st.tuples(st.integers(0, 70), st.integers(1, 20))
    pieces = drawn.draw(st.lists(places, max_size=6)) + cut(data, 7, 5)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        patch.setattr(lines, "HUGE_BYTES", huge)
        patch.setattr(lines, "READ_BYTES", block)
        found = list(read_pieces(file.fileno(), pieces))
        assert map_range(file.fileno(), 0, len(data) + 1) is None
    expected = [data[at : at + size] if at + size <= len(data) else None for at, size in pieces]
    assert [None if value is None else bytes(value) for value in found] == expected
    for (_, size), value in zip(pieces, found, strict=True):
        assert value is None or isinstance(value, memoryview) == (size >= huge)


def test_any_subset_in_any_order_by_the_spec(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", b"".join(b'{"t": "%d"}\n' % i for i in range(20)))
    corpus = open_corpus(tmp_path, text_field="t")
    (run,) = corpus.runs(tmp_path)
    spec = json.loads(json.dumps(corpus.spec()))
    assert spec == {"kind": "jsonl", "text_field": "t"}
    wanted = [7, 8, 9, 3, 19, 0]
    batch = from_spec(tmp_path, spec).read(run.take(wanted), tmp_path)
    assert batch.columns["txt"] == [b"%d" % i for i in wanted]
