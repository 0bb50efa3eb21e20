"""The listing on disk: one segment a shard, so that a million entries cost no memory.

A worker gets a segment's place and reads its own entries; a resumed pack compares segments to see
whether the input is still the one that was listed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np

from shardkit.corpus.base import Run


def encode_runs(runs: Sequence[Run]) -> bytes:
    """One segment: for each run a JSON line, its numbers, its locators and its keys."""
    parts: list[bytes] = []
    for run in runs:
        locators = b"\0".join(run.locators)
        keys = b"\0".join(run.keys)
        head = [run.split, run.base, run.label, len(run), len(locators), len(keys)]
        numbers = np.array([run.sizes, run.stamps], "<i8")
        parts += [json.dumps(head).encode(), b"\n", numbers.tobytes(), locators, keys]
    return b"".join(parts)


def decode_runs(segment: bytes) -> Iterator[Run]:
    """The inverse of :func:`encode_runs`. A run cut short, by a kill, ends it."""
    at = 0
    while (line_end := segment.find(b"\n", at)) >= 0:
        split, base, label, count, locators_len, keys_len = json.loads(segment[at:line_end])
        at = line_end + 1
        if at + 16 * count + locators_len + keys_len > len(segment):
            return
        numbers = np.frombuffer(segment, "<i8", 2 * count, at).reshape(2, count)
        at += 16 * count
        locators = segment[at : at + locators_len].split(b"\0")
        at += locators_len
        keys = segment[at : at + keys_len].split(b"\0")
        at += keys_len
        yield Run(split, base, label, locators, keys, numbers[0].tolist(), numbers[1].tolist())


def read_segment(path: Path, start: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(size)


def coalesce(runs: Iterable[Run]) -> Iterator[Run]:
    """Join neighbours that share split, base and label."""
    last: Run | None = None
    for run in runs:
        if last is not None and (last.split, last.base, last.label) == (
            run.split,
            run.base,
            run.label,
        ):
            last.locators += run.locators
            last.keys += run.keys
            last.sizes += run.sizes
            last.stamps += run.stamps
            continue
        if last is not None:
            yield last
        last = run
    if last is not None:
        yield last


def first_difference(old: Iterable[Run], new: Iterable[Run]) -> str | None:
    """What changed between two listings, in words; None if nothing did."""
    for before, after in zip_longest(_entries(old), _entries(new)):
        if before == after:
            continue
        if before is None:
            return f"{_name(after)} was added"
        if after is None:
            return f"{_name(before)} is gone"
        if before[:2] == after[:2]:
            return f"{_name(before)} changed ({before[2]} bytes then, {after[2]} now)"
        return f"{_name(before)} was expected, {_name(after)} found"
    return None


_Entry = tuple[str, bytes, int, int, int | None, str]


def _entries(runs: Iterable[Run]) -> Iterator[_Entry]:
    for run in runs:
        for entry in zip(run.locators, run.keys, run.sizes, run.stamps, strict=True):
            locator, _, size, stamp = entry
            yield run.base, locator, size, stamp, run.label, run.split


def _name(entry: _Entry | None) -> str:
    if entry is None:
        return "nothing"
    base, locator = entry[:2]
    text = locator.decode(errors="backslashreplace")
    return repr(f"{base}/{text}" if base else text)
