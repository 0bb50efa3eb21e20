"""Files of token ids that nanoGPT, llm.c and Megatron wrote: mapped, and checked."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Run, picture, write
from hypothesis import given
from hypothesis import strategies as st
from token_files import DOCUMENTS, index, llm_c, megatron, nanogpt

import shardkit
from shardkit.errors import CorpusError, DataError, DatasetMissingError, FormatError, UsageError
from shardkit.tokens import id_files
from shardkit.tokens.id_files import is_token_file, open_token_file

WIDE = np.random.default_rng(0).integers(0, 128_000, 300)


# --- files --------------------------------------------------------------------------------


def test_nanogpt_and_llm_c(tmp_path: Path) -> None:
    path = nanogpt(tmp_path / "train.bin", [5, 6, 9, 9, 7])
    found = open_token_file(path)
    assert (found.kind, found.dtype, found.files) == ("nanogpt", np.dtype("<u2"), (path,))
    assert found.data.tolist() == [5, 6, 9, 9, 7] and found.document_ends is None
    assert found.is_guess and not found.data.flags.writeable
    found = open_token_file(llm_c(tmp_path / "a.bin", [*range(600)]))
    assert found.data.tolist() == [*range(600)] and not found.is_guess
    for num, expected in ((601, "2226 for the 601"), (-1, "1022 for the -1")):
        with pytest.raises(FormatError, match=f"has 2224 bytes, expected {expected} tokens of"):
            open_token_file(llm_c(tmp_path / "b.bin", [*range(600)], num=num))


@given(st.lists(st.integers(0, 3), min_size=1), st.integers(1, 9))
def test_documents_end_where_eos_is(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int], scan_tokens: int
) -> None:
    path = nanogpt(tmp_path_factory.mktemp("eos") / "a.bin", ids)
    ends = [i + 1 for i, one in enumerate(ids) if one == 3 or i == len(ids) - 1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_files, "SCAN_TOKENS", scan_tokens)
        if 3 not in ids:
            with pytest.raises(CorpusError, match="holds no token 3"):
                open_token_file(path, eos=3)
        else:
            assert open_token_file(path, eos=3).sample_ends.tolist() == ends


@pytest.mark.parametrize("dtype", ["|u1", "<u2", "<i4", "<i8"])
@pytest.mark.parametrize("ending", ["", ".bin", ".idx"])
def test_megatron(tmp_path: Path, dtype: str, ending: str) -> None:
    prefix = megatron(tmp_path / "c4.en_document", DOCUMENTS, dtype)
    found = open_token_file(Path(f"{prefix}{ending}"))
    assert found.kind == "megatron" and found.dtype.str == dtype.replace("i", "u")
    assert found.data.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert found.sample_ends.tolist() == [3, 3, 4, 4, 7]
    write(Path(f"{prefix}.idx"), index([2, 1, 0, 1, 3], [0], dtype))  # of sequences alone
    assert open_token_file(prefix).sample_ends.tolist() == [2, 3, 3, 4, 7]
    Path(f"{prefix}.bin").unlink()
    with pytest.raises(CorpusError, match=r"\.bin is missing, beside .*\.idx; fetch it"):
        open_token_file(Path(f"{prefix}.idx"))


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (b"TNTIDX\0\0" + bytes(100), r"a\.idx is no index of Megatron's: it does not begin with"),
        (index([3], [0, 1])[:-1], r"a\.idx has 61 bytes, expected 62 for 1 sequences and 2"),
        (index([3], [0, 1])[:18] + b"\xff" * 16 + bytes(28), "has 62 bytes, expected 36893488"),
        (index([3], [0, 1], version=2), "has version 2 and dtype code 4; ids have version 1 and"),
        (index([3], [0, 1], "<f4"), "has version 1 and dtype code 7; ids have"),
        (index([3], []), "do not count from 0 up to its 1 sequences"),
        (index([-1, 4], [0, 2]), "its sequences do not lie one after another"),
        (index([1, 2], [0, 2], pointers=[0, 8]), "its sequences do not lie one after another"),
        (index([4], [0, 1]), r"a\.bin has 12 bytes, expected 16, as .*a\.idx says"),
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
    assert (np.diff(found.sample_ends, prepend=0) >= 0).all()
    assert found.sample_ends[-1] == len(found.data)


@pytest.mark.parametrize("name", ["none.bin", "x.txt", "folder", "/", "fifo.bin"])
def test_no_such_file(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "x.txt", "ab")
    write(nanogpt(tmp_path / "folder.bin", [1]).with_suffix(".idx"), b"")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo.bin")
    assert not is_token_file(Path(name))
    with pytest.raises(CorpusError, match="is no file of token ids; give nanoGPT's"):
        open_token_file(Path(name))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "holds no token; make it again"),
        (b"abc", "has 3 bytes, which are no whole number of ids of 2 bytes"),
        (b"PK\3\4" + b"\0" * 60, "is no file of token ids: it begins as a zip archive, as torch"),
        (
            picture(1, kind="PNG") + b"\0\0",
            r"is no file of token ids: it begins as a picture \(png",
        ),
        (pickle.dumps([*range(8)], 2), "it begins as a pickle, which shardkit never reads"),
        (pickle.dumps({"a": np.arange(9)}, 4), "it begins as a pickle, which shardkit never"),
    ],
)
def test_what_holds_no_ids(tmp_path: Path, data: bytes, what: str) -> None:
    path = write(tmp_path / "a.bin", data)
    with pytest.raises(FormatError, match=rf"a\.bin .*{what}|a\.bin {what}"):
        shardkit.convert(path, tmp_path / "out", to="npy", workers=0)
    assert not (tmp_path / "out").exists()


def test_a_fingerprint_differs_where_ids_or_documents_do(tmp_path: Path) -> None:
    ids = np.arange(2_000_000, dtype="<u2")
    other = np.append(ids[:-1], ids[-1] + 1)
    made = [nanogpt(tmp_path / f"{i}.bin", x) for i, x in enumerate((ids, other, ids[:-1], ids))]
    prints = [open_token_file(path).fingerprint for path in made]
    assert len(set(prints[:3])) == 3 and prints[3] == prints[0]
    first, second = megatron(tmp_path / "a", [[[1], [2]]]), megatron(tmp_path / "b", [[[1]], [[2]]])
    assert open_token_file(first).fingerprint != open_token_file(second).fingerprint


# --- what is stored in a file without a header --------------------------------------------


@pytest.mark.parametrize(
    ("ids", "dtype", "told"),
    [
        (WIDE, "uint32", "uint32"),
        (WIDE, "int64", "int64"),
        (WIDE % 50_000, "uint32", "uint32"),  # each second half is 0
        (WIDE % 900_000 * 7, "uint64", "int64"),
        (np.where(WIDE % 3, 0, WIDE), "uint32", "uint32"),  # mostly padding
    ],
)
def test_wider_ids_are_asked_for(tmp_path: Path, ids: Any, dtype: str, told: str) -> None:
    path = tmp_path / "ids.bin"
    ids.astype(dtype).tofile(path)
    with pytest.raises(UsageError, match=f"seem to be {told}, .* give stored_dtype='{told}'"):
        shardkit.TokenDataset(path, seq_len=8)
    ds = shardkit.TokenDataset(path, seq_len=8, stored_dtype=dtype)
    assert ds[1]["inputs"].tolist() == ids[8:16].tolist()
    np.where(WIDE % 3, WIDE, -100).astype(dtype).tofile(path)  # no id is negative
    with pytest.raises((UsageError, DataError)):
        shardkit.TokenDataset(path, seq_len=8)[0]


@pytest.mark.parametrize(
    "ids",
    [
        WIDE % 50_000,
        np.where(WIDE % 50, 0, WIDE % 50_000),  # mostly padding
        np.where(WIDE % 10, WIDE % 16, 40_000),  # most are small
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
    with pytest.raises(DatasetMissingError, match="stored_dtype='uint16'"):
        shardkit.open(path)
    run("convert", path, "out", "--to", "npy", "--stored-dtype", "uint32", "--workers", 1)
    assert shardkit.TokenDataset("out", seq_len=8)[0]["inputs"].tolist() == WIDE[:8].tolist()


def test_a_stored_dtype_that_cannot_be(tmp_path: Path) -> None:
    path = write(tmp_path / "odd.bin", bytes(4002))
    header = llm_c(tmp_path / "h.bin", [*range(500)])
    open_ids: Callable[..., Any] = shardkit.TokenDataset
    for source, dtype, what in (
        (path, "uint32", "no whole number of ids of 4 bytes"),
        (path, "float32", r"must be one of uint8, uint16, .*, got 'float32'"),
        (header, "uint32", "ids are uint16: leave out stored_dtype='uint32'"),
        (tmp_path, "uint32", "file of ids|files of ids|files of token ids"),
    ):
        with pytest.raises((UsageError, FormatError), match=what):
            open_ids(source, seq_len=8, stored_dtype=dtype)
