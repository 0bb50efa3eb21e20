"""Token ids that nanoGPT and Megatron wrote: parsed, and converted to datasets of tokens."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CONTAINERS, Run, picture, tree, write
from hypothesis import given
from hypothesis import strategies as st
from token_files import index, llm_c, megatron, nanogpt

import shardkit
from shardkit.errors import (
    CorpusError,
    DataError,
    DatasetMissingError,
    FormatError,
    UsageError,
)
from shardkit.index.manifest import read_info
from shardkit.inputs.containers import token_files, tokens
from shardkit.inputs.containers.token_files import is_token_file, open_token_file

OPTIONS = {"workers": 0, "progress": False}


def ids_of(folder: Path) -> list[list[int]]:
    ds = shardkit.open(folder)
    return [np.asarray(ids).tolist() for ids in ds.read(range(len(ds)))["tokens"]]


# --- nanoGPT ------------------------------------------------------------------------------


def test_nanogpt(tmp_path: Path) -> None:
    path = nanogpt(tmp_path / "train.bin", [5, 6, 9, 9, 7])
    found = open_token_file(path)
    assert (found.kind, found.dtype, found.files) == ("nanogpt", np.dtype("<u2"), (path,))
    assert found.data.tolist() == [5, 6, 9, 9, 7] and found.document_ends is None
    assert not found.data.flags.writeable
    cut = open_token_file(path, eos=9)
    assert cut.document_ends is not None and cut.document_ends.tolist() == [3, 4, 5]
    assert cut.fingerprint != found.fingerprint


def test_nothing_after_the_last_end(tmp_path: Path) -> None:
    found = open_token_file(nanogpt(tmp_path / "a.bin", [1, 9, 2, 9]), eos=9)
    assert found.document_ends is not None and found.document_ends.tolist() == [2, 4]


def test_the_header_of_llm_c_is_no_token(tmp_path: Path) -> None:
    found = open_token_file(llm_c(tmp_path / "a.bin", [*range(600)]))
    assert found.data.tolist() == [*range(600)]
    with pytest.raises(FormatError, match=r"has 2224 bytes, expected 2226 for the 601 tokens of"):
        open_token_file(llm_c(tmp_path / "b.bin", [*range(600)], num=601))
    with pytest.raises(FormatError, match="expected 1022 for the -1 tokens"):
        open_token_file(llm_c(tmp_path / "c.bin", [*range(600)], num=-1))


@given(st.lists(st.integers(0, 3), min_size=1), st.integers(1, 9))
def test_documents_end_where_eos_is(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int], scan_tokens: int
) -> None:
    path = nanogpt(tmp_path_factory.mktemp("eos") / "a.bin", ids)
    expected, document = [], []
    for one in ids:
        document.append(one)
        if one == 3:
            expected.append(document)
            document = []
    expected += [document] if document else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_files, "SCAN_TOKENS", scan_tokens)
        if 3 not in ids:
            with pytest.raises(CorpusError, match="holds no token 3"):
                open_token_file(path, eos=3)
            return
        found = open_token_file(path, eos=3)
    assert found.document_ends is not None
    assert [part.tolist() for part in np.split(found.data, found.document_ends[:-1])] == expected


# --- Megatron -----------------------------------------------------------------------------

DOCUMENTS = [[[1, 2], [3]], [[]], [[4]], [], [[5, 6, 7]]]


@pytest.mark.parametrize("dtype", ["|u1", "<u2", "<i4", "<i8"])
@pytest.mark.parametrize("ending", ["", ".bin", ".idx"])
def test_megatron(tmp_path: Path, dtype: str, ending: str) -> None:
    prefix = megatron(tmp_path / "c4.en_document", DOCUMENTS, dtype)
    path = Path(f"{prefix}{ending}")
    assert is_token_file(path)
    found = open_token_file(path)
    assert found.kind == "megatron" and found.dtype.str == dtype.replace("i", "u")
    assert found.data.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert found.document_ends is not None and found.document_ends.tolist() == [3, 3, 4, 4, 7]


def test_an_index_of_sequences_alone(tmp_path: Path) -> None:
    megatron(tmp_path / "a", [[[1, 2]], [[3]]])
    write(tmp_path / "a.idx", index([2, 1], [0]))
    found = open_token_file(tmp_path / "a")
    assert found.document_ends is not None and found.document_ends.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (b"", r"a\.idx is no index of Megatron's: it does not begin with MMIDIDX"),
        (b"TNTIDX\0\0" + bytes(100), "it does not begin with MMIDIDX; make it again with"),
        (index([3], [0, 1])[:-1], r"a\.idx has 61 bytes, expected 62 for 1 sequences and 2"),
        (index([3], [0, 1]) + b"\0", r"a\.idx has 63 bytes, expected 62"),
        (index([3], [0, 1])[:18] + b"\xff" * 16 + bytes(28), "has 62 bytes, expected 36893488"),
        (index([3], [0, 1], version=2), "has version 2 and dtype code 4; ids have version 1 and"),
        (index([3], [0, 1], "<f4"), "has version 1 and dtype code 7; ids have"),
        (index([3], [0, 1], "<i2"), "has version 1 and dtype code 3; ids have"),
        (index([3], []), "do not count from 0 up to its 1 sequences"),
        (index([3], [0, 2]), "do not count from 0"),
        (index([1, 2], [0, 2, 1, 2]), "do not count from 0"),
        (index([3], [0, -1, 1]), "do not count from 0"),
        (index([3], [1, 1]), "do not count from 0"),
        (index([-1, 4], [0, 2]), "its sequences do not lie one after another"),
        (index([1, 2], [0, 2], pointers=[0, 8]), "its sequences do not lie one after another"),
        (index([4], [0, 1]), r"a\.bin has 12 bytes, expected 16, as .*a\.idx says"),
        (index([2], [0, 1]), r"a\.bin has 12 bytes, expected 8, as"),
        (index([], [0]), "has 12 bytes, expected 0"),
    ],
)  # fmt: skip
def test_a_hostile_index(tmp_path: Path, run: Run, made: bytes, what: str) -> None:
    megatron(tmp_path / "a", [[[1, 2, 3]]])
    write(tmp_path / "a.idx", made)
    with pytest.raises(FormatError, match=what):
        open_token_file(tmp_path / "a.bin")
    code, _, err = run("convert", "a", "--to", "npy")
    assert code == 1 and err.startswith("shardkit: error: ") and err.count("\n") == 1


@given(st.data())
def test_a_mangled_index_is_refused_or_fits(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever it says, the documents lie in the file, one after another."""
    folder = tmp_path_factory.mktemp("mangled")
    megatron(folder / "a", DOCUMENTS)
    raw = bytearray((folder / "a.idx").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(9, len(raw) - 1))
        raw[at] = data.draw(st.sampled_from([0, 1, 2, 3, 4, 127, 128, 255]))
    (folder / "a.idx").write_bytes(raw)
    try:
        found = open_token_file(folder / "a")
    except DataError:
        return
    assert found.document_ends is not None
    assert (np.diff(found.document_ends, prepend=0) >= 0).all()
    assert found.document_ends[-1] == len(found.data)


def test_ids_without_their_index(tmp_path: Path) -> None:
    megatron(tmp_path / "a", DOCUMENTS)
    (tmp_path / "a.bin").unlink()
    with pytest.raises(CorpusError, match=r"a\.bin is missing, beside .*a\.idx; fetch it"):
        open_token_file(tmp_path / "a.idx")


# --- both ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none.bin", "none", "x.txt", "folder", ".", "/", "fifo.bin"])
def test_no_such_file(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "x.txt", "ab")
    (tmp_path / "folder").mkdir()
    nanogpt(tmp_path / "folder.bin", [1])
    write(tmp_path / "folder.idx", b"")
    os.mkfifo(tmp_path / "fifo.bin")
    assert not is_token_file(Path(name))
    with pytest.raises(CorpusError, match="is no file of token ids; give nanoGPT's"):
        open_token_file(Path(name))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", r"a\.bin holds no token; make it again"),
        (b"abc", r"a\.bin has 3 bytes, which are no whole number of ids of 2 bytes"),
    ],
)
def test_no_ids(tmp_path: Path, data: bytes, what: str) -> None:
    for eos in (None, 1):
        with pytest.raises(FormatError, match=what):
            open_token_file(write(tmp_path / "a.bin", data), eos)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"PK\3\4" + b"\0" * 60, "a zip archive, as torch.save writes it"),
        (b"\x1f\x8b\x08" + b"\0" * 61, "compressed by gzip"),
        (b"\x7fELF" + b"\0" * 60, "a program"),
        (picture(1, kind="PNG") + b"\0" * (len(picture(1, kind="PNG")) % 2), r"a picture \(png\)"),
        (pickle.dumps([*range(8)], 2), "a pickle, which shardkit never reads"),
        (pickle.dumps({"a": np.arange(9)}, 4), "a pickle, which shardkit never reads"),
    ],
)
def test_other_files_are_no_ids(tmp_path: Path, data: bytes, what: str) -> None:
    path = write(tmp_path / "a.bin", data)
    with pytest.raises(FormatError, match=rf"a\.bin is no file of token ids: it begins as {what}"):
        shardkit.convert(path, tmp_path / "out", to="npy", **OPTIONS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("first", [0x0280, 0x8B1F, 0x4B50, 0x4D42, 0x3550])
def test_ids_that_begin_as_other_files_do_are_ids(tmp_path: Path, first: int) -> None:
    found = open_token_file(nanogpt(tmp_path / "a.bin", [first, 2634, 9]))
    assert found.data.tolist() == [first, 2634, 9]


def test_a_guess_is_said(tmp_path: Path, run: Run) -> None:
    nanogpt(tmp_path / "train.bin", [5, 300, 7])
    _, out, _ = run("convert", "train.bin", "a", "--to", "npy", "--workers", 0)
    assert "taken for token ids of uint16 as nanoGPT writes them (3 tokens, ids up to 300)" in out
    assert "which nothing in it tells; if it holds anything else" in out
    write(tmp_path / "meta.pkl", b"")
    _, out, _ = run("convert", "train.bin", "b", "--to", "npy", "--workers", 0)
    assert "as meta.pkl beside it suggests" in out
    llm_c(tmp_path / "train.bin", [1, 2])
    _, out, _ = run("convert", "train.bin", "c", "--to", "npy", "--workers", 0)
    assert "taken for" not in out


def test_what_convert_wrote_comes_back_in_its_dtype(tmp_path: Path, run: Run) -> None:
    megatron(tmp_path / "in", [[[70_000, 1]], [[2]]])
    shardkit.convert(tmp_path / "in", tmp_path / "ids", to="npy", **OPTIONS)
    assert run("convert", "ids", "data", "--to", "bin")[0] == 0
    _, out, _ = run("convert", "data/train.bin", "back", "--to", "npy", "--workers", 0)
    assert ids_of(tmp_path / "back") == [[70_000, 1, 2]] and "taken for" not in out
    write(tmp_path / "data" / "train.bin", b"\0" * 10)
    with pytest.raises(FormatError, match=r"has 10 bytes, expected 12 for the 3 tokens of meta"):
        open_token_file(tmp_path / "data" / "train.bin")
    write(tmp_path / "data" / "meta.json", b'{"dtype": "uint32", "splits": ["train"]}')
    assert open_token_file(tmp_path / "data" / "train.bin").is_guess


def test_the_fingerprint_tells_files_apart(tmp_path: Path) -> None:
    ids = np.arange(2_000_000, dtype="<u2")
    other = ids.copy()
    other[-1] += 1
    made = [nanogpt(tmp_path / "0.bin", ids), nanogpt(tmp_path / "1.bin", other)]
    made += [nanogpt(tmp_path / "2.bin", ids[:-1]), nanogpt(tmp_path / "x" / "0.bin", ids)]
    prints = [open_token_file(path).fingerprint for path in made]
    assert len(set(prints[:3])) == 3 and prints[3] == prints[0]
    first, second = megatron(tmp_path / "a", [[[1], [2]]]), megatron(tmp_path / "b", [[[1]], [[2]]])
    assert open_token_file(first).fingerprint != open_token_file(second).fingerprint


# --- converting ---------------------------------------------------------------------------


@pytest.mark.parametrize("to", CONTAINERS)
def test_convert_megatron(tmp_path: Path, to: str) -> None:
    prefix = megatron(tmp_path / "in", DOCUMENTS)
    done = shardkit.convert(prefix, tmp_path / "out", to=to, workers=2, progress=False)
    assert done.num_samples == 5
    assert ids_of(tmp_path / "out") == [[1, 2, 3], [], [4], [], [5, 6, 7]]
    assert shardkit.open(tmp_path / "out").keys()[2] == "000000000002"
    assert shardkit.verify(tmp_path / "out").ok
    found = read_info(tmp_path / "out").provenance.to_json()
    assert found == {
        "kind": "megatron",
        "tokens": {
            "kind": None,
            "file": None,
            "bytes": 0,
            "xxh3": "0" * 16,
            "name": None,
            "pattern": None,
            "special_tokens": None,
            "vocab_size": 8,
            "dtype": "|u1",
            "eos": None,
            "bos": None,
            "invalid_utf8": "reject",
            "is_lossless": False,
        },
    }
    shardkit.convert(tmp_path / "out", tmp_path / "npy", to="npy", **OPTIONS)
    shardkit.convert(tmp_path / "npy", tmp_path / "back", to=to, **OPTIONS)
    assert tree(tmp_path / "back") == tree(tmp_path / "out")
    assert read_info(tmp_path / "back").provenance.to_json() == found


@pytest.mark.parametrize(
    ("largest", "dtype", "stored"),
    [(255, "<i4", "|u1"), (256, "<u2", "<u2"), (65_535, "<i4", "<u2"), (65_536, "<i8", "<u4")],
)
def test_the_smallest_dtype(tmp_path: Path, largest: int, dtype: str, stored: str) -> None:
    prefix = megatron(tmp_path / "in", [[[largest, 0]], [[1]]], dtype)
    shardkit.convert(prefix, tmp_path / "out", to="npy", **OPTIONS)
    assert ids_of(tmp_path / "out") == [[largest, 0], [1]]
    assert np.load(tmp_path / "out" / "train-00000.tokens.npy").dtype.str == stored
    held = read_info(tmp_path / "out").provenance.tokens
    assert (held["dtype"], held["vocab_size"]) == (stored, largest + 1)


def test_convert_nanogpt_by_eos(tmp_path: Path) -> None:
    path = nanogpt(tmp_path / "train.bin", [5, 9, 9, 300, 9, 1])
    shardkit.convert(path, tmp_path / "out", to="npy", eos=9, **OPTIONS)
    assert ids_of(tmp_path / "out") == [[5, 9], [9], [300, 9], [1]]
    assert read_info(tmp_path / "out").provenance.tokens["eos"] == 9


def test_pieces_of_what_has_no_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setattr(tokens, "PIECE_TOKENS", 4)
    nanogpt(tmp_path / "train.bin", [*range(10)])
    code, out, _ = run("convert", "train.bin", "--to", "npy", "--workers", 0)
    assert code == 0 and out.startswith("converted 3 samples (tokens) into 1 shard of npy: ")
    assert ids_of(tmp_path / "train-npy") == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    _, out, _ = run("info", "train-npy")
    assert "samples are pieces of 1,048,576 tokens: where documents end is not known" in out


@given(
    st.lists(st.lists(st.lists(st.integers(0, 70_000), max_size=4), max_size=3), max_size=9),
    st.integers(1, 5),
)
def test_every_token_of_every_document(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[list[int]]], run_documents: int
) -> None:
    folder = tmp_path_factory.mktemp("all")
    expected = [[i for sequence in document for i in sequence] for document in documents]
    megatron(folder / "in", documents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "RUN_DOCUMENTS", run_documents)
        if not any(expected):
            with pytest.raises(FormatError, match="holds no token"):
                shardkit.convert(folder / "in", folder / "out", to="npy", **OPTIONS)
            return
        shardkit.convert(folder / "in", folder / "out", to="npy", **OPTIONS)
    assert ids_of(folder / "out") == expected


@pytest.mark.parametrize(
    ("ids", "dtype", "what"),
    [
        ([1, -1], "<i4", "token 1 has id 4294967295, or it is negative, which no vocabulary has"),
        ([2**40], "<i8", "token 0 has id 1099511627776, or it is negative"),
    ],
)
def test_ids_of_no_vocabulary(tmp_path: Path, ids: list[int], dtype: str, what: str) -> None:
    megatron(tmp_path / "in", [[ids]], dtype)
    with pytest.raises(FormatError, match=what):
        shardkit.convert(tmp_path / "in", tmp_path / "out", to="npy", **OPTIONS)


@pytest.mark.parametrize(
    ("name", "options", "what"),
    [
        ("a.bin", {"eos": -1}, "eos is an id from 0 to 2147483647, got -1"),
        ("a.bin", {"eos": 7}, "holds no token 7; give the id that ends its documents, or none"),
        ("a.bin", {"resize": 32}, "holds tokens, and has no pictures: leave out"),
        ("pictures", {"eos": 1}, "eos is for files of token ids; .* is none"),
        ("pictures", {"stored_dtype": "uint32"}, "stored_dtype is for files of token ids; .* is"),
    ],
)
def test_calls_that_make_no_sense(
    tmp_path: Path, name: str, options: dict[str, Any], what: str
) -> None:
    nanogpt(tmp_path / "a.bin", [1, 2])
    with pytest.raises(UsageError, match=what):
        shardkit.convert(tmp_path / name, tmp_path / "out", to="npy", **options, **OPTIONS)
    assert not (tmp_path / "out").exists()


def test_a_file_that_changes_before_it_is_resumed(tmp_path: Path) -> None:
    path = nanogpt(tmp_path / "a.bin", [1, 2])
    corpus = tokens.TokenFileCorpus(path, "|u1", open_token_file(path))
    (listed,) = corpus.runs(tmp_path)
    nanogpt(path, [3, 4])
    os.utime(path, ns=(1, 1))
    again = tokens.TokenFileCorpus.from_spec(path, corpus.spec())
    with pytest.raises(FormatError, match="changed while packing; run it again"):
        again.read(listed, tmp_path)


def test_info_says_what_opens_them(tmp_path: Path) -> None:
    write(tmp_path / "train.bin", b"\0\0" * 9)
    with pytest.raises(DatasetMissingError, match=r"open with shardkit\.TokenDataset"):
        shardkit.info(tmp_path / "train.bin")


# --- what is stored in a file without a header --------------------------------------------

WIDE = np.random.default_rng(0).integers(0, 128_000, 300)


@pytest.mark.parametrize(
    ("ids", "dtype", "told"),
    [
        (WIDE, "uint32", "uint32"),
        (WIDE, "int32", "uint32"),
        (WIDE, "int64", "int64"),
        (WIDE % 50_000, "uint32", "uint32"),  # each second half is 0
        (WIDE % 4, "int32", "uint32"),  # DNA
        (WIDE % 900_000 * 7, "uint64", "int64"),
        (np.tile(WIDE, 2000), "uint32", "uint32"),  # of which blocks are looked at
        (np.where(WIDE % 3, 0, WIDE), "uint32", "uint32"),  # mostly padding
    ],
)
def test_wider_ids_are_asked_for(tmp_path: Path, ids: Any, dtype: str, told: str) -> None:
    path = tmp_path / "ids.bin"
    ids.astype(dtype).tofile(path)
    with pytest.raises(UsageError, match=f"seem to be {told}, .* give stored_dtype='{told}'"):
        shardkit.TokenDataset(path, seq_len=8)
    for options in ({}, {"dtype": "int32"}):
        ds = shardkit.TokenDataset(path, seq_len=8, stored_dtype=dtype, **options)
        assert ds[1]["inputs"].tolist() == ids[8:16].tolist()
        assert ds[1]["inputs"].dtype == options.get("dtype", "int64")
    narrow = shardkit.TokenDataset(path, seq_len=8, stored_dtype="uint16")
    assert narrow[0]["inputs"].tolist() == np.fromfile(path, "<u2")[:8].tolist()


@pytest.mark.parametrize(("dtype", "told"), [("int32", "uint32"), ("int64", "int64")])
def test_wider_labels_are_told_by_their_negative_numbers_too(
    tmp_path: Path, dtype: str, told: str
) -> None:
    path = tmp_path / "labels.bin"
    np.where(WIDE % 3, WIDE, -100).astype(dtype).tofile(path)
    with pytest.raises(UsageError, match=f"give stored_dtype='{told}'"):
        shardkit.TokenDataset(path, seq_len=8)
    with pytest.raises(DataError):  # no id is negative
        shardkit.TokenDataset(path, seq_len=8, stored_dtype=dtype)[0]


@pytest.mark.parametrize(
    "ids",
    [
        WIDE % 50_000,
        WIDE % 65,  # characters
        WIDE % 4,
        np.zeros(500),
        np.where(WIDE % 50, 0, WIDE % 50_000),  # mostly padding
        np.where(WIDE % 10, WIDE % 16, 40_000),  # most are small
        np.arange(500),
        np.tile(np.append(np.ones(3), 300), 7),  # too few to tell
    ],
)
def test_real_ids_of_16_bits_are_taken(tmp_path: Path, ids: Any) -> None:
    ids.astype("<u2").tofile(tmp_path / "ids.bin")
    ds = shardkit.TokenDataset(tmp_path / "ids.bin", seq_len=8)
    assert ds[0]["inputs"].tolist() == ids[:8].tolist()


def test_any_name_will_do_if_it_is_said(tmp_path: Path, run: Run) -> None:
    """OLMo's and dolma's, ids without a header called .npy; and packed from there."""
    path = tmp_path / "part-0.npy"
    WIDE.astype("<u4").tofile(path)
    for opener in (lambda: shardkit.TokenDataset(path, seq_len=8), lambda: shardkit.open(path)):
        with pytest.raises(DatasetMissingError, match="stored_dtype='uint16'"):
            opener()
    ds = shardkit.TokenDataset(path, seq_len=8, stored_dtype="uint32")
    assert ds[0]["inputs"].tolist() == WIDE[:8].tolist()
    for to, workers in (("npy", "1"), ("hdf5", "0")):
        dest = tmp_path / to
        run("convert", path, dest, "--to", to, "--stored-dtype", "uint32", "--workers", workers)
        packed = shardkit.TokenDataset(dest, seq_len=8)
        assert packed[0]["inputs"].tolist() == WIDE[:8].tolist()


def test_a_stored_dtype_that_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "odd.bin"
    path.write_bytes(bytes(4002))
    with pytest.raises(FormatError, match="no whole number of ids of 4 bytes"):
        shardkit.TokenDataset(path, seq_len=8, stored_dtype="uint32")
    with pytest.raises(UsageError, match=r"must be one of uint8, uint16, .*, got 'float32'"):
        shardkit.TokenDataset(path, seq_len=8, stored_dtype="float32")
    with_header = llm_c(tmp_path / "h.bin", [*range(500)])
    with pytest.raises(UsageError, match="ids are uint16: leave out stored_dtype='uint32'"):
        shardkit.TokenDataset(with_header, seq_len=8, stored_dtype="uint32")
    (tmp_path / "folder").mkdir()
    for call in (
        lambda: shardkit.TokenDataset(tmp_path / "folder", seq_len=8, stored_dtype="uint32"),
        lambda: shardkit.convert(tmp_path / "folder", to="npy", stored_dtype="uint32"),
        lambda: shardkit.convert(with_header, to="bin", stored_dtype="uint32"),
    ):
        with pytest.raises(UsageError, match=r"file of ids|files of ids|files of token ids"):
            call()
