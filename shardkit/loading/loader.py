"""The loader: batches of named tensors from a dataset, in exact order, from any point."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from shardkit.errors import UsageError
from shardkit.loading.prefetch import CudaPrefetcher, has_cuda
from shardkit.loading.skips import SkipCount
from shardkit.loading.tensors import map_tensors
from shardkit.loading.workers import WorkerType, make_batches
from shardkit.reading.batches import Last
from shardkit.reading.collate import Batch
from shardkit.reading.maker import BatchMaker, Made, OnError, Request
from shardkit.reading.order import Shuffle, check_order_options, check_shuffle
from shardkit.reading.position import Position
from shardkit.reading.ranks import rank_and_world_size
from shardkit.reading.source import Source, check_source, fingerprint_of
from shardkit.reading.transform import (
    Randomised,
    Transform,
    check_draws,
    draws_globally,
    first_samples,
)
from shardkit.reading.whole import whole


@dataclass
class LoaderStats:
    """Since the loader was made; seconds of work are summed over all workers.

    Attributes:
        batches: handed over. wait_s: the loop waited for them. read_s, transform_s, collate_s:
            workers spent on making them. skipped: rows replaced because they could not be used.
    """

    batches: int = 0
    wait_s: float = 0.0
    read_s: float = 0.0
    transform_s: float = 0.0
    collate_s: float = 0.0
    skipped: int = 0

    def add(self, made: Made, wait_s: float) -> None:
        self.batches += 1
        self.wait_s += wait_s
        self.read_s += made.seconds[0]
        self.transform_s += made.seconds[1]
        self.collate_s += made.seconds[2]
        self.skipped += len(made.skipped)


class Loader:
    """Iterate over it once an epoch; each iteration is the next epoch.

    The sequence of *global* batches (all ranks' together) depends on the dataset, ``shuffle``,
    ``seed``, the epoch and ``batch_size * world_size``, and on nothing else: not on the container
    format, the number or kind of workers, the world size, or where a run was resumed.

    Args:
        dataset: :class:`shardkit.Dataset`, a mix, or any :class:`shardkit.Source`.
        batch_size: samples a batch, on each rank.
        shuffle: ``"full"`` (or True), ``"block"`` (neighbours stay near: for slow disks), or None.
        seed: of the shuffle and of the transform's randomness.
        transform: ``sample -> sample``, both a dict of fields. One with a parameter named ``rng``
            gets a numpy Generator keyed by (seed, epoch, position), see
            :mod:`shardkit.reading.transform`.
        workers: threads or processes that make batches; 0 makes them in the loop's own thread.
        worker_type: ``"thread"``: no copies between processes; right where the work lets go of
            the GIL (reading, decoding). ``"process"``: where it is Python code.
        prefetch: batches each worker makes ahead.
        pin_memory: yield batches in pinned memory, where there is CUDA. For copies of your own:
            ``device`` needs no such thing.
        device: yield batches on this device, through a :class:`CudaPrefetcher`.
        device_transform: ``batch -> batch``, run on the device.
        rank, world_size: by default torch.distributed's, else the environment's RANK and
            WORLD_SIZE, else 0 of 1.
        last: ``"drop"`` leaves out the last global batch if it is not full; ``"pad"`` fills it from
            the front of the epoch, and ``batch["valid"]`` ((B,) bool) is False for what was added.
        as_buffer: fields of bytes that come as one (N,) uint8 tensor, with ``{field}.offsets``.
        with_keys: add ``batch["__key__"]``, a list of str.
        on_error: ``"skip"`` replaces a row that cannot be read or transformed by the first good
            row at the following positions, alike on every rank and in every run.
        max_skips: rows an epoch may replace, on all ranks together; then all raise.
        readahead: batches announced to the kernel before they are read, 0 for none.
        order_options: ``block_rows`` and ``window_blocks``, see :class:`shardkit.Order`.

    Raises:
        UsageError: options that make no sense, or an epoch without a single batch.
    """

    def __init__(
        self,
        dataset: Source,
        batch_size: int,
        *,
        shuffle: Shuffle | bool = None,
        seed: int = 0,
        transform: Transform | None = None,
        workers: int = 2,
        worker_type: WorkerType = "thread",
        prefetch: int = 2,
        pin_memory: bool = False,
        device: Any = None,
        device_transform: Callable[[Batch], Batch] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        last: Last = "drop",
        as_buffer: Sequence[str] = (),
        with_keys: bool = False,
        on_error: OnError = "fail",
        max_skips: int = 100,
        readahead: int = 4,
        **order_options: int,
    ) -> None:
        _check_options(worker_type, on_error)
        check_order_options("Loader", order_options)
        batch_size, seed = whole("batch_size", batch_size, 1), whole("seed", seed, None)
        workers, prefetch = whole("workers", workers), whole("prefetch", prefetch, 1)
        readahead, max_skips = whole("readahead", readahead), whole("max_skips", max_skips)
        if with_keys and not hasattr(dataset, "keys"):
            raise UsageError(f"with_keys: a {type(dataset).__name__} has no keys(rows)")
        rank, world_size = rank_and_world_size(rank, world_size)
        self.dataset = check_source(dataset)
        self._maker = BatchMaker(
            source=self.dataset,
            batch_size=batch_size,
            rank=rank,
            world_size=world_size,
            shuffle=check_shuffle(shuffle),
            seed=seed,
            last=last,
            transform=_randomised(transform, self.dataset, workers, worker_type),
            as_buffer=tuple(as_buffer),
            with_keys=with_keys,
            readahead=readahead,
            on_error=on_error,
            max_skips=max_skips,
            order_options=order_options,
        )
        self._workers = workers
        self._worker_type = worker_type
        self._prefetch = prefetch
        self._pin_memory = pin_memory and has_cuda()
        self._prefetcher = None
        if device is not None:
            to_device = _on_batch(device_transform)
            self._prefetcher = CudaPrefetcher((), device, transform=to_device)
        elif device_transform is not None:
            raise UsageError("device_transform runs on a device: give device=, too")
        self._skips = SkipCount(world_size, max_skips) if on_error == "skip" else None
        order = {"shuffle": self._maker.shuffle, **order_options}
        self._position = Position(
            seed, order, fingerprint_of(self.dataset), batch_size * world_size
        )
        self._is_started = False
        self._run_now: object = None
        self.stats = LoaderStats()
        if not len(self):
            raise UsageError(
                f"{len(dataset)} samples do not fill one batch of {batch_size} on each of"
                f" {world_size} ranks: make batch_size smaller, or use last='pad'"
            )

    def __len__(self) -> int:
        """Batches of a whole epoch, the same on every rank; fewer are left after a resume."""
        return len(self._maker.plan(self._positions(self.epoch)))

    def _positions(self, epoch: int) -> int:
        return len(self._maker.order(epoch))

    # --- where it is ----------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that runs, or that the next iteration runs if none does. After a resume go on
        with ``for epoch in range(loader.epoch, num_epochs)``."""
        return self._position.epoch

    def set_epoch(self, epoch: int) -> None:
        """The next iteration runs this epoch: from its beginning, or, after a state of this epoch
        was loaded, from there. Warns if that forgets a loaded position."""
        self._position.set_epoch(epoch)
        self._is_started = False
        self._run_now = None

    def state_dict(self) -> dict[str, Any]:
        """Where the loop is: after the last batch it *received*. Small, JSON."""
        return self._position.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on from there; with any world size, workers, format.

        Raises:
            UsageError: the state is of another dataset, seed or shuffle.
        """
        self._position.load_state_dict(state, self._positions)
        self._is_started = False
        self._run_now = None

    # --- iterating ------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        return self._run()

    def _run(self) -> Generator[Batch, None, None]:
        if self._is_started:
            self._position.move(self.epoch + 1, 0)
        self._is_started = True
        epoch = self.epoch
        # The newest iteration says where we are; set_epoch and load_state_dict end its say.
        run = self._run_now = object()
        with closing(self._made(epoch, self._position.position)) as made:
            while (one := self._next(made)) is not None:
                if self._run_now is run:
                    self._position.move(epoch, one.end)
                yield one.batch
                del one  # or it would live until the next is there
        if self._run_now is run:
            self._position.move(epoch + 1, 0)
            self._is_started = False

    def _next(self, made: Iterator[Made]) -> Made | None:
        started = time.perf_counter()
        one = next(made, None)
        if one is None:
            return None
        if self._skips is not None:
            self._skips.add(one.skipped)
        self.stats.add(one, time.perf_counter() - started)
        return one

    def _made(self, epoch: int, start: int) -> Generator[Made, None, None]:
        num_batches = len(self._maker.plan(self._positions(epoch), start))
        requests = (Request(epoch, start, number) for number in range(num_batches))
        made = make_batches(self._maker, requests, self._worker_type, self._workers, self._prefetch)
        if self._skips is not None:
            self._skips.begin()
        if self._prefetcher is not None:
            return self._prefetcher.run(made)
        return _pinned(made) if self._pin_memory else made


def _pinned(batches: Generator[Made, None, None]) -> Generator[Made, None, None]:
    with closing(batches):
        for made in batches:
            yield map_tensors(made, lambda tensor: tensor.pin_memory())


def _on_batch(transform: Callable[[Batch], Batch] | None) -> Callable[[Made], Made] | None:
    if transform is None:
        return None
    return lambda made: replace(made, batch=transform(made.batch))


def _randomised(
    transform: Transform | None, source: Source, workers: int, worker_type: WorkerType
) -> Randomised | None:
    if transform is None:
        return None
    is_global = draws_globally(transform, first_samples(source))
    check_draws(is_global, worker_type if workers else "none")
    return Randomised(transform, is_global)


def _check_options(worker_type: str, on_error: str) -> None:
    if worker_type not in ("process", "thread"):
        raise UsageError(f"worker_type must be 'process' or 'thread', got {worker_type!r}")
    if on_error not in ("fail", "skip"):
        raise UsageError(f"on_error must be 'fail' or 'skip', got {on_error!r}")
