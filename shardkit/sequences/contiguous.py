"""Tokens that lie end to end in long pieces of a few files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from shardkit.arrays import Integers, Tokens
from shardkit.storage.base import Files, Sliceable


class ContiguousTokens:
    """Tokens by their number, in pieces that are opened on first use: shards of a column format, or
    a whole file. What a :class:`shardkit.sequences.store.TokenStore` is but for its documents.

    Args:
        files: piece number N lies in file number N. ranges: (start, end) of each, in bytes.
        dtype: of the tokens. check: asked for each piece before it is opened; raises DataError if
            that is no whole piece.

    Attributes:
        num_tokens: of all pieces.
    """

    def __init__(
        self,
        files: Files,
        ranges: list[tuple[int, int]],
        dtype: np.dtype[Any],
        check: Callable[[int], None] | None = None,
    ) -> None:
        self._files = files
        self._ranges = ranges
        self.dtype = dtype
        self._check = check
        counts = [(end - start) // dtype.itemsize for start, end in ranges]
        self._starts = [0, *accumulate(counts)]
        self._opened: list[Sliceable | None] = [None] * len(ranges)
        self.num_tokens = self._starts[-1]

    def _open(self, number: int) -> Sliceable:
        if self._check is not None:
            self._check(number)
        piece = self._opened[number] = self._files.piece(number, *self._ranges[number])
        return piece

    def read(self, starts: Sequence[int], sizes: Sequence[int]) -> Tokens:
        """As :meth:`shardkit.sequences.store.TokenStore.read`."""
        # Slices that are joined: 15 us for 16 windows of 2,049 tokens, copied to an array one by
        # one they take 20.
        firsts, step, opened = self._starts, self.dtype.itemsize, self._opened
        parts: list[bytes | memoryview] = []
        for start, size in zip(starts, sizes, strict=True):
            number = bisect_right(firsts, start) - 1
            at = (start - firsts[number]) * step
            piece = opened[number]
            if piece is None:
                piece = self._open(number)
            parts.append(piece[at : at + size * step])
        joined = b"".join(parts)
        if len(joined) != sum(sizes) * step:
            return self.read(*_cut(starts, sizes, firsts))
        return np.frombuffer(joined, self.dtype)

    def is_cold(self) -> bool:
        return self._files.is_cold()

    def announce(self, starts: Integers, sizes: Integers) -> None:
        """As :meth:`shardkit.sequences.store.TokenStore.announce`."""
        step, ranges = self.dtype.itemsize, []
        for start, size in zip(*_cut(starts.tolist(), sizes.tolist(), self._starts), strict=True):
            number = bisect_right(self._starts, start) - 1
            first = self._ranges[number][0] + (start - self._starts[number]) * step
            ranges.append((number, first, size * step))
        numbers, firsts, num_bytes = np.array(ranges, np.int64).reshape(-1, 3).T
        self._files.announce(numbers, firsts, num_bytes)


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
