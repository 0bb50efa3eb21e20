"""The tokens of a packed dataset, in any container format."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from shardkit.errors import FormatError, IndexFileError, UsageError
from shardkit.memory.mapping import Places
from shardkit.reading.dataset import Dataset
from shardkit.samples.encoding import TOKENS, npy_header, parse_npy
from shardkit.sequences.documents import Documents
from shardkit.sequences.store import Pieces, Tokens, TokenStore
from shardkit.shards.stored import ShardReader

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
    """What both kinds have in common.

    Args:
        header_bytes: of a stored document, before its tokens.
    """

    def __init__(self, dataset: Dataset, dtype: np.dtype[Any], header_bytes: int) -> None:
        self.dtype = dtype
        self.fingerprint = dataset.fingerprint
        self._dataset = dataset
        self._header_bytes = header_bytes

    @cached_property
    def documents(self) -> Documents:
        return Documents(self._lengths, len(self._dataset))

    def where(self, token: int) -> str:
        return self._dataset.where(self.documents.within(token, token + 1)[0])

    @property
    def _reader(self) -> ShardReader:
        return self._dataset.reader

    def _places(self, first: int, last: int) -> Places:
        """(n, 2) int64 view: start and size in bytes of documents [first, last)."""
        column = self._reader.index.column[f"{TOKENS}.start"]
        return self._reader.index.table[first:last, column : column + 2]

    def _lengths(self, first: int, last: int) -> Places:
        """Of documents, in tokens. Raises IndexFileError for what no file can hold."""
        sizes = self._places(first, last)[:, 1]
        data = np.where(sizes < 0, 0, sizes - self._header_bytes)
        bad = (data < 0) | (data % self.dtype.itemsize != 0)
        bad |= data > self._reader.files(TOKENS).sizes.max(initial=0)
        if bad.any():
            raise self._damaged(first + int(bad.argmax()))
        return data // self.dtype.itemsize

    def _damaged(self, document: int) -> IndexFileError:
        return IndexFileError(
            f"{self._dataset.where(document)}: the row index does not say where its tokens lie;"
            " `shardkit verify` tells more"
        )


class ColumnTokens(_Packed, Pieces):
    """In a column format: the tokens of a shard are one range of one file."""

    def __init__(self, dataset: Dataset, dtype: np.dtype[Any]) -> None:
        _Packed.__init__(self, dataset, dtype, header_bytes=0)
        split = dataset.info.splits[dataset.split]
        ranges = [
            self._range(number) if TOKENS in split.layouts[shard.layout] else (0, 0)
            for number, shard in enumerate(split.shards)
        ]
        Pieces.__init__(self, dtype, self._reader.files(TOKENS), ranges)

    @cached_property
    def documents(self) -> Documents:
        found = Documents(self._lengths, len(self._dataset))
        if found.num_tokens != self.num_tokens:
            raise self._damaged(0)
        return found

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
        if not 0 <= start <= end <= self._reader.files(TOKENS).sizes[shard]:
            raise self._damaged(first)
        return start, end

    def check_piece(self, number: int) -> None:
        """Raises IndexFileError if its documents do not lie end to end."""
        start, end = self._ranges[number]
        first, last = self._rows(number)
        if start == end:
            return
        places = self._places(first, last)
        sizes = self._lengths(first, last) * self.dtype.itemsize
        starts = sizes.cumsum() - sizes + start
        is_there = places[:, 0] == starts
        if not is_there.all() or starts[-1] + sizes[-1] != end:
            raise self._damaged(first + int(is_there.argmin()))


class RowTokens(_Packed):
    """In a row format: a ``.npy`` file for each document."""

    def __init__(self, dataset: Dataset, dtype: np.dtype[Any]) -> None:
        super().__init__(dataset, dtype, HEADER_BYTES)
        self.num_tokens = self.documents.num_tokens
        if self.num_tokens * dtype.itemsize > self._reader.files(TOKENS).sizes.sum():
            raise self._damaged(0)

    def read(self, starts: Sequence[int], sizes: Sequence[int]) -> Tokens:
        found = [
            self.documents.within(start, start + size)
            for start, size in zip(starts, sizes, strict=True)
        ]
        values = iter(self._values(found))
        parts: list[bytes | memoryview] = []
        for at, (first, ends) in zip(starts, found, strict=True):
            skip = at - self.documents.start(first)
            for document, end in enumerate(ends.tolist(), first):
                value = next(values)
                if value is not None and end > at:
                    parts.append(self._part(document, value, skip, end - at))
                at, skip = end, 0
        return np.frombuffer(b"".join(parts), self.dtype)

    def _values(self, found: list[tuple[int, Places]]) -> list[memoryview | None]:
        """Stored, of all documents that were found for some ranges."""
        return self._reader.stored(self._reader.gather(_numbers(found)), TOKENS)

    def _part(self, document: int, value: memoryview, skip: int, size: int) -> memoryview:
        """The bytes of some tokens. Raises FormatError unless the value is the ``.npy`` that the
        index lets expect."""
        step = self.dtype.itemsize
        header = npy_header(self.dtype.str, ((len(value) - HEADER_BYTES) // step,))
        if value[:HEADER_BYTES] != header:
            raise FormatError(
                f"{self._dataset.where(document)}: its tokens are no .npy of one axis of"
                f" {self.dtype}; `shardkit verify` tells more"
            )
        start = HEADER_BYTES + skip * step
        return value[start : start + size * step]

    def announce(self, starts: Places, sizes: Places) -> None:
        ranges = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
        found = [self.documents.within(start, stop) for start, stop in ranges]
        self._reader.announce(self._reader.gather(_numbers(found)), [TOKENS])


def _numbers(found: list[tuple[int, Places]]) -> Places:
    """Of all documents that :meth:`Documents.within` found for some ranges."""
    ranges = [np.arange(first, first + len(ends)) for first, ends in found]
    return np.concatenate([np.empty(0, np.int64), *ranges])
