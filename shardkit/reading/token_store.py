"""The tokens of a split, all documents end to end, wherever they lie."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from shardkit.advise import will_need
from shardkit.errors import DataError
from shardkit.mapping import Places
from shardkit.reading.documents import Documents
from shardkit.tokens.spec import MAX_VOCABULARY

Tokens = np.ndarray[Any, np.dtype[Any]]


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

    def announce(self, starts: Places, sizes: Places) -> None:
        """Tell the kernel that these ranges are read soon; returns at once."""
        ...

    def where(self, token: int) -> str:
        """The document of a token, in words."""
        ...


class Pieces(dict[int, memoryview]):
    """Tokens that lie in long contiguous pieces: shards of a column format, or a whole file.
    Number -> its bytes, mapped on first use.

    Args:
        dtype: of the tokens. starts: P + 1 numbers: of the first token of each piece; and of all
            tokens, at last.
    """

    def __init__(self, dtype: np.dtype[Any], starts: list[int]) -> None:
        super().__init__()
        self.dtype = dtype
        self.num_tokens = starts[-1]
        self._starts = starts

    def open_piece(self, number: int) -> memoryview:
        """Its bytes. Raises DataError."""
        raise NotImplementedError

    def __missing__(self, number: int) -> memoryview:
        piece = self[number] = self.open_piece(number)
        return piece

    def read(self, starts: Sequence[int], sizes: Sequence[int]) -> Tokens:
        # Slices that are joined: 15 us for 16 windows of 2,049 tokens, copied to an array one by
        # one they take 20.
        firsts, step, parts = self._starts, self.dtype.itemsize, []
        for start, size in zip(starts, sizes, strict=True):
            number = bisect_right(firsts, start) - 1
            at = (start - firsts[number]) * step
            parts.append(self[number][at : at + size * step])
        joined = b"".join(parts)
        if len(joined) != sum(sizes) * step:
            return self.read(*_cut(starts, sizes, firsts))
        return np.frombuffer(joined, self.dtype)

    def announce(self, starts: Places, sizes: Places) -> None:
        step = self.dtype.itemsize
        addresses, num_bytes, held = [], [], []
        for start, size in zip(*_cut(starts.tolist(), sizes.tolist(), self._starts), strict=True):
            number = bisect_right(self._starts, start) - 1
            piece = np.frombuffer(self[number], np.uint8)
            addresses.append(piece.ctypes.data + (start - self._starts[number]) * step)
            num_bytes.append(size * step)
            held.append(piece)
        will_need(np.array(addresses), np.array(num_bytes))


def _cut(
    starts: Sequence[int], sizes: Sequence[int], bounds: list[int]
) -> tuple[list[int], list[int]]:
    """The same ranges, cut where they cross a bound."""
    cut: list[tuple[int, int]] = []
    for start, size in zip(starts, sizes, strict=True):
        end = start + size
        while start < end:
            stop = min(end, bounds[bisect_right(bounds, start)])
            cut.append((start, stop - start))
            start = stop
    return [start for start, _ in cut], [size for _, size in cut]


def as_dtype(tokens: Tokens, dtype: np.dtype[Any]) -> Tokens:
    """A copy as signed integers. Raises DataError for an id that no vocabulary has."""
    if tokens.itemsize >= 4 and tokens.size and int(tokens.max()) >= MAX_VOCABULARY:
        raise DataError(
            f"token id {tokens.max()} is more than {MAX_VOCABULARY - 1}, which no vocabulary has:"
            " the data is damaged"
        )
    return tokens.astype(dtype)
