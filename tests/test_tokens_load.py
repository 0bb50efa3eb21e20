"""Tokenizers from what people have, and from what attackers send."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiktoken
import tokenizer_data as data
from conftest import write
from test_tokens_tokenizer import reference
from tiktoken.load import load_tiktoken_bpe

from shardkit.errors import (
    ChecksumError,
    DataError,
    FormatError,
    IndexFileError,
    ShardMissingError,
    UsageError,
)
from shardkit.tokens.bytelevel import alphabet_bytes
from shardkit.tokens.load import from_stored, load_tokenizer, open_tokenizer
from shardkit.tokens.named import dump_ranks
from shardkit.tokens.prove import choose_backend
from shardkit.tokens.spec import TokenizerSpec, checksum

TEXTS = ["Some text, and more.\n", "日本語 café 1234  \n\n", data.prose()[:5000]]


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    return write(tmp_path / "tokenizer.json", data.bpe_file())


# --- one file -----------------------------------------------------------------------------


def test_a_file_and_its_spec(gpt2):
    tokenizer = load_tokenizer(gpt2)
    assert tokenizer.file == data.bpe_file()
    assert tokenizer.backend == "tokenizers"
    assert tokenizer.spec == TokenizerSpec(
        kind="tokenizer.json",
        file="tokenizer.json",
        num_bytes=len(data.bpe_file()),
        xxh3=checksum(data.bpe_file()),
        vocab_size=1500,
        dtype="<u2",
        eos=0,
        is_lossless=True,
    )
    assert TokenizerSpec.from_json(tokenizer.spec.to_json()) == tokenizer.spec


@pytest.mark.parametrize(
    ("eos", "bos", "ids"),
    [
        ("auto", "none", (0, None)),
        ("none", "none", (None, None)),
        ("the", "<|endoftext|>", (data.bpe()["model"]["vocab"]["the"], 0)),
    ],
)
def test_what_begins_and_ends_documents(gpt2, eos, bos, ids):
    spec = load_tokenizer(gpt2, eos=eos, bos=bos).spec
    assert (spec.eos, spec.bos) == ids


@pytest.mark.parametrize(
    "text", ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]"]
)
def test_the_usual_ends_are_known_and_others_must_be_said(gpt2, text):
    raw = data.bpe()
    del raw["model"]["vocab"]["<|endoftext|>"]
    raw["model"]["vocab"] = {token: i for i, token in enumerate(raw["model"]["vocab"])}
    raw["added_tokens"] = [data.added(text, 1499, special=True)]
    path = write(gpt2.parent / "other.json", data.dump(raw))
    if text in ("<|im_end|>", "[SEP]"):
        with pytest.raises(UsageError, match="pass --eos TOKEN, or --eos none"):
            load_tokenizer(path)
        assert load_tokenizer(path, eos=text).spec.eos == 1499
    else:
        assert load_tokenizer(path).spec.eos == 1499


@pytest.mark.parametrize("what", ["eos", "bos"])
def test_a_token_that_is_not_there(gpt2, what):
    with pytest.raises(UsageError, match=f"^--{what} '<stop>': the tokenizer has no such token"):
        load_tokenizer(gpt2, **{what: "<stop>"})


def test_a_path_that_is_not_there():
    with pytest.raises(UsageError, match="no/such: no such file or folder, and no enc") as caught:
        load_tokenizer("no/such")
    assert "cl100k_base" in str(caught.value)


def test_without_the_library_it_is_said_what_to_install(gpt2, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match=r"pip install 'shardkit\[tokens\]'"):
        load_tokenizer(gpt2)


# --- folders ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "configs",
    [
        {"tokenizer_config.json": {"eos_token": "the"}},
        {"tokenizer_config.json": {"eos_token": {"content": "the", "special": True}}},
        {"special_tokens_map.json": {"eos_token": "the"}},
        {
            "tokenizer_config.json": {"eos_token": None},
            "special_tokens_map.json": {"eos_token": {"content": "the"}},
        },
    ],
)
def test_a_folder_says_what_ends_documents(gpt2, configs):
    for name, raw in configs.items():
        write(gpt2.parent / name, json.dumps(raw))
    tokenizer = load_tokenizer(gpt2.parent)
    assert tokenizer.spec.eos == data.bpe()["model"]["vocab"]["the"]
    assert tokenizer.spec.name == gpt2.parent.name
    assert tokenizer.file == data.bpe_file()
    assert load_tokenizer(gpt2.parent, eos="none").spec.eos is None


def gpt2_files(folder: Path) -> Path:
    model = data.bpe()["model"]
    write(folder / "vocab.json", json.dumps(model["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    write(folder / "merges.txt", f"#version: 0.2\n{merges}\n")
    return folder


def test_the_two_files_of_gpt2_are_a_tokenizer(tmp_path):
    tokenizer = load_tokenizer(gpt2_files(tmp_path))
    assert (tokenizer.spec.eos, tokenizer.spec.is_lossless) == (0, True)
    for text, ids in zip(TEXTS, tokenizer.encode(TEXTS), strict=True):
        assert ids.tolist() == reference(data.bpe()).encode(text).ids
    assert load_tokenizer(tmp_path).file == tokenizer.file
    assert choose_backend(tokenizer, TEXTS)[0].backend != "tokenizers"


def test_files_of_another_class_are_for_transformers(tmp_path, monkeypatch):
    gpt2_files(tmp_path)
    write(tmp_path / "tokenizer_config.json", json.dumps({"tokenizer_class": "Qwen2Tokenizer"}))
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError, match=r"has no tokenizer.json; pip install transformers"):
        load_tokenizer(tmp_path)


def test_transformers_makes_the_file_without_network_and_foreign_code(tmp_path, monkeypatch):
    asked = []

    class AutoTokenizer:
        @staticmethod
        def from_pretrained(folder, **options):
            asked.append((folder, options))
            backend = reference(data.bpe())
            return types.SimpleNamespace(backend_tokenizer=backend)

    fake = types.ModuleType("transformers")
    fake.AutoTokenizer = AutoTokenizer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", fake)
    write(tmp_path / "tokenizer.model", b"\0")
    tokenizer = load_tokenizer(tmp_path)
    assert asked == [(str(tmp_path), {"local_files_only": True, "trust_remote_code": False})]
    assert tokenizer.encode(TEXTS)[0].tolist() == reference(data.bpe()).encode(TEXTS[0]).ids


def test_what_transformers_cannot_read_is_one_line(tmp_path, monkeypatch):
    fake = types.ModuleType("transformers")

    class AutoTokenizer:
        @staticmethod
        def from_pretrained(folder, **options):
            raise OSError("no config.json\nin the folder")

    fake.AutoTokenizer = AutoTokenizer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", fake)
    with pytest.raises(UsageError, match=r"for transformers \(OSError: no config.json\)$"):
        load_tokenizer(tmp_path)


# --- encodings by name --------------------------------------------------------------------

PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"


def ranks() -> dict[bytes, int]:
    vocab = {alphabet_bytes(t): i for t, i in data.bpe()["model"]["vocab"].items() if i}
    return {token: i - 1 for token, i in vocab.items() if token is not None}


@pytest.fixture
def encoding(tmp_path, monkeypatch) -> tiktoken.Encoding:
    """``tiny_base``, registered as plugins register theirs, and ``far_base``, out of reach."""
    special = {"<|endoftext|>": 1499, "<|fim|>": 1510}
    made = {"name": "tiny_base", "pat_str": PATTERN, "mergeable_ranks": ranks()}

    def unreachable() -> dict:
        raise ConnectionError("Max retries exceeded with url: /encodings/far_base\nand more")

    constructors = {
        "tiny_base": lambda: made | {"special_tokens": special},
        "far_base": unreachable,
    }
    monkeypatch.setattr(tiktoken.registry, "ENCODING_CONSTRUCTORS", constructors)
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    return tiktoken.get_encoding("tiny_base")


def test_an_encoding_by_name(encoding):
    tokenizer = load_tokenizer("tiny_base")
    spec = tokenizer.spec
    assert (spec.kind, spec.file, spec.name) == ("tiktoken", "tokenizer.tiktoken", "tiny_base")
    assert (spec.vocab_size, spec.dtype, spec.eos, spec.pattern) == (1511, "<u2", 1499, PATTERN)
    assert spec.special_tokens == {"<|endoftext|>": 1499, "<|fim|>": 1510}
    assert (tokenizer.backend, spec.is_lossless) == ("tiktoken", True)
    text = "a<|endoftext|>b<|fim|>"
    for text in [*TEXTS, "a<|endoftext|>b<|fim|>", ""]:
        (ids,) = tokenizer.encode([text])
        assert ids.tolist() == encoding.encode(text, disallowed_special=())
        assert tokenizer.decode(ids) == text.encode()
    assert tokenizer.decode(np.array([1510, 1499])) == b"<|fim|><|endoftext|>"
    assert TokenizerSpec.from_json(spec.to_json()) == spec
    assert choose_backend(tokenizer, TEXTS) == (
        tokenizer,
        "tokenized by tiktoken's encoding tiny_base",
    )


@pytest.mark.usefixtures("encoding")
def test_the_stored_encoding_is_tiktoken_s_own_file(tmp_path, monkeypatch):
    tokenizer = load_tokenizer("tiny_base", bos="<|fim|>")
    write(tmp_path / "tokenizer.tiktoken", tokenizer.file)
    monkeypatch.setattr("tiktoken.load.read_file_cached", lambda *_: tokenizer.file)
    assert load_tiktoken_bpe("tokenizer.tiktoken") == ranks()
    opened = open_tokenizer(tmp_path, tokenizer.spec)
    assert opened.spec.bos == 1510
    for a, b in zip(tokenizer.encode(TEXTS), opened.encode(TEXTS), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.usefixtures("encoding")
def test_an_encoding_that_cannot_be_had_is_one_line():
    with pytest.raises(UsageError, match="TIKTOKEN_CACHE_DIR") as caught:
        load_tokenizer("far_base")
    assert str(caught.value).startswith("tiktoken cannot load far_base (ConnectionError: Max retr")
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match=r"it knows far_base, tiny_base\)"):
        load_tokenizer("near_base")


def test_a_text_on_which_an_encoding_gives_up_is_encoded_in_halves(encoding):
    stored = load_tokenizer("tiny_base")
    slow = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    tokenizer = from_stored(stored.file, replace(stored.spec, pattern=slow), "tiktoken")
    text = " " * 1_040_000 + "x"
    with pytest.raises(BaseException, match=r"Max stack size|StackOverflow"):
        tiktoken.Encoding("", pat_str=slow, mergeable_ranks=ranks(), special_tokens={}).encode(text)
    assert tokenizer.decode(tokenizer.encode([text])[0]) == text.encode()


@pytest.mark.usefixtures("encoding")
def test_an_encoding_that_would_lose_text_is_refused():
    stored = load_tokenizer("tiny_base")
    spec = replace(stored.spec, pattern=r"\p{L}+|\s+")
    with pytest.raises(FormatError, match="pattern leaves out '!', which would be lost"):
        from_stored(stored.file, spec, "tiktoken").encode(["words and then!"])


def test_without_tiktoken_names_are_not_known(monkeypatch):
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(UsageError, match="none: it is not installed"):
        load_tokenizer("gpt2")


# --- a dataset's --------------------------------------------------------------------------


def test_a_stored_file_is_compared_before_it_is_read(gpt2):
    spec = load_tokenizer(gpt2).spec
    assert open_tokenizer(gpt2.parent, spec).spec == spec
    flipped = bytearray(data.bpe_file())
    flipped[1000] ^= 1
    for wrong, error in [
        (bytes(flipped), ChecksumError),
        (data.bpe_file()[:-1], ChecksumError),
        (data.bpe_file() + b" ", IndexFileError),
    ]:
        write(gpt2, wrong)
        with pytest.raises(error, match=r"tokenizer\.json"):
            open_tokenizer(gpt2.parent, spec)
    gpt2.unlink()
    with pytest.raises(ShardMissingError, match=r"tokenizer\.json is missing"):
        open_tokenizer(gpt2.parent, spec)
    with pytest.raises(UsageError, match="has no tokenizer"):
        open_tokenizer(gpt2.parent, TokenizerSpec(vocab_size=9, dtype="|u1"))


# --- hostile files ------------------------------------------------------------------------


def with_model(**changes: object) -> bytes:
    return data.dump(data.bpe(**changes))


HOSTILE = {
    "nothing": b"",
    "not JSON": b"{",
    "not text": b"\xff\xfe\x00",
    "a list": b"[]",
    "deep": b"[" * 200_000,
    "deep inside": b'{"model":' * 100_000 + b"1" + b"}" * 100_000,
    "no model": b'{"version": "1.0"}',
    "a huge number": b'{"model": {"type": "BPE", "vocab": {"a": ' + b"9" * 5000 + b"}}}",
    "ids as text": with_model(vocab={"a": "0"}),
    "negative ids": with_model(vocab={"a": -1}, merges=[]),
    "huge ids": with_model(vocab={"a": 2**40}, merges=[]),
    "merges of nothing": with_model(merges=[["x"]]),
    "merges of unknown tokens": with_model(merges=[["qqq", "zzz"]]),
    "a vocabulary as a list": with_model(vocab=[1, 2]),
    "an unknown model": with_model(type="Magic"),
    "no such regular expression": data.dump(data.bpe() | {"pre_tokenizer": data.split("(")}),
    "added tokens as text": data.dump(data.bpe() | {"added_tokens": "abc"}),
    "added tokens without id": data.dump(data.bpe() | {"added_tokens": [{"content": "x"}]}),
    "added ids of 40 bits": data.dump(
        data.bpe() | {"added_tokens": [data.added("x", 2**40, True)]}
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_line(name, tmp_path):
    path = write(tmp_path / "tokenizer.json", HOSTILE[name])
    with pytest.raises(DataError) as caught:
        load_tokenizer(path, eos="none")
    assert "\n" not in str(caught.value) and "tokenizer.json" in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.txt", "vocab.json"])
def test_a_file_that_is_no_tokenizer_json_is_named(name, tmp_path):
    held = b'{"a": 0}' if name == "vocab.json" else b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02"
    with pytest.raises(DataError, match=f"{name}: tokenizer.json is .*; for a tokenizer of Sent"):
        load_tokenizer(write(tmp_path / name, held))


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("backend", ["tokenizers", "tiktoken"])
def test_a_hostile_file_in_a_dataset_is_one_line(name, backend):
    file = HOSTILE[name]
    spec = TokenizerSpec(
        kind="tokenizer.json",
        file="tokenizer.json",
        num_bytes=len(file),
        xxh3=checksum(file),
        vocab_size=1500,
        dtype="<u2",
    )
    stored = from_stored(file, spec, backend)
    with pytest.raises((DataError, UsageError)) as caught:
        stored.encode(["some text"])
    said = [str(caught.value)]
    try:
        stored.decode(np.array([5]))
    except (DataError, UsageError) as error:
        said.append(str(error))
    assert not any("\n" in each for each in said)


def test_a_file_of_a_gigabyte_is_not_read(tmp_path):
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(IndexFileError, match="is over 67108864 bytes; refusing to read"):
        load_tokenizer(path)


LINES = dump_ranks({bytes([byte]): byte for byte in range(256)})


def spec_of(file, pattern="(?s:.)"):
    return TokenizerSpec(
        kind="tiktoken",
        file="tokenizer.tiktoken",
        num_bytes=len(file),
        xxh3=checksum(file),
        pattern=pattern,
        special_tokens={},
        vocab_size=256,
        dtype="|u1",
    )


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"no base64!\n",
        LINES.replace(b"AA== 0\n", b"AA== zero\n"),
        LINES.replace(b"AA== 0\n", b"AA== -1\n"),
        LINES.replace(b"AA== 0\n", b"AA==\n"),
        LINES.replace(b"AA== 0\n", b"AA== 99999999999999999999\n"),
        LINES.replace(b"AA== 0\n", b""),
        LINES.replace(b"AA== 0\n", b"AA== 1\n"),
        LINES + b"AA== 256\n",
    ],
)
def test_a_hostile_encoding_is_one_line(file):
    stored = from_stored(file, spec_of(file), "tiktoken")
    for work in (lambda: stored.encode(["x"]), lambda: stored.decode(np.array([5]))):
        with pytest.raises(FormatError, match=r"tokenizer\.tiktoken: "):
            work()


def test_a_hostile_pattern_or_size_is_one_line():
    bad = spec_of(LINES, pattern="(")
    with pytest.raises(FormatError, match="tiktoken refuses this tokenizer"):
        from_stored(LINES, bad, "tiktoken").encode(["x"])
    small = replace(spec_of(LINES), vocab_size=10)
    with pytest.raises(FormatError, match="gives id 255, its vocabulary ends at 9"):
        from_stored(LINES, small, "tiktoken").encode(["x"])
