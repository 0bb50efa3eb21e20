"""Our loaders, where a script is watched: the same records as of torch's DataLoader."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardkit import images
from shardkit.batches.collate import Batch
from shardkit.batches.maker import BatchMaker
from shardkit.batches.request import Made
from shardkit.loading.observer import Observer, Times
from shardkit.loading.settings import Settings
from shardkit.order.batches import BatchPlan

if TYPE_CHECKING:
    from shardkit.watching.loop import Watch, WatchedLoop

ENVIRONMENT = "SHARDKIT_WATCH"


class Watched(Observer):
    """Hands batches over by way of a watched loop, which may replay some. A replayed batch has its
    own position in the epoch, which is no longer than usual."""

    def __init__(self, watch: Watch, loop: WatchedLoop, maker: BatchMaker) -> None:
        self._watch = watch
        self._loop = loop
        transform = maker.options.transform
        self._decodes = isinstance(transform, images.Train | images.Eval)
        self._held = _files(maker)
        """Files that its samples are in, until they were named."""
        self._newest: Made | None = None
        """What was made for the step that goes on; None if its batch is a replayed one."""

    def instead(
        self, made: Generator[Made, None, None], plan: BatchPlan
    ) -> Generator[Made, None, None]:
        """The batches as they are, or replayed."""
        iteration = self._loop.begin()

        def make() -> Batch:
            self._newest = next(made)
            return self._newest.batch

        with closing(made):
            for number in range(len(plan)):
                self._newest = None
                try:
                    batch = self._loop.next(iteration, make, lambda: True)
                except StopIteration:
                    return
                end = plan.end(number)
                newest = self._newest
                yield Made(batch, end) if newest is None else replace(newest, end=end)

    def note(self, times: Times) -> None:
        """What making the batch took, wherever it was made."""
        if self._newest is None:
            return
        spent = self._newest.spent
        held, self._held = self._held, []
        self._watch.records.gather(
            "fetch",
            t=times.begun,
            parent=None,
            size=None,
            sending=0.0,
            opened=0,
            paths=[],
            held=held,
            reading=times.read - times.begun,
            transform=0.0 if self._decodes else times.transformed - times.read,
            decoding=times.transformed - times.read if self._decodes else 0.0,
            collating=times.collated - times.transformed,
            cpu=0.0 if spent is None else spent.cpu,
            starved=0.0 if spent is None else spent.starved,
        )

    def end(self) -> None:
        """The iteration is over."""
        self._loop.end()


def of_environment(maker: BatchMaker, settings: Settings, device: object) -> Watched | None:
    """None unless the environment asks for it."""
    if ENVIRONMENT not in os.environ:
        return None
    from shardkit.watching.attach import attach

    watch = attach()
    if watch is None:
        return None
    facts = _facts(maker, settings)
    ranks, options = maker.ranks, maker.options
    batches = [ranks.rank, ranks.world_size, options.last, options.with_keys, str(device)]
    key = json.dumps([facts, batches])
    depth = settings.workers * settings.prefetch
    return Watched(watch, watch.loop(key, facts, depth, can_reread=False), maker)


def _files(maker: BatchMaker) -> list[str]:
    """Those of a packed dataset."""
    folder = getattr(maker.source.given, "path", None)
    if not isinstance(folder, Path) or not folder.is_dir():
        return []
    return sorted(str(path.absolute()) for path in folder.rglob("*") if path.is_file())


def _facts(maker: BatchMaker, settings: Settings) -> dict[str, Any]:
    return {
        "type": "shardkit.Loader",
        "dataset": type(maker.source.given).__name__,
        "batch_size": maker.options.batch_size,
        "num_batches": len(maker.plan(0)),
        "num_workers": settings.workers,
        "worker_type": settings.worker_type if settings.workers else "none",
        "prefetch_factor": settings.prefetch if settings.workers else None,
    }
