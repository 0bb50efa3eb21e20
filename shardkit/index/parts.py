"""The journal: one file a finished shard, holding its rows, names and block checksums.

A part appears, atomically, after its shard's files stand synced under their final names. So a
part means: this shard is done, from these inputs. The parts in order become the row index.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardkit.errors import FormatError
from shardkit.index.rows import row_columns
from shardkit.samples.encoding import Encoding
from shardkit.system.paths import show_path
from shardkit.system.writing import atomic_write

_DIGEST_BYTES = 8

Matrix = np.ndarray[Any, np.dtype[np.int64]]


@dataclass
class PartHead:
    """What a part says in its first line.

    Attributes:
        segment: XXH3-64 of the listing segment the shard was made from.
        file_bytes: size of each of the shard's files, in bytes.
        encodings: field -> how it is stored in this shard.
        rejects: (path, reason) of inputs left out.
    """

    split: str
    shard: int
    segment: int
    num_rows: int
    file_bytes: dict[str, int]
    encodings: dict[str, dict[str, Any]]
    num_sums: int
    names_bytes: int
    rejects: list[tuple[str, str]] = field(default_factory=list)

    @property
    def stem(self) -> str:
        return f"{self.split}-{self.shard:05d}"

    def layout(self) -> dict[str, Encoding]:
        return {name: Encoding.from_json(raw) for name, raw in self.encodings.items()}


@dataclass
class Part:
    """A finished shard. ``rows`` is (num_rows, columns) int64 in ``row_columns`` order of its own
    fields; name.start counts from the shard's own names, and row.xxh3 is not known yet."""

    head: PartHead
    rows: Matrix
    names: bytes
    sums: np.ndarray[Any, np.dtype[np.uint64]]


def part_path(work: Path, split: str, shard: int) -> Path:
    return work / f"{split}-{shard:05d}.part"


def write_part(path: Path, part: Part) -> None:
    line = json.dumps(asdict(part.head)).encode() + b"\n"
    chunks = [line, part.rows.tobytes(), part.sums.tobytes(), part.names]
    digest = xxhash.xxh3_64()
    for chunk in chunks:
        digest.update(chunk)
    atomic_write(path, [*chunks, digest.digest()])


def read_head(path: Path) -> PartHead | None:
    """The head of a part, or None if there is no part or it is damaged."""
    try:
        return read_part(path).head
    except (FileNotFoundError, FormatError):
        return None


def read_part(path: Path) -> Part:
    """Read and check. Raises FormatError if it is damaged."""
    line, data = _read_checked(path)
    try:
        head = PartHead(**json.loads(line))
    except (ValueError, TypeError, RecursionError) as error:
        raise FormatError(f"{show_path(path)} is of another version; pack again") from error
    sums_bytes = 8 * head.num_sums
    rows_bytes = len(data) - sums_bytes - head.names_bytes
    width = len(row_columns(sorted(head.encodings)))
    rows = np.frombuffer(data, "<i8", rows_bytes // 8).reshape(head.num_rows, width)
    sums = np.frombuffer(data, "<u8", head.num_sums, rows_bytes)
    return Part(head, rows, data[rows_bytes + sums_bytes :], sums)


def _read_checked(path: Path) -> tuple[bytes, bytes]:
    """First line and rest of a part, less the XXH3-64 that ends it."""
    data = path.read_bytes()
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if digest != xxhash.xxh3_64_digest(body):
        raise FormatError(f"{show_path(path)} is damaged; run the same command again")
    line, _, rest = body.partition(b"\n")
    return line, rest
