"""The rows of one shard, as the index will hold them: pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import xxhash

from shardkit.arrays import Hashes, Integers
from shardkit.formats.format import Extents
from shardkit.index.rows import NO_INT, row_columns
from shardkit.samples.sample import Value


def join_names(keys: Sequence[bytes], paths: Sequence[bytes]) -> tuple[bytes, list[bytes]]:
    """The shard's piece of the names file, and the entries that it is made of."""
    entries = [key + b"\0" + path for key, path in zip(keys, paths, strict=True)]
    return b"".join(entries), entries


def make_rows(
    keys: Sequence[bytes],
    entries: Sequence[bytes],
    extents: Mapping[str, Extents],
    checksums: Hashes,
    columns: Mapping[str, Sequence[Value | None]],
) -> Integers:
    """(num_samples, columns) int64 in ``row_columns`` order; name.start counts from 0, and
    row.xxh3 is 0: it is known when the row's number is.

    ``entries`` are those of :func:`join_names`. Of ``columns`` only ``cls`` is looked at, for its
    integers.
    """
    where = {name: i for i, name in enumerate(row_columns(sorted(extents)))}
    rows = np.zeros((len(keys), len(where)), np.int64)
    rows[:, where["xxh3"]] = checksums.view(np.int64)
    rows[:, where["key"]] = hashes(keys)
    sizes = np.fromiter(map(len, entries), np.int64, len(entries))
    rows[:, where["name.start"]] = np.cumsum(sizes) - sizes
    rows[:, where["name.size"]] = sizes
    rows[:, where["name.xxh3"]] = hashes(entries)
    for name, extent in extents.items():
        rows[:, where[f"{name}.start"]] = extent.start
        rows[:, where[f"{name}.size"]] = extent.size
    if "cls" in extents:
        rows[:, where["cls"]] = integers(columns["cls"])
    return rows


def hashes(texts: Sequence[bytes]) -> Integers:
    """(B,) int64: the XXH3-64 of each, its bits as they are."""
    digests = map(xxhash.xxh3_64_intdigest, texts)
    return np.fromiter(digests, np.uint64, len(texts)).view(np.int64)


def integers(values: Sequence[Value | None]) -> Integers:
    """What column ``cls`` has for these values of the field: (B,) int64."""
    known = {value: _integer(value) for value in set(values)}
    return np.fromiter(map(known.__getitem__, values), np.int64, len(values))


def _integer(value: Value | None) -> int:
    """A class index from ``b"7"`` or ``b"7\\n"``; NO_INT where the value is absent or no int64."""
    text = b"" if value is None else bytes(value)
    return int(text) if re.fullmatch(rb"\s*-?[0-9]{1,18}\s*", text) else NO_INT
