"""The tokens of a packed dataset, in any container format."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from shardkit.arrays import Integers, Tokens
from shardkit.errors import FormatError, IndexFileError, UsageError
from shardkit.reading.dataset import Dataset
from shardkit.samples.encoding import TOKENS, npy_header, parse_npy
from shardkit.sequences.contiguous import ContiguousTokens
from shardkit.sequences.documents import Documents
from shardkit.sequences.store import TokenStore, refuse_huge
from shardkit.shards.stored import ShardReader
from shardkit.storage.interface import Turn

HEADER_BYTES = len(npy_header("<u2", (0,)))
"""Bytes before the ids in a ``.npy`` file of one axis: 128, whatever its length."""


def packed_tokens(dataset: Dataset) -> TokenStore:
    """The tokens of a dataset that has a field ``tokens``.

    Raises:
        UsageError: they are no token ids. IndexFileError: the index is damaged.
    """
    split = dataset.info.splits[dataset.split]
    encodings = [layout[TOKENS] for layout in split.layouts if TOKENS in layout]
    kinds = {(encoding.kind, encoding.dtype) for encoding in encodings}
    if len(kinds) > 1:
        raise UsageError(f"{dataset!r}: tokens are stored differently from shard to shard: {kinds}")
    kind, dtype = kinds.pop() if kinds else ("bytes", "")
    if kind != "ragged":
        return RowTokens(dataset, _checked(dataset, _first_dtype(dataset.reader)), HEADER_BYTES)
    if split.num_left_out:  # there are gaps between its documents
        return RowTokens(dataset, _checked(dataset, np.dtype(dtype)), header_bytes=0)
    return ColumnTokens(dataset, _checked(dataset, np.dtype(dtype)))


def _checked(dataset: Dataset, dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind != "u" or dtype.itemsize > 4:
        raise UsageError(
            f"{dataset!r}: its tokens are {dtype}, expected uint8, uint16 or uint32; pack with"
            " --tokenizer"
        )
    return dtype


def _first_dtype(reader: ShardReader) -> np.dtype[Any]:
    """The dtype of the first document's ``.npy``."""
    sizes = reader.index.table[:, reader.index.column[f"{TOKENS}.size"]]
    present = reader.gather(np.flatnonzero(sizes >= 0)[:1])
    for value in reader.stored(present, TOKENS):
        dtype: np.dtype[Any] = parse_npy(value or b"").dtype
        return dtype
    return np.dtype("<u2")


class DocumentRows:
    """What the row index says of a packed dataset's documents: where each lies, and how long it is.

    Args:
        header_bytes: of a stored document, before its tokens.

    Attributes:
        reader: of their values.
    """

    def __init__(self, dataset: Dataset, dtype: np.dtype[Any], header_bytes: int) -> None:
        self._dataset = dataset
        self._step = dtype.itemsize
        self._header_bytes = header_bytes

    @cached_property
    def documents(self) -> Documents:
        return Documents(self.lengths, len(self._dataset))

    @property
    def reader(self) -> ShardReader:
        return self._dataset.reader

    def places(self, first: int, last: int) -> Integers:
        """(n, 2) int64 view: start and size in bytes of documents [first, last)."""
        column = self.reader.index.column[f"{TOKENS}.start"]
        return self.reader.index.table[first:last, column : column + 2]

    def lengths(self, first: int, last: int) -> Integers:
        """(n,) int64 tokens of documents [first, last). Raises IndexFileError for what no file can
        hold."""
        sizes = self.places(first, last)[:, 1]
        data = np.where(sizes < 0, 0, sizes - self._header_bytes)
        bad = (data < 0) | (data % self._step != 0)
        bad |= data > self.reader.files(TOKENS).sizes.max(initial=0)
        if bad.any():
            raise self.damaged(first + int(bad.argmax()))
        return data // self._step

    def of_shard(self, shard: int) -> tuple[int, int]:
        """(first, last): the documents [first, last) that a shard has."""
        first, last = self.reader.index.row_starts[shard : shard + 2].tolist()
        return first, last

    def range_of(self, shard: int) -> tuple[int, int]:
        """(start, end) in bytes of all tokens in a shard's file, if they lie end to end: from its
        first document and its last alone."""
        first, last = self.of_shard(shard)
        if first == last:
            return 0, 0
        start = int(self.places(first, last)[0, 0])
        end, size = self.places(first, last)[-1].tolist()
        end += max(size, 0)
        if not 0 <= start <= end <= self.reader.files(TOKENS).sizes[shard]:
            raise self.damaged(first)
        return start, end

    def refuse_gaps(self, shard: int, start: int, end: int) -> None:
        """Raise IndexFileError if a shard's documents do not fill this range, one after another."""
        first, last = self.of_shard(shard)
        if start == end:
            return
        places = self.places(first, last)
        sizes = self.lengths(first, last) * self._step
        starts = sizes.cumsum() - sizes + start
        is_there = places[:, 0] == starts
        if not is_there.all() or starts[-1] + sizes[-1] != end:
            raise self.damaged(first + int(is_there.argmin()))

    def where(self, token: int) -> str:
        """The document of a token, in words."""
        return self.name(self.documents.within(token, token + 1)[0])

    def name(self, document: int) -> str:
        """A document in words."""
        return self._dataset.where(document)

    def damaged(self, document: int) -> IndexFileError:
        return IndexFileError(
            f"{self.name(document)}: the row index does not say where its tokens lie;"
            " `shardkit verify` tells more"
        )


class ColumnTokens(ContiguousTokens):
    """:class:`shardkit.sequences.store.TokenStore` of a column format: the tokens of a shard are
    one range of one file."""

    def __init__(self, dataset: Dataset, dtype: np.dtype[Any]) -> None:
        self.fingerprint = dataset.fingerprint
        self._rows = rows = DocumentRows(dataset, dtype, header_bytes=0)
        split = dataset.info.splits[dataset.split]
        ranges = [
            rows.range_of(number) if TOKENS in split.layouts[shard.layout] else (0, 0)
            for number, shard in enumerate(split.shards)
        ]
        super().__init__(
            rows.reader.files(TOKENS),
            ranges,
            dtype,
            lambda shard: rows.refuse_gaps(shard, *ranges[shard]),
        )

    @cached_property
    def documents(self) -> Documents:
        found = self._rows.documents
        if found.num_tokens != self.num_tokens:
            raise self._rows.damaged(0)
        return found

    def where(self, token: int) -> str:
        return self._rows.where(token)


class RowTokens:
    """:class:`shardkit.sequences.store.TokenStore` of documents that lie apart: a ``.npy`` file
    for each, or, where ``header_bytes`` is 0, the ids alone."""

    def __init__(self, dataset: Dataset, dtype: np.dtype[Any], header_bytes: int) -> None:
        self.dtype = dtype
        self.fingerprint = dataset.fingerprint
        self._header_bytes = header_bytes
        self._rows = DocumentRows(dataset, dtype, header_bytes)
        self.documents = self._rows.documents
        self.num_tokens = self.documents.num_tokens
        if self.num_tokens * dtype.itemsize > self._reader.files(TOKENS).sizes.sum():
            raise self._rows.damaged(0)

    @property
    def _reader(self) -> ShardReader:
        return self._rows.reader

    def read(self, starts: Integers, sizes: Integers, out: Tokens) -> None:
        found = self._documents(starts, sizes)
        values = iter(self._values(found))
        parts: list[bytes | memoryview] = []
        for at, (first, ends) in zip(starts.tolist(), found, strict=True):
            skip = at - self.documents.start(first)
            for document, end in enumerate(ends.tolist(), first):
                value = next(values)
                if value is not None and end > at:
                    parts.append(self._part(document, value, skip, end - at))
                at, skip = end, 0
        out[:] = np.frombuffer(b"".join(parts), self.dtype)
        refuse_huge(out, self.dtype)

    def _documents(self, starts: Integers, sizes: Integers) -> list[tuple[int, Integers]]:
        """:meth:`Documents.within` of each range."""
        ranges = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
        return [self.documents.within(start, stop) for start, stop in ranges]

    def _values(self, found: list[tuple[int, Integers]]) -> list[memoryview | None]:
        """The stored values of all documents that were found for some ranges."""
        return self._reader.stored(self._reader.gather(_numbers(found)), TOKENS)

    def _part(self, document: int, value: memoryview, skip: int, size: int) -> memoryview:
        """The bytes of some tokens. Raises FormatError unless the value is the ``.npy`` that the
        index lets expect."""
        step, head = self.dtype.itemsize, self._header_bytes
        header = npy_header(self.dtype.str, ((len(value) - head) // step,)) if head else b""
        if value[:head] != header:
            raise FormatError(
                f"{self._rows.name(document)}: its tokens are no .npy of one axis of"
                f" {self.dtype}; `shardkit verify` tells more"
            )
        start = head + skip * step
        return value[start : start + size * step]

    def is_cold(self) -> bool:
        return self._reader.is_cold([TOKENS])

    def announce(self, starts: Integers, sizes: Integers, turn: Turn | None) -> None:
        documents = _numbers(self._documents(starts, sizes))
        self._reader.announce(self._reader.gather(documents), [TOKENS], turn)

    def where(self, token: int) -> str:
        return self._rows.where(token)


def _numbers(found: list[tuple[int, Integers]]) -> Integers:
    """The numbers of all documents that :meth:`Documents.within` found for some ranges."""
    ranges = [np.arange(first, first + len(ends)) for first, ends in found]
    return np.concatenate([np.empty(0, np.int64), *ranges])
