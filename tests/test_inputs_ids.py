"""Token ids that nanoGPT and Megatron wrote, converted to datasets of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import EACH_FORMAT, Run, tree, write
from hypothesis import given
from hypothesis import strategies as st
from token_files import DOCUMENTS, megatron, nanogpt

import shardkit
from shardkit.errors import FormatError, UsageError
from shardkit.index.manifest import read_info
from shardkit.inputs import sample_files
from shardkit.tokens import id_files

OPTIONS = {"workers": 0, "progress": False}


def ids_of(folder: Path) -> list[list[int]]:
    ds = shardkit.open(folder)
    return [np.asarray(ids).tolist() for ids in ds.read(range(len(ds)))["tokens"]]


@pytest.mark.parametrize("to", EACH_FORMAT)
def test_convert_megatron(tmp_path: Path, to: str) -> None:
    prefix = megatron(tmp_path / "in", DOCUMENTS)
    done = shardkit.convert(prefix, tmp_path / "out", to=to, workers=2, progress=False)
    assert done.num_samples == 5 and shardkit.verify(tmp_path / "out").ok
    assert ids_of(tmp_path / "out") == [[1, 2, 3], [], [4], [], [5, 6, 7]]
    assert shardkit.open(tmp_path / "out").keys()[2] == "000000000002"
    found = read_info(tmp_path / "out").provenance
    assert found.kind == "megatron" and found.tokens["vocab_size"] == 8
    shardkit.convert(tmp_path / "out", tmp_path / "npy", to="npy", **OPTIONS)
    shardkit.convert(tmp_path / "npy", tmp_path / "back", to=to, **OPTIONS)
    assert tree(tmp_path / "back") == tree(tmp_path / "out")


@pytest.mark.parametrize(
    ("largest", "dtype", "stored"),
    [(255, "<i4", "|u1"), (256, "<u2", "<u2"), (65_535, "<i4", "<u2"), (65_536, "<i8", "<u4")],
)
def test_the_smallest_dtype(tmp_path: Path, largest: int, dtype: str, stored: str) -> None:
    prefix = megatron(tmp_path / "in", [[[largest, 0]], [[1]]], dtype)
    shardkit.convert(prefix, tmp_path / "out", to="npy", **OPTIONS)
    assert ids_of(tmp_path / "out") == [[largest, 0], [1]]
    assert np.load(tmp_path / "out" / "train-00000.tokens.npy").dtype.str == stored


def test_guesses_pieces_and_eos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(id_files, "PIECE_TOKENS", 4)
    nanogpt(tmp_path / "train.bin", [*range(10)])
    _, out, _ = run("convert", "train.bin", "--to", "npy", "--workers", 0)
    assert "taken for token ids of uint16 as nanoGPT writes them (10 tokens, ids up to 9)" in out
    assert ids_of(tmp_path / "train-npy") == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert "where documents end is not known" in run("info", "train-npy")[1]
    write(tmp_path / "meta.pkl", b"")
    _, out, _ = run("convert", "train.bin", "e", "--to", "npy", "--eos", 3, "--workers", 0)
    assert "as meta.pkl beside it suggests" in out
    assert ids_of(tmp_path / "e") == [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]


@given(
    st.lists(st.lists(st.lists(st.integers(0, 70_000), max_size=4), max_size=3), max_size=9),
    st.integers(1, 5),
)
def test_every_token_of_every_document(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[list[int]]], run_entries: int
) -> None:
    folder = tmp_path_factory.mktemp("all")
    expected = [[i for sequence in document for i in sequence] for document in documents]
    megatron(folder / "in", documents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_files, "RUN_ROWS", run_entries)
        if not any(expected):
            with pytest.raises(FormatError, match="holds no token"):
                shardkit.convert(folder / "in", folder / "out", to="npy", **OPTIONS)
            return
        shardkit.convert(folder / "in", folder / "out", to="npy", **OPTIONS)
    assert ids_of(folder / "out") == expected


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"eos": -1}, "eos is an id from 0 to 2147483647, got -1"),
        ({"eos": 7}, "holds no token 7; give the id that ends its documents, or none"),
        ({"resize": 32}, "holds tokens, and has no pictures: leave out"),
        ({"dataset": "pictures", "eos": 1}, "eos is for files of token ids; .* is none"),
        ({"dataset": "large"}, "token 1 has id 4294967295, or it is negative, which no vocabulary"),
    ],
)
def test_calls_that_make_no_sense(tmp_path: Path, options: dict[str, Any], what: str) -> None:
    nanogpt(tmp_path / "a.bin", [1, 2])
    megatron(tmp_path / "large", [[[1, -1]]], "<i4")
    source = tmp_path / options.pop("dataset", "a.bin")
    with pytest.raises((UsageError, FormatError), match=what):
        shardkit.convert(source, tmp_path / "out", to="npy", **options, **OPTIONS)
    assert not (tmp_path / "out").exists()
