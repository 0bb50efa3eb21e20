"""Ranges of bytes in parts, each of which a small cache can hold while it is copied."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from shardkit.arrays import Integers
from shardkit.order.permutation import counted
from shardkit.system.blocks import BLOCK_BYTES

PART = 4
"""A part takes at most this fraction of a cache, as several readers share it."""


def blocks_at_once(room_bytes: int) -> int:
    """That a part may touch, in a cache of this size: at least one, without which nothing can be
    read."""
    return max(room_bytes // PART // BLOCK_BYTES, 1)


def parts_of(
    firsts: Integers, starts: Integers, sizes: Integers, most_blocks: int
) -> Iterator[tuple[Integers, Integers, Integers]]:
    """Ranges, cut where blocks end, in parts that touch at most so many blocks each.

    Args:
        firsts: (B,) int64, first block of each range's file. starts, sizes: (B,) int64 bytes in it;
            none is empty.

    Yields:
        (P,) int64 each: of which range each piece is, its first byte, and its size. Those of all
        parts, end to end, are the bytes of the ranges.
    """
    begin, ends = starts // BLOCK_BYTES, starts + sizes
    counts = (ends - 1) // BLOCK_BYTES - begin + 1
    which = np.repeat(np.arange(len(starts)), counts)
    blocks = begin[which] + counted(counts)
    pieces = np.maximum(starts[which], blocks * BLOCK_BYTES)
    lengths = np.minimum(ends[which], (blocks + 1) * BLOCK_BYTES) - pieces
    for first, last in _runs_of_few((firsts[which] + blocks).tolist(), most_blocks):
        yield which[first:last], pieces[first:last], lengths[first:last]


def _runs_of_few(blocks: list[int], most: int) -> Iterator[tuple[int, int]]:
    """[first, last) of runs of at most so many different ones, each as long as can be."""
    first, seen = 0, set[int]()
    for at, block in enumerate(blocks):
        if block not in seen and len(seen) == most:
            yield first, at
            first, seen = at, set()
        seen.add(block)
    if blocks:
        yield first, len(blocks)
