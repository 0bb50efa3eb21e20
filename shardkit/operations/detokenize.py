"""The text that tokenized documents were made of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np

from shardkit.arrays import Tokens
from shardkit.index.manifest import DatasetInfo
from shardkit.samples.encoding import parse_npy
from shardkit.samples.sample import Value
from shardkit.tokens.load import open_tokenizer
from shardkit.tokens.tokenizer import Tokenizer

TEXT = "txt"
"""The field whose text was tokenized."""

STEP_IDS = 1 << 20
"""Ids decoded at a time: some 4 MB of text."""


class Texts:
    """Decodes the documents of one dataset; made by :meth:`of`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.spec = tokenizer.spec

    @classmethod
    def of(cls, folder: Path, info: DatasetInfo) -> Self | None:
        """Return None where there are no tokens, or the tokenizer is not known.

        Raises:
            DataError: the tokenizer's file is damaged or gone.
            UsageError: the library that reads it is not installed.
        """
        spec = info.tokenizer
        return None if spec is None or spec.kind is None else cls(open_tokenizer(folder, spec))

    def pieces(self, value: Value) -> Iterator[bytes]:
        """Yield a document's text, in pieces; ``value`` is its canonical value.

        Only of a lossless tokenizer are they, joined, what decoding all at once gives.
        """
        ids = self._own(value)
        for start in range(0, len(ids), STEP_IDS):
            yield self._tokenizer.decode(ids[start : start + STEP_IDS])

    def is_text(self, original: Value, value: Value) -> bool:
        """Return True if a document is this text; if the tokenizer is not lossless, if it has the
        ids of this text."""
        errors = "replace" if self.spec.invalid_utf8 == "replace" else "strict"
        if not self.spec.is_lossless:
            ids = self._own(value)
            try:
                made = [*self._tokenizer.encode_pieces(original, errors)]
            except UnicodeDecodeError:
                return False
            return np.array_equal(np.concatenate([ids[:0], *made]), ids)
        at = 0
        if errors == "replace":  # what was packed has U+FFFD for what is not UTF-8
            original = str(original, "utf-8", "replace").encode()
        for piece in self.pieces(value):
            if original[at : at + len(piece)] != piece:
                return False
            at += len(piece)
        return at == len(original)

    def _own(self, value: Value) -> Tokens:
        """Return a document's ids without BOS and EOS."""
        ids = parse_npy(value)
        if self.spec.bos is not None and len(ids) and ids[0] == self.spec.bos:
            ids = ids[1:]
        if self.spec.eos is not None and len(ids) and ids[-1] == self.spec.eos:
            ids = ids[:-1]
        return ids
