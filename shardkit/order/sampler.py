"""The order for torch's own DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import replace
from typing import Any

import numpy as np
from torch.utils.data import DistributedSampler
from torch.utils.data import Sampler as TorchSampler

from shardkit.arguments import integer
from shardkit.errors import UsageError
from shardkit.order.batches import BatchPlan, Last, chosen_last
from shardkit.order.epochs import BLOCK_ROWS, WINDOW_BLOCKS, Order, Shuffle, check_shuffle
from shardkit.order.ranks import Ranks
from shardkit.order.splitters import refuse_second_split

CHUNK_BATCHES = 64


class Sampler(DistributedSampler[int]):
    """Row numbers one by one, for ``DataLoader(dataset, sampler=...)``. Rank r has every
    ``world_size``-th, so that global batches are the same sets for any world size.

    It is a ``DistributedSampler``: Lightning, Fabric and Ray Train leave it as it is. accelerate
    would split its rows once more, and is refused.

    Args:
        num_rows: length of the dataset, or the dataset: any map-style one.
        shuffle, seed, block_rows, window_blocks, rank, world_size, last, drop_last: as of
            :class:`shardkit.Loader`.

    Raises:
        UsageError: a number that makes no sense. When it is iterated over: accelerate splits it.
    """

    def __init__(
        self,
        num_rows: int | Sized,
        *,
        shuffle: Shuffle | bool = None,
        seed: int = 0,
        block_rows: int = BLOCK_ROWS,
        window_blocks: int = WINDOW_BLOCKS,
        rank: int | None = None,
        world_size: int | None = None,
        last: Last | None = None,
        drop_last: bool | None = None,
    ) -> None:
        if isinstance(num_rows, TorchSampler):
            raise UsageError(
                f"a {type(num_rows).__name__} is no dataset: give the dataset or its length, the"
                " order is this sampler's own (shuffle=, seed=)"
            )
        rows = num_rows if isinstance(num_rows, Sized) else range(integer("num_rows", num_rows))
        seed, last = integer("seed", seed, None), chosen_last(last, drop_last)
        ranks = Ranks.of(type(self).__name__, rank, world_size)
        plan = BatchPlan(len(rows), 1, ranks.rank, ranks.world_size, last)
        kind = check_shuffle(shuffle)
        super().__init__(
            rows,  # type: ignore[arg-type]
            plan.world_size,
            plan.rank,
            shuffle=kind is not None,
            seed=seed,
            drop_last=last == "drop",
        )
        self.num_samples = len(plan)
        self._ranks = ranks
        self._plan = plan
        self._order = Order(len(rows), kind, seed, 0, block_rows, window_blocks)

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next iteration runs; without it, each runs the next."""
        refuse_second_split(self, self._ranks.taker, self._ranks.world_size)
        self.epoch = integer("epoch", epoch)

    def _begin(self) -> Order:
        self._ranks.refuse_others()
        refuse_second_split(self, self._ranks.taker, self._ranks.world_size)
        order = replace(self._order, epoch=self.epoch)
        self.epoch += 1
        return order

    def __len__(self) -> int:
        return len(self._plan)

    def __iter__(self) -> Iterator[int]:
        order = self._begin()
        with self._ranks.whole_iteration(repr((self._order, self._plan.last))):
            for first in range(0, len(self._plan), CHUNK_BATCHES):
                batches = range(first, min(first + CHUNK_BATCHES, len(self._plan)))
                positions = np.concatenate(self._plan.positions_of(batches))
                yield from order.rows(positions).tolist()


class BatchSampler:
    """Lists of row numbers, for ``DataLoader(dataset, batch_sampler=...)``.

    Lightning and Fabric cannot leave it as it is on several ranks, and refuse it: give them
    ``use_distributed_sampler=False``. accelerate would split its batches once more, and is refused.

    Args:
        num_rows: length of the dataset, or the dataset: any map-style one.
        batch_size: rows a batch, on each rank.
        options: as of :class:`Sampler`.

    Attributes:
        sampler: has ``set_epoch``, by which trainers tell their epochs.

    Raises:
        UsageError: as :class:`Sampler`.
    """

    def __init__(self, num_rows: int | Sized, batch_size: int, **options: Any) -> None:
        batch_size = integer("batch_size", batch_size, 1)
        self.sampler = Sampler(num_rows, **options)
        self.sampler._ranks = replace(self.sampler._ranks, taker=type(self).__name__)
        self._plan = replace(self.sampler._plan, batch_size=batch_size)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration runs."""
        return self.sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next iteration runs; without it, each runs the next."""
        self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._plan)

    def __iter__(self) -> Iterator[list[int]]:
        order = self.sampler._begin()
        work = repr((self.sampler._order, self._plan.last, self._plan.batch_size))
        with self.sampler._ranks.whole_iteration(work):
            for batch in range(len(self._plan)):
                yield order.rows(self._plan.positions(batch)[0]).tolist()
