"""Whole batches for torch's DataLoader: an IterableDataset that splits itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, NoReturn, Unpack

import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from shardkit.arguments import integer
from shardkit.batches.batch_options import BatchKeywords, BatchOptions, spelled_out
from shardkit.batches.collate import Batch
from shardkit.batches.maker import BatchMaker
from shardkit.batches.parcels import Parcel
from shardkit.batches.request import Made, Request
from shardkit.batches.source import Source
from shardkit.errors import SampleError, UsageError
from shardkit.order.splitters import readers_of

MAX_WORKERS = 1024

LOADER = "give accelerate's prepare() a shardkit.Loader, or this DataLoader not at all"

NESTED = (
    "a Stream gives whole batches, and these would be collated into batches of batches: write"
    " DataLoader(stream, batch_size=None, ...); for transformers' Trainer give no"
    " train_dataset=stream, but a get_train_dataloader that returns"
    " accelerate.data_loader.DataLoaderShard(stream, batch_size=None, num_workers=2)"
)


class _Whole(dict[str, Any]):
    """A batch that torch's ``default_collate`` refuses to put together with others. Its
    ``default_convert``, which has a copy of each batch by itself, gives a plain dict."""

    def __copy__(self) -> Batch:
        return dict(self)


class _WholeTuple(tuple[Any, ...]):
    """The same, of the fields that were asked for; ``default_convert`` gives a list."""


def _refuse_nested(batches: object, *, collate_fn_map: object) -> NoReturn:
    raise UsageError(NESTED)


class Stream(IterableDataset[Batch]):
    """Whole batches: give it to ``DataLoader(stream, batch_size=None, num_workers=...)``.

    Worker w of W makes batches w, w + W, ...; DataLoader takes them in turn, so the order is the
    same for any number of workers. Each iteration is the next epoch, with ``persistent_workers``
    or without, unless :meth:`set_epoch` says otherwise. Works with torchdata's
    ``StatefulDataLoader``; resume needs the same number of workers there. A plain DataLoader does
    not resume. For elastic resume, device copies and thread workers see :class:`shardkit.Loader`.

    Args:
        source: a dataset or a mix. The others: as of :class:`shardkit.Loader`, but that
            ``max_skips`` bounds the bad rows in a row, not those of an epoch.

    Raises:
        UsageError: options that make no sense. When it is iterated over: torch's or transformers'
            collate function would make batches of the batches, or accelerate would split them among
            the ranks once more.
    """

    @spelled_out(BatchKeywords)
    def __init__(self, source: Source, batch_size: int, **options: Unpack[BatchKeywords]) -> None:
        chosen = BatchOptions.of("Stream", batch_size, options)
        self._maker = BatchMaker.of("Stream", source, chosen)
        self._state = self._maker.first_state(is_of_worker=True)
        # In shared memory, which workers see: the epoch that set_epoch chose, then for each worker
        # how many iterations it has begun since.
        self._shared = torch.zeros(1 + MAX_WORKERS, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._next = 0
        self._is_loaded = False

    def __len__(self) -> int:
        """Batches of an epoch, of all workers together."""
        return len(self._maker.plan(0))

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next iteration; seen by workers that already run, too."""
        self._refuse_accelerate()
        epoch = integer("epoch", epoch)
        self._shared[1:] = 0
        self._shared[0] = epoch

    def __iter__(self) -> Iterator[Batch]:
        self._refuse_accelerate()
        for kind in (_Whole, _WholeTuple, Parcel):
            default_collate_fn_map[kind] = _refuse_nested
        self._maker.ranks.refuse_others()
        # Begins here, not at the first batch: a state may be asked for in between.
        worker, num_workers = _this_worker()
        epoch = self._begin(worker)
        return self._batches(epoch, self._next, num_workers)

    def _refuse_accelerate(self) -> None:
        """Raise UsageError where accelerate, or the Trainer by it, batches or splits once more."""
        for loader, splitters in readers_of(self):
            collate = str(getattr(loader.collate_fn, "__module__", ""))
            if loader.batch_size is not None and collate.startswith(("torch.", "transformers.")):
                raise UsageError(NESTED)
            if splitters and (
                self._maker.ranks.world_size > 1 or "IterableDatasetShard" in splitters
            ):
                raise UsageError(f"a Stream splits its batches among the ranks by itself: {LOADER}")
            if splitters and self._maker.options.with_keys:
                raise UsageError(f"accelerate passes tensors on, and with_keys adds text: {LOADER}")

    def __getstate__(self) -> dict[str, Any]:
        # Worker processes that are spawned have no process group to compare with.
        self._maker.ranks.refuse_others()
        return self.__dict__

    def _batches(self, epoch: int, first: int, num_workers: int) -> Iterator[Any]:
        give, is_here = self._maker.options.given, get_worker_info() is None
        for number in range(first, len(self._maker.plan(epoch)), num_workers):
            made = self._make(Request(epoch, 0, number))
            made.warn_of_skipped(2)
            self._next = number + num_workers
            if is_here:
                batch = give(made.batch)
                yield _Whole(batch) if isinstance(batch, dict) else _WholeTuple(batch)
            else:
                yield Parcel(made.batch, give)

    def _make(self, request: Request) -> Made:
        try:
            return self._maker.make(request)
        except (SystemExit, KeyboardInterrupt) as error:
            if get_worker_info() is None:
                raise
            # It would end the worker, of which torch only says that it is gone.
            raise SampleError(
                f"the transform or the dataset raised {type(error).__name__}({error}), in batch"
                f" {request.batch} of epoch {request.epoch}"
            ) from error

    def _begin(self, worker: int) -> int:
        base = int(self._shared[0])
        if self._is_loaded:
            self._shared[1 + worker] = self._state.epoch - base
        else:
            self._state.move(base + int(self._shared[1 + worker]), 0)
            self._next = worker
        self._shared[1 + worker] += 1
        self._is_loaded = False
        return self._state.epoch

    def state_dict(self) -> dict[str, Any]:
        """Where this worker is: after the last batch it gave."""
        worker, num_workers = _this_worker()
        return {
            **self._state.state_dict(),
            "worker": worker,
            "num_workers": num_workers,
            "next": self._next,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on from there.

        Raises:
            UsageError: the state is of another run, or of another number of workers.
        """
        worker, num_workers = _this_worker()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # another batch size is refused below
            self._state.load_state_dict(state)
        if (state.get("worker"), state.get("num_workers")) != (worker, num_workers):
            raise UsageError(
                f"the state is of worker {state.get('worker')} of {state.get('num_workers')}, this"
                f" is {worker} of {num_workers}: use as many workers, or shardkit.Loader"
            )
        if state.get("global_batch_size") != self._maker.plan(0).global_batch_size:
            raise UsageError(
                f"the state is of global batches of {state.get('global_batch_size')}: use the same"
            )
        self._next = integer("next, of the state,", state.get("next"))
        self._is_loaded = True


def _this_worker() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
