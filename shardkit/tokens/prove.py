"""Which engine tokenizes a corpus: the fast one, where it is proved to give the same ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from shardkit.errors import FormatError, UsageError
from shardkit.storage import format_bytes
from shardkit.tokens.awkward import awkward_texts
from shardkit.tokens.definition import added_tokens, parse_definition
from shardkit.tokens.fast import import_tiktoken, why_not
from shardkit.tokens.library import LibraryEngine
from shardkit.tokens.pattern import differing_class, pattern_of
from shardkit.tokens.tokenizer import Tokenizer

PROOF_CHARS = 2_000_000
"""Text of the corpus that both engines encode; half a second."""

MAX_SPECIAL = 64
"""Special tokens whose text is tried; Llama 3 has 256, most of them reserved."""


def choose_engine(tokenizer: Tokenizer, texts: Iterable[str]) -> tuple[Tokenizer, str]:
    """The tokenizer on the fastest engine that is proved to give its ids, and a line that says so.

    Proved are: merging, by reasoning (:mod:`shardkit.tokens.ranks`); classes of characters, by
    comparing them; the rest of the pattern, by encoding awkward texts and the beginning of the
    corpus with both.

    Args:
        texts: the corpus's, of which the first 2 million characters are read.
    """
    if tokenizer.spec.kind == "tiktoken":
        return tokenizer, f"tokenized by tiktoken's encoding {tokenizer.spec.name}"
    fast = Tokenizer(tokenizer.spec, tokenizer.file, "tiktoken")
    try:
        import_tiktoken()
        tried = [*_awkward(tokenizer), *_beginning(texts, PROOF_CHARS)]
        reason = _why_not(tokenizer) or _difference(tokenizer, fast, tried)
    except (UsageError, FormatError) as error:
        reason = str(error)
    if reason:
        return tokenizer, f"tokenized by tokenizers, not by tiktoken's faster engine: {reason}"
    num_bytes = sum(len(text.encode()) for text in tried)
    return fast, (
        f"tokenized on tiktoken's engine: ids proved equal on {len(tried):,} texts"
        f" ({format_bytes(num_bytes)})"
    )


def _why_not(tokenizer: Tokenizer) -> str | None:
    raw = parse_definition(tokenizer.file)
    if reason := why_not(raw):
        return reason
    name = differing_class(pattern_of(raw) or "")
    return name and f"the characters of {name} depend on the library's version of Unicode"


def _awkward(tokenizer: Tokenizer) -> list[str]:
    added = [token["content"] for token in added_tokens(parse_definition(tokenizer.file))]
    return awkward_texts(added[:MAX_SPECIAL])


def _beginning(texts: Iterable[str], num_chars: int) -> Iterator[str]:
    """Texts, until there are so many characters; the last is cut."""
    for text in texts:
        yield text[:num_chars]
        num_chars -= len(text)
        if num_chars <= 0:
            return


def _difference(tokenizer: Tokenizer, fast: Tokenizer, texts: list[str]) -> str | None:
    """A text on which the engines differ, if there is one."""
    expected = LibraryEngine(tokenizer.file, tokenizer.spec).encode_batch(texts)
    for text, ids, found in zip(texts, expected, fast.encode(texts), strict=True):
        if not np.array_equal(ids, found):
            return f"other ids for {text[:40]!a}"
    return None
