"""What a dataset says of its tokenizer is checked before anything is believed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import FormatError
from shardkit.tokens.spec import TokenizerSpec, capacity, checksum, smallest_dtype

FILE = {"kind": "tokenizer.json", "file": "tokenizer.json", "num_bytes": 9, "xxh3": "0" * 16}
NAMED = {"kind": "tiktoken", "file": "tokenizer.tiktoken", "num_bytes": 9, "xxh3": "f" * 16}

SPECS = [
    TokenizerSpec(vocab_size=50_257, dtype="<u2"),
    TokenizerSpec(**FILE, vocab_size=256, dtype="|u1", eos=0, bos=255, is_lossless=True),
    TokenizerSpec(
        **NAMED,
        name="gpt2",
        pattern=r"\S+|\s+",
        special_tokens={"<|endoftext|>": 70_000},
        vocab_size=70_001,
        dtype="<u4",
        eos=70_000,
        invalid_utf8="replace",
    ),
]


@pytest.mark.parametrize("spec", SPECS)
def test_a_spec_comes_back_from_json(spec):
    assert TokenizerSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


HOSTILE = [
    ("kind", "sentencepiece"),
    ("kind", ["tokenizer.json"]),
    ("file", "../../etc/passwd"),
    ("file", "tokenizer.tiktoken"),
    ("bytes", -1),
    ("bytes", 2**40),
    ("bytes", True),
    ("xxh3", "zz"),
    ("name", "a\x1b[31m"),
    ("name", 7),
    ("pattern", ".*"),
    ("special_tokens", {"<|endoftext|>": 0}),
    ("vocab_size", 0),
    ("vocab_size", 257),
    ("vocab_size", 2**60),
    ("vocab_size", 1.5),
    ("dtype", "<i8"),
    ("dtype", ["|u1"]),
    ("eos", 256),
    ("eos", "</s>"),
    ("bos", 2**70),
    ("invalid_utf8", "ignore"),
    ("is_lossless", 1),
]


@pytest.mark.parametrize(("name", "value"), HOSTILE)
def test_a_wrong_entry_is_one_line(name, value):
    raw = SPECS[1].to_json() | {name: value}
    with pytest.raises(FormatError, match=r"^corpus\.tokens") as caught:
        TokenizerSpec.from_json(raw)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pattern", None),
        ("pattern", "a" * 10_001),
        ("special_tokens", None),
        ("special_tokens", ["<|endoftext|>"]),
        ("special_tokens", {"<|endoftext|>": 70_001}),
        ("special_tokens", {"<|endoftext|>": -1}),
        ("special_tokens", {"<|endoftext|>": None}),
        ("file", "tokenizer.json"),
    ],
)
def test_a_wrong_entry_of_tiktoken_is_one_line(name, value):
    with pytest.raises(FormatError, match=r"^corpus\.tokens"):
        TokenizerSpec.from_json(SPECS[2].to_json() | {name: value})


@pytest.mark.parametrize("raw", [None, [], "x", {}, SPECS[0].to_json() | {"more": 1}])
def test_what_is_no_spec_is_one_line(raw):
    with pytest.raises(FormatError, match="must have the entries bos, bytes, dtype"):
        TokenizerSpec.from_json(raw)


@given(st.integers(1, 2**31))
def test_the_dtype_holds_the_largest_id_and_a_smaller_one_would_not(vocab_size):
    dtype = smallest_dtype(vocab_size)
    assert int(np.array([vocab_size - 1]).astype(dtype)[0]) == vocab_size - 1
    smaller = [d for d in ("|u1", "<u2", "<u4") if capacity(d) < capacity(dtype)]
    assert all(vocab_size > capacity(d) for d in smaller)


def test_a_file_is_known_by_its_size_and_its_bytes():
    spec = TokenizerSpec(**FILE | {"xxh3": checksum(b"ninebytes")}, vocab_size=1, dtype="|u1")
    assert spec.matches(b"ninebytes")
    assert not spec.matches(b"ninebytez")
    assert not spec.matches(b"ninebytes ")
