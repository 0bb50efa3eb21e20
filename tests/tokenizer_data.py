"""Small tokenizers of every make, trained on this repository's own prose."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from shardkit.tokens.train import train

ROOT = Path(__file__).parents[1]

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")


@cache
def prose() -> str:
    """Half a megabyte at most, of English, code and tables."""
    names = ["README.md", "formats.md", "LICENSE", "tests/conftest.py", "tests/test_layers.py"]
    names += ["docs/feeding.md", "docs/pictures.md", "docs/benchmarks.md", "docs/text.md"]
    return "\n".join((ROOT / name).read_text(encoding="utf-8") for name in names)


@cache
def bpe_file(vocab_size: int = 1500) -> bytes:
    return train(prose().splitlines(keepends=True), vocab_size)


def bpe(**changes: Any) -> dict[str, Any]:
    """The JSON of a GPT-2-like tokenizer; of the model, what is given is changed."""
    raw = json.loads(bpe_file())
    raw["model"] |= changes
    return raw


def dump(raw: dict[str, Any]) -> bytes:
    return json.dumps(raw).encode()


def split(pattern: str) -> dict[str, Any]:
    """A pre-tokenizer as Llama 3 has it."""
    first = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "type": "Sequence",
        "pretokenizers": [first | {"invert": False}, last | {"use_regex": False}],
    }


def added(content: str, token_id: int, special: bool) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "content": content, "special": special, **plain}


def all_splits(raw: dict[str, Any]) -> dict[str, Any]:
    """Merges as files converted from tiktoken's have them: all ways to make each token."""
    vocab = raw["model"]["vocab"]
    order = [left + right for left, right in raw["model"]["merges"]]
    raw["model"]["merges"] = [
        [token[:i], token[i:]]
        for token in order
        for i in range(1, len(token))
        if token[:i] in vocab and token[i:] in vocab
    ]
    return raw


def llama3() -> dict[str, Any]:
    raw = all_splits(bpe(ignore_merges=True))
    return raw | {"pre_tokenizer": split(LLAMA3)}


def qwen2() -> dict[str, Any]:
    """With a normalizer, and added tokens that are not special."""
    raw = bpe() | {"pre_tokenizer": split(QWEN2), "normalizer": {"type": "NFC"}}
    size = len(raw["model"]["vocab"])
    raw["added_tokens"] += [
        added("<|im_end|>", size, special=True),
        added("<tool_call>", size + 1, special=False),
    ]
    return raw


def _trained(made: tokenizers.Tokenizer, trainer: Any) -> str:
    made.train_from_iterator(prose().splitlines(keepends=True), trainer)
    return made.to_str()


def wordpiece() -> dict[str, Any]:
    return json.loads(_wordpiece())


def unigram() -> dict[str, Any]:
    return json.loads(_unigram())


@cache  # trained twice, it is not the same
def _wordpiece() -> str:
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=1000, special_tokens=special, show_progress=False
    )
    return _trained(made, trainer)


@cache
def _unigram() -> str:
    made = tokenizers.Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=800, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    return _trained(made, trainer)


def llama2() -> dict[str, Any]:
    """Llama 2's: no pieces at all, a space before every text, bytes for what is not known."""
    raw = bpe(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    letters = [*sorted({c for c in prose() if c.isalnum()}), "▁"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    merges = []
    for left, right in raw["model"]["merges"]:
        pair = left.replace("Ġ", "▁"), right.replace("Ġ", "▁")
        if all(c in letters for c in "".join(pair)) and "▁" not in "".join(pair)[1:]:
            merges.append(pair)
            tokens.append("".join(pair))
    raw["model"] |= {"vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges}
    steps = [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]
    raw |= {"normalizer": {"type": "Sequence", "normalizers": steps}, "pre_tokenizer": None}
    back = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    raw |= {"decoder": {"type": "Sequence", "decoders": back}}
    raw["added_tokens"] = [added(tokens[i], i, special=True) for i in range(3)]
    return raw


MAKES = {
    "gpt2": bpe,
    "llama3": llama3,
    "qwen2": qwen2,
    "wordpiece": wordpiece,
    "unigram": unigram,
    "llama2": llama2,
}
FAST = ("gpt2", "llama3", "qwen2")
LOSSLESS = ("gpt2", "llama3")
