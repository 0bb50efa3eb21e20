"""One batch, from its number to its tensors: the work that a loader's workers do."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardkit.arrays import Integers
from shardkit.batches.batch_options import BatchOptions
from shardkit.batches.collate import OFFSETS, Batch, collate
from shardkit.batches.fetch import Fetcher
from shardkit.batches.replace import replaced
from shardkit.batches.request import Made, Request
from shardkit.batches.source import FullSource
from shardkit.batches.transform import Draws, Randomised, randomised, refuse_in_threads
from shardkit.errors import DataError, UsageError
from shardkit.memory.buffers import remember
from shardkit.order.batch_rows import BatchRows
from shardkit.order.batches import BatchPlan
from shardkit.order.epochs import EpochOrder
from shardkit.order.ranks import Ranks
from shardkit.order.state import LoopState
from shardkit.samples.sample import KEY
from shardkit.watching.clock import Clock

NOWHERE: Integers = np.empty(0, np.int64)

_KEPT = 4
"""Epochs whose rows are remembered: workers may be making batches of the last and of the next."""


def _warn_of_refetches(given: object, options: BatchOptions) -> None:
    warn: Any = getattr(given, "warn_of_refetches", None)
    if warn is not None:
        warn(options.shuffle, **options.of_order)


@dataclass(frozen=True)
class BatchMaker:
    """Makes any batch of any epoch. Threads share it, processes unpickle it: what it remembers can
    be found anew."""

    fetcher: Fetcher
    options: BatchOptions
    ranks: Ranks
    clock: Clock | None = field(default=None, repr=False, compare=False)
    """Times the thread that makes a batch, where somebody watches."""
    _made_in: tuple[int, int] = field(
        default_factory=lambda: (os.getpid(), threading.get_ident()),
        init=False, repr=False, compare=False,
    )  # fmt: skip
    _known: dict[Any, BatchRows] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def of(cls, taker: str, given: object, options: BatchOptions) -> BatchMaker:
        """From what a user gave to a ``taker``.

        Raises:
            UsageError: the source, its transform, its ranks and the other options do not go
                together.
        """
        _warn_of_refetches(given, options)
        source, transform = FullSource(given), options.transform
        if transform is None and options.fields is not None:
            stored = [name.removesuffix(OFFSETS) for name in options.fields]
            source = source.with_fields([n for n in stored if n not in (KEY, options.mask_field)])
        if options.with_keys and not source.has_keys:
            raise UsageError(f"with_keys: a {type(given).__name__} has no keys(rows)")
        ranks = Ranks.of(taker, options.rank, options.world_size)
        drawing = None if transform is None else randomised(transform, source, options.batch_size)
        maker = cls(Fetcher(source, drawing, options.as_buffer), options, ranks)
        maker.plan(0)  # which checks the rest
        return maker

    @property
    def source(self) -> FullSource:
        """What it reads."""
        return self.fetcher.source

    @property
    def transform(self) -> Randomised | None:
        """What is made of each sample, and how that draws."""
        return self.fetcher.transform

    def refuse_no_batch(self) -> None:
        """Raises UsageError where an epoch has not a single batch."""
        if not self.plan(0).num_global_batches:
            raise UsageError(
                f"{len(self.source)} samples do not fill one batch of {self.options.batch_size} on"
                f" each of {self.ranks.world_size} ranks: make batch_size smaller, or use"
                " last='pad' or 'keep'"
            )

    def refuse_another_thread(self) -> None:
        """Raises UsageError where the calling thread makes batches, but may not draw globally: it
        is not the one that made the loader, which is the loop's."""
        process, thread = self._made_in
        is_other = process == os.getpid() and thread != threading.get_ident()
        if is_other and self.transform is not None and self.transform.is_global:
            refuse_in_threads(self.transform)

    # --- which rows -----------------------------------------------------------------------

    def order(self, epoch: int) -> EpochOrder:
        """Which row stands at which position of an epoch."""
        options = self.options
        return self.source.order(options.shuffle, options.seed, epoch, **options.of_order)

    def num_positions(self, epoch: int) -> int:
        """In an epoch, of all ranks together."""
        return len(self.order(epoch))

    def plan(self, epoch: int, start: int = 0) -> BatchPlan:
        """The batches that follow position ``start`` of an epoch."""
        options, ranks = self.options, self.ranks
        return BatchPlan(
            self.num_positions(epoch),
            options.batch_size,
            ranks.rank,
            ranks.world_size,
            options.last,
            start,
        )

    def batch_rows(self, epoch: int, start: int) -> BatchRows:
        """The rows of :meth:`plan`."""
        found = self._known.get((epoch, start))
        if found is None:
            found = BatchRows(self.order(epoch), self.plan(epoch, start))
            remember(self._known, (epoch, start), found, _KEPT)
        return found

    def first_state(self, *, is_of_worker: bool = False, makes_samples: bool = True) -> LoopState:
        """At the beginning of epoch 0. ``makes_samples``: the samples are made here, so the state
        has the transform in words; else something else makes them of the rows."""
        options, transform = self.options, self.transform
        same = {
            "seed": options.seed,
            "order": {"shuffle": options.shuffle, **options.of_order},
            "fingerprint": self.source.fingerprint,
            "last": options.last,
        }
        if makes_samples:
            same["made_by"] = None if transform is None else transform.words
        return LoopState(
            same,
            options.batch_size * self.ranks.world_size,
            transform=None if transform is None else transform.state,
            is_of_worker=is_of_worker,
            versions=self.source.versions,
            mixture=getattr(self.source.given, "mixture", None),
        )

    # --- one batch ------------------------------------------------------------------------

    def make(self, request: Request) -> Made:
        """Make one batch.

        Raises:
            DataError: a sample cannot be read or transformed; names it.
            TooManyRejectsError: too many such samples after one another.
        """
        began = time.perf_counter()
        options, number = self.options, request.batch
        known = self.batch_rows(request.epoch, request.start)
        self.announce(known, number)
        rows = known.rows(number)
        draws = Draws(options.seed, request.epoch) if self.fetcher.transform else None
        # A batch costs 20 us beside its reading; positions that nobody asks for were 2 of them.
        positions = known.plan.positions(number)[0] if draws else NOWHERE
        skipped: list[str] = []
        try:
            columns, transforming = self.fetcher.columns(rows, positions, draws)
        except DataError:
            if options.on_error == "fail":
                raise
            positions, is_real = known.plan.positions(number)
            rows, columns, why = replaced(
                self.fetcher, known.order, positions, draws, options.max_skips
            )
            transforming = 0.0
            skipped = [text for text, real in zip(why, is_real, strict=True) if real and text]
        fetched = time.perf_counter()
        batch = self._collated(rows, columns, known.plan, number)
        collated = time.perf_counter()
        seconds = fetched - began - transforming, transforming, collated - fetched
        return Made(batch, known.plan.end(number), skipped, seconds, collated)

    def _collated(
        self, rows: Integers, columns: dict[str, Any], plan: BatchPlan, number: int
    ) -> Batch:
        options = self.options
        batch = self.source.finish(collate(columns, options.as_buffer))
        if options.with_keys:
            batch[KEY] = self.source.keys(rows)
        if options.last == "pad" and options.mask_field is not None:
            import torch

            batch[options.mask_field] = torch.from_numpy(plan.positions(number)[1])
        return options.chosen(batch)

    def announce(self, known: BatchRows, batch: int) -> None:
        """Tell the source what is read ``readahead`` batches later."""
        advise, readahead = self.source.advise, self.options.readahead
        if advise is None or not readahead or self.source.foresees:
            return
        ahead = batch + readahead
        for number in range(batch and ahead, min(ahead + 1, known.num_batches)):
            advise(known.rows(number))
