"""The tokens of a packed dataset, in any container format."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from shardkit.encoding import TOKENS, npy_header, parse_npy
from shardkit.errors import FormatError, IndexFileError, UsageError
from shardkit.mapping import Places
from shardkit.reading.dataset import Dataset
from shardkit.reading.documents import Documents
from shardkit.reading.token_store import Pieces, Tokens, TokenStore, copied
from shardkit.shards import ShardReader

HEADER_BYTES = len(npy_header("<u2", (0,)))
"""Of a ``.npy`` file of one axis: 128, whatever its length."""


def packed_tokens(dataset: Dataset) -> TokenStore:
    """Of a dataset with a field ``tokens``.

    Raises:
        UsageError: they are no token ids. IndexFileError: the index is damaged.
    """
    split = dataset.info.splits[dataset.split]
    encodings = [layout[TOKENS] for layout in split.layouts if TOKENS in layout]
    kinds = {(encoding.kind, encoding.dtype) for encoding in encodings}
    if len(kinds) > 1:
        raise UsageError(f"{dataset!r}: tokens are stored differently from shard to shard: {kinds}")
    kind, dtype = kinds.pop() if kinds else ("bytes", "")
    if kind == "ragged":
        return ColumnTokens(dataset, _checked(dataset, np.dtype(dtype)))
    return RowTokens(dataset, _checked(dataset, _first_dtype(dataset.reader)))


def _checked(dataset: Dataset, dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind != "u" or dtype.itemsize > 4:
        raise UsageError(
            f"{dataset!r}: its tokens are {dtype}, expected uint8, uint16 or uint32; pack with"
            " --tokenizer"
        )
    return dtype


def _first_dtype(reader: ShardReader) -> np.dtype[Any]:
    """Of the first document's ``.npy``."""
    sizes = reader.index.table[:, reader.index.column[f"{TOKENS}.size"]]
    present = reader.gather(np.flatnonzero(sizes >= 0)[:1])
    for value in reader.stored(present, TOKENS):
        dtype: np.dtype[Any] = parse_npy(value or b"").dtype
        return dtype
    return np.dtype("<u2")


class _Packed:
    """What both kinds have in common."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.fingerprint = dataset.fingerprint

    @property
    def _reader(self) -> ShardReader:
        return self._dataset.reader

    def _places(self, first: int, last: int) -> Places:
        """(n, 2) int64 view: start and size in bytes of documents [first, last)."""
        column = self._reader.index.column[f"{TOKENS}.start"]
        return self._reader.index.table[first:last, column : column + 2]

    def key(self, document: int) -> str:
        return self._dataset.keys([document])[0]


class ColumnTokens(_Packed, Pieces):
    """In a column format: the tokens of a shard are one range of one file."""

    def __init__(self, dataset: Dataset, dtype: np.dtype[Any]) -> None:
        _Packed.__init__(self, dataset)
        num_shards = len(dataset.info.splits[dataset.split].shards)
        self._ranges = [self._range(shard) for shard in range(num_shards)]
        counts = [(end - start) // dtype.itemsize for start, end in self._ranges]
        Pieces.__init__(self, dtype, np.cumsum([0, *counts], dtype=np.int64))

    def _rows(self, shard: int) -> tuple[int, int]:
        first, last = self._reader.index.row_starts[shard : shard + 2].tolist()
        return first, last

    def _range(self, shard: int) -> tuple[int, int]:
        """In bytes, of the shard's file; from its first document and its last alone."""
        first, last = self._rows(shard)
        if first == last:
            return 0, 0
        start = int(self._places(first, last)[0, 0])
        end, size = self._places(first, last)[-1].tolist()
        end += max(size, 0)
        if not 0 <= start <= end <= self._reader.maps(TOKENS).sizes[shard]:
            raise self._damaged(shard)
        return start, end

    def open_piece(self, number: int) -> Tokens:
        start, end = self._ranges[number]
        places = self._places(*self._rows(number))
        sizes = np.maximum(places[:, 1], 0)
        ends = np.cumsum(sizes) + start
        is_laid = np.array_equal(places[:, 0], ends - sizes) and (not len(ends) or ends[-1] == end)
        if not is_laid or (sizes % self.dtype.itemsize).any():
            raise self._damaged(number)
        return np.frombuffer(self._reader.maps(TOKENS)[number][start:end], self.dtype)

    def _damaged(self, shard: int) -> IndexFileError:
        stem = self._dataset.info.splits[self._dataset.split].stem(shard)
        return IndexFileError(
            f"{self._dataset!r}: the row index does not lay the tokens of {stem} end to end;"
            " `shardkit verify` tells more"
        )

    @cached_property
    def documents(self) -> Documents:
        return Documents(self._lengths, len(self._dataset))

    def _lengths(self, first: int, last: int) -> Places:
        return np.maximum(self._places(first, last)[:, 1], 0) // self.dtype.itemsize


class RowTokens(_Packed):
    """In a row format: a ``.npy`` file for each document."""

    def __init__(self, dataset: Dataset, dtype: np.dtype[Any]) -> None:
        super().__init__(dataset)
        self.dtype = dtype
        self.documents = Documents(self._lengths, len(dataset))
        self.num_tokens = self.documents.num_tokens

    def _lengths(self, first: int, last: int) -> Places:
        sizes = self._places(first, last)[:, 1]
        data = np.where(sizes < 0, 0, sizes - HEADER_BYTES)
        bad = (data < 0) | (data % self.dtype.itemsize != 0)
        if bad.any():
            raise self._no_tokens(first + int(bad.argmax()))
        return data // self.dtype.itemsize

    def copy(self, start: int, out: Tokens) -> None:
        first = at = start
        numbers, ends = self.documents.within(start, start + len(out))
        values = self._reader.stored(self._reader.gather(numbers), TOKENS)
        skip = start - self.documents.start(int(numbers[0]))
        for number, value, end in zip(numbers.tolist(), values, ends.tolist(), strict=True):
            tokens = self._tokens(number, value)
            out[at - first : end - first] = tokens[skip : skip + end - at]
            at, skip = end, 0

    def _tokens(self, document: int, value: memoryview | None) -> Tokens:
        """Raises FormatError unless it is the ``.npy`` that the index lets expect."""
        data = b"" if value is None else value[HEADER_BYTES:]
        header = npy_header(self.dtype.str, (len(data) // self.dtype.itemsize,))
        if value is None or value[:HEADER_BYTES] != header:
            raise self._no_tokens(document)
        return np.frombuffer(data, self.dtype)

    def _no_tokens(self, document: int) -> FormatError:
        where = self._dataset.where(document)
        return FormatError(f"{where}: its tokens are no .npy of one axis of {self.dtype}")

    def windows(self, starts: Places, size: int) -> Tokens:
        return copied(self.copy, starts, np.empty((len(starts), size), self.dtype))

    def announce(self, starts: Places, sizes: Places) -> None:
        ranges = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
        numbers = np.concatenate([self.documents.within(*both)[0] for both in ranges])
        self._reader.announce(self._reader.gather(numbers), [TOKENS])
