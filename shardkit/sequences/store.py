"""The tokens of a split, all documents end to end, wherever they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from shardkit.arrays import Integers, Tokens
from shardkit.errors import DataError
from shardkit.sequences.documents import Documents
from shardkit.tokens.spec import MAX_VOCABULARY


class TokenStore(Protocol):
    """Tokens by their number, counted from the first of the first document. Threads may share it.

    Attributes:
        dtype: of the ids, unsigned.
        fingerprint: equal for equal documents, wherever they lie.
    """

    dtype: np.dtype[Any]
    num_tokens: int
    fingerprint: str

    @property
    def documents(self) -> Documents:
        """Where documents end. Raises UsageError if nobody knows."""
        ...

    def read(self, starts: Sequence[int], sizes: Sequence[int]) -> Tokens:
        """(sum of sizes,) tokens [start, start + size) of each range, all of which there are, end
        to end.

        Raises:
            DataError: they cannot be read.
        """
        ...

    def is_cold(self) -> bool:
        """Whether announcing pays: see :meth:`shardkit.storage.base.Files.is_cold`."""
        ...

    def announce(self, starts: Integers, sizes: Integers) -> None:
        """Say that these ranges will be read soon; returns at once."""
        ...

    def where(self, token: int) -> str:
        """The document of a token, in words."""
        ...


def as_dtype(tokens: Tokens, dtype: np.dtype[Any]) -> Tokens:
    """A copy as signed integers. Raises DataError for an id that no vocabulary has."""
    if tokens.itemsize >= 4 and tokens.size and int(tokens.max()) >= MAX_VOCABULARY:
        raise DataError(
            f"token id {tokens.max()} is more than {MAX_VOCABULARY - 1}, which no vocabulary has:"
            " the data is damaged"
        )
    return tokens.astype(dtype)
