"""What ``verify`` asks of tokens: the tokenizer's file is whole, and ids are in its vocabulary."""

from __future__ import annotations

from pathlib import Path

from shardkit.arrays import Array, Integers
from shardkit.errors import DataError
from shardkit.memory.whole_files import read_file
from shardkit.samples.encoding import TOKENS, parse_npy
from shardkit.shards.stored import ShardReader
from shardkit.tokens.spec import TokenizerSpec


def tokenizer_problem(folder: Path, spec: TokenizerSpec) -> tuple[str, str] | None:
    """(file, what is wrong with it) of the tokenizer's file, if anything is."""
    if spec.file is None:
        return None
    try:
        data = read_file(folder / spec.file, spec.num_bytes + 1)
    except DataError as error:
        is_gone = isinstance(error, FileNotFoundError)
        return spec.file, f"{'is missing' if is_gone else error}; ids cannot be decoded"
    if spec.matches(data):
        return None
    return spec.file, "its bytes differ from those written; ids may be decoded wrongly"


def foreign_ids(reader: ShardReader, rows: Integers, spec: TokenizerSpec) -> list[tuple[int, str]]:
    """(row, what is wrong) of documents that the tokenizer cannot have made.

    Raises:
        FormatError: a value does not fit its encoding.
    """
    batch = reader.gather(rows)
    values = reader.stored(batch, TOKENS)
    encodings = reader.encodings(batch.shards, TOKENS)
    found = []
    for row, value, encoding in zip(rows.tolist(), values, encodings, strict=True):
        if value is None:
            continue
        ids = parse_npy(value) if encoding.kind == "bytes" else encoding.as_array(value)
        if what := _what_is_foreign(ids, spec):
            found.append((row, what))
    return found


def _what_is_foreign(ids: Array, spec: TokenizerSpec) -> str:
    if ids.ndim != 1 or ids.dtype.str != spec.dtype:
        return f"its tokens are {ids.dtype.str}{list(ids.shape)}, expected {spec.dtype}[n]"
    if len(ids) and int(ids.max()) >= spec.vocab_size:
        return f"has id {ids.max()}, and the vocabulary ends before {spec.vocab_size}"
    return ""
