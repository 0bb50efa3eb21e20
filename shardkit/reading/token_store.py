"""The tokens of a split, all documents end to end, wherever they lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from shardkit.advise import will_need
from shardkit.errors import DataError
from shardkit.mapping import Places
from shardkit.reading.documents import Documents
from shardkit.reading.run import keep
from shardkit.shards import MAX_MAPS

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

    def copy(self, start: int, out: Tokens) -> None:
        """Fill (n,) ``out`` with tokens [start, start + n), all of which there are.

        Raises:
            DataError: they cannot be read.
        """
        ...

    def windows(self, starts: Places, size: int) -> Tokens:
        """(B, size) new: tokens [start, start + size) of each of (B,) starts, B > 0."""
        ...

    def announce(self, starts: Places, sizes: Places) -> None:
        """Tell the kernel that tokens [start, start + size) of each are read soon."""
        ...

    def where(self, token: int) -> str:
        """The document of a token, in words."""
        ...


class Pieces:
    """Tokens that lie in long contiguous pieces: shards of a column format, or a whole file.

    Args:
        dtype: of the tokens. starts: (P + 1,) int64: the number of the first token of each piece;
            and of all tokens, at last.
    """

    def __init__(self, dtype: np.dtype[Any], starts: Places) -> None:
        self.dtype = dtype
        self.num_tokens = int(starts[-1])
        self._starts = starts
        self._opened: dict[int, Tokens] = {}

    def open_piece(self, number: int) -> Tokens:
        """(n,) tokens of a piece, mapped. Raises DataError."""
        raise NotImplementedError

    def _piece(self, number: int) -> Tokens:
        found = self._opened.get(number)
        if found is None:
            found = self.open_piece(number)
            keep(self._opened, number, found, MAX_MAPS)
        return found

    def _at(self, start: int) -> int:
        """The piece that a token is in."""
        return int(self._starts.searchsorted(start, side="right")) - 1

    def copy(self, start: int, out: Tokens) -> None:
        number, done = self._at(start), 0
        while done < len(out):
            skip = start + done - int(self._starts[number])
            here = self._piece(number)[skip : skip + len(out) - done]
            out[done : done + len(here)] = here
            done += len(here)
            number += 1

    def windows(self, starts: Places, size: int) -> Tokens:
        number = self._at(int(starts.min()))
        first, end = self._starts[number : number + 2].tolist()
        if int(starts.max()) + size <= end:
            return _taken(self._piece(number), starts - first, size)
        return copied(self.copy, starts, np.empty((len(starts), size), self.dtype))

    def announce(self, starts: Places, sizes: Places) -> None:
        """What lies beyond the end of a piece is left out."""
        numbers = self._starts.searchsorted(starts, side="right") - 1
        sizes = np.minimum(sizes, self._starts[numbers + 1] - starts)
        pieces = [self._piece(number) for number in numbers.tolist()]  # held, so not unmapped
        addresses = np.array([piece.ctypes.data for piece in pieces])
        step = self.dtype.itemsize
        will_need(addresses + (starts - self._starts[numbers]) * step, sizes * step)


def _taken(piece: Tokens, starts: Places, size: int) -> Tokens:
    """Some of all the windows there could be, which are a view: 12 us for 16 windows of 2,049
    tokens, where a slice for each takes 18."""
    every = (len(piece) - size + 1, size)
    return np.ndarray(every, piece.dtype, piece, 0, piece.strides * 2)[starts]


def as_dtype(tokens: Tokens, dtype: np.dtype[Any]) -> Tokens:
    """A copy as signed integers. Raises DataError for an id that is too large for them."""
    too_large = np.iinfo(dtype).max + 1
    if tokens.itemsize >= dtype.itemsize and tokens.size and int(tokens.max()) >= too_large:
        raise DataError(
            f"token id {tokens.max()} is too large for {dtype}: no vocabulary has it, the data is"
            " damaged"
        )
    return tokens.astype(dtype)


def copied(copy: Callable[[int, Tokens], None], starts: Places, out: Tokens) -> Tokens:
    """(B, size) ``out``, filled with the windows at (B,) starts, one after another."""
    for start, window in zip(starts.tolist(), out, strict=True):
        copy(start, window)
    return out
