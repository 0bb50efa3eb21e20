"""A dataset behind a URL without a cache of its blocks: each range is fetched when it is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from shardkit.arrays import Bytes, Integers
from shardkit.memory import buffers
from shardkit.order.epochs import Order
from shardkit.remote.piece import FetchedPiece
from shardkit.storage.base import Turn
from shardkit.storage.copied import CopiedRanges
from shardkit.system.blocks import BLOCK_BYTES
from shardkit.system.byte_sizes import format_bytes

Fetch = Callable[[Integers], Bytes]

ANSWER_BYTES = 32 << 20
"""That are asked for at once; a single range may have more."""

WORSE = 8
"""Where blocks would cost so many times the bytes of the samples, samples are fetched alone."""


class ExactFiles:
    """:class:`shardkit.storage.base.Files` of one split. Nothing is checked here: whoever reads has
    checksums of what it reads.

    Args:
        fetch: ranges, as :func:`shardkit.remote.exact.read_exact` is asked for them, to their bytes
            and maybe more. known: the files of the split, in that order.
    """

    def __init__(
        self, fetch: Fetch, known: Sequence[str], names: Sequence[str], sizes: Sequence[int]
    ) -> None:
        self.sizes: Integers = np.array(sizes, np.int64)
        self._fetch = fetch
        self._numbers = np.array([known.index(n) if n in known else -1 for n in names], np.int64)

    def read(self, numbers: Integers, starts: Integers, sizes: Integers) -> CopiedRanges:
        ends = sizes.cumsum()
        out: Bytes = buffers.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
        files, first, done = self._numbers[numbers], 0, 0
        while first < len(ends):
            last = max(int(ends.searchsorted(done + ANSWER_BYTES, "right")), first + 1)
            asked = [column[first:last] for column in (files, starts, sizes)]
            if stop := int(ends[last - 1]) - done:
                out[done : done + stop] = self._fetch(np.concatenate(asked))[:stop]
            first, done = last, done + stop
        return CopiedRanges(out, ends)

    def piece(self, number: int, start: int, stop: int) -> FetchedPiece:
        return FetchedPiece(self, number, start, stop)

    def announce(
        self, numbers: Integers, starts: Integers, sizes: Integers, turn: Turn | None = None
    ) -> None:
        """Does nothing: there is no place for what comes early."""

    def is_cold(self) -> bool:
        return False


REPEATED = 1.5
"""Where a block order fetches so many times the bytes of the dataset, a warning says so."""


def times_too_much(num_rows: int, num_bytes: int, most_bytes: int) -> float:
    """How many times its own bytes an epoch in full order would fetch of a dataset in blocks, with
    a cache of this size: each sample that is not there, and hardly any is, costs the blocks that it
    lies in."""
    missing = max(1 - most_bytes / max(num_bytes, 1), 0.0)
    return missing * (1 + num_rows * BLOCK_BYTES / max(num_bytes, 1))


def why_exact(shown: str, num_rows: int, num_bytes: int, most_bytes: int) -> str | None:
    """What to say where samples are fetched alone; None where blocks are better."""
    times = times_too_much(num_rows, num_bytes, most_bytes)
    if times < WORSE:
        return None
    each = num_bytes / num_rows
    window = fitting_window(each, most_bytes, Order(num_rows))
    return (
        f"{shown}: samples of {format_bytes(each)} in full order, and a cache of"
        f" {format_bytes(most_bytes)} for {format_bytes(num_bytes)}: in blocks of 256 KiB an epoch"
        f" would fetch {times:.0f} times the dataset. So each sample is fetched by itself and kept"
        f" nowhere, some {num_rows:,} requests an epoch. shuffle='block', {window} fetches each"
        " byte about once"
    )


def fitting_window(each: float, most_bytes: int, order: Order) -> str:
    """Return the arguments of a block order of which half of the cache holds a window: the rest is
    for the batches that are being made, and for the beginning of the next window."""
    rows = max(int(most_bytes / 2 / each), 1)
    if rows >= order.block_rows:
        return f"window_blocks={rows // order.block_rows}"
    return f"window_blocks=4, block_rows={max(rows // 4, 1)}"


def why_repeated(shown: str, order: Order, num_bytes: int, most_bytes: int) -> str | None:
    """Return a warning where a window of a block order is larger than the cache, so that an epoch
    fetches much of the dataset again; None elsewhere."""
    each = num_bytes / max(order.num_rows, 1)
    rows = min(order.block_rows * order.window_blocks, order.num_rows)
    times = times_too_much(rows, int(rows * each), most_bytes)
    if times < REPEATED:
        return None
    enough = int(min(1.25 * rows * each, num_bytes) / 1e6) + 1
    return (
        f"{shown}: shuffle='block' mixes windows of {format_bytes(rows * each)}, and the cache"
        f" holds {format_bytes(most_bytes)}, so an epoch fetches up to {times:.1f} times the"
        f" dataset. cache_bytes='{enough}MB' fetches each byte about once, and so does"
        f" {fitting_window(each, most_bytes, order)}, which is another order"
    )
