"""Which backend tokenizes a corpus: the fast one, where it is proved to give the same ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from shardkit.errors import FormatError, UsageError
from shardkit.system.byte_sizes import format_bytes
from shardkit.tokens.awkward import awkward_texts
from shardkit.tokens.backend import library
from shardkit.tokens.definition import added_tokens, parse_definition
from shardkit.tokens.fast import why_not
from shardkit.tokens.joints import PIECE_CHARS
from shardkit.tokens.library import LibraryBackend
from shardkit.tokens.pattern import differing_characters, pattern_of
from shardkit.tokens.tokenizer import CAREFUL, FAST, Tokenizer

PROOF_CHARS = 2_000_000
"""Text of the corpus that both backends encode; half a second."""


def choose_backend(tokenizer: Tokenizer, texts: Iterable[str]) -> tuple[Tokenizer, str]:
    """The tokenizer on the fastest backend that is proved to give its ids, and a line that says so.

    Proved are: merging, by reasoning (:mod:`shardkit.tokens.merge_ranks`); classes of characters,
    by comparing them; the rest of the pattern, by encoding awkward texts and the beginning of the
    corpus with both.

    Args:
        texts: the corpus's, of which the first 2 million characters are read.
    """
    if tokenizer.spec.kind == "tiktoken":
        return tokenizer, f"tokenized by tiktoken's encoding {tokenizer.spec.name}"
    try:
        fast, tried = _proved(tokenizer, texts)
    except (UsageError, FormatError) as error:
        return tokenizer, f"tokenized by tokenizers, not by tiktoken, which is faster: {error}"
    num_bytes = sum(len(text.encode()) for text in tried)
    rest = "" if fast.backend == FAST else "; texts with new characters by tokenizers"
    return fast, (
        f"tokenized by tiktoken: ids proved equal on {len(tried):,} texts"
        f" ({format_bytes(num_bytes)}){rest}"
    )


def _proved(tokenizer: Tokenizer, texts: Iterable[str]) -> tuple[Tokenizer, list[str]]:
    """The tokenizer on the fast backend, and the texts that prove it.

    Raises:
        UsageError: it does not run, or gives other ids. FormatError: tiktoken refuses it.
    """
    library("tiktoken")
    raw = parse_definition(tokenizer.file)
    if reason := why_not(raw):
        raise UsageError(reason)
    backend = CAREFUL if differing_characters(pattern_of(raw) or "") else FAST
    fast = Tokenizer(tokenizer.spec, tokenizer.file, backend)
    added = [token["content"] for token in added_tokens(raw)]
    tried = [*awkward_texts(added), *_beginning(texts, PROOF_CHARS)]
    if reason := _difference(tokenizer, fast, tried):
        raise UsageError(reason)
    return fast, tried


def _beginning(texts: Iterable[str], num_chars: int) -> Iterator[str]:
    """Texts, until there are so many characters; none is so long that it would be encoded in parts,
    for which the library is not asked."""
    for text in texts:
        part = text[: min(num_chars, PIECE_CHARS)]
        yield part
        num_chars -= len(part)
        if num_chars <= 0:
            return


def _difference(tokenizer: Tokenizer, fast: Tokenizer, texts: list[str]) -> str | None:
    """A text on which the backends differ, if there is one."""
    expected = LibraryBackend(tokenizer.file, tokenizer.spec).encode_batch(texts)
    for text, ids, found in zip(texts, expected, fast.encode(texts), strict=True):
        if not np.array_equal(ids, found):
            return f"other ids for {text[:40]!a}"
    return None
