"""The fast backend: tiktoken, for its own encodings and byte-level BPEs of a ``tokenizer.json``.

On one thread of two, 9.4 MB/s of source code and manual pages against 2 MB/s of ``tokenizers``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardkit.arrays import Tokens
from shardkit.errors import UsageError
from shardkit.tokens.backend import is_refusal, library, narrow, refusals
from shardkit.tokens.bytelevel import is_byte_level
from shardkit.tokens.definition import added_tokens, parts, vocabulary
from shardkit.tokens.merge_ranks import Ranked, merges_of, rank_tokens
from shardkit.tokens.pattern import differing_characters, pattern_of
from shardkit.tokens.spec import TokenizerSpec

MAX_ADDED = 32
"""Added tokens that are searched in each text; each costs some 0.3 % of the time."""


_FORMS = ("NFC", "NFKC")
"""Normal forms of Unicode: what is done to a text that has the form already is nothing."""


def why_not(raw: dict[str, Any]) -> str | None:
    """Why tiktoken cannot do what a ``tokenizer.json`` says; None if it may."""
    model = raw["model"]
    if not is_byte_level(raw):
        return "it is no byte-level BPE"
    if model.get("dropout"):
        return "it has dropout"
    if any(step.get("type") not in _FORMS for step in normalizers(raw)):
        return "it changes text before it is cut"
    if pattern_of(raw) is None:
        return "it does not cut text by one regular expression"
    if len(plain_added(raw)) > MAX_ADDED:
        return f"it has over {MAX_ADDED} added tokens that are not special"
    return None


def normalizers(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """What is done to text before it is cut."""
    return parts(raw, "normalizer", "normalizers")


def plain_added(raw: dict[str, Any]) -> list[str]:
    """Added tokens that text is searched for, since they are not special."""
    found = [token["content"] for token in added_tokens(raw) if not token.get("special")]
    return sorted({form for text in found for form in (text, unicodedata.normalize("NFC", text))})


def ranked(raw: dict[str, Any]) -> Ranked | str:
    """:func:`rank_tokens`, with the library's own merging to ask."""
    vocab, merges = vocabulary(raw), merges_of(raw["model"])
    with refusals("tokenizer.json is refused by tokenizers"):
        model = library("tokenizers").models.BPE(vocab, merges)
    return rank_tokens(raw, lambda token: len(model.tokenize(token)))


class FastBackend:
    """Encodes by tiktoken; texts it is not sure of go elsewhere.

    ``elsewhere`` gets those for which ``is_odd``, those on which the library gives up (a run of a
    million spaces, by most patterns), and those whose ids do not make up the whole text: tiktoken
    silently leaves out what its pattern does not match.
    """

    def __init__(
        self,
        pattern: str,
        ranked: Ranked,
        spec: TokenizerSpec,
        elsewhere: Callable[[str], Tokens],
        is_odd: Callable[[str], bool] | None = None,
    ) -> None:
        ranks = {token: rank for rank, token in enumerate(ranked.tokens)}
        self._encode = _encoder(pattern, ranks)
        self._ids = narrow(np.array(ranked.ids, np.uint32), spec)
        self._lengths = np.array([len(token) for token in ranked.tokens], np.uint32)
        self._elsewhere = elsewhere
        self._is_odd = is_odd

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        return [self._encode_one(text) for text in texts]

    def _encode_one(self, text: str) -> Tokens:
        if self._is_odd and self._is_odd(text):
            return self._elsewhere(text)
        try:
            ranks = self._encode(text)
        except BaseException as error:
            if not is_refusal(error):
                raise
            return self._elsewhere(text)
        num_bytes = len(text) if text.isascii() else len(text.encode())
        if self._lengths.take(ranks).sum(dtype=np.int64) != num_bytes:
            return self._elsewhere(text)
        return self._ids.take(ranks)


def _encoder(pattern: str, ranks: dict[bytes, int]) -> Callable[[str], Tokens]:
    """Text -> ranks. Raises FormatError if the library takes neither pattern nor ranks."""
    module = library("tiktoken")
    with refusals("tiktoken refuses this tokenizer"):
        made = module.Encoding("", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return lambda text: made.encode_to_numpy(text, disallowed_special=())


def odd_texts(raw: dict[str, Any], avoided: str) -> Callable[[str], bool] | None:
    """Which texts hold what only ``tokenizers`` does as the file says, or one of the ``avoided``
    characters; None if there are none."""
    added = plain_added(raw)
    forms = [step["type"] for step in normalizers(raw)]
    if not (added or forms or avoided):
        return None
    search = re.compile(f"[{re.escape(avoided)}]" if avoided else "(?!)").search

    def is_odd(text: str) -> bool:
        return any(token in text for token in added) or not (
            text.isascii()
            or (not search(text) and all(unicodedata.is_normalized(form, text) for form in forms))
        )

    return is_odd


def fast_backend(
    raw: dict[str, Any], spec: TokenizerSpec, elsewhere: Callable[[str], Tokens], is_careful: bool
) -> FastBackend:
    """The backend for a ``tokenizer.json``; careful, it sends texts elsewhere that have a character
    which the two libraries do not class alike.

    Raises:
        UsageError: tiktoken cannot run it, or is not installed.
    """
    pattern = pattern_of(raw)
    tokens = why_not(raw) or ranked(raw)
    if pattern is None or isinstance(tokens, str):
        raise UsageError(f"this tokenizer does not run on tiktoken: {tokens}")
    avoided = differing_characters(pattern) if is_careful else ""
    return FastBackend(pattern, tokens, spec, elsewhere, odd_texts(raw, avoided))
