"""Text packed as tokens: all of it is there, in every container, and comes back byte for byte."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import CONTAINERS, Run, make_pairs, picture, tree, write
from forked_workers import workers_for
from hypothesis import given
from hypothesis import strategies as st
from text_data import (
    EOT,
    expected_ids,
    ids_of,
    make_awkward,
    make_bytes_tokenizer,
    make_tokenizer,
)

import shardkit
from shardkit.errors import DataError, SampleError
from shardkit.index.manifest import dump_info, read_info
from shardkit.inputs.corpus import Run as Entries
from shardkit.packing import tokenize as module
from shardkit.packing.tokenize import first_not_utf8, slices

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False, "shard_size": "3kB"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_awkward(tmp_path / "texts")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return make_tokenizer(tmp_path / "tok" / "tokenizer.json")


# --- what goes in comes out ---------------------------------------------------------------


def test_pack_verify_unpack(source: Path, tokenizer: Path, container: str, tmp_path: Path) -> None:
    dest = tmp_path / "out"
    packed = shardkit.pack(source, dest, to=container, tokenizer=tokenizer, **OPTIONS)
    assert packed.num_samples == 42 and packed.num_rejects == 0 and packed.num_shards > 2
    result = shardkit.verify(dest, against=source)
    assert result.ok, result.problems
    assert result.num_compared == 42
    shardkit.unpack(dest, tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)
    assert (dest / "tokenizer.json").read_bytes() == tokenizer.read_bytes()
    documents = shardkit.open(dest).read(range(42))["tokens"]
    assert {ids.dtype.str for ids in documents} == {"<u2"}
    assert packed.num_tokens == sum(map(len, documents))
    assert shardkit.info(dest).splits["train"].num_tokens == packed.num_tokens


def test_ids_are_those_of_the_library(source: Path, tokenizer: Path, tmp_path: Path) -> None:
    shardkit.pack(source, tmp_path / "out", tokenizer=tokenizer, **OPTIONS)
    found = ids_of(tmp_path / "out")
    assert len(found) == 42
    for path in source.rglob("*.*"):
        key = str(path.relative_to(source).with_suffix(""))
        assert found[key][-1] == 0, "each document ends with EOS"
        if key != "special":
            text = path.read_bytes().decode()
            assert found[key][:-1] == expected_ids(tokenizer, text), key
    assert 0 not in found["special"][:-1], "special tokens in a text are text"


def test_large_documents_are_tokenized_piecewise(
    source: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(source / "long.txt", "a long document, \u00e9 \U0001f680\n" * 2_000)
    options = {**OPTIONS, "tokenizer": tokenizer}
    for to in CONTAINERS:
        shardkit.pack(source, tmp_path / to, to=to, **options)
    monkeypatch.setattr(module, "LARGE_BYTES", 100)
    for to in CONTAINERS:
        shardkit.pack(source, tmp_path / f"{to}-large", to=to, **options)
        assert tree(tmp_path / to) == tree(tmp_path / f"{to}-large")


# --- other inputs -------------------------------------------------------------------------


def test_lines_of_json(tokenizer: Path, tmp_path: Path, container: str) -> None:
    texts = ["one", "", "tw\u00f6\n", "\U0001f680" * 40]
    lines = [json.dumps({"text": text, "n": i}) for i, text in enumerate(texts)]
    source = write(tmp_path / "a.jsonl", "\n".join(lines)).parent / "a.jsonl"
    dest = tmp_path / "out"
    options = {**OPTIONS, "tokenizer": tokenizer, "text_field": "text"}
    shardkit.pack(source, dest, to=container, **options)
    assert shardkit.verify(dest, against=source).ok
    shardkit.unpack(dest, tmp_path / "back")
    assert [*tree(tmp_path / "back").values()] == [text.encode() for text in texts]


def test_captions_of_pictures(tokenizer: Path, tmp_path: Path, container: str) -> None:
    """Other fields are kept, and samples without text have no tokens."""
    source, dest = make_pairs(tmp_path / "in"), tmp_path / "out"
    shardkit.pack(source, dest, to=container, tokenizer=tokenizer, **OPTIONS)
    result = shardkit.verify(dest, against=source)
    assert result.ok, result.problems
    shardkit.unpack(dest, tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)
    ds = shardkit.open(dest)
    assert "txt" not in ds.fields and {"cls", "jpg", "json", "tokens"} <= set(ds.fields)
    first, second = ds[ds.find("0000")], ds[ds.find("0001")]
    assert "tokens" not in first and bytes(first["jpg"]) == picture(0)
    assert second["tokens"].tolist() == [*expected_ids(tokenizer, "caption 1\r\n"), 0]


def test_a_sample_that_has_tokens_already(tokenizer: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    for i in range(3):
        write(source / f"{i}.txt", "a")
    write(source / "1.tokens", b"x")
    with pytest.raises(SampleError, match=r"1\.tokens: its sample has a field tokens already"):
        shardkit.pack(source, tmp_path / "out", corpus="paired", tokenizer=tokenizer, **OPTIONS)


# --- invalid UTF-8 ------------------------------------------------------------------------

BAD = "fine \u00e9 ".encode() + b"\xff\xc3 and fine"


@pytest.mark.parametrize("large", [8 << 20, 10])
def test_invalid_utf8(
    large: int, source: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGE_BYTES", large)
    write(source / "ends" / "bad.txt", BAD)
    options = {**OPTIONS, "tokenizer": tokenizer}
    said = (
        "ends/bad.txt: is not UTF-8: byte 0xff at offset 8; pass --invalid-utf8 replace to store"
        " U+FFFD in its place"
    )
    with pytest.raises(SampleError) as caught:
        shardkit.pack(source, tmp_path / "fail", **options)
    assert str(caught.value).startswith(said)

    skipped = tmp_path / "skip"
    packed = shardkit.pack(source, skipped, on_error="skip", max_rejects=0.1, **options)
    assert (packed.num_rejects, packed.num_samples) == (1, 42)
    (line,) = (skipped / "rejected.jsonl").read_text().splitlines()
    assert ": ".join(json.loads(line).values()) == said
    result = shardkit.verify(skipped, against=source)
    assert result.ok, result.problems

    replaced = tmp_path / "replace"
    shardkit.pack(source, replaced, invalid_utf8="replace", **options)
    result = shardkit.verify(replaced, against=source)
    assert result.ok, result.problems
    shardkit.unpack(replaced, tmp_path / "back")
    text = BAD.decode(errors="replace").encode()
    assert tree(tmp_path / "back") == tree(source) | {"ends/bad.txt": text}


@given(st.binary(max_size=40) | st.text(max_size=20).map(lambda text: text.encode()[:-1]))
def test_where_utf8_ends(data: bytes) -> None:
    try:
        data.decode()
        expected = len(data)
    except UnicodeDecodeError as error:
        expected = error.start
    with pytest.MonkeyPatch.context() as patch:
        for size in (1, 2, 3, 5, 64):
            patch.setattr(module, "LARGE_BYTES", size)
            assert first_not_utf8(memoryview(data)) == expected


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 60))
def test_slices(sizes: list[int], num_bytes: int) -> None:
    names = [b"%d" % i for i in range(len(sizes))]
    made = [*slices(Entries("train", "", None, names, names, sizes, sizes), num_bytes)]
    assert [name for run in made for name in run.locators] == names
    assert all(len(run) == 1 or (len(run) > 0 and sum(run.sizes) <= num_bytes) for run in made)
    for run, after in pairwise(made):
        assert sum(run.sizes) + after.sizes[0] > num_bytes, "none could be longer"


# --- BOS, EOS, and tokenizers of other kinds ----------------------------------------------


@pytest.mark.parametrize(
    ("eos", "bos", "first", "last"),
    [("auto", "none", [], [0]), ("none", "none", [], []), ("<|start|>", EOT, [0], [1])],
)
def test_ends_of_documents(
    eos: str, bos: str, first: list[int], last: list[int], tmp_path: Path
) -> None:
    source, tokenizer = make_awkward(tmp_path / "in"), make_tokenizer(tmp_path / "t.json")
    dest = tmp_path / "out"
    shardkit.pack(source, dest, tokenizer=tokenizer, eos=eos, bos=bos, **OPTIONS)
    assert ids_of(dest)["empty"] == [*first, *last]
    assert ids_of(dest)["ends/b"] == [*first, *expected_ids(tokenizer, "one\n"), *last]
    assert shardkit.verify(dest, against=source).ok
    shardkit.unpack(dest, tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)


@pytest.fixture
def lossy(tmp_path: Path) -> Path:
    """A dataset of a tokenizer that does not keep text as it is, and ``texts`` beside it."""
    tokenizer = make_tokenizer(tmp_path / "lower.json", lowercase=True)
    source = write(tmp_path / "texts" / "a.txt", "Some Capitals").parent
    write(source / "b.txt", "none")
    shardkit.pack(source, tmp_path / "lossy", tokenizer=tokenizer, **OPTIONS)
    return tmp_path / "lossy"


def test_a_tokenizer_that_loses_text_is_compared_by_ids(lossy: Path, tmp_path: Path) -> None:
    assert read_info(lossy).provenance.tokens["is_lossless"] is False
    result = shardkit.verify(lossy, against=tmp_path / "texts")
    assert result.ok and "compared are the ids" in result.notes[0]
    write(tmp_path / "texts" / "a.txt", "Some Letters!")
    (problem,) = shardkit.verify(lossy, against=tmp_path / "texts").problems
    assert str(problem) == "sample 'a' (row 0, train-00000): its txt differs from the original"
    write(tmp_path / "texts" / "a.txt", b"\xff")
    assert len(shardkit.verify(lossy, against=tmp_path / "texts").problems) == 1


def test_a_tokenizer_that_loses_text_is_not_unpacked(lossy: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"lossy holds ids of a tokenizer that does not keep text"):
        shardkit.unpack(lossy, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_changed_text_is_told(source: Path, tokenizer: Path, tmp_path: Path) -> None:
    shardkit.pack(source, tmp_path / "out", tokenizer=tokenizer, **OPTIONS)
    before = (source / "crlf.txt").read_bytes()
    for text in (b"one\r\ntwo\r\n!", b"one\r\ntwo\r", b"one\r\nTwo\r\n", b""):
        write(source / "crlf.txt", text)
        (problem,) = shardkit.verify(tmp_path / "out", against=source).problems
        assert problem.what == "its txt differs from the original" and "'crlf'" in problem.where
    write(source / "crlf.txt", before)
    assert shardkit.verify(tmp_path / "out", against=source).ok


# --- training -----------------------------------------------------------------------------


def test_train_a_tokenizer(source: Path, tmp_path: Path, container: str) -> None:
    options = {**OPTIONS, "to": container, "train_tokenizer": 300}
    packed = shardkit.pack(source, tmp_path / "one", **options)
    assert packed.notes[0] == "trained a tokenizer of 300 entries on train"
    with workers_for(container):
        shardkit.pack(source, tmp_path / "two", **{**options, "workers": 2})
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert shardkit.verify(tmp_path / "one", against=source).ok
    assert read_info(tmp_path / "one").provenance.tokens["vocab_size"] == 300
    shardkit.unpack(tmp_path / "one", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)


def test_a_tokenizer_is_trained_on_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "in"
    for i in range(200):
        write(source / "train" / f"{i}.txt", f"seen{i} " * 10)
        write(source / "val" / f"{i}.txt", f"unseen{i} " * 10)
    texts: list[str] = []
    monkeypatch.setattr("shardkit.packing.tokenize.TRAINING_BYTES", 5_000)
    monkeypatch.setattr("shardkit.packing.tokenize.train", _noting(texts, tmp_path / "t.json"))
    shardkit.pack(source, tmp_path / "out", train_tokenizer=300, **OPTIONS)
    assert not any("unseen" in text for text in texts)
    assert 3_000 < sum(map(len, texts)) <= 5_000, "about what was asked for"
    numbers = [int(text.split()[0][4:]) for text in texts]
    assert min(numbers) < 30 and max(numbers) > 170, "from everywhere"


def _noting(texts: list[str], path: Path) -> Any:
    def train(given: Any, vocab_size: int) -> bytes:
        texts.extend(given)
        return make_tokenizer(path).read_bytes()

    return train


# --- what is refused ----------------------------------------------------------------------

REFUSED = {
    ("pictures", "--tokenizer", "t.json"): "pictures is taken for images, and has no text to"
    " tokenize; leave the tokenizer out, or choose with --corpus",
    ("lines.jsonl", "--tokenizer", "t.json"): "lines.jsonl is taken for jsonl, of which each line"
    " has several fields; pass --text-field NAME to say which holds the text to tokenize",
    ("texts", "--tokenizer", "t.json", "--train-tokenizer", "300"): "pass either --tokenizer or"
    " --train-tokenizer, not both",
    ("texts", "--tokenizer", "t.json", "--resize", "9"): "--resize 9 is for pictures, and text is"
    " to be tokenized",
    ("texts", "--train-tokenizer", "256"): "--train-tokenizer is a number of entries, over the 256"
    " of single bytes, got 256",
    ("texts", "--eos", "none", "--to", "npy"): "--eos is of tokens: pass --tokenizer or"
    " --train-tokenizer, too",
    ("texts", "--invalid-utf8", "replace", "--to", "npy"): "--invalid-utf8 is of tokens: pass"
    " --tokenizer or --train-tokenizer, too",
    ("texts",): "--to is missing: choose a format, one of lmdb, hdf5, webdataset, npy",
    ("texts", "--tokenizer", "t.json", "--eos", "<end>"): None,
    ("texts", "--tokenizer", "none.json"): None,
    ("texts", "--tokenizer", "pictures"): None,
}


@pytest.mark.parametrize("args", REFUSED, ids=" ".join)
def test_what_makes_no_sense_is_one_line(run: Run, tmp_path: Path, args: tuple[str, ...]) -> None:
    make_awkward(tmp_path / "texts")
    make_tokenizer(tmp_path / "t.json")
    write(tmp_path / "lines.jsonl", '{"text": "a"}\n')
    before = tree(tmp_path)
    got = run("pack", args[0], "out", *args[1:])
    assert (got.code, got.out) == (2, "")
    if REFUSED[args] is not None:
        assert got.err == f"shardkit: error: {REFUSED[args]}\n"
    assert got.err.startswith("shardkit: error: ") and got.err.count("\n") == 1
    assert tree(tmp_path) == before


@pytest.mark.parametrize("option", [["--tokenizer", "t.json"], ["--train-tokenizer", 300]])
def test_pairs_without_text(run: Run, tmp_path: Path, option: list[object]) -> None:
    make_tokenizer(tmp_path / "t.json")
    for i in range(3):
        write(tmp_path / "labelled" / f"{i}.jpg", picture(i))
        write(tmp_path / "labelled" / f"{i}.cls", "1")
    got = run("pack", "labelled", "out", "--corpus", "paired", "--workers", 0, *option)
    assert got.code == 2 and got.out == ""
    assert got.err in (
        "shardkit: error: nothing was tokenized: no sample has a text (a field txt)\n",
        "shardkit: error: split train has no text to train a tokenizer on\n",
    )


# --- the command line ---------------------------------------------------------------------


def test_pack_and_info(run: Run, tmp_path: Path) -> None:
    make_awkward(tmp_path / "texts")
    make_bytes_tokenizer(tmp_path / "t.json")
    num_bytes = sum(map(len, tree(tmp_path / "texts").values()))
    num_tokens = f"{num_bytes + 42:,}"
    got = run("pack", "texts", "--tokenizer", "t.json", "--workers", 0)
    assert got.code == 0 and got.err == ""
    head, sizes, tokens, note, after = got.out.splitlines()
    assert head == f"packed 42 samples (text) into 1 shard of npy: {tmp_path}/texts-npy"
    assert sizes == "  SIZE in, SIZE out, TIME"
    assert tokens.startswith(f"  {num_tokens} tokens, ") and tokens.endswith(" tokens/s, SIZE/s")
    assert "token" in note
    assert after == f"  next: shardkit info {tmp_path}/texts-npy"
    assert run("info", "texts-npy").out == (
        "texts-npy: npy, packed from text\n"
        "  tokens of tokenizer.json: 257 ids, EOS 0, no BOS\n"
        "  train: 42 samples in 1 shard, SIZE + SIZE index\n"
        "    tokens: ragged <u2[-1]\n"
        f"    {num_tokens} tokens\n"
        "  open with:\n"
        "    shardkit.TokenDataset('texts-npy', 'train', seq_len=2048)\n"
        "    numpy.load('texts-npy/train-00000.tokens.npy', mmap_mode='r')\n"
        "    numpy.memmap('texts-npy/train-00000.tokens.npy', dtype='<u2', mode='r', offset=128)\n"
        "  with other tools: shardkit info texts-npy --open\n"
    )


# --- damage -------------------------------------------------------------------------------


@pytest.fixture
def dataset(source: Path, tokenizer: Path, container: str, tmp_path: Path) -> Path:
    shardkit.pack(source, tmp_path / "data", to=container, tokenizer=tokenizer, **OPTIONS)
    return tmp_path / "data"


def test_every_byte_of_the_tokenizer_is_watched(dataset: Path, tmp_path: Path) -> None:
    path = dataset / "tokenizer.json"
    good = path.read_bytes()
    lost = "ids may be decoded wrongly, or not at all"
    differ = f"tokenizer.json: its bytes differ from those written; {lost}"
    for at in (0, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert [*map(str, shardkit.verify(dataset).problems)] == [differ]
    path.write_bytes(good[:-1])
    short = f"tokenizer.json: has {len(good) - 1} bytes, expected {len(good)}; {lost}"
    assert [*map(str, shardkit.verify(dataset).problems)] == [short]
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        shardkit.unpack(dataset, tmp_path / "back")
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        shardkit.convert(dataset, tmp_path / "other", to="npy", workers=0)
    path.unlink()
    gone = f"tokenizer.json: is missing; {lost}"
    assert [*map(str, shardkit.verify(dataset).problems)] == [gone]
    path.write_bytes(good)
    assert shardkit.verify(dataset).ok


def test_ids_outside_the_vocabulary(dataset: Path) -> None:
    """Checksums cannot tell: whoever wrote them meant these ids."""
    info = read_info(dataset)
    most = max(max(ids) for ids in shardkit.open(dataset).read(range(42))["tokens"])
    assert info.provenance.tokens
    info.provenance.tokens["vocab_size"] = int(most)
    (dataset / "shardkit.json").write_bytes(dump_info(info))
    problems = shardkit.verify(dataset).problems
    assert problems and {p.what for p in problems} == {
        f"has id {most}, and the vocabulary ends before {most}"
    }
    info.provenance.tokens.update({"vocab_size": 400, "dtype": "<u4"})
    (dataset / "shardkit.json").write_bytes(dump_info(info))
    assert len(problems := shardkit.verify(dataset).problems) == 42
    assert problems[0].what.startswith("its tokens are <u2[")


@pytest.mark.parametrize("wrong", [{"dtype": "<f8"}, {"vocab_size": -1}, {"eos": "x"}, {"a": 1}])
def test_an_entry_that_makes_no_sense_is_one_line(
    dataset: Path, tmp_path: Path, wrong: dict[str, object]
) -> None:
    info = read_info(dataset)
    assert info.provenance.tokens
    info.provenance.tokens.update(wrong)
    (dataset / "shardkit.json").write_bytes(dump_info(info))
    for call in (
        lambda: shardkit.info(dataset),
        lambda: shardkit.verify(dataset),
        lambda: shardkit.unpack(dataset, tmp_path / "back"),
        lambda: shardkit.convert(dataset, tmp_path / "other", to="npy"),
    ):
        with pytest.raises(DataError, match=r"corpus\.tokens"):
            call()


# --- beside other datasets ----------------------------------------------------------------


def test_a_tokenizer_goes_with_its_dataset(source: Path, tokenizer: Path, tmp_path: Path) -> None:
    dest = tmp_path / "out"
    shardkit.pack(source, dest, tokenizer=tokenizer, **OPTIONS)
    shardkit.pack(source, dest, to="lmdb", overwrite=True, **OPTIONS)
    assert not (dest / "tokenizer.json").exists()
    write(dest / "tokenizer.json", "mine")
    shardkit.pack(source, dest, to="npy", overwrite=True, **OPTIONS)
    assert (dest / "tokenizer.json").read_text() == "mine"
