"""The order for torch's own DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import replace

import numpy as np

from shardkit.arguments import integer
from shardkit.order.batches import BatchPlan, Last
from shardkit.order.epochs import BLOCK_ROWS, WINDOW_BLOCKS, Order, Shuffle, check_shuffle
from shardkit.order.ranks import Ranks

CHUNK_BATCHES = 64


class BatchSampler:
    """Lists of row numbers, for ``DataLoader(dataset, batch_sampler=...)``.

    Args:
        num_rows: length of the dataset, or the dataset: any map-style one.
        batch_size: rows a batch, on each rank.
        shuffle, seed, rank, world_size, last: as of :class:`shardkit.Loader`.

    Raises:
        UsageError: a number that makes no sense.
    """

    def __init__(
        self,
        num_rows: int | Sized,
        batch_size: int,
        *,
        shuffle: Shuffle | bool = None,
        seed: int = 0,
        block_rows: int = BLOCK_ROWS,
        window_blocks: int = WINDOW_BLOCKS,
        rank: int | None = None,
        world_size: int | None = None,
        last: Last = "drop",
    ) -> None:
        num_rows = len(num_rows) if isinstance(num_rows, Sized) else integer("num_rows", num_rows)
        batch_size, seed = integer("batch_size", batch_size, 1), integer("seed", seed, None)
        self._ranks = Ranks.of(type(self).__name__, rank, world_size)
        self._plan = BatchPlan(num_rows, batch_size, self._ranks.rank, self._ranks.world_size, last)
        kind = check_shuffle(shuffle)
        self._order = Order(num_rows, kind, seed, 0, block_rows, window_blocks)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next iteration runs; without it, each runs the next."""
        self.epoch = integer("epoch", epoch)

    def _begin(self) -> Order:
        self._ranks.refuse_others()
        order = replace(self._order, epoch=self.epoch)
        self.epoch += 1
        return order

    def __len__(self) -> int:
        return len(self._plan)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._begin()
        for batch in range(len(self._plan)):
            yield order.rows(self._plan.positions(batch)[0]).tolist()


class Sampler(BatchSampler):
    """Row numbers one by one, for ``DataLoader(dataset, sampler=...)``. Rank r has every
    ``world_size``-th, so that global batches are the same sets for any world size."""

    def __init__(self, num_rows: int | Sized, **options: object) -> None:
        super().__init__(num_rows, 1, **options)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:  # type: ignore[override]
        order = self._begin()
        chunk = CHUNK_BATCHES
        for first in range(0, len(self._plan), chunk):
            batches = range(first, min(first + chunk, len(self._plan)))
            positions = [int(self._plan.positions(batch)[0][0]) for batch in batches]
            yield from order.rows(np.array(positions, np.int64)).tolist()
