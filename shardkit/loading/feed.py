"""From requests to what a loop is given: workers, copies to the device, whoever looks on."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from shardkit.batches.batch_options import BatchOptions
from shardkit.batches.collate import Batch
from shardkit.batches.maker import BatchMaker
from shardkit.batches.request import Made, Request
from shardkit.loading.background import in_background
from shardkit.loading.cuda_prefetch import CudaPrefetcher, has_cuda
from shardkit.loading.foresight import Foresight
from shardkit.loading.observer import observed
from shardkit.loading.processes import Processes
from shardkit.loading.settings import Settings
from shardkit.loading.tensors import move_tensors, pinned
from shardkit.loading.watched import of_environment
from shardkit.loading.workers import make_batches
from shardkit.watching.clock import Clock


@dataclass(frozen=True)
class FeedOptions:
    """What a loader is made of, and a copy of it, too."""

    maker: BatchMaker
    settings: Settings
    pin_memory: bool
    device: Any
    device_transform: Callable[[Batch], Batch] | None
    options: BatchOptions


class Feed:
    """Makes the batches of one loader, epoch after epoch.

    Raises:
        UsageError: no such device; or the environment asks for an observer that cannot be made.
    """

    def __init__(self, options: FeedOptions) -> None:
        self._maker = options.maker
        self._settings = options.settings
        self._observer = of_environment(options.maker, options.settings, options.device)
        if self._observer is not None:
            self._maker = replace(self._maker, clock=Clock())
        self._foresight = Foresight(options.maker) if options.maker.source.foresees else None
        self._prefetcher = None
        if options.device is not None:
            change = _on_device(options.device_transform, is_observed=self._observer is not None)
            self._prefetcher = CudaPrefetcher((), options.device, transform=change)
        self._pins = options.pin_memory and self._prefetcher is None and has_cuda()

    def batches(self, epoch: int, start: int) -> Generator[Made, None, None]:
        """Those that follow position ``start`` of an epoch. Closing the generator ends all workers.

        Raises:
            UsageError: the transform may not draw in this thread. And what making a batch raised,
                in that batch's turn.
        """
        how, plan = self._settings, self._maker.plan(epoch, start)
        requests = (Request(epoch, start, number) for number in range(len(plan)))
        if not how.workers:
            self._maker.refuse_another_thread()
        made = make_batches(self._maker, requests, how.worker_type, how.workers, how.prefetch)
        if self._prefetcher is not None:
            made = self._prefetcher.run(made, is_here=not how.workers)
        elif isinstance(made, Processes):
            # What arrives is unpickled beside the loop, as the prefetcher's thread does it.
            made = in_background(made, 1, made.kill)
        if self._pins:
            made = _all_pinned(made)
        if self._foresight is not None:
            made = self._foresight.watched(made, epoch, start)
        return made if self._observer is None else observed(made, plan, self._observer)


def _all_pinned(batches: Generator[Made, None, None]) -> Generator[Made, None, None]:
    with closing(batches):
        for made in batches:
            yield replace(move_tensors(made, pinned), copied=time.perf_counter())


def _on_device(
    transform: Callable[[Batch], Batch] | None, *, is_observed: bool
) -> Callable[[Made], Made] | None:
    """What the prefetcher does with a batch that is on its way to the device."""
    if transform is None and not is_observed:
        return None

    def change(made: Made) -> Made:
        batch = made.batch if transform is None else transform(made.batch)
        return replace(made, batch=batch, copied=time.perf_counter())

    return change
