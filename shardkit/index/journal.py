"""The journal: one file a finished shard, holding its rows, names and block checksums.

Such a file appears, atomically, after its shard's own files stand synced under their final names.
So it means: this shard is done, from these inputs. All of them, in order, become the row index.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardkit.arrays import Hashes, Integers
from shardkit.commit.durable_files import atomic_write
from shardkit.commit.own_files import read_own
from shardkit.commit.records import from_record
from shardkit.errors import FormatError
from shardkit.index.file_names import is_field_name, is_file_of
from shardkit.index.rows import row_columns
from shardkit.samples.encoding import Encoding
from shardkit.system.paths import show_path

_DIGEST_BYTES = 8
_SUFFIX = ".part"


@dataclass
class Receipt:
    """What a finished shard is, without its rows: what its job answers, and the first line in the
    journal's file. Plain values, some hundred bytes.

    Attributes:
        segment, seen: XXH3-64 of the listing segment the shard was made from, and of what people
            see of those inputs.
        file_bytes: size of each of the shard's files, in bytes.
        encodings: field -> how it is stored in this shard.
        rejects: (path, reason) of inputs left out. num_bytes: of the inputs; 0 in older journals.
        counts: what became of pictures that were written anew, and how often: what was lost, by
            :mod:`shardkit.images.losses`, and by :mod:`shardkit.images.restarting`.
    """

    split: str
    shard: int
    segment: int
    seen: int
    num_rows: int
    file_bytes: dict[str, int]
    encodings: dict[str, dict[str, Any]]
    num_sums: int
    names_bytes: int
    rejects: list[tuple[str, str]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    num_bytes: int = 0

    @property
    def stem(self) -> str:
        return f"{self.split}-{self.shard:05d}"

    def layout(self) -> dict[str, Encoding]:
        return {name: Encoding.from_json(raw) for name, raw in self.encodings.items()}


@dataclass
class FinishedShard:
    """A finished shard. ``rows`` is (num_rows, columns) int64 in ``row_columns`` order of its own
    fields; name.start counts from the shard's own names, and row.xxh3 is not known yet."""

    receipt: Receipt
    rows: Integers
    names: bytes
    sums: Hashes


def journal_path(work: Path, split: str, shard: int) -> Path:
    return work / f"{split}-{shard:05d}{_SUFFIX}"


def is_begun(work: Path) -> bool:
    """Whether the journal in this folder has any finished shard."""
    return any(work.glob(f"*{_SUFFIX}"))


def write_finished(path: Path, finished: FinishedShard) -> None:
    line = json.dumps(asdict(finished.receipt)).encode() + b"\n"
    chunks = [line, finished.rows.tobytes(), finished.sums.tobytes(), finished.names]
    digest = xxhash.xxh3_64()
    for chunk in chunks:
        digest.update(chunk)
    atomic_write(path, [*chunks, digest.digest()])


def read_receipt(path: Path) -> Receipt | None:
    """The receipt of a finished shard, or None if it is not finished, or its file is damaged."""
    try:
        return read_finished(path).receipt
    except (FileNotFoundError, FormatError):
        return None


def read_finished(path: Path) -> FinishedShard:
    """Read and check. Raises FormatError if it is damaged."""
    line, data = _read_checked(path)
    try:
        receipt = from_record(Receipt, json.loads(line))
        _check(receipt)
        sums_bytes = 8 * receipt.num_sums
        rows_bytes = len(data) - sums_bytes - receipt.names_bytes
        width = len(row_columns(sorted(receipt.encodings)))
        rows = np.frombuffer(data, "<i8", rows_bytes // 8).reshape(receipt.num_rows, width)
        sums = np.frombuffer(data, "<u8", receipt.num_sums, rows_bytes)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise FormatError(f"{show_path(path)} is of another version; pack again") from error
    return FinishedShard(receipt, rows, data[rows_bytes + sums_bytes :], sums)


def _check(receipt: Receipt) -> None:
    """Raise ValueError unless it is what a packer writes, and names no file but its shard's own."""
    counts = [receipt.shard, receipt.num_rows, receipt.num_sums, receipt.names_bytes]
    if not (
        all(map(is_field_name, (receipt.split, *receipt.encodings)))
        and min(counts) >= 0
        and bool(receipt.file_bytes or not receipt.num_rows)
        and all(is_file_of(receipt.stem, name) for name in receipt.file_bytes)
    ):
        raise ValueError("bad receipt")
    receipt.layout()


def _read_checked(path: Path) -> tuple[bytes, bytes]:
    """First line and rest of such a file, less the XXH3-64 that ends it."""
    data = read_own(path) or b""
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if digest != xxhash.xxh3_64_digest(body):
        raise FormatError(f"{show_path(path)} is damaged; run the same command again")
    line, _, rest = body.partition(b"\n")
    return line, rest
