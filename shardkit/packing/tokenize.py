"""Text into tokens: field ``txt`` of samples becomes field ``tokens``, a ``.npy`` of ids."""

from __future__ import annotations

import mmap
from codecs import getincrementaldecoder
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

from shardkit.arrays import Array
from shardkit.errors import FormatError, SampleError
from shardkit.inputs.base import Run
from shardkit.memory.chunks import release_freed, release_pages
from shardkit.packing.pictures import without
from shardkit.samples.encoding import TOKENS, npy_header
from shardkit.samples.sample import SampleBatch, Value, rename_field, unpack_paths
from shardkit.tokens.spec import TokenizerSpec
from shardkit.tokens.tokenizer import Tokenizer

TEXT = "txt"

SLICE_BYTES = 16 << 20
"""Text that is read, tokenized and dropped at a time. As a str it may take four times as much."""

LARGE_BYTES = 8 << 20
"""A larger document is tokenized piece by piece, into a file."""

TRIM_PIECES = 16
"""Of a large document, between which freed memory is given back: some 16 MB of text."""


def slices(run: Run, num_bytes: int = SLICE_BYTES) -> Iterator[Run]:
    """Cut a run into pieces of at most so many input bytes, and at least one entry."""
    ends = np.cumsum(np.array(run.sizes, np.int64))
    start = 0
    while start < len(run):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + num_bytes, side="right"))
        stop = max(stop, start + 1)
        yield run.slice(start, stop)
        start = stop


def tokenize(batch: SampleBatch, tokenizer: Tokenizer, scratch: Path) -> SampleBatch:
    """Make of each sample's text its ids; samples whose text is not UTF-8 go to ``rejects``.

    ``scratch`` is a folder for the ids of large documents, which hold no memory.
    """
    made: list[Value | None] = [None] * len(batch)
    reasons: dict[int, tuple[str, str]] = {}
    texts: dict[int, str] = {}
    ends = _Ends(tokenizer.spec)
    for i, value in enumerate(batch.columns.get(TEXT, made)):
        try:
            if value is None:
                continue
            if len(value) > LARGE_BYTES:
                made[i] = _large(value, tokenizer, ends, scratch)
            else:
                texts[i] = text_of(value, tokenizer.spec.invalid_utf8)
        except SampleError as error:
            reasons[i] = TEXT, str(error)
    for i, value in enumerate(batch.columns.get(TOKENS, [])):
        if value is not None:
            reasons[i] = TOKENS, f"its sample has a field {TOKENS} already; rename that file"
    encoded = tokenizer.encode([*texts.values()])
    for i, ids in zip(texts, encoded, strict=True):
        made[i] = ends.value(ids)
    columns = {name: v for name, v in batch.columns.items() if name not in (TEXT, TOKENS)}
    if texts or any(value is not None for value in made):
        columns[TOKENS] = made
    return without(batch, SampleBatch(batch.keys, _paths(batch), columns, batch.rejects), reasons)


def text_of(value: Value, invalid_utf8: str) -> str:
    """A document's text. Raises SampleError, saying where, if it is not UTF-8 and must be."""
    try:
        return str(value, "utf-8", "replace" if invalid_utf8 == "replace" else "strict")
    except UnicodeDecodeError as error:
        raise not_utf8(error.start, value[error.start]) from error


def not_utf8(offset: int, byte: int) -> SampleError:
    return SampleError(
        f"is not UTF-8: byte 0x{byte:02x} at offset {offset}; pass --invalid-utf8 replace to store"
        " U+FFFD in its place"
    )


def _paths(batch: SampleBatch) -> list[bytes]:
    """The samples' paths, in order of their new fields; the names of files stay as they were."""
    if len(batch.columns) == 1:
        return batch.paths
    paths = [*batch.paths]
    for i, (key, packed) in enumerate(zip(batch.keys, batch.paths, strict=True)):
        fields = [*batch.fields(i)]
        for name, path, _ in unpack_paths(key, packed, fields):
            if name == TEXT:
                paths[i] = rename_field(key, packed, fields, TEXT, TOKENS, path)
    return paths


class _Ends:
    """What stands around a document's own ids: the header of its ``.npy``, BOS and EOS."""

    def __init__(self, spec: TokenizerSpec) -> None:
        self.dtype = spec.dtype
        self.bos, self.eos = (
            b"" if token is None else np.array([token], spec.dtype).tobytes()
            for token in (spec.bos, spec.eos)
        )
        self._item_bytes = np.dtype(spec.dtype).itemsize

    def header(self, num_bytes: int) -> bytes:
        """The header of a ``.npy`` of so many bytes of ids."""
        return npy_header(self.dtype, (num_bytes // self._item_bytes,))

    def value(self, ids: Array) -> bytes:
        data = b"".join((self.bos, ids.tobytes(), self.eos))
        return self.header(len(data)) + data


def _large(value: Value, tokenizer: Tokenizer, ends: _Ends, scratch: Path) -> Value:
    """A document's ``.npy`` in a file without a name, mapped: gone with its last user."""
    with TemporaryFile(dir=scratch) as file:
        skip = len(ends.header(0))
        file.seek(skip)
        for part in chain([ends.bos], _pieces(value, tokenizer), [ends.eos]):
            file.write(part)
        header = ends.header(file.tell() - skip)
        if len(header) != skip:
            raise FormatError(f"a .npy header of {len(header)} bytes, expected {skip}")
        file.seek(0)
        file.write(header)
        file.flush()
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _pieces(value: Value, tokenizer: Tokenizer) -> Iterator[bytes]:
    errors = "replace" if tokenizer.spec.invalid_utf8 == "replace" else "strict"
    try:
        for number, ids in enumerate(tokenizer.encode_pieces(value, errors)):
            release_pages(value)
            if number % TRIM_PIECES == 0:
                release_freed()
            yield ids.tobytes()
    except UnicodeDecodeError as error:
        offset = first_not_utf8(value)
        raise not_utf8(offset, value[offset]) from error


def first_not_utf8(value: Value) -> int:
    """Where the first byte is that is not part of valid UTF-8; looked for a piece at a time."""
    decoder = getincrementaldecoder("utf-8")()
    for start in range(0, len(value), LARGE_BYTES):
        held = len(decoder.getstate()[0])
        stop = start + LARGE_BYTES
        try:
            decoder.decode(value[start:stop], stop >= len(value))
        except UnicodeDecodeError as error:
            return start - held + error.start
    return len(value)
