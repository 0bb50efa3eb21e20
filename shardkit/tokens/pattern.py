"""The regular expression that cuts text into pieces, and whether two libraries mean the same by it.

``tokenizers`` runs Oniguruma, tiktoken the regex crates of Rust: what a class like ``\\p{L}``
holds depends on the version of Unicode each was built with. Those of tokenizers 0.23 and tiktoken
0.14 are equal; tokenizers 0.20 and tiktoken 0.9 differ in some thousand characters.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from shardkit.errors import FormatError
from shardkit.tokens.backend import is_refusal
from shardkit.tokens.definition import parts

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
"""What ``ByteLevel`` stands for, as tiktoken writes it: the same pieces as GPT-2's own, but a long
run of spaces does not exhaust the stack for backtracking."""

_CLASS = re.compile(r"\\[pP]\{\^?\w+\}|\\[swdSWD]")

_LARGE = ((0x3400, 0xA000), (0xAC00, 0xD7A4), (0xD800, 0xF900), (0x20000, 0x2A600))
"""Blocks of ideographs, syllables, surrogates and private characters, long settled; planes from 4
on are empty or private, and plane 3 but for its first quarter, which is being filled."""


def pattern_of(raw: dict[str, Any]) -> str | None:
    """The one expression that a ``tokenizer.json`` cuts text by, None if it does otherwise."""
    steps = parts(raw, "pre_tokenizer", "pretokenizers")
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space", True):
        return None
    uses_regex = steps[-1].get("use_regex", True)
    if len(steps) == 1:
        return GPT2 if uses_regex else None
    return _split_pattern(steps[0]) if len(steps) == 2 and not uses_regex else None


def _split_pattern(step: dict[str, Any]) -> str | None:
    if step.get("type") != "Split" or step.get("behavior") != "Isolated" or step.get("invert"):
        return None
    match step.get("pattern"):
        case {"Regex": str(found)}:
            return found
    return None


def differing_characters(pattern: str) -> str:
    """The characters that the two libraries put into different classes of the pattern's.

    Looks at 127,000 characters, all whose class was ever in doubt; some 30 ms a class.

    Raises:
        FormatError: one of them does not know a class.
    """
    text = settled_apart()
    names: list[str] = _CLASS.findall(pattern)
    found: set[str] = set()
    for name in sorted({name.replace(name[1], name[1].lower(), 1) for name in names}):
        try:
            found |= set(_members_oniguruma(name, text)) ^ set(_members_rust(name, text))
        except BaseException as error:
            if not is_refusal(error):
                raise
            raise FormatError(f"not both libraries know {name}: {str(error)[:80]}") from error
    return "".join(sorted(found))


@cache
def settled_apart() -> str:
    """All characters outside the large blocks, in order."""
    edges = [0, *(edge for block in _LARGE for edge in block), 0x34000, 0xE0000, 0xE1000]
    blocks = [range(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    return "".join(chr(c) for block in blocks for c in block)


def _members_oniguruma(name: str, text: str) -> str:
    from tokenizers import Regex, pre_tokenizers

    split = pre_tokenizers.Split(Regex(f"{name}+"), "removed", invert=True)
    return "".join(piece for piece, _ in split.pre_tokenize_str(text))


def _members_rust(name: str, text: str) -> str:
    import tiktoken

    ranks = {bytes([byte]): byte for byte in range(256)}
    encoding = tiktoken.Encoding("", pat_str=f"{name}+", mergeable_ranks=ranks, special_tokens={})
    return bytes(encoding.encode_ordinary(text)).decode()  # what the pattern leaves out is dropped
