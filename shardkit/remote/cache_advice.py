"""Warnings about an order that would fetch much of a dataset again, as the cache is too small."""

from __future__ import annotations

from shardkit.order.epochs import Order
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.file_io import BLOCK_BYTES

WORTH_SAYING = {"full": 8.0, "block": 1.5}
"""Times the bytes of the dataset that an epoch fetches. A full shuffle has its price, and a block
order is chosen to avoid it."""


def times_fetched(num_rows: int, num_bytes: int, cache_bytes: int) -> float:
    """Return how many times its bytes a full shuffle of these samples fetches at most: each sample
    that is not cached costs the blocks that it lies in."""
    missing = max(1 - cache_bytes / max(num_bytes, 1), 0.0)
    return missing * (1 + num_rows * BLOCK_BYTES / max(num_bytes, 1))


def why_repeated(shown: str, order: Order, num_bytes: int, cache_bytes: int) -> str | None:
    """Return a warning if an epoch fetches much of the dataset again, else None."""
    if order.shuffle is None or not order.num_rows:
        return None
    each, rows = num_bytes / order.num_rows, order.num_rows
    if order.shuffle == "block":
        rows = min(order.block_rows * order.window_blocks, rows)
    times = times_fetched(rows, int(rows * each), cache_bytes)
    if times < WORTH_SAYING[order.shuffle]:
        return None
    enough = int(min(1.25 * rows * each, num_bytes) / 1e6) + 1
    return (
        f"{shown}: shuffle={order.shuffle!r} mixes {format_bytes(rows * each)}, and the cache holds"
        f" {format_bytes(cache_bytes)}, so an epoch fetches up to {times:.1f} times the dataset."
        f" cache_bytes='{enough}MB' fetches each byte about once, and so does shuffle='block',"
        f" {fitting_window(each, cache_bytes, order)}, which is another order"
    )


def fitting_window(each: float, cache_bytes: int, order: Order) -> str:
    """Return the arguments of a block order of which half of the cache holds a window: the rest is
    for batches in the making, and for the beginning of the next window."""
    rows = max(int(cache_bytes / 2 / each), 1)
    if rows >= order.block_rows:
        return f"window_blocks={rows // order.block_rows}"
    return f"window_blocks=4, block_rows={max(rows // 4, 1)}"
