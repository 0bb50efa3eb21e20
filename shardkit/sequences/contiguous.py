"""Tokens that lie end to end in long pieces of a few files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from shardkit.arrays import Integers, Tokens
from shardkit.memory.gather import split
from shardkit.sequences.store import refuse_huge
from shardkit.storage.interface import Files, Turn


class ContiguousTokens:
    """Tokens by their number, in pieces: shards of a column format, or
    a whole file. What a :class:`shardkit.sequences.store.TokenStore` is but for its documents.

    Args:
        files: piece number N lies in file number N. ranges: (start, end) of each, in bytes.
        dtype: of the tokens. check: asked for each piece before anything of it is read; raises
            DataError if that is no whole piece.

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
        self.dtype = dtype
        self._check = check
        self._unchecked = set() if check is None else set(range(len(ranges)))
        counts = [(end - start) // dtype.itemsize for start, end in ranges]
        self._bounds = np.array([0, *accumulate(counts)], np.int64)
        # Byte `step * token + this` of its file is where a token of a piece lies.
        firsts = np.array([start for start, _ in ranges], np.int64)
        self._shifts = firsts - self._bounds[:-1] * dtype.itemsize
        self.num_tokens = int(self._bounds[-1])

    def read(self, starts: Integers, sizes: Integers, out: Tokens) -> None:
        """As :meth:`shardkit.sequences.store.TokenStore.read`."""
        # Ids of 8 bytes, as Megatron may write them, are refused before they become shorter.
        tokens = out if out.itemsize >= self.dtype.itemsize else np.empty(len(out), np.int64)
        self._files.read(*self._places(starts, sizes)).widen_to(tokens, self.dtype)
        refuse_huge(tokens, self.dtype)
        if tokens is not out:
            out[:] = tokens

    def _places(self, starts: Integers, sizes: Integers) -> tuple[Integers, Integers, Integers]:
        """(numbers, starts, sizes) in bytes of ranges of tokens, of which those that go on in the
        next piece become several."""
        bounds, step = self._bounds, self.dtype.itemsize
        found = split(starts, sizes, bounds, self._shifts, step)
        if found is None:
            starts, sizes = _cut(starts.tolist(), sizes.tolist(), bounds.tolist())
            found = split(starts, sizes, bounds, self._shifts, step)
        if found is None:
            raise IndexError("ranges of tokens beyond the last")
        if self._unchecked:
            self._check_pieces(found[0])
        return found

    def _check_pieces(self, numbers: Integers) -> None:
        for number in self._unchecked.intersection(numbers.tolist()):
            if self._check is not None:
                self._check(number)
            self._unchecked.discard(number)

    def is_cold(self) -> bool:
        return self._files.is_cold()

    def announce(self, starts: Integers, sizes: Integers, turn: Turn | None) -> None:
        """As :meth:`shardkit.sequences.store.TokenStore.announce`."""
        numbers, firsts, num_bytes = self._places(starts, sizes)
        self._files.announce(numbers, firsts, num_bytes, turn)


def _cut(starts: list[int], sizes: list[int], bounds: list[int]) -> tuple[Integers, Integers]:
    """The same ranges, cut where they cross a bound."""
    cut: list[tuple[int, int]] = []
    for start, size in zip(starts, sizes, strict=True):
        end = start + size
        while start < end:
            stop = min(end, bounds[bisect_right(bounds, start)])
            cut.append((start, stop - start))
            start = stop
    found = np.array(cut, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]
