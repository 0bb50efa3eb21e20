"""Huge files and lines are mapped, not read; of a huge line of JSON only one field is copied out.

What counts as huge is made small here.
"""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from conftest import CONTAINERS, make_images, make_pairs, make_texts, tree, write
from hypothesis import example, given
from hypothesis import strategies as st
from test_corpus_files import read_all

import shardkit
from shardkit.errors import SampleError
from shardkit.inputs import files, lines
from shardkit.inputs.files import read_files
from shardkit.inputs.lines import map_range, mapped_copy, read_pieces
from shardkit.inputs.open import open_corpus
from shardkit.inputs.tables import json_scan, jsonl
from shardkit.inputs.tables.json_scan import scan_json
from shardkit.inputs.tables.jsonl import JsonlCorpus

OPTIONS = {"workers": 0, "progress": False}


@pytest.fixture
def _all_is_huge(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (files, lines):
        monkeypatch.setattr(module, "HUGE_BYTES", 1)


# --- files and lines ----------------------------------------------------------------------


@pytest.mark.usefixtures("_all_is_huge")
def test_a_huge_file_is_mapped(tmp_path: Path) -> None:
    tree_ = {b"a": b"x" * 5000, b"b": b"", b"c": b"y"}
    for name, data in tree_.items():
        write(tmp_path / os.fsdecode(name), data)
    held = read_files(tmp_path, [*tree_], [*map(len, tree_.values())])
    assert [type(value) for value in held] == [memoryview, bytes, memoryview]
    assert [bytes(value) for value in held] == [*tree_.values()]  # type: ignore[arg-type]
    changed = "changed while packing: 4 bytes when listed, now 5000"
    assert read_files(tmp_path, [b"a"], [4]) == [changed]
    write(tmp_path / "a", b"")
    assert read_files(tmp_path, [b"a"], [4]) == [
        "changed while packing: 4 bytes when listed, now 0"
    ]


@pytest.mark.usefixtures("_all_is_huge")
@pytest.mark.parametrize("to", CONTAINERS)
@pytest.mark.parametrize("make", [make_images, make_pairs, make_texts])
def test_every_container_takes_mapped_values(tmp_path: Path, to: str, make: Any) -> None:
    source = make(tmp_path / "in")
    shardkit.pack(source, tmp_path / "out", to=to, shard_size="4kB", **OPTIONS)
    assert shardkit.verify(tmp_path / "out", against=source).ok
    shardkit.unpack(tmp_path / "out", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)


@given(st.binary(max_size=60), st.integers(1, 20), st.integers(1, 30), st.data())
def test_pieces_of_any_size(
    tmp_path_factory: pytest.TempPathFactory,
    data: bytes,
    huge: int,
    block: int,
    drawn: st.DataObject,
) -> None:
    path = write(tmp_path_factory.mktemp("pieces") / "x", data)
    places = st.tuples(st.integers(0, 70), st.integers(1, 20))
    pieces = drawn.draw(st.lists(places, max_size=6))
    with pytest.MonkeyPatch.context() as patch, path.open("rb") as file:
        patch.setattr(lines, "HUGE_BYTES", huge)
        patch.setattr(lines, "READ_BYTES", block)
        found = list(read_pieces(file.fileno(), pieces))
    expected = [data[at : at + size] if at + size <= len(data) else None for at, size in pieces]
    assert [None if value is None else bytes(value) for value in found] == expected
    for (_, size), value in zip(pieces, found, strict=True):
        assert value is None or isinstance(value, memoryview) == (size >= huge)


def test_a_range_beyond_the_first_page(tmp_path: Path) -> None:
    data = os.urandom(300_000)
    with write(tmp_path / "x", data).open("rb") as file:
        assert map_range(file.fileno(), 123_457, 150_000) == data[123_457:273_457]
        assert map_range(file.fileno(), 200_000, 100_001) is None


def test_a_copy_leaves_no_file(tmp_path: Path) -> None:
    held = mapped_copy([b"ab", b"", b"c" * 70_000], tmp_path / "new")
    assert held == b"ab" + b"c" * 70_000
    assert list((tmp_path / "new").iterdir()) == []
    assert mapped_copy([], tmp_path) == b""


# --- lines of JSON ------------------------------------------------------------------------

_STRINGS = st.text(st.characters(codec=None), max_size=12) | st.text('"\\/\n\té\U0001f600\ud83d')
_KEYS = st.sampled_from(["text", "tex", "", "t\u00e9xt", "te\nxt"]) | _STRINGS
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _STRINGS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=8,
)


@st.composite
def _written(draw: st.DrawFn) -> bytes:
    """A JSON text in one of the many ways to write it; or one with a byte changed."""
    held = draw(_VALUES | st.dictionaries(_KEYS, _VALUES, min_size=1))
    text = json.dumps(held, ensure_ascii=draw(st.booleans()), indent=draw(st.none() | st.just(1)))
    if isinstance(held, dict) and held and draw(st.booleans()):  # a key once more
        again = json.dumps({draw(st.sampled_from([*held])): draw(_VALUES)})
        text = text.rstrip().removesuffix("}") + " , " + again[1:]
    data = text.encode("utf-8", "surrogatepass")
    if draw(st.booleans()):
        data = draw(st.sampled_from([b"\xef\xbb\xbf", b" \t", b"\r\n"])) + data
    if draw(st.integers(0, 3)) == 0 and data:
        at = draw(st.integers(0, len(data) - 1))
        data = (
            data[:at]
            + draw(st.binary(max_size=2) | st.sampled_from([b"\\", b'"', b","]))
            + (data[at + draw(st.integers(0, 2)) :])
        )
    return data + draw(st.sampled_from([b"", b"\n", b"\r\n\n  \n"]))


def outcome(corpus: JsonlCorpus, line: bytes | memoryview, scratch: Path) -> Any:
    """The value, or why there is none: all of it if a field is at fault, not JSON's grammar."""
    try:
        return bytes(corpus._value(line, scratch))
    except SampleError as error:
        return SampleError, str(error).partition("is not JSON: ")[0]


@given(_written(), st.sampled_from(["text", "", "t\u00e9xt", "te\nxt", None]), st.integers(12, 40))
@example(b'{"text": "\\ud83d\\ude00"}', "text", 12)
@example(b'{"text": "12345\\ud83d\\ude00"}', "text", 12)
@example(b'{"text": "\\ud83d\\ud83d\\ude00"}', "text", 12)
@example(b'{"text": "1234567\\ud83d"}', "text", 12)
@example(
    b'{"text": "\xf0\x9f\x98\x80\xf0\x9f\x98\x80\xf0\x9f\x98\x80\xf0\x9f\x98\x80"}', "text", 13
)
@example(b'{"\\u0074ext": "a", "text": 5}', "text", 12)
@example(b'{"text": 5, "\\u0074ext": "a"}', "text", 12)
@example(b'{"text": {"text": "inner"}, "a": [[], {}, [{}], {"b": []}]}', "text", 12)
@example(b'{"text": [1,]}', "text", 12)
@example(b'{"text": "a",}', "text", 12)
@example(b'{"a": NaN, "b": [Infinity, -Infinity, -0, 1E+5, 1.5e-3], "text": "x"}', "text", 12)
@example(b'{"a": 01, "text": "x"}', "text", 12)
@example(b'{"a": 1., "text": "x"}', "text", 12)
@example(b'{"a": -, "text": "x"}', "text", 12)
@example(b'{"text": "a\tb"}', "text", 12)
@example(b'{"text": "a\\x"}', "text", 12)
@example(b"\xef\xbb\xbf\xef\xbb\xbf{}", "text", 12)
@example(b"", "text", 12)
@example(b"{} x", "text", 12)
def test_the_same_as_json_loads(
    tmp_path_factory: pytest.TempPathFactory, line: bytes, field: str | None, piece: int
) -> None:
    scratch = tmp_path_factory.getbasetemp()
    corpus = JsonlCorpus(Path("x.jsonl"), field)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_scan, "PIECE_BYTES", piece)
        assert outcome(corpus, memoryview(line), scratch) == outcome(corpus, line, scratch)


@given(st.text(st.characters(codec="utf-8")), st.booleans(), st.integers(12, 30))
def test_every_text_comes_back(
    tmp_path_factory: pytest.TempPathFactory, text: str, ascii_only: bool, piece: int
) -> None:
    line = json.dumps({"a": [1, {"text": "no"}], "text": text}, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_scan, "PIECE_BYTES", piece)
        held = JsonlCorpus(Path("x.jsonl"), "text")._value(
            memoryview(line), tmp_path_factory.getbasetemp()
        )
    assert bytes(held) == text.encode()


@pytest.mark.parametrize("digits", [4300, 4301])
def test_numbers_that_python_refuses(tmp_path: Path, digits: int) -> None:
    for number in (b"1" * digits, b"-" + b"1" * digits, b"1" * digits + b".0"):
        line = b'{"n": ' + number + b', "text": "x"}'
        corpus = JsonlCorpus(tmp_path, "text")
        small, huge = (outcome(corpus, x, tmp_path) for x in (line, memoryview(line)))
        assert small == huge


def test_nested_too_deep(tmp_path: Path) -> None:
    deep = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(SampleError, match=r"^is not JSON: nested over 900 deep at byte"):
        scan_json(memoryview(deep), "text")
    scan_json(memoryview(b"[" * 900 + b"]" * 900), "text")


FIELD, NOT_JSON = "field 'text'", "is not JSON:"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"[1]", "is no JSON object, so it has no field 'text'"),
        (b"{}", "has no field 'text'; it has none"),
        (b'{"a": 1, "b": 2, "a": 3}', "has no field 'text'; it has 'a', 'b'"),
        (b'{"text": 1.0}', "field 'text' is float, expected a string"),
        (b'{"text": null}', "field 'text' is NoneType, expected a string"),
        (b'{"text": "\\ud800"}', f"{FIELD} holds half a surrogate pair: surrogates not allowed"),
        (b'{"text": 1 "b"}', f"{NOT_JSON} no ',' and no end of what it is in at byte 10"),
        (b'{"text": 1 ]', f"{NOT_JSON} ',' or '}}' expected at byte 11"),
        (b'{"text": [1}', f"{NOT_JSON} ',' or ']' expected at byte 11"),
        (
            b'{"text": "a',
            f"{NOT_JSON} a string without an end, or a bad character in it, at byte 11",
        ),
        (b'{"text": ', f"{NOT_JSON} a value expected at byte 8"),
        (b'{"text" 1', f"{NOT_JSON} ':' expected at byte 7"),
        (b"{1", f"{NOT_JSON} a key in double quotes expected at byte 1"),
        (b"{} 1", f"{NOT_JSON} more text after the value at byte 2"),
        (b'{"text": "\xff"}', f"{NOT_JSON} not UTF-8 (invalid start byte) at byte 0"),
    ],
)
def test_what_is_wrong(tmp_path: Path, line: bytes, what: str) -> None:
    with pytest.raises(SampleError) as caught:
        JsonlCorpus(tmp_path, "text")._value(memoryview(line), tmp_path)
    assert str(caught.value) == what


def test_a_key_of_a_gigabyte_is_not_shown(tmp_path: Path) -> None:
    line = b'{"' + b"k" * 100_000 + b'": 1}'
    with pytest.raises(SampleError) as caught:
        JsonlCorpus(tmp_path, "text")._value(memoryview(line), tmp_path)
    assert len(str(caught.value)) == 300


@pytest.mark.usefixtures("_all_is_huge")
@pytest.mark.parametrize("field", [None, "text"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_corpus_of_huge_lines(tmp_path: Path, field: str | None, name: str) -> None:
    import gzip

    data = b"".join(
        json.dumps({"n": i, "text": f"row {i}\n" * i}).encode() + b"\n" for i in range(20)
    )
    write(tmp_path / "in" / name, gzip.compress(data) if name.endswith("gz") else data)
    options = {**OPTIONS, "text_field": field, "shard_size": "100B"}
    shardkit.pack(tmp_path / "in", tmp_path / "out", to="npy", **options)
    ds = shardkit.open(tmp_path / "out", decode=False)
    held = [bytes(v) for v in ds.read(range(20))["json" if field is None else "txt"]]
    if field is None:
        assert b"".join(held) == data
    else:
        assert held == [f"row {i}\n".encode() * i for i in range(20)]
    assert shardkit.verify(tmp_path / "out", against=tmp_path / "in").ok


def test_memory_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of 40 MB, of which half are escapes, with pieces of 64 kB."""
    monkeypatch.setattr(lines, "HUGE_BYTES", 1 << 20)
    monkeypatch.setattr(json_scan, "PIECE_BYTES", 1 << 16)
    text = '\\n\\ud83d\\ude00\\"é' * 2_000_000
    path = write(tmp_path / "in" / "a.jsonl", f'{{"id": 7, "text": "{text}"}}\n')
    size = path.stat().st_size
    del text
    corpus = open_corpus(path, text_field="text")
    (run,) = corpus.runs(tmp_path)
    tracemalloc.start()
    try:
        batch = corpus.read(run, tmp_path / "scratch")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    (value,) = batch.columns["txt"]
    assert value is not None and bytes(value) == '\n\U0001f600"é'.encode() * 2_000_000
    assert size > 30 << 20 and most < 4 << 20


def test_the_limit() -> None:
    assert jsonl.RUN_LINES and files.HUGE_BYTES == lines.HUGE_BYTES == 64 << 20


def test_small_lines_are_read(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", b'{"text": "x"}\n' * 3)
    (batch,) = read_all(open_corpus(tmp_path, text_field="text"), tmp_path).values()
    assert [type(value) for value in batch.columns["txt"]] == [bytes] * 3
