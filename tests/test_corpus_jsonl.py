"""Lines of JSON, plain and compressed."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import zstandard
from conftest import Run, nothing_left_open, write
from hypothesis import given
from hypothesis import strategies as st
from test_corpus_files import read_all, tree

import shardkit
from shardkit.errors import CorpusError, DataError, StorageError
from shardkit.inputs import lines
from shardkit.inputs.files import input_stamp
from shardkit.inputs.kinds import from_spec
from shardkit.inputs.lines import BLANK, line_pieces, read_pieces
from shardkit.inputs.open import open_corpus
from shardkit.inputs.tables import jsonl
from shardkit.inputs.tables.jsonl import JsonlCorpus
from shardkit.samples.sample import SampleBatch, unpack_paths

LINES = b'{"text": "one"}\n{"text": "two", "n": 2}\n\n  \n["three"]\n4'


def restored(batch: SampleBatch) -> dict[bytes, bytes]:
    """The files that a verbatim batch unpacks to."""
    found: dict[bytes, bytearray] = {}
    fields = [*batch.columns]
    for key, packed, value in zip(batch.keys, batch.paths, batch.columns["json"], strict=True):
        ((field, path, offset),) = unpack_paths(key, packed, fields)
        assert field == "json"
        assert offset is not None
        assert value is not None
        data = found.setdefault(path, bytearray())
        assert len(data) == offset
        data += value
    return {path: bytes(data) for path, data in found.items()}


def read_lines(source: Path, scratch: Path, **options: str) -> SampleBatch:
    with nothing_left_open():
        return read_all(JsonlCorpus(source, **options), scratch)["train"]


# --- verbatim -----------------------------------------------------------------------------


def test_a_line_is_a_sample_and_blank_lines_stay_with_the_one_before(tmp_path: Path) -> None:
    batch = read_lines(tree(tmp_path, {"k/a.jsonl": LINES}), tmp_path)
    assert batch.columns == {
        "json": [b'{"text": "one"}\n', b'{"text": "two", "n": 2}\n\n  \n', b'["three"]\n', b"4"]
    }
    assert batch.keys[:2] == [b"k/a.jsonl/000000000000", b"k/a.jsonl/000000000016"]
    assert batch.paths[:2] == [b"@0:k/a.jsonl", b"@16:k/a.jsonl"]
    assert restored(batch) == {b"k/a.jsonl": LINES}


def test_blank_lines_at_the_start_stay_with_the_first(tmp_path: Path) -> None:
    data = b'\n \t\r\n{"a": 1}\n{"a": 2}\n'
    batch = read_lines(tree(tmp_path, {"a.jsonl": data}), tmp_path)
    assert batch.columns["json"] == [b'\n \t\r\n{"a": 1}\n', b'{"a": 2}\n']
    assert batch.keys[0] == b"a.jsonl/000000000000"
    assert restored(batch) == {b"a.jsonl": data}


def test_odd_white_space_is_kept(tmp_path: Path) -> None:
    data = b'\xef\xbb\xbf{"a": 1}  \r\n  {"b":\t2}\r\n\r\n{"c" : 1e400}'
    batch = read_lines(tree(tmp_path, {"a.ndjson": data}), tmp_path)
    assert len(batch) == 3
    assert restored(batch) == {b"a.ndjson": data}


def test_one_file_as_the_source(tmp_path: Path) -> None:
    tree(tmp_path, {"a.jsonl": LINES})
    corpus = open_corpus(tmp_path / "a.jsonl")
    batch = read_all(corpus, tmp_path)["train"]
    assert batch.keys[0] == b"a.jsonl/000000000000"
    assert restored(batch) == {b"a.jsonl": LINES}


def test_folders_and_splits(tmp_path: Path) -> None:
    tree(tmp_path, {"train/x/a.jsonl": LINES, "test/b.jsonl": b"1\n", "test/c.csv": b"1"})
    corpus = JsonlCorpus(tmp_path)
    batches = read_all(corpus, tmp_path)
    assert batches["train"].keys[0] == b"x/a.jsonl/000000000000"
    assert restored(batches["train"]) == {b"train/x/a.jsonl": LINES}
    assert batches["test"].keys == [b"b.jsonl/000000000000"]
    assert corpus.ignored == {".csv": 1}


def test_what_is_no_json_is_a_reject_that_says_where(tmp_path: Path) -> None:
    bad = [
        b"{",
        b"\xff\xfe",
        b"nope",
        b"[" * 100_000,
        b'"\\x"',
        b"\x0c",
        b'{"a": 1} {"b": 2}',
        b"1" * 5000,
    ]
    data = b"\n".join([b'{"ok": 1}', *bad, b'{"ok": 2}', b""])
    batch = read_lines(tree(tmp_path, {"a.jsonl": data}), tmp_path)
    assert batch.columns["json"] == [b'{"ok": 1}\n', b'{"ok": 2}\n']
    assert len(batch.rejects) == len(bad)
    assert batch.rejects[0][0] == "a.jsonl at byte 10"
    for _, reason in batch.rejects:
        assert reason.startswith("is not JSON: ")
        assert "\n" not in reason


# --- text field ---------------------------------------------------------------------------


def test_a_text_field(tmp_path: Path) -> None:
    data = b'{"text": "one", "n": 1}\n\n{"text": ""}\n{"text": "\\u00e9\\n"}\n'
    batch = read_lines(tree(tmp_path, {"a.jsonl": data}), tmp_path, text_field="text")
    assert batch.columns == {"txt": [b"one", b"", "é\n".encode()]}
    assert batch.keys[1] == b"a.jsonl/000000000025"
    assert unpack_paths(batch.keys[1], batch.paths[1], ["txt"]) == [
        ("txt", b"a.jsonl/000000000025.txt", None)
    ]


def test_text_paths_with_splits(tmp_path: Path) -> None:
    source = tree(tmp_path, {"train/a.jsonl": b'{"t": "x"}\n'})
    batch = read_lines(source, tmp_path, text_field="t")
    assert batch.paths == [b"=train/a.jsonl/000000000000.txt"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"other": 1, "b": 2}', "has no field 'text'; it has 'other', 'b'"),
        (b"{}", "has no field 'text'; it has none"),
        (b'["text"]', "is no JSON object, so it has no field 'text'"),
        (b'"text"', "is no JSON object"),
        (b'{"text": 5}', "field 'text' is int, expected a string"),
        (b'{"text": null}', "field 'text' is NoneType, expected a string"),
        (b'{"text": "\\ud800"}', "field 'text' holds half a surrogate pair"),
        (b'{"text": ', "is not JSON"),
    ],
)
def test_lines_without_the_text(tmp_path: Path, line: bytes, why: str) -> None:
    data = b'{"text": "ok"}\n' + line + b"\n"
    batch = read_lines(tree(tmp_path, {"a.jsonl": data}), tmp_path, text_field="text")
    assert batch.columns == {"txt": [b"ok"]}
    ((where, reason),) = batch.rejects
    assert where == "a.jsonl at byte 15"
    assert reason.startswith(why)


# --- compressed ---------------------------------------------------------------------------


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def zst_stream(data: bytes) -> bytes:
    """A frame that does not say how long it is, in blocks."""
    out = io.BytesIO()
    with zstandard.ZstdCompressor().stream_writer(out, closefd=False) as writer:
        for start in range(0, len(data), 10):
            writer.write(data[start : start + 10])
            writer.flush()
    return out.getvalue()


PACKED: dict[str, tuple[str, bytes]] = {
    "gzip": (".gz", gzip.compress(LINES)),
    "gzip of two members": (".gz", gzip.compress(LINES[:20]) + gzip.compress(LINES[20:])),
    "zstd": (".zst", zst(LINES)),
    "zstd stream": (".zst", zst_stream(LINES)),
    "zstd of three frames": (".zst", zst(LINES[:20]) + zst(b"") + zst_stream(LINES[20:])),
    "capitals": (".GZ", gzip.compress(LINES)),
}


@pytest.mark.parametrize("how", PACKED)
def test_compressed_files_give_the_same_samples(tmp_path: Path, how: str) -> None:
    ending, data = PACKED[how]
    plain = read_lines(tree(tmp_path / "plain", {"a.jsonl": LINES}), tmp_path)
    name = "a.jsonl" + ending
    assert read_lines(tree(tmp_path / "src", {name: data}), tmp_path / "scratch") == plain
    assert read_lines(tmp_path / "src" / name, tmp_path / "scratch") == plain


def test_compressed_files_are_decompressed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, {"src/a.jsonl.gz": gzip.compress(LINES), "scratch/": b""})
    corpus = JsonlCorpus(tmp_path / "src")
    runs = list(corpus.runs(tmp_path / "scratch"))
    (copy,) = (tmp_path / "scratch").iterdir()
    assert copy.read_bytes() == LINES

    def never(*args: object) -> None:
        raise AssertionError("decompressed again")

    with monkeypatch.context() as patch:
        patch.setattr(lines, "_gunzip", never)
        worker = from_spec(tmp_path / "src", corpus.spec())
        assert len(worker.read(runs[0], tmp_path / "scratch")) == 4
        assert list(JsonlCorpus(tmp_path / "src").runs(tmp_path / "scratch")) == runs
    copy.unlink()
    assert len(worker.read(runs[0], tmp_path / "scratch")) == 4


def test_a_changed_compressed_file_is_decompressed_anew(tmp_path: Path) -> None:
    tree(tmp_path, {"src/a.jsonl.gz": gzip.compress(LINES), "scratch/": b""})
    corpus = JsonlCorpus(tmp_path / "src")
    (run,) = corpus.runs(tmp_path / "scratch")
    (tmp_path / "src/a.jsonl.gz").write_bytes(gzip.compress(b"1\n"))
    os.utime(tmp_path / "src/a.jsonl.gz", ns=(1, 1))
    assert len(next(corpus.runs(tmp_path / "scratch"))) == 1
    assert len(corpus.read(run, tmp_path / "scratch")) == 4  # as it was listed
    for copy in (tmp_path / "scratch").iterdir():
        copy.unlink()
    with pytest.raises(StorageError, match=r"a.jsonl.gz changed while packing"):
        corpus.read(run, tmp_path / "scratch")


GZIPPED = gzip.compress(LINES, mtime=0)
"""The same at any time: the names of tests are made of it."""


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("cut.jsonl.gz", GZIPPED[:-9]),
        ("flipped.jsonl.gz", GZIPPED[:-6] + bytes(6)),
        ("text.jsonl.gz", LINES),
        ("tail.jsonl.gz", GZIPPED + b"garbage"),
        ("empty.jsonl.gz", b""),
        ("cut.jsonl.zst", zst(LINES)[:-3]),
        ("cut2.jsonl.zst", zst(LINES) + zst(LINES)[:5]),
        ("text.jsonl.zst", LINES),
        ("tail.jsonl.zst", zst(LINES) + b"garbage"),
        ("empty.jsonl.zst", b""),
    ],
)
def test_a_damaged_compressed_file_is_a_reject_and_leaves_nothing(
    tmp_path: Path, name: str, data: bytes
) -> None:
    tree(tmp_path, {f"src/{name}": data, "scratch/": b""})
    with nothing_left_open():
        batch = read_lines(tmp_path / "src", tmp_path / "scratch")
    ((path, reason),) = batch.rejects
    assert path == name and len(batch) == 0
    assert reason.startswith("is damaged: ") and "\n" not in reason
    assert list((tmp_path / "scratch").iterdir()) == []


def test_zstd_needs_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    tree(tmp_path, {"a.jsonl.zst": zst(LINES)})
    with pytest.raises(CorpusError, match=r"a.jsonl.zst needs the zstandard library: pip install"):
        list(JsonlCorpus(tmp_path).runs(tmp_path / "scratch"))


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_bomb_fills_no_disk(ending: str, tmp_path: Path) -> None:
    """80 MB of one line, in some kilobytes: refused, or left out, with nothing left behind."""
    data = b'"' + b"a" * (80 << 20) + b'"'
    packed = gzip.compress(data) if ending == ".gz" else zst(data)
    assert len(packed) < len(data) // 900
    tree(tmp_path, {f"src/a.jsonl{ending}": packed, "src/b.jsonl": LINES})
    options = {"to": "npy", "workers": 0, "progress": False}
    with pytest.raises(DataError, match=rf"a\.jsonl{ending}: makes over 200 times its size \(67,1"):
        shardkit.pack(tmp_path / "src", tmp_path / "out", **options)
    assert [p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_size > 1 << 20] == []
    skip = {"on_error": "skip", "max_rejects": 1}
    made = shardkit.pack(tmp_path / "src", tmp_path / "out", **options, **skip)
    assert (made.num_samples, made.num_rejects) == (4, 1)
    assert "makes over 200 times" in (tmp_path / "out" / "rejected.jsonl").read_text()


def test_a_small_dense_file_is_none(tmp_path: Path) -> None:
    tree(tmp_path, {"a.jsonl.gz": gzip.compress(b"1\n" * 1_000_000)})
    made = shardkit.pack(tmp_path / "a.jsonl.gz", tmp_path / "out", to="npy", workers=0, limit=3)
    assert made.num_samples == 3


def test_a_disk_is_not_filled_to_the_brim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fstatvfs

    def nearly_full(fd: int) -> os.statvfs_result:
        found = [*real(fd)]
        found[4] = 100 * 4096 // found[1]  # blocks that are free for all
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "fstatvfs", nearly_full)
    tree(tmp_path, {"src/a.jsonl.gz": gzip.compress(LINES), "scratch/": b""})
    with pytest.raises(StorageError, match=r"the disk is nearly full after 55 bytes of .*a\.jsonl"):
        read_all(JsonlCorpus(tmp_path / "src"), tmp_path / "scratch")
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_decompressing_needs_little_memory(tmp_path: Path, ending: str) -> None:
    data = b"[" + b"1," * 20_000_000 + b"1]\n"
    packed = gzip.compress(data, 1) if ending == ".gz" else zst(data)
    (tmp_path / f"a{ending}").write_bytes(packed)
    stamp = input_stamp(tmp_path / f"a{ending}")
    del data
    tracemalloc.start()
    try:
        lines.plain_copy(tmp_path / f"a{ending}", "a", stamp, tmp_path / "scratch")
        assert tracemalloc.get_traced_memory()[1] < 70_000_000
    finally:
        tracemalloc.stop()


# --- what lies in the way -----------------------------------------------------------------


def test_other_compressed_files_are_passed_over(tmp_path: Path) -> None:
    corpus = JsonlCorpus(tree(tmp_path, {"a.jsonl": LINES, "b.csv.gz": b"1", "c.txt": b"1"}))
    read_all(corpus, tmp_path)
    assert corpus.ignored == {".gz": 1, ".txt": 1}


def test_two_files_that_restore_to_one(tmp_path: Path) -> None:
    tree(tmp_path, {"k/a.jsonl": LINES, "k/a.jsonl.gz": gzip.compress(LINES)})
    with pytest.raises(CorpusError, match=r"k/a.jsonl and k/a.jsonl.gz would be restored as one"):
        list(JsonlCorpus(tmp_path).runs(tmp_path))


@pytest.mark.parametrize("data", [b"", b"\n", b"  \n\r\n\t"])
def test_no_lines(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(CorpusError, match="no lines of JSON"):
        list(JsonlCorpus(tree(tmp_path, {"a.jsonl": data})).runs(tmp_path))


def test_a_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    batch = read_lines(tmp_path, tmp_path)
    assert batch.rejects == [("a.jsonl", "is no regular file; remove it")]


@pytest.mark.parametrize("keep_time", [False, True])
def test_a_file_that_changes_between_listing_and_reading(tmp_path: Path, keep_time: bool) -> None:
    """Also if the time of change is then set back."""
    path = tree(tmp_path, {"a.jsonl": LINES}) / "a.jsonl"
    before = path.stat().st_mtime_ns
    corpus = JsonlCorpus(tmp_path)
    (run,) = corpus.runs(tmp_path)
    path.write_bytes(LINES[:16] + b'{"text')
    os.utime(path, ns=(before, before + (not keep_time)))
    batch = corpus.read(run, tmp_path)
    assert len(batch) == 0 and len(batch.rejects) == len(run)
    assert {reason for _, reason in batch.rejects} == {"the file changed or vanished while packing"}


def test_a_file_that_vanishes(tmp_path: Path) -> None:
    corpus = JsonlCorpus(tree(tmp_path, {"a.jsonl": LINES}))
    (run,) = corpus.runs(tmp_path)
    (tmp_path / "a.jsonl").unlink()
    batch = corpus.read(run, tmp_path)
    assert len(batch) == 0 and len(batch.rejects) == len(run)


def test_odd_file_names(tmp_path: Path) -> None:
    for name in (b"a b.jsonl", b"\xff.jsonl", b"n\nl.jsonl.gz", b"%41.jsonl"):
        data = gzip.compress(LINES) if name.endswith(b".gz") else LINES
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as out:
            out.write(data)
    with tempfile.TemporaryDirectory() as scratch:
        batch = read_lines(tmp_path, Path(scratch))
    names = (b"a b.jsonl", b"\xff.jsonl", b"n\nl.jsonl", b"%41.jsonl")
    assert restored(batch) == dict.fromkeys(names, LINES)


# --- runs ---------------------------------------------------------------------------------


def test_long_files_come_in_several_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "RUN_LINES", 3)
    data = b"".join(b"%d\n" % i for i in range(10))
    corpus = JsonlCorpus(tree(tmp_path, {"a.jsonl": data}))
    assert [len(run) for run in corpus.runs(tmp_path)] == [3, 3, 3, 1]
    assert restored(read_all(corpus, tmp_path)["train"]) == {b"a.jsonl": data}


def test_any_subset_in_any_order_can_be_read(tmp_path: Path) -> None:
    data = b"".join(b"%d\n" % i for i in range(20))
    corpus = JsonlCorpus(tree(tmp_path, {"a.jsonl": data}))
    (run,) = corpus.runs(tmp_path)
    for name in ("locators", "keys", "sizes", "stamps"):
        whole = getattr(run, name)
        setattr(run, name, [whole[i] for i in (7, 8, 9, 3, 19, 0)])
    assert corpus.read(run, tmp_path).columns["json"] == [
        b"7\n",
        b"8\n",
        b"9\n",
        b"3\n",
        b"19\n",
        b"0\n",
    ]


def test_the_spec_carries_the_text_field(tmp_path: Path) -> None:
    corpus = JsonlCorpus(tree(tmp_path, {"a.jsonl": b'{"t": "x"}\n'}), text_field="t")
    spec = json.loads(json.dumps(corpus.spec()))
    assert spec == {"kind": "jsonl", "text_field": "t"}
    (run,) = corpus.runs(tmp_path)
    assert from_spec(tmp_path, spec).read(run, tmp_path) == corpus.read(run, tmp_path)


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
    pieces = cut(data, block, at_most)
    samples = [data[offset : offset + size] for offset, size in pieces]
    assert samples == expected_samples(data)
    assert b"".join(samples) == (data if samples else b"")


@given(some_lines, st.data())
def test_reading_pieces(data: bytes, draw: Any) -> None:
    pieces = draw.draw(st.permutations(cut(data, 7, 5)))
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        values = list(read_pieces(file.fileno(), pieces))
    assert values == [data[offset : offset + size] for offset, size in pieces]


def test_adjacent_pieces_are_one_read_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(bytes(range(100)))
    reads: list[int] = []
    whole = os.pread

    def counted(fd: int, size: int, offset: int) -> bytes:
        reads.append(size)
        return whole(fd, min(size, 13), offset)  # short reads are gone on with

    monkeypatch.setattr(os, "pread", counted)
    monkeypatch.setattr(lines, "READ_BYTES", 40)
    with (tmp_path / "a").open("rb") as file:
        values = list(read_pieces(file.fileno(), [(i, 10) for i in range(0, 100, 10)] + [(95, 10)]))
    assert values[:10] == [bytes(range(i, i + 10)) for i in range(0, 100, 10)]
    assert values[10] is None
    assert [size for size in reads if size in (40, 20, 10)] == [40, 40, 20, 10]


# --- some keys ----------------------------------------------------------------------------

ROWS = [
    {"text": "one \u00e9", "label": 1, "id": "a", "score": 0.5, "tags": ["x", None]},
    {"text": "", "label": 0, "id": None, "score": 2},
    {"label": 3, "id": "c", "text": "three"},
]
JSONL = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize("huge", [False, True])
def test_some_keys_are_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, huge: bool
) -> None:
    if huge:
        monkeypatch.setattr(lines, "HUGE_BYTES", 1)
    data = JSONL.encode()
    source = tree(tmp_path / "in", {name: gzip.compress(data) if name.endswith("gz") else data})
    fields = "text,label,id,tags"
    options = {"to": "webdataset", "workers": 0, "progress": False}
    packed = shardkit.pack(source, tmp_path / "out", fields=fields, **options)
    assert packed.notes == ["left out of each line: 'score' (not among --fields)"]
    ds = shardkit.open(tmp_path / "out")
    assert ds.fields == ["cls", "id.txt", "tags.json", "txt"]
    batch = ds.read(range(3))
    assert batch["cls"].tolist() == [1, 0, 3] and batch["txt"] == ["one \u00e9", "", "three"]
    assert batch["id.txt"] == ["a", None, "c"] and batch["tags.json"] == [["x", None], None, None]
    assert shardkit.verify(tmp_path / "out", against=source).ok
    shardkit.unpack(tmp_path / "out", tmp_path / "back")
    assert (tmp_path / "back" / "a.jsonl" / "000000000000.cls").read_bytes() == b"1"


def test_a_text_alone_says_what_it_leaves_out(tmp_path: Path) -> None:
    source = tree(tmp_path / "in", {"a.jsonl": JSONL.encode()})
    options = {"to": "npy", "workers": 2, "progress": False}
    packed = shardkit.pack(source, tmp_path / "out", text_field="text", **options)
    assert packed.notes == [
        "left out of each line: 'label', 'id', 'score', 'tags' (--fields text,label,id,score,tags"
        " keeps them beside the text)"
    ]
    assert shardkit.open(tmp_path / "out").fields == ["txt"]
    assert shardkit.pack(source, tmp_path / "lines", **options).notes == []


def test_tokens_and_labels_of_lines(tmp_path: Path) -> None:
    source = tree(tmp_path / "in", {"a.jsonl": JSONL.encode()})
    options = {"train_tokenizer": 300, "workers": 0, "progress": False}
    shardkit.pack(source, tmp_path / "out", fields=["text", "label"], **options)
    assert shardkit.open(tmp_path / "out").fields == ["cls", "tokens"]
    assert shardkit.verify(tmp_path / "out", against=source).ok
    with pytest.raises(CorpusError, match="pass --text-field NAME to say which"):
        shardkit.pack(source, tmp_path / "none", fields=["id"], **options)


# --- keys that no line has ----------------------------------------------------------------


def test_a_key_that_no_line_has_is_refused(tmp_path: Path, run: Run) -> None:
    write(tmp_path / "in" / "a.jsonl", '{"text": "x", "label": 1}\n' * 3)
    code, _, err = run("pack", "in", "out", "--to", "npy", "--fields", "text,lable")
    assert code == 2 and err == (
        "shardkit: error: no line of in has 'lable', which --fields names; the first ones have"
        " 'text', 'label'\n"
    )


def test_a_key_that_comes_late_is_packed(tmp_path: Path) -> None:
    """Behind what is looked at to tell which keys there are, and in a later file."""
    early = json.dumps({"text": "x" * 1000}) + "\n"
    write(tmp_path / "in" / "a.jsonl", early * 300 + '{"text": "y", "note": "late"}\n')
    write(tmp_path / "in" / "b.jsonl", '{"text": "z", "other": "later"}\n')
    packed = shardkit.pack(
        tmp_path / "in",
        tmp_path / "out",
        to="npy",
        fields=["text", "note", "other"],
        workers=0,
        progress=False,
    )
    assert packed.num_samples == 302 and packed.num_rejects == 0
    assert "the first lines of the first file have no 'note', 'other'" in packed.notes
    ds = shardkit.open(tmp_path / "out")
    assert (ds[300]["note.txt"], ds[301]["other.txt"]) == ("late", "later")
