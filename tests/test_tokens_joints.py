"""Where a large text may be cut."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tokens_fast import backends

from shardkit.tokens import joints
from shardkit.tokens.joints import CUTS, all_parts, choose_cut, encode_parts, last_place

KEEP, DROP = CUTS
MIXED = st.text("aZ é日。, \n.1'", max_size=80)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("two words", ["two", " words"]),
        ("two\nlines", ["two", "\nlines"]),
        ("日本。語、x", ["日本", "。語", "、x"]),
        ("Ελλάδα και", ["Ελλάδα", " και"]),
        ("two  spaces", ["two  spaces"]),
        ("a 1 b, c.\nd \n e", ["a 1 b, c.\nd \n e"]),
        ("don't a't", ["don't", " a't"]),
        ("e\u0301 x", ["e\u0301 x"]),
        (" a", [" a"]),
        ("a ", ["a "]),
        ("", [""]),
    ],
)
def test_text_is_cut_between_letters_alone(text, parts):
    assert all_parts(KEEP, text) == parts


@given(MIXED)
def test_parts_are_the_text_and_the_last_place_is_the_last(text):
    for cut, glue in ((KEEP, ""), (DROP, " ")):
        parts = all_parts(cut, text)
        assert glue.join(parts) == text
        assert last_place(cut, text) == (
            len(text) - len(parts[-1]) - cut.num_dropped if len(parts) > 1 else 0
        )


@pytest.mark.parametrize("size", [10, 5_000, 70_000])
def test_a_place_is_found_however_far_from_the_end(size):
    assert last_place(KEEP, "a b" + "1" * size) == 1


@given(MIXED)
def test_cutting_changes_no_ids_of_any_fast_backend(text):
    for make in ("gpt2", "llama3", "qwen2"):
        for backend in backends(make):
            whole = backend.encode([text])[0]
            assert np.array_equal(whole, np.concatenate(backend.encode(all_parts(KEEP, text))))


@settings(max_examples=15)
@given(MIXED, st.integers(1, 20), st.integers(1, 30))
def test_chunks_do_not_matter(text, size, piece):
    encode = backends("gpt2")[0].encode
    chunks = [text[i : i + size] for i in range(0, len(text), size)]
    before = joints.PIECE_CHARS
    joints.PIECE_CHARS = piece
    try:
        at_once, bit_by_bit = [*encode_parts(encode, [text])], [*encode_parts(encode, chunks)]
    finally:
        joints.PIECE_CHARS = before
    assert [ids.tolist() for ids in at_once] == [ids.tolist() for ids in bit_by_bit]


def test_an_encoder_that_looks_across_is_found_out():
    def pairs(texts):
        return [np.array([ord(a) ^ ord(b) for a, b in itertools.pairwise(t)]) for t in texts]

    def letters(texts):
        return [np.array([ord(c) for c in t]) for t in texts]

    def words(texts):
        return [np.array([ord(w[0]) for w in t.split(" ") if w], int) for t in texts]

    assert choose_cut(pairs, "") is None
    assert choose_cut(letters, "") is KEEP
    assert choose_cut(letters, "a b c") is KEEP
    assert choose_cut(words, "some more words") in CUTS
