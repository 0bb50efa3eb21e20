"""tiktoken gives the ids of ``tokenizers``, or is not taken."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest
import tokenizer_data as data
from conftest import examples, run_python
from hypothesis import given
from hypothesis import strategies as st
from test_tokens_tokenizer import at_once, made, reference
from tokenizers import Regex, normalizers

from shardkit.errors import FormatError, UsageError
from shardkit.tokens import pattern as patterns
from shardkit.tokens import prove
from shardkit.tokens.bytelevel import byte_of
from shardkit.tokens.fast import ranked, why_not
from shardkit.tokens.prove import choose_backend
from shardkit.tokens.tokenizer import CAREFUL, FAST, Tokenizer

BACKENDS = (FAST, CAREFUL)
"""By the versions of the two libraries."""

# --- merges as ranks ----------------------------------------------------------------------


@st.composite
def random_bpe(draw: Any) -> dict[str, Any]:
    """Merges of a, b and c in any order, some of them twice or of no use, with ids in any order,
    and tokens that no merges make."""
    tokens = ["a", "b", "c"]
    merges: list[list[str]] = []
    for _ in range(draw(st.integers(0, 12))):
        pair = [draw(st.sampled_from(tokens)), draw(st.sampled_from(tokens))]
        if pair not in merges:
            merges.append(pair)
            tokens.append("".join(pair))
    tokens += draw(st.lists(st.text("abc", min_size=2, max_size=5), max_size=4))
    vocab = sorted({chr(c) for c in byte_of()} | set(tokens))
    order = draw(st.permutations(range(len(vocab))))
    raw = data.bpe(
        vocab=dict(zip(vocab, order, strict=True)),
        merges=merges,
        ignore_merges=draw(st.booleans()),
    )
    return raw | {"added_tokens": []}


@examples(3)
@given(random_bpe(), st.lists(st.text("abc ", max_size=30), min_size=1, max_size=8))
def test_a_bpe_that_has_ranks_has_the_same_ids(raw, texts):
    if isinstance(ranked(raw), str):
        return
    expected = reference(raw)
    fast = at_once(raw, "tiktoken")
    for text, ids in zip(texts, fast.encode(texts), strict=True):
        assert ids.tolist() == expected.encode(text, add_special_tokens=False).ids


def test_most_bpes_have_ranks():
    for raw in (data.bpe(), data.llama3(), data.all_splits(data.bpe()), data.qwen2()):
        found = ranked(raw)
        assert not isinstance(found, str)
        # All but <|endoftext|>, which no merges make, and which must stay with ignore_merges.
        assert len(found.tokens) == 1499 + raw["model"]["ignore_merges"]


def test_merges_as_old_files_write_them_are_the_same():
    raw = data.bpe()
    old = data.bpe(merges=[" ".join(pair) for pair in raw["model"]["merges"]])
    assert ranked(old) == ranked(raw)


# --- what cannot run fast -----------------------------------------------------------------


def changed(**changes: Any) -> dict[str, Any]:
    return data.bpe() | changes


BYTE_LEVEL = {"type": "ByteLevel", "trim_offsets": True}

REASONS = [
    (data.wordpiece, "no byte-level BPE"),
    (data.unigram, "no byte-level BPE"),
    (data.llama2, "no byte-level BPE"),
    (lambda: data.bpe(end_of_word_suffix="</w>"), "no byte-level BPE"),
    (lambda: data.bpe(dropout=0.1), "it has dropout"),
    (lambda: changed(normalizer={"type": "Lowercase"}), "changes text"),
    (lambda: changed(pre_tokenizer=None), "one regular expression"),
    (
        lambda: changed(pre_tokenizer=BYTE_LEVEL | {"add_prefix_space": True, "use_regex": True}),
        "one regular expression",
    ),
    (
        lambda: changed(pre_tokenizer=BYTE_LEVEL | {"add_prefix_space": False, "use_regex": False}),
        "one regular expression",
    ),
    (
        lambda: changed(
            pre_tokenizer={
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Digits", "individual_digits": True},
                    BYTE_LEVEL | {"add_prefix_space": False, "use_regex": True},
                ],
            }
        ),
        "one regular expression",
    ),
    (
        lambda: changed(
            added_tokens=[data.added(f"<{i}>", 1500 + i, special=False) for i in range(33)]
        ),
        "over 32 added tokens",
    ),
]


@pytest.mark.parametrize(("make", "reason"), REASONS)
def test_what_cannot_run_fast_says_why_and_is_tokenized_all_the_same(make, reason, tmp_path):
    raw = make()
    assert reason in (why_not(raw) or "")
    slow = made(raw, tmp_path)
    chosen, line = choose_backend(slow, ["some text"])
    assert chosen is slow
    assert line.startswith("tokenized by tokenizers, not by tiktoken, which is faster: ")
    assert reason in line and "\n" not in line
    with pytest.raises(UsageError, match="does not run on tiktoken"):
        Tokenizer(slow.spec, slow.file, "tiktoken").encode(["x"])


def test_a_vocabulary_without_all_bytes_cannot():
    raw = data.bpe()
    del raw["model"]["vocab"]["é"]
    raw["model"]["merges"] = [m for m in raw["model"]["merges"] if "é" not in "".join(m)]
    raw["model"]["vocab"] = {
        t: i for t, i in raw["model"]["vocab"].items() if "é" not in t or len(t) == 1
    }
    assert ranked(raw) == "its vocabulary has 255 of the 256 bytes"


def test_merges_of_one_token_that_lie_apart_cannot():
    merges = [["a", "b"], ["b", "c"], ["c", "d"], ["ab", "c"], ["a", "b"], ["b", "d"], ["a", "bc"]]
    raw = data.bpe()
    raw["model"]["vocab"] |= {t: 1500 + i for i, t in enumerate(["bd", "abc", "ab", "bc", "cd"])}
    raw["model"]["merges"] = merges[:4] + merges[5:]
    assert ranked(raw) == "merges that make the same token lie apart"


def test_a_token_that_only_ignored_merges_make_cannot():
    raw = data.bpe(ignore_merges=True)
    raw["model"]["vocab"]["qz"] = 1500
    assert ranked(raw) == "a token that its merges do not make would be merged"


@pytest.mark.parametrize("make", data.FAST)
def test_the_fast_backend_is_taken_where_it_is_proved(make, tmp_path):
    slow = made(data.MAKES[make](), tmp_path)
    chosen, line = choose_backend(slow, [data.prose()])
    assert chosen.backend in BACKENDS and chosen.spec == slow.spec
    assert line.startswith("tokenized by tiktoken: ids proved equal on ")


# --- the proof ----------------------------------------------------------------------------


def test_an_expression_that_means_something_else_in_rust_is_found_out(tmp_path):
    # "$" is the end of any line to Oniguruma, and of the text to Rust.
    raw = data.bpe() | {"pre_tokenizer": data.split(r"\s+$| ?\p{L}+|\s|\p{N}+|[^\s\p{L}\p{N}]+")}
    slow = made(raw, tmp_path)
    chosen, line = choose_backend(slow, ["x"])
    assert chosen is slow
    assert "which is faster: other ids for '" in line


def test_a_difference_in_the_corpus_is_found_out(tmp_path):
    rest = r" ?\p{L}+|\s+|\p{N}+|[^\s\p{L}\p{N}]+"
    raw = data.bpe() | {"pre_tokenizer": data.split(rf"dataset$|dat(?=aset)|{rest}")}
    slow = made(raw, tmp_path)
    assert choose_backend(slow, ["nothing of the kind"])[0].backend in BACKENDS
    chosen, line = choose_backend(slow, ["nothing of the kind", "dataset\nof lines"])
    assert chosen is slow
    assert line.endswith(r"which is faster: other ids for 'dataset\nof lines'")


def test_the_proof_reads_no_more_than_it_needs(tmp_path, monkeypatch):
    monkeypatch.setattr(prove, "PROOF_CHARS", 1000)
    read = []

    def texts():
        for i in range(100):
            read.append(i)
            yield "word " * 60

    assert choose_backend(made(data.bpe(), tmp_path), texts())[0].backend in BACKENDS
    assert len(read) == 4


def test_a_huge_text_is_no_difference(tmp_path):
    chosen, line = choose_backend(made(data.bpe(), tmp_path), ["aB" * 600_000])
    assert chosen.backend in BACKENDS, line


def test_without_tiktoken_the_other_library_does_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    slow = made(data.bpe(), tmp_path)
    chosen, line = choose_backend(slow, ["x"])
    assert chosen is slow
    assert line.endswith("needs the library tiktoken: pip install 'shardkit[tokens]'")


@pytest.mark.thorough
@pytest.mark.parametrize("name", [r"\p{L}", r"\p{N}", r"\p{M}", r"\p{P}", r"\p{Lu}", r"\s"])
def test_no_character_differs_between_the_libraries_that_is_not_found(name):
    """All of Unicode, where packing looks at what may differ."""
    text = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)
    left = normalizers.Replace(Regex(name), "").normalize_str(text)
    differing = set(patterns._members_rust(name, text)) ^ (set(text) - set(left))
    assert patterns.differing_characters(name) == "".join(sorted(differing))


@pytest.fixture
def older_unicode(monkeypatch) -> None:
    """tiktoken, as if to it an Arabic digit were none."""
    real = patterns._members_rust

    def members(name: str, text: str) -> str:
        return real(name, text).replace("٣", "") if "N" in name else real(name, text)

    monkeypatch.setattr(patterns, "_members_rust", members)


@pytest.mark.usefixtures("older_unicode")
def test_texts_with_characters_that_the_libraries_class_apart_go_elsewhere(tmp_path, counted):
    assert "٣" in patterns.differing_characters(patterns.GPT2)
    slow = made(data.bpe(), tmp_path)
    chosen, line = choose_backend(slow, ["x"])
    assert chosen.backend == "tiktoken+tokenizers"
    assert line.endswith("; texts with new characters by tokenizers")
    counted.clear()
    texts = ["plain", "café ٤", "a ٣ b"]
    for a, b in zip(chosen.encode(texts), slow.encode(texts), strict=True):
        assert np.array_equal(a, b)
    assert counted == texts[2:]


def test_a_class_that_one_library_does_not_know_is_one_line(tmp_path, monkeypatch):
    def refuse(name: str, text: str) -> str:
        raise ValueError("Unicode property not found")

    monkeypatch.setattr(patterns, "_members_rust", refuse)
    slow = made(data.bpe(), tmp_path)
    chosen, line = choose_backend(slow, ["x"])
    assert chosen is slow
    assert line.endswith(r"not both libraries know \p{L}: Unicode property not found")


def test_characters_in_doubt_are_all_but_large_blocks():
    text = patterns.settled_apart()
    assert len(text) == len(set(text)) == 127_324
    for character in "aé٣ \u3000。ｱ\U0001f600\U00010d40\U00011f50":
        assert character in text


@given(st.text())
def test_any_text_has_the_same_ids(text):
    fast, slow = backends("gpt2")
    assert np.array_equal(fast.encode([text])[0], slow.encode([text])[0])


@given(st.text("aZ é1\u0663'sSt \n\r\t\u00a0\u0301。\0.-日", max_size=60))
def test_awkward_text_has_the_same_ids(text):
    for make in data.FAST:
        fast, slow = backends(make)
        assert np.array_equal(fast.encode([text])[0], slow.encode([text])[0]), make


_made: dict[str, tuple[Tokenizer, Tokenizer]] = {}


def backends(make: str) -> tuple[Tokenizer, Tokenizer]:
    if make not in _made:
        raw = data.MAKES[make]()
        _made[make] = at_once(raw, "tiktoken"), at_once(raw)
    return _made[make]


# --- texts that go elsewhere --------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch) -> list[str]:
    """The texts that ``tokenizers`` had to encode for tiktoken."""
    texts: list[str] = []
    real = Tokenizer._by_library

    def by_library(self: Tokenizer, text: str):
        texts.append(text)
        return real(self, text)

    monkeypatch.setattr(Tokenizer, "_by_library", by_library)
    return texts


def test_texts_with_added_tokens_or_another_form_go_elsewhere(counted, tmp_path):
    fast = made(data.qwen2(), tmp_path, "tiktoken")
    texts = ["a<tool_call>b", "cafe\u0301", "café <|im_end|> plain", "tool_call"]
    expected = reference(data.qwen2())
    for text, ids in zip(texts, fast.encode(texts), strict=True):
        assert ids.tolist() == expected.encode(text, add_special_tokens=False).ids
    assert counted == texts[:2]


def test_a_text_on_which_the_regex_engine_gives_up_goes_elsewhere(counted, tmp_path):
    fast = made(data.llama3(), tmp_path, "tiktoken")
    text = " " * 1_040_000 + "x"
    (ids,) = fast.encode([text])
    assert counted == [text]
    assert fast.decode(ids) == text.encode()


def test_a_text_that_the_pattern_does_not_match_throughout_goes_elsewhere(counted, tmp_path):
    raw = data.bpe() | {"pre_tokenizer": data.split(r"\p{L}+|\s+")}
    fast = made(raw, tmp_path, "tiktoken")
    texts = ["only words and spaces", "and, now; more"]
    expected = reference(raw)
    for text, ids in zip(texts, fast.encode(texts), strict=True):
        assert ids.tolist() == expected.encode(text, add_special_tokens=False).ids
    assert counted == texts[1:]
    assert fast.decode(fast.encode(texts[1:])[0]) == texts[1].encode()


def test_an_expression_that_rust_refuses_is_one_line(tmp_path):
    raw = data.bpe() | {"pre_tokenizer": data.split(r"\y.|.|\n")}
    slow = made(raw, tmp_path)
    with pytest.raises(FormatError, match="tiktoken refuses this tokenizer"):
        Tokenizer(slow.spec, slow.file, "tiktoken").encode(["x"])
    assert choose_backend(slow, ["x"])[0] is slow


def test_decoding_needs_no_library(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(data.bpe_file())
    code = """
import sys, json, pathlib
import numpy as np
from shardkit.tokens.spec import TokenizerSpec
from shardkit.tokens.tokenizer import CAREFUL, FAST, Tokenizer
tokenizer = Tokenizer(TokenizerSpec(vocab_size=1500, dtype="<u2"),
                      pathlib.Path(sys.argv[1]).read_bytes(), "tokenizers")
print(json.dumps([tokenizer.decode(np.array([0, 5])).decode(),
                  sorted({"tokenizers", "tiktoken", "torch"} & set(sys.modules))]))
"""
    assert json.loads(run_python(code, path)) == ["<|endoftext|>%", []]
