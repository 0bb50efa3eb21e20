"""Tokenizers from what people have: a ``tokenizer.json``, a folder, a dataset."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardkit.errors import ChecksumError, FormatError, UsageError
from shardkit.memory.maps import read_file
from shardkit.system.paths import show_path
from shardkit.tokens.awkward import awkward_texts
from shardkit.tokens.definition import added_tokens, parse_definition
from shardkit.tokens.folder import read_folder
from shardkit.tokens.library import parse_tokenizer
from shardkit.tokens.named import dump_ranks, encoding_names, find_encoding, spec_entries
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

BACKEND_OF: dict[str | None, str] = {"tokenizer.json": "tokenizers", "tiktoken": "tiktoken"}
"""The backend that runs a kind without any proof."""


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
    if path.is_dir():
        data, own_eos = read_folder(path)
        return _from_definition(data, path.resolve().name, own_eos, eos, bos)
    if path.is_file():
        data = read_file(path, MAX_FILE_BYTES)
        try:
            return _from_definition(data, None, None, eos, bos)
        except FormatError as error:
            if path.name == "tokenizer.json":
                raise
            raise FormatError(
                f"{show_path(path)}: {error}; for a tokenizer of SentencePiece, or another kind,"
                " give the folder that transformers saved it in"
            ) from error
    return _from_name(str(source), eos, bos)


def _from_definition(
    data: bytes, name: str | None, own_eos: str | None, eos: str, bos: str
) -> Tokenizer:
    added = [token["content"] for token in added_tokens(parse_definition(data))]
    ids = parse_tokenizer(data).get_vocab(with_added_tokens=True)
    ends = _ends(ids, own_eos, eos, bos)
    vocab_size = max(ids.values(), default=0) + 1
    return _made(added, data, kind="tokenizer.json", name=name, vocab_size=vocab_size, **ends)


def _from_name(name: str, eos: str, bos: str) -> Tokenizer:
    known = encoding_names()
    if name not in known:
        raise UsageError(
            f"tokenizer {show_path(name)}: no such file or folder, and no encoding of tiktoken"
            f" (it knows {', '.join(known) or 'none: it is not installed'})"
        )
    encoding = find_encoding(name)
    special = encoding._special_tokens
    ends = _ends(special, None, eos, bos)
    data = dump_ranks(encoding._mergeable_ranks)
    return _made(special, data, kind="tiktoken", **spec_entries(encoding), **ends)


def _ends(ids: dict[str, int], own_eos: str | None, eos: str, bos: str) -> dict[str, int | None]:
    if eos == "auto":
        eos = end_of_document(ids, own_eos)
    return {"eos": token_id(ids, eos, "eos"), "bos": token_id(ids, bos, "bos")}


def _made(added: Iterable[str], data: bytes, *, kind: Kind, **entries: Any) -> Tokenizer:
    """``added``: tokens that are found in text, or would be if they were not special."""
    spec = TokenizerSpec(
        kind=kind,
        file=FILES[kind],
        num_bytes=len(data),
        xxh3=checksum(data),
        dtype=smallest_dtype(entries["vocab_size"]),
        **entries,
    )
    made = Tokenizer(spec, data, BACKEND_OF[kind])
    made.spec = replace(spec, is_lossless=is_lossless(made, awkward_texts(added)))
    return made


def is_lossless(tokenizer: Tokenizer, texts: list[str]) -> bool:
    """Whether all texts come back byte for byte, also where ids are decoded in parts."""
    return all(
        tokenizer.decode(ids[: len(ids) // 2]) + tokenizer.decode(ids[len(ids) // 2 :])
        == text.encode()
        for text, ids in zip(texts, tokenizer.encode(texts), strict=True)
    )


def end_of_document(ids: dict[str, int], own: str | None) -> str:
    """The text of the token that ends documents: the tokenizer's own, or a usual one.

    Raises:
        UsageError: it has none of them.
    """
    for text in (own, *EOS_TEXTS):
        if text is not None and text in ids:
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
    return from_stored(data, spec, BACKEND_OF[spec.kind])


def from_stored(data: bytes, spec: TokenizerSpec, backend: str) -> Tokenizer:
    """A tokenizer of its stored file; ``backend`` as :func:`shardkit.tokens.prove.choose_backend`
    chose it.

    Raises:
        ChecksumError: the file is not the one of the spec.
    """
    if not spec.matches(data):
        raise ChecksumError(
            f"{spec.file} is not the one the dataset was packed with: restore it or pack again"
        )
    return Tokenizer(spec, data, backend)
