"""The tokens of a split, all documents end to end, wherever they lie."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from shardkit.arrays import Integers, Tokens
from shardkit.errors import DataError
from shardkit.sequences.documents import Documents
from shardkit.storage.interface import Turn
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

    def read(self, starts: Integers, sizes: Integers, out: Tokens) -> None:
        """Write tokens [start, start + size) of each range, all of which there are, end to end into
        ``out``: (sum of sizes,), signed.

        Raises:
            DataError: they cannot be read, or no vocabulary has such ids.
        """
        ...

    def is_cold(self) -> bool:
        """Whether announcing pays: see :meth:`shardkit.storage.interface.Files.is_cold`."""
        ...

    def announce(self, starts: Integers, sizes: Integers, turn: Turn | None) -> None:
        """Say that these ranges will be read soon, or at that turn; returns at once."""
        ...

    def where(self, token: int) -> str:
        """The document of a token, in words."""
        ...


def refuse_huge(tokens: Tokens, stored: np.dtype[Any]) -> None:
    """Raise DataError if one of these tokens, which are signed now and were stored otherwise, is an
    id that no vocabulary has."""
    if stored.itemsize >= 4 and tokens.size:
        # One that is too large for 32 bits is negative: as unsigned it is what it was.
        largest = int(tokens.view(f"u{tokens.itemsize}").max())
        if largest >= MAX_VOCABULARY:
            raise DataError(
                f"token id {largest} is more than {MAX_VOCABULARY - 1}, which no vocabulary has:"
                " the data is damaged"
            )
