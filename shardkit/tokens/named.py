"""tiktoken's own encodings: by name, and in tiktoken's file format.

A line a token: its bytes in base64, a space, its rank, which is its id.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np

from shardkit.arrays import Tokens
from shardkit.errors import FormatError, UsageError
from shardkit.tokens.backend import library
from shardkit.tokens.fast import FastBackend
from shardkit.tokens.merge_ranks import Ranked
from shardkit.tokens.spec import MAX_VOCABULARY, TokenizerSpec


def dump_ranks(ranks: dict[bytes, int]) -> bytes:
    """The file; :func:`parse_ranks` is its inverse."""
    ordered = sorted((rank, token) for token, rank in ranks.items())
    return b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in ordered)


def parse_ranks(data: bytes) -> dict[bytes, int]:
    """Token -> rank of a file that is not trusted.

    Raises:
        FormatError: it is not what :func:`dump_ranks` writes, or not the ranks of an encoding.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        token, _, rank = line.partition(b" ")
        try:
            ranks[base64.b64decode(token, validate=True)] = _rank(rank)
        except (ValueError, binascii.Error) as error:
            raise FormatError(f"tokenizer.tiktoken: line {number} is no token and rank") from error
    if len(set(ranks.values())) != data.count(b"\n"):
        raise FormatError("tokenizer.tiktoken: a token or a rank is there twice")
    if not all(bytes([byte]) in ranks for byte in range(256)):
        raise FormatError("tokenizer.tiktoken: not all of the 256 bytes are tokens")
    return ranks


def _rank(text: bytes) -> int:
    if not text.isdigit() or len(text) > 10 or int(text) >= MAX_VOCABULARY:
        raise ValueError("no rank")
    return int(text)


def find_encoding(name: str) -> Any:
    """One of :func:`encoding_names`.

    Raises:
        UsageError: it cannot be had: tiktoken downloads its files when first used.
    """
    try:
        return library("tiktoken").get_encoding(name)
    except Exception as error:  # whatever the network raises
        what = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        raise UsageError(
            f"tiktoken cannot load {name} ({what}): it downloads its file when first used; connect,"
            " or point TIKTOKEN_CACHE_DIR to a folder that has it"
        ) from error


def encoding_names() -> list[str]:
    """What tiktoken knows; nothing if it is not installed."""
    try:
        names: list[str] = library("tiktoken").list_encoding_names()
    except UsageError:
        return []
    return sorted(names)


def named_backend(data: bytes, spec: TokenizerSpec) -> FastBackend:
    """The backend of a stored encoding.

    Raises:
        FormatError: the file is damaged. UsageError: tiktoken is not installed.
    """
    ranks = sorted((rank, token) for token, rank in parse_ranks(data).items())
    ranked = Ranked([token for _, token in ranks], [rank for rank, _ in ranks])
    backend = FastBackend(spec.pattern or "", ranked, spec, lambda text: _halves(backend, text))
    return backend


def _halves(backend: FastBackend, text: str) -> Tokens:
    """The ids of a text on which the library gave up: those of its halves.

    Raises:
        FormatError: what cannot be encoded is a single character.
    """
    if len(text) < 2:
        raise FormatError(f"the tokenizer's pattern leaves out {text!a}, which would be lost")
    middle = len(text) // 2
    return np.concatenate(backend.encode([text[:middle], text[middle:]]))


def spec_entries(encoding: Any) -> dict[str, Any]:
    """The entries of a spec that are tiktoken's alone."""
    return {
        "name": encoding.name,
        "pattern": encoding._pat_str,
        "special_tokens": dict(sorted(encoding._special_tokens.items(), key=lambda item: item[1])),
        "vocab_size": encoding.max_token_value + 1,
    }
