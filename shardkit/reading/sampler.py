"""The order for torch's own DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from shardkit.reading.batches import BatchPlan, Last
from shardkit.reading.order import BLOCK_ROWS, WINDOW_BLOCKS, Order, Shuffle, check_shuffle

CHUNK_BATCHES = 64


class BatchSampler:
    """Lists of row numbers, for ``DataLoader(dataset, batch_sampler=...)``.

    Args:
        num_rows: length of the dataset; or of any other map-style dataset.
        batch_size: rows a batch, on each rank.
        shuffle, seed, rank, world_size, last: as of :class:`shardkit.Loader`.

    Raises:
        UsageError: a number that makes no sense.
    """

    def __init__(
        self,
        num_rows: int,
        batch_size: int,
        *,
        shuffle: Shuffle | bool = None,
        seed: int = 0,
        block_rows: int = BLOCK_ROWS,
        window_blocks: int = WINDOW_BLOCKS,
        rank: int = 0,
        world_size: int = 1,
        last: Last = "drop",
    ) -> None:
        self._plan = BatchPlan(num_rows, batch_size, rank, world_size, last)
        kind = check_shuffle(shuffle)
        self._order = Order(num_rows, kind, seed, 0, block_rows, window_blocks)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next iteration runs."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._plan)

    def __iter__(self) -> Iterator[list[int]]:
        order = replace(self._order, epoch=self.epoch)
        for batch in range(len(self._plan)):
            yield order.rows(self._plan.positions(batch)[0]).tolist()


class Sampler(BatchSampler):
    """Row numbers one by one, for ``DataLoader(dataset, sampler=...)``. Rank r has every
    ``world_size``-th, so that global batches are the same sets for any world size."""

    def __init__(self, num_rows: int, **options: object) -> None:
        super().__init__(num_rows, 1, **options)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:  # type: ignore[override]
        order = replace(self._order, epoch=self.epoch)
        chunk = CHUNK_BATCHES
        for first in range(0, len(self._plan), chunk):
            batches = range(first, min(first + chunk, len(self._plan)))
            positions = [int(self._plan.positions(batch)[0][0]) for batch in batches]
            yield from order.rows(np.array(positions, np.int64)).tolist()
