"""Tokenizers from what people have: a ``tokenizer.json``, a folder, a dataset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from shardkit.errors import ChecksumError, UsageError
from shardkit.mapping import read_file
from shardkit.storage import show_path
from shardkit.tokens.awkward import awkward_texts
from shardkit.tokens.library import parse_tokenizer
from shardkit.tokens.spec import (
    FILES,
    MAX_FILE_BYTES,
    Kind,
    TokenizerSpec,
    checksum,
    smallest_dtype,
)
from shardkit.tokens.tokenizer import Tokenizer

EOS_TEXTS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
"""What ends a document where the tokenizer does not say: GPT-2's, Llama 3's, SentencePiece's and
Gemma's name for it."""


def load_tokenizer(source: str | Path, *, eos: str = "auto", bos: str = "none") -> Tokenizer:
    """A tokenizer for packing.

    Args:
        source: a ``tokenizer.json``, a folder of transformers, or a name that tiktoken knows.
        eos: what ends each document: ``auto`` is the tokenizer's own, ``none`` is nothing, else a
            token's text.
        bos: what begins each document: ``none``, or a token's text.

    Raises:
        UsageError: no such tokenizer or token, or a library is missing.
        FormatError: its file is damaged.
    """
    path = Path(source)
    if not path.is_file():
        raise UsageError(f"tokenizer {show_path(path)}: no such file")
    data = read_file(path, MAX_FILE_BYTES)
    return from_definition(data, None, eos, bos)


def from_definition(data: bytes, name: str | None, eos: str, bos: str) -> Tokenizer:
    """A tokenizer of the contents of a ``tokenizer.json``."""
    vocabulary = parse_tokenizer(data).get_vocab(with_added_tokens=True)
    vocab_size = max(vocabulary.values(), default=0) + 1
    spec = TokenizerSpec(
        **file_entries("tokenizer.json", data),
        name=name,
        vocab_size=vocab_size,
        dtype=smallest_dtype(vocab_size),
        eos=token_id(vocabulary, _own_eos(vocabulary) if eos == "auto" else eos, "eos"),
        bos=token_id(vocabulary, bos, "bos"),
    )
    return proved_lossless(Tokenizer(spec, data))


def file_entries(kind: Kind, data: bytes) -> dict[str, Any]:
    """The entries of a spec that say which file it is."""
    return {"kind": kind, "file": FILES[kind], "num_bytes": len(data), "xxh3": checksum(data)}


def proved_lossless(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer, its spec saying whether all awkward texts come back byte for byte."""
    texts = awkward_texts()
    is_lossless = all(
        tokenizer.decode(ids) == text.encode()
        for text, ids in zip(texts, tokenizer.encode(texts), strict=True)
    )
    tokenizer.spec = replace(tokenizer.spec, is_lossless=is_lossless)
    return tokenizer


def _own_eos(vocabulary: dict[str, int]) -> str:
    for text in EOS_TEXTS:
        if text in vocabulary:
            return text
    raise UsageError(
        "the tokenizer has no token known to end a document: pass --eos TOKEN, or --eos none"
    )


def token_id(vocabulary: dict[str, int], text: str, what: str) -> int | None:
    """The id of a token's text; None for ``none``. Raises UsageError where there is none."""
    if text == "none":
        return None
    if text not in vocabulary:
        raise UsageError(f"--{what} {text!r}: the tokenizer has no such token; pass one, or none")
    return vocabulary[text]


def open_tokenizer(folder: Path, spec: TokenizerSpec) -> Tokenizer:
    """The tokenizer of a dataset.

    Raises:
        UsageError: the dataset has none. ChecksumError: the file is not the one packed.
        ShardMissingError: it is gone.
    """
    if spec.file is None:
        raise UsageError(f"{show_path(folder)} has no tokenizer: its ids were made by others")
    data = read_file(folder / spec.file, spec.num_bytes)
    return from_stored(data, spec)


def from_stored(data: bytes, spec: TokenizerSpec, engine: str = "tokenizers") -> Tokenizer:
    """A tokenizer of its stored file; ``engine`` as :func:`shardkit.tokens.prove.choose_engine`
    chose it.

    Raises:
        ChecksumError: the file is not the one of the spec.
    """
    if not spec.matches(data):
        raise ChecksumError(
            f"{spec.file} is not the one the dataset was packed with: restore it or pack again"
        )
    return Tokenizer(spec, data, engine)
