"""The order for torch's own DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import replace
from itertools import chain

from torch.utils.data import DistributedSampler

from shardkit.arguments import integer, known_options
from shardkit.errors import UsageError
from shardkit.order.batch_rows import BatchRows
from shardkit.order.batches import BatchPlan, Last, chosen_last
from shardkit.order.epochs import BLOCK_ROWS, WINDOW_BLOCKS, Order, Shuffle, check_shuffle
from shardkit.order.ranks import Ranks
from shardkit.order.splitters import refuse_second_split


class Sampler(DistributedSampler[int]):
    """Row numbers one by one, for ``DataLoader(dataset, sampler=...)``. Rank r has every
    ``world_size``-th, so that global batches are the same sets for any world size.

    It is a ``DistributedSampler``: Lightning and Fabric leave it as it is. accelerate
    would split its rows once more, and is refused.

    Args:
        num_rows: length of the dataset, or the dataset: any map-style one.
        shuffle, seed, block_rows, window_blocks, rank, world_size, last, drop_last: as of
            :class:`shardkit.Loader`.

    Raises:
        UsageError: a number that makes no sense. When it is iterated over: accelerate splits it.
    """

    @known_options("Sampler")
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
        rows = num_rows if isinstance(num_rows, Sized) else range(integer("num_rows", num_rows))
        seed, last = integer("seed", seed, None), chosen_last(last, drop_last)
        ranks = Ranks.of(type(self).__name__, rank, world_size)
        self._ranks = ranks
        self._plan = BatchPlan(len(rows), 1, ranks.rank, ranks.world_size, last)
        kind = check_shuffle(shuffle)
        self._order = Order(len(rows), kind, seed, 0, block_rows, window_blocks)
        self._num_told = 0
        world = ranks.world_size, ranks.rank
        super().__init__(rows, *world, kind is not None, seed, last == "drop")  # type: ignore[arg-type]
        self.num_samples = len(self._plan)

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next iteration runs; without it, each runs the next."""
        refuse_second_split(self, self._ranks.taker, self._ranks.world_size)
        self.epoch = integer("epoch", epoch)
        self._num_told += 1

    def _batches(self, plan: BatchPlan) -> Iterator[list[int]]:
        """Yield the rows of each batch of the next epoch."""
        self._ranks.refuse_others()
        refuse_second_split(self, self._ranks.taker, self._ranks.world_size)
        begun, num_told = self.epoch, self._num_told
        self.epoch += 1
        known = BatchRows(replace(self._order, epoch=begun), plan)
        with self._ranks.whole_iteration(repr((self._order, plan.last, plan.batch_size))):
            for batch in range(len(plan)):
                yield known.rows(batch).tolist()
                if self._num_told != num_told and self.epoch != begun:
                    raise UsageError(
                        f"set_epoch({self.epoch}) came after rows of epoch {begun} were drawn, as"
                        " when Lightning resumes with num_workers: use a shardkit.Loader, or call"
                        f" set_epoch where the {self._ranks.taker} is made, with Lightning's"
                        " trainer.fit_loop.epoch_progress.current.processed"
                    )

    def __len__(self) -> int:
        return len(self._plan)

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._batches(self._plan))


class BatchSampler:
    """Lists of row numbers, for ``DataLoader(dataset, batch_sampler=...)``.

    Lightning and Fabric cannot leave it as it is on several ranks, and refuse it: give them
    ``use_distributed_sampler=False``. accelerate would split its batches once more, and is refused.

    Args:
        batch_size: rows per batch, on each rank. The others: as of :class:`Sampler`.

    Attributes:
        sampler: has ``set_epoch``, by which trainers tell their epochs.
    """

    @known_options("BatchSampler")
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
        last: Last | None = None,
        drop_last: bool | None = None,
    ) -> None:
        batch_size = integer("batch_size", batch_size, 1)
        self.sampler = Sampler(
            num_rows,
            shuffle=shuffle,
            seed=seed,
            block_rows=block_rows,
            window_blocks=window_blocks,
            rank=rank,
            world_size=world_size,
            last=last,
            drop_last=drop_last,
        )
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
        return self.sampler._batches(self._plan)
