"""The file of the listing: one segment a shard, so that a million entries cost no memory.

A worker gets a segment's place and reads its own entries; a resumed pack compares segments to see
whether the input is still the one that was listed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
import xxhash

from shardkit.arrays import Integers
from shardkit.errors import StorageError
from shardkit.inputs.base import Run
from shardkit.system.paths import show_path
from shardkit.system.stamps import UPPER

LISTING_NAME = "listing"
"""In the work folder."""


def encode_shard(runs: Sequence[Run], order: Integers | None = None) -> bytes:
    """One segment: for each run a JSON line, its numbers, its locators and its keys.

    ``order`` is that of the samples, where it is not that of the runs' entries: indices of entries.
    """
    parts: list[bytes] = []
    for run in runs:
        locators = b"\0".join(run.locators)
        keys = b"\0".join(run.keys)
        head = [run.split, run.base, run.label, len(run), len(locators), len(keys)]
        numbers = np.array([run.sizes, run.stamps], "<i8")
        parts += [json.dumps(head).encode(), b"\n", numbers.tobytes(), locators, keys]
    if order is not None:
        parts += [json.dumps([len(order)]).encode(), b"\n", order.astype("<i8").tobytes()]
    return b"".join(parts)


def decode_shard(segment: bytes) -> tuple[list[Run], Integers | None]:
    """The inverse of :func:`encode_shard`."""
    records = list(_records(segment))
    orders = [record for record in records if not isinstance(record, Run)]
    return [record for record in records if isinstance(record, Run)], orders[0] if orders else None


def decode_runs(listing: bytes) -> Iterator[Run]:
    """All runs of a whole listing. A run cut short, by a kill, ends it."""
    return (record for record in _records(listing) if isinstance(record, Run))


def _records(data: bytes) -> Iterator[Run | Integers]:
    at = 0
    while (line_end := data.find(b"\n", at)) >= 0:
        head = json.loads(data[at:line_end])
        at = line_end + 1
        if len(head) == 1:
            yield np.frombuffer(data, "<i8", head[0], at)
            at += 8 * head[0]
            continue
        split, base, label, count, locators_len, keys_len = head
        if at + 16 * count + locators_len + keys_len > len(data):
            return
        numbers = np.frombuffer(data, "<i8", 2 * count, at).reshape(2, count)
        at += 16 * count
        locators = data[at : at + locators_len].split(b"\0") if count else []
        at += locators_len
        keys = data[at : at + keys_len].split(b"\0") if count else []
        at += keys_len
        yield Run(split, base, label, locators, keys, numbers[0].tolist(), numbers[1].tolist())


def read_segment(path: Path, start: int, size: int, digest: int) -> bytes:
    """Return the segment at ``start``. Raises StorageError if it is not as it was written."""
    with path.open("rb") as file:
        file.seek(start)
        segment = file.read(size)
    if xxhash.xxh3_64_intdigest(segment) != digest:
        raise StorageError(
            f"{show_path(path)} is not as it was written; run the same command again"
        )
    return segment


def first_change(old: Iterable[Run], new: Iterable[Run]) -> str | None:
    """What changed between two listings, in words; None if nothing did."""
    for before, after in zip_longest(_entries(old), _entries(new)):
        if before == after:
            continue
        if before is None:
            return f"{_name(after)} was added"
        if after is None:
            return f"{_name(before)} is gone"
        if _name(before) == _name(after):
            return f"{_name(before)} changed ({before[2]} bytes then, {after[2]} now)"
        return f"{_name(before)} was expected, {_name(after)} found"
    return None


_Entry = tuple[str, bytes, int, int, int | None, str]


def _entries(runs: Iterable[Run]) -> Iterator[_Entry]:
    for run in runs:
        for entry in zip(run.locators, run.keys, run.sizes, run.stamps, strict=True):
            locator, _, size, stamp = entry
            yield run.base, locator, size, stamp >> UPPER, run.label, run.split


def _name(entry: _Entry | None) -> str:
    if entry is None:
        return "nothing"
    base, locator = entry[:2]
    # What may follow the path in a locator is for its corpus alone, and long.
    text = locator.partition(b"//")[0].decode(errors="backslashreplace")
    return repr(f"{base}/{text}" if base else text)
