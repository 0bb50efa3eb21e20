"""The tokens of a split, all documents end to end, wherever they lie."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from shardkit.errors import DataError
from shardkit.memory.mapping import Places
from shardkit.sequences.documents import Documents
from shardkit.shards.files import Files, Sliceable
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


class Pieces(dict[int, Sliceable]):
    """Tokens that lie in long contiguous pieces: shards of a column format, or a whole file.
    Number -> its bytes, opened on first use.

    Args:
        dtype: of the tokens. files: piece number N lies in file number N. ranges: (start, end) of
            each, in bytes.
    """

    def __init__(self, dtype: np.dtype[Any], files: Files, ranges: list[tuple[int, int]]) -> None:
        super().__init__()
        self.dtype = dtype
        self._files = files
        self._ranges = ranges
        counts = [(end - start) // dtype.itemsize for start, end in ranges]
        self._starts = [0, *accumulate(counts)]
        self.num_tokens = self._starts[-1]

    def check_piece(self, number: int) -> None:
        """Raise DataError if it is no whole piece. Asked before it is opened."""

    def __missing__(self, number: int) -> Sliceable:
        self.check_piece(number)
        piece = self[number] = self._files.piece(number, *self._ranges[number])
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
        step, ranges = self.dtype.itemsize, []
        for start, size in zip(*_cut(starts.tolist(), sizes.tolist(), self._starts), strict=True):
            number = bisect_right(self._starts, start) - 1
            first = self._ranges[number][0] + (start - self._starts[number]) * step
            ranges.append((number, first, size * step))
        numbers, firsts, num_bytes = np.array(ranges, np.int64).reshape(-1, 3).T
        self._files.announce(numbers, firsts, num_bytes, at_least=1)


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
