"""Small corpora of awkward text, and tokenizers for them, made by the library alone."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
from conftest import write

EOT = "<|endoftext|>"

FORMATS_MD = Path(__file__).parents[1] / "formats.md"

TEXTS = {
    "bom.txt": b"\xef\xbb\xbfwith a mark",
    "crlf.txt": b"one\r\ntwo\r\n",
    "emoji.md": "\U0001f469\u200d\U0001f680 \U0001f1e9\U0001f1ea \u00e9 e\u0301\n".encode(),
    "empty.txt": b"",
    "ends/a.txt": b"no final newline",
    "ends/b.txt": b"one\n",
    "ends/c.txt": b"\n",
    "nul.txt": b"a\0b\0\0",
    "space.py": b"    \t  x =  1   \n\n\n\n   ",
    "special.txt": f"{EOT} is text here, and {EOT}{EOT}".encode(),
    "tr\u00e4umen.txt": "\u65e5\u672c\u8a9e \u0440\u0443\u0441 \u0627\u0644 \U0001d54f".encode(),
    "word.txt": b"x" * 3000 + b"ab" * 500,
}


def make_awkward(root: Path) -> Path:
    """The texts above, and some plain ones, so that a pack has several shards."""
    for name, text in TEXTS.items():
        write(root / name, text)
    for i in range(30):
        write(root / "plain" / f"{i:02d}.txt", f"document {i}, " * (i + 1) + "the end.\n")
    return root


@lru_cache
def definition(vocab_size: int = 400, lowercase: bool = False) -> str:
    """A ``tokenizer.json``: a byte-level BPE of this repository's own prose."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    if lowercase:
        made.normalizer = normalizers.Lowercase()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOT, "<|start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([FORMATS_MD.read_text()], trainer)
    return str(made.to_str())


def make_tokenizer(path: Path, vocab_size: int = 400, lowercase: bool = False) -> Path:
    return write(path, definition(vocab_size, lowercase))


def make_bytes_tokenizer(path: Path) -> Path:
    """Id 0 ends a document, and id i + 1 is byte i: what it makes of a text can be read."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=_byte_of().__getitem__)
    vocabulary = {EOT: 0} | {char: i + 1 for i, char in enumerate(alphabet)}
    raw = json.loads(definition())
    raw["model"] |= {"vocab": vocabulary, "merges": []}
    raw["added_tokens"] = [t for t in raw["added_tokens"] if t["content"] == EOT]
    return write(path, json.dumps(raw))


def _byte_of() -> dict[str, int]:
    """GPT-2's table of a visible character for each byte, backwards."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in visible]
    return {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(rest)}


def expected_ids(tokenizer: Path, text: str) -> list[int]:
    """What the library makes of a text without special tokens."""
    from tokenizers import Tokenizer

    return list(Tokenizer.from_file(str(tokenizer)).encode(text, add_special_tokens=False).ids)


def ids_of(path: Path) -> dict[str, list[int]]:
    """Key -> ids of every document of a split of npy shards, by numpy alone."""
    found = {}
    for keys in sorted(path.glob("train-*.__key__.npy")):
        stem = str(keys).removesuffix("__key__.npy")
        offsets = np.load(stem + "tokens.offsets.npy")
        names = np.load(stem + "__key__.offsets.npy")
        for i in range(len(offsets) - 1):
            key = np.load(keys)[names[i] : names[i + 1]].tobytes().decode()
            found[key] = np.load(stem + "tokens.npy")[offsets[i] : offsets[i + 1]].tolist()
    return found
