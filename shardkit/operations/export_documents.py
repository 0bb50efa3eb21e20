"""The documents of a dataset of tokens, one after another, as an export writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from shardkit.arrays import Tokens
from shardkit.errors import FormatError
from shardkit.samples.encoding import TOKENS, parse_npy
from shardkit.samples.sample import Value
from shardkit.shards.stored import ShardReader
from shardkit.system.progress import Progress

MAX_DOCUMENT = 2**31 - 1
"""Tokens of a document that Megatron's index can tell."""


class DocumentBlocks:
    """The documents of a split, in blocks that fit into memory; counted as they are given.

    Iterating raises DataError where what is stored is damaged, is no ids, or does not fit.

    Attributes:
        dtype: of their ids. num_documents, num_tokens: given so far. num_without: samples so far
            that have no tokens.
    """

    def __init__(self, reader: ShardReader, dtype: np.dtype[Any], bar: Progress) -> None:
        self.dtype = dtype
        self.num_documents = self.num_tokens = self.num_without = 0
        self._reader = reader
        self._bar = bar

    def __iter__(self) -> Iterator[list[Tokens]]:
        for start, values in _values(self._reader):
            block = [
                self._narrowed(value, row)
                for row, value in enumerate(values, start)
                if value is not None
            ]
            num_tokens = sum(map(len, block))
            self.num_documents += len(block)
            self.num_tokens += num_tokens
            self.num_without += len(values) - len(block)
            self._bar.add(len(values), num_tokens * self.dtype.itemsize)
            yield block

    def _narrowed(self, value: Value, row: int) -> Tokens:
        """A document's ids in the dtype of all, into which none is cut down."""
        ids = _ids(self._reader, value, row)
        if len(ids) > MAX_DOCUMENT:
            raise FormatError(f"{self._reader.where(row)}: {len(ids)} tokens in one document")
        if ids.dtype != self.dtype and len(ids):
            least, most = int(ids.min()), int(ids.max())
            if least < 0 or most > np.iinfo(self.dtype).max:
                raise FormatError(
                    f"{self._reader.where(row)}: id {least if least < 0 else most} does not fit"
                    f" {self.dtype.name}, which holds the vocabulary"
                )
        return np.ascontiguousarray(ids, self.dtype)


def vocabulary_of(readers: Mapping[str, ShardReader]) -> int:
    """One more than the largest id, where no tokenizer says how many there are."""
    largest = -1
    for reader in readers.values():
        for start, values in _values(reader):
            for row, value in enumerate(values, start):
                if value is not None and len(ids := _ids(reader, value, row)):
                    largest = max(largest, int(ids.max()))
    return largest + 1


def _values(reader: ShardReader) -> Iterator[tuple[int, list[Value | None]]]:
    """(first row, tokens of it and of those that follow) of all rows; None where there are none."""
    for start, stop in reader.row_ranges(0, len(reader.index.table)):
        none: list[Value | None] = [None] * (stop - start)
        yield start, reader.samples(start, stop).columns.get(TOKENS, none)


def _ids(reader: ShardReader, value: Value, row: int) -> Tokens:
    ids = parse_npy(value)
    if ids.ndim != 1 or ids.dtype.kind not in "ui":
        raise FormatError(
            f"{reader.where(row)}: its tokens are {ids.dtype}{list(ids.shape)}, expected ids"
        )
    return ids
