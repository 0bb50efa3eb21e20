"""The byte-level alphabet: one printable character for each of the 256 bytes (GPT-2, 2019)."""

from __future__ import annotations

from functools import cache
from typing import Any

from shardkit.tokens.definition import added_tokens, parts, vocabulary


@cache
def byte_of() -> dict[int, int]:
    """Code point -> byte.

    Printable bytes of Latin-1 stand for themselves, the others for 256, 257, ... in order: the
    table ``bytes_to_unicode`` of OpenAI's GPT-2.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {byte: byte for byte in printable} | {256 + i: byte for i, byte in enumerate(others)}


def alphabet_bytes(token: str) -> bytes | None:
    """The bytes a token of the vocabulary stands for; None if it is not of the alphabet."""
    table = byte_of()
    try:
        return bytes([table[ord(c)] for c in token])
    except KeyError:
        return None


def is_byte_level(raw: dict[str, Any]) -> bool:
    """Whether the ids of a ``tokenizer.json`` stand for bytes, each by itself."""
    model, decoder = raw["model"], parts(raw, "decoder", "decoders")
    return (
        model.get("type") == "BPE"
        and not model.get("continuing_subword_prefix")
        and not model.get("end_of_word_suffix")
        and [step.get("type") for step in decoder] == ["ByteLevel"]
    )


def byte_table(raw: dict[str, Any]) -> dict[int, bytes]:
    """Id -> bytes of a byte-level ``tokenizer.json``.

    Added tokens stand for their text, and so does what is outside the alphabet, as in the library.
    """
    table = {}
    for token, i in vocabulary(raw).items():
        found = alphabet_bytes(token)
        table[i] = token.encode(errors="replace") if found is None else found
    for added in added_tokens(raw):
        table[added["id"]] = added["content"].encode(errors="replace")
    return table
