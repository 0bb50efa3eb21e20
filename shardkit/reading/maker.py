"""One batch, from its number to its tensors: the work that a loader's workers do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from shardkit.errors import DataError, SampleError, ShardkitError, TooManyRejectsError, UsageError
from shardkit.reading.batches import BatchPlan, Last
from shardkit.reading.collate import Batch, collate
from shardkit.reading.order import Epoch, Shuffle
from shardkit.reading.permute import Positions
from shardkit.reading.run import Run, keep
from shardkit.reading.samples import Sample, columns_of, samples_of
from shardkit.reading.source import Source, order_of, where_is
from shardkit.reading.transform import Draws, Randomised
from shardkit.sample import KEY

OnError = Literal["fail", "skip"]

VALID = "valid"
"""The field of a padded batch that says which samples are no padding."""


@dataclass(frozen=True)
class Request:
    """Which batch: number ``batch`` of those that follow position ``start`` of an epoch."""

    epoch: int
    start: int
    batch: int


@dataclass(frozen=True)
class Made:
    """A batch, and what a loader must know about it.

    Attributes:
        end: position of the epoch after the global batch it belongs to.
        skipped: one message for each row that was replaced.
        seconds: spent on reading, on the transform, on collating.
    """

    batch: Batch
    end: int
    skipped: list[str] = field(default_factory=list)
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class BatchMaker:
    """Makes any batch of any epoch. Threads share it, processes unpickle it: what it keeps can be
    found anew.

    Attributes:
        readahead: batches announced to the kernel before they are read.
        max_skips: rows that ``on_error="skip"`` may replace, in a row.
    """

    source: Source
    batch_size: int
    rank: int = 0
    world_size: int = 1
    shuffle: Shuffle = None
    seed: int = 0
    last: Last = "drop"
    transform: Randomised | None = None
    as_buffer: Sequence[str] = ()
    with_keys: bool = False
    readahead: int = 0
    on_error: OnError = "fail"
    max_skips: int = 100
    order_options: dict[str, int] = field(default_factory=dict)
    _runs: dict[Any, Run] = field(default_factory=dict, init=False, repr=False, compare=False)

    def order(self, epoch: int) -> Epoch:
        return order_of(self.source, self.shuffle, self.seed, epoch, **self.order_options)

    def plan(self, num_positions: int, start: int = 0) -> BatchPlan:
        return BatchPlan(
            num_positions, self.batch_size, self.rank, self.world_size, self.last, start
        )

    def run(self, epoch: int, start: int) -> Run:
        """The batches that follow position ``start`` of an epoch."""
        run = self._runs.get((epoch, start))
        if run is None:
            order = self.order(epoch)
            run = Run(order, self.plan(len(order), start))
            keep(self._runs, (epoch, start), run)
        return run

    def make(self, request: Request) -> Made:
        """Make one batch.

        Raises:
            DataError: a sample cannot be read or transformed; names it.
            TooManyRejectsError: too many such samples after one another.
        """
        run = self.run(request.epoch, request.start)
        positions, valid = run.plan.positions(request.batch)
        if self.readahead:
            self._announce(run, request.batch)
        rows = run.rows(request.batch)
        skipped: list[str] = []
        draws = Draws(self.seed, request.epoch) if self.transform else None
        try:
            columns, seconds = self._columns(rows, positions, draws)
        except DataError:
            if self.on_error == "fail":
                raise
            rows, skipped = self._good_rows(run.order, positions, draws)
            columns, seconds = self._columns(rows, positions, draws)
        started = time.perf_counter()
        batch = collate(columns, self.as_buffer)
        if self.with_keys:
            batch[KEY] = self.source.keys(rows)  # type: ignore[attr-defined]
        if self.last == "pad":
            import torch

            batch[VALID] = torch.from_numpy(valid)
        collating = time.perf_counter() - started
        return Made(batch, run.plan.end(request.batch), skipped, (*seconds, collating))

    def _announce(self, run: Run, batch: int) -> None:
        advise: Any = getattr(self.source, "advise", None)
        if advise is None:
            return
        ahead = batch + self.readahead
        for number in range(batch if batch == 0 else ahead, min(ahead + 1, len(run.plan))):
            advise(run.rows(number))

    def _columns(
        self, rows: Positions, positions: Positions, draws: Draws | None
    ) -> tuple[dict[str, Any], tuple[float, float]]:
        """Columns of the rows, transformed; seconds of reading and of the transform."""
        started = time.perf_counter()
        columns = self._read(rows)
        read = time.perf_counter()
        if draws is not None:
            samples = [
                self._transformed(sample, draws, position, row)
                for sample, position, row in zip(
                    samples_of(columns, len(rows)), positions.tolist(), rows.tolist(), strict=True
                )
            ]
            columns = columns_of(samples)
        return columns, (read - started, time.perf_counter() - read)

    def _read(self, rows: Positions) -> dict[str, Any]:
        try:
            return self.source.read(rows)
        except ShardkitError:
            raise
        # A source of the user's own raises anything; whatever it is, it names the rows.
        except Exception as error:
            where = where_is(self.source, int(rows[0]))
            others = f" or one of the {len(rows) - 1} with it" if len(rows) > 1 else ""
            raise SampleError(
                f"{where}{others}: reading failed: {type(error).__name__}: {error}"
            ) from error

    def _transformed(self, sample: Sample, draws: Draws, position: int, row: int) -> Sample:
        try:
            out = self.transform(sample, draws, position)  # type: ignore[misc]
        except UsageError:
            raise
        # A user's code raises anything; whatever it is, it names the sample.
        except Exception as error:
            raise SampleError(
                f"{where_is(self.source, row)}: the transform failed:"
                f" {type(error).__name__}: {error}"
            ) from error
        if not isinstance(out, dict):
            raise UsageError(
                f"the transform must return a dict of fields, got {type(out).__name__}"
            )
        return out

    def _good_rows(
        self, order: Epoch, positions: Positions, draws: Draws | None
    ) -> tuple[Positions, list[str]]:
        """The row at each position, or the first good one at those that follow it."""
        skipped: list[str] = []
        rows = [self._good_row(order, position, draws, skipped) for position in positions.tolist()]
        return np.array(rows, np.int64), skipped

    def _good_row(
        self, order: Epoch, position: int, draws: Draws | None, skipped: list[str]
    ) -> int:
        here = np.array([position])
        for step in range(self.max_skips + 1):
            rows = order.rows((here + step) % len(order))
            try:
                self._columns(rows, here, draws)
            except DataError as error:
                skipped.append(str(error))
            else:
                return int(rows[0])
        raise TooManyRejectsError(
            f"{len(skipped)} samples could not be used, max_skips={self.max_skips}; the last:"
            f" {skipped[-1]}"
        )
