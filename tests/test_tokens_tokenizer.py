"""Text to ids and back, by every make of tokenizer."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import tokenizer_data as data
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference

from shardkit.errors import FormatError, SampleError
from shardkit.operations.detokenize import Texts
from shardkit.samples.encoding import npy_header
from shardkit.tokens import joints
from shardkit.tokens.awkward import awkward_texts
from shardkit.tokens.load import load_tokenizer
from shardkit.tokens.spec import TokenizerSpec
from shardkit.tokens.tokenizer import Tokenizer


def made(raw: dict, folder, backend: str = "tokenizers", eos: str = "none") -> Tokenizer:
    path = folder / "some.json"
    path.write_bytes(data.dump(raw))
    found = load_tokenizer(path, eos=eos)
    return Tokenizer(found.spec, found.file, backend)


def at_once(raw: dict, backend: str = "tokenizers") -> Tokenizer:
    """Made without looking whether it is lossless."""
    ids = [*raw["model"]["vocab"].values(), *(token["id"] for token in raw["added_tokens"])]
    spec = TokenizerSpec(vocab_size=max(ids) + 1, dtype="<u2")
    return Tokenizer(spec, data.dump(raw), backend)


@pytest.fixture(params=data.MAKES)
def make(request) -> str:
    return request.param


@pytest.fixture
def tokenizer(make, tmp_path) -> Tokenizer:
    return made(data.MAKES[make](), tmp_path)


def reference(raw: dict) -> Reference:
    found = Reference.from_str(json.dumps(raw))
    found.encode_special_tokens = True
    return found


def test_ids_are_the_library_s(make, tokenizer):
    texts = [data.prose(), *awkward_texts(["</s>", "<|endoftext|>", "[CLS]"])]
    expected = reference(data.MAKES[make]())
    for text, ids in zip(texts, tokenizer.encode(texts), strict=True):
        assert ids.dtype == tokenizer.spec.dtype
        assert ids.tolist() == expected.encode(text, add_special_tokens=False).ids


def test_lossless_is_what_gives_the_text_back(make, tokenizer):
    assert tokenizer.spec.is_lossless == (make in data.LOSSLESS)
    text = data.prose()
    is_same = tokenizer.decode(tokenizer.encode([text])[0]) == text.encode()
    assert is_same or not tokenizer.spec.is_lossless


def test_special_tokens_in_the_text_are_text(tmp_path):
    gpt2 = made(data.bpe(), tmp_path, eos="auto")
    text = "a<|endoftext|>b"
    (ids,) = gpt2.encode([text])
    assert gpt2.spec.eos == 0 and 0 not in ids
    assert gpt2.decode(ids) == text.encode()
    assert gpt2.decode(np.array([0])) == b"<|endoftext|>"


def test_truncation_padding_and_templates_of_the_file_are_not_for_us(tmp_path):
    raw = data.wordpiece()
    plain = made(raw, tmp_path).encode(["some words", data.prose()])
    raw["truncation"] = {
        "direction": "Right",
        "max_length": 8,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    raw["padding"] = {
        "strategy": {"Fixed": 32},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    raw["post_processor"] = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    for a, b in zip(plain, made(raw, tmp_path).encode(["some words", data.prose()]), strict=True):
        assert np.array_equal(a, b)


@given(st.lists(st.integers(0, 1499)), st.integers(0, 20))
def test_any_ids_are_bytes_and_parts_are_parts_of_them(ids, place):
    gpt2 = at_once(data.bpe())
    array = np.array(ids, np.uint16)
    parts = gpt2.decode(array[:place]) + gpt2.decode(array[place:])
    whole = gpt2.decode(array)
    assert parts == whole
    decoded = reference(data.bpe()).decode(ids, skip_special_tokens=False)
    assert whole.decode(errors="replace") == decoded


def test_an_unknown_id_is_one_line(tmp_path):
    with pytest.raises(FormatError, match="id 1500 is not in the tokenizer's vocabulary"):
        made(data.bpe(), tmp_path).decode(np.array([1500], np.uint16))


def test_bos_and_eos_come_off_once_and_only_at_the_ends(tmp_path):
    spec = replace(made(data.bpe(), tmp_path).spec, bos=7, eos=0)
    tokenizer = Tokenizer(spec, data.dump(data.bpe()), "tokenizers")
    ids = np.array([7, 7, 0, 8, 7, 0, 0], np.uint16)
    assert document(tokenizer, ids) == tokenizer.decode(ids[1:-1])
    for empty in ([], [7], [0], [7, 0]):
        assert document(tokenizer, np.array(empty, np.uint16)) == b""
    neither = Tokenizer(replace(spec, bos=None, eos=None), tokenizer.file, "tokenizers")
    assert document(neither, ids) == neither.decode(ids)


def document(tokenizer, ids):
    return b"".join(Texts(tokenizer).pieces(npy_header(ids.dtype.str, ids.shape) + ids.tobytes()))


def test_ids_are_checked_before_they_are_narrowed(tmp_path):
    tokenizer = made(data.bpe(), tmp_path)
    small = Tokenizer(
        replace(tokenizer.spec, vocab_size=256, dtype="|u1"), tokenizer.file, "tokenizers"
    )
    with pytest.raises(FormatError, match=r"gives id \d+, its vocabulary ends at 255"):
        small.encode(["Some text with merged tokens."])


# --- large documents ----------------------------------------------------------------------


@pytest.fixture
def small_pieces(monkeypatch) -> None:
    """A hundredth of the real sizes."""
    monkeypatch.setattr(joints, "PIECE_CHARS", 10_000)
    monkeypatch.setattr(joints, "WHOLE_CHARS", 40_000)
    monkeypatch.setattr("shardkit.tokens.tokenizer.STEP_BYTES", 10_007)


def whole(make: str, text: str) -> list[int]:
    found: list[int] = reference(data.MAKES[make]()).encode(text, add_special_tokens=False).ids
    return found


@pytest.mark.usefixtures("small_pieces")
def test_parts_have_the_ids_of_the_whole(make, tokenizer):
    text = data.prose()
    parts = [*tokenizer.encode_pieces(text.encode())]
    assert len(parts) > len(text) / 10_001
    assert np.concatenate(parts).tolist() == whole(make, text)
    assert np.array_equal(np.concatenate(parts), tokenizer.encode([text])[0])


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("backend", ["tokenizers", "tiktoken"])
@pytest.mark.parametrize("text", ["a" * 35_000, "日本語" * 12_000, " " * 25_000, "é\n" * 20_000])
def test_a_run_without_a_place_to_cut_loses_nothing(text, backend, tmp_path):
    tokenizer = made(data.bpe(), tmp_path, backend)
    parts = [*tokenizer.encode_pieces(memoryview(text.encode()))]
    assert len(parts) >= len(text) / 10_000
    joined = np.concatenate(parts)
    assert tokenizer.decode(joined) == text.encode()
    assert np.array_equal(joined, tokenizer.encode([text])[0])


@pytest.mark.usefixtures("small_pieces")
def test_a_tokenizer_that_must_see_it_whole_says_so(tmp_path):
    raw = data.bpe()
    raw["normalizer"] = {"type": "Prepend", "prepend": "x"}
    tokenizer = made(raw, tmp_path)
    short, long = data.prose()[:30_000], data.prose()[:41_000]
    (ids,) = tokenizer.encode_pieces(short.encode())
    expected = reference(raw).encode(short, add_special_tokens=False).ids
    assert ids.tolist() == expected
    with pytest.raises(SampleError, match="over 40,000 characters"):
        [*tokenizer.encode_pieces(long.encode())]
    with pytest.raises(SampleError, match="cut it up before packing"):
        tokenizer.encode([long])


@pytest.mark.usefixtures("small_pieces")
def test_text_that_is_not_utf8_is_refused_or_replaced(tmp_path):
    tokenizer = made(data.bpe(), tmp_path)
    raw = data.prose().encode()
    for broken in (raw[:20_000] + b"\xff\xfe" + raw[20_000:], raw + b"\xe2\x82"):
        with pytest.raises(UnicodeDecodeError):
            [*tokenizer.encode_pieces(broken)]
        ids = np.concatenate([*tokenizer.encode_pieces(broken, "replace")])
        assert tokenizer.decode(ids) == broken.decode(errors="replace").encode()


def test_no_text_is_no_ids(tmp_path):
    tokenizer = made(data.bpe(), tmp_path)
    assert [*tokenizer.encode_pieces(b"")] == []
    assert tokenizer.encode([]) == []
    assert [len(ids) for ids in tokenizer.encode(["", ""])] == [0, 0]
