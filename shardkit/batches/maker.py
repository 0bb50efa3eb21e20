"""One batch, from its number to its tensors: the work that a loader's workers do."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from shardkit.arguments import whole
from shardkit.batches.collate import Batch, collate
from shardkit.batches.samples import columns_of, samples_of
from shardkit.batches.source import Source, check_source, fingerprint_of, finish, order_of, where_is
from shardkit.batches.transform import Draws, Randomised, Transform, randomised, refuse_in_threads
from shardkit.errors import DataError, SampleError, ShardkitError, TooManyRejectsError, UsageError
from shardkit.order.batches import BatchPlan, Last
from shardkit.order.epoch_rows import Run, keep
from shardkit.order.epochs import Epoch, Shuffle, check_shuffle, order_options
from shardkit.order.permutation import Positions
from shardkit.order.ranks import rank_and_world_size, refuse_other_ranks
from shardkit.order.state import Position
from shardkit.samples.sample import KEY

OnError = Literal["fail", "skip"]

VALID = "valid"
"""The field of a padded batch that says which samples are no padding."""

NOWHERE: Positions = np.empty(0, np.int64)


class Request(NamedTuple):
    """Which batch: number ``batch`` of those that follow position ``start`` of an epoch."""

    epoch: int
    start: int
    batch: int


@dataclass(slots=True)
class Made:
    """A batch, and what a loader must know about it.

    Attributes:
        end: position of the epoch after the global batch it belongs to.
        skipped: one message for each position whose row was replaced, but those of padding, which
            are counted where they are not.
        seconds: spent on reading, on the transform, on collating.
    """

    batch: Batch
    end: int
    skipped: list[str] = field(default_factory=list)
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def warn_of_skipped(self, stacklevel: int) -> None:
        """``stacklevel`` as of :func:`warnings.warn`, counted from the caller's."""
        for message in self.skipped:
            text = " ".join(message.split())
            warnings.warn(f"replaced by the next good sample: {text}", stacklevel=stacklevel + 1)


@dataclass(frozen=True)
class BatchMaker:
    """Makes any batch of any epoch. Threads share it, processes unpickle it: what it keeps can be
    found anew.

    Attributes:
        taker: what it was made for, in words. is_rank_found: rank and world size were not given.
        readahead: batches announced to the kernel before they are read.
        max_skips: rows that ``on_error="skip"`` may replace, in a row.
    """

    source: Source
    batch_size: int
    rank: int = 0
    world_size: int = 1
    taker: str = "Loader"
    is_rank_found: bool = False
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
    _made_in: tuple[int, int] = field(
        default_factory=lambda: (os.getpid(), threading.get_ident()),
        init=False, repr=False, compare=False,
    )  # fmt: skip
    _runs: dict[Any, Run] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def checked(
        cls,
        taker: str,
        source: Source,
        batch_size: int,
        *,
        shuffle: Shuffle | bool,
        seed: int,
        rank: int | None,
        world_size: int | None,
        last: Last,
        readahead: int,
        order: dict[str, int],
        transform: Transform | None = None,
        as_buffer: Sequence[str] = (),
        with_keys: bool = False,
        on_error: OnError = "fail",
        max_skips: int = 0,
    ) -> BatchMaker:
        """From what a user gave to a ``taker``. Raises UsageError for what makes no sense."""
        if on_error not in ("fail", "skip"):
            raise UsageError(f"on_error must be 'fail' or 'skip', got {on_error!r}")
        check_source(source)
        if with_keys and not hasattr(source, "keys"):
            raise UsageError(f"with_keys: a {type(source).__name__} has no keys(rows)")
        batch_size = whole("batch_size", batch_size, 1)
        is_rank_found = rank is None
        rank, world_size = rank_and_world_size(rank, world_size)
        maker = cls(
            taker=taker,
            is_rank_found=is_rank_found,
            source=source,
            batch_size=batch_size,
            rank=rank,
            world_size=world_size,
            shuffle=check_shuffle(shuffle),
            seed=whole("seed", seed, None),
            last=last,
            transform=None if transform is None else randomised(transform, source, batch_size),
            as_buffer=tuple(as_buffer),
            with_keys=with_keys,
            readahead=whole("readahead", readahead),
            on_error=on_error,
            max_skips=whole("max_skips", max_skips),
            order_options=order_options(taker, order),
        )
        maker.plan(0)  # which checks the rest
        return maker

    def refuse_no_batch(self) -> None:
        """Raises UsageError where an epoch has not a single batch."""
        if not len(self.plan(0)):
            raise UsageError(
                f"{len(self.source)} samples do not fill one batch of {self.batch_size} on each of"
                f" {self.world_size} ranks: make batch_size smaller, or use last='pad'"
            )

    def refuse_other_ranks(self) -> None:
        """Raises UsageError where rank and world size were found, and would be found others now."""
        if self.is_rank_found:
            refuse_other_ranks(self.taker, self.rank, self.world_size)

    def refuse_another_thread(self) -> None:
        """Raises UsageError where the calling thread makes batches, but may not draw globally: it
        is not the one that made the loader, which is the loop's."""
        process, thread = self._made_in
        if process == os.getpid() and thread != threading.get_ident():
            refuse_in_threads(self.transform)

    def order(self, epoch: int) -> Epoch:
        return order_of(self.source, self.shuffle, self.seed, epoch, **self.order_options)

    def num_positions(self, epoch: int) -> int:
        """In an epoch, of all ranks together."""
        return len(self.order(epoch))

    def plan(self, epoch: int, start: int = 0) -> BatchPlan:
        """The batches that follow position ``start`` of an epoch."""
        return BatchPlan(
            self.num_positions(epoch), self.batch_size, self.rank, self.world_size, self.last, start
        )

    def position(self, *, is_of_worker: bool = False, makes_samples: bool = True) -> Position:
        """The beginning of a run. ``makes_samples``: whether what is here says which come, or
        something else makes them of the rows."""
        run = {
            "seed": self.seed,
            "order": {"shuffle": self.shuffle, **self.order_options},
            "fingerprint": fingerprint_of(self.source),
            "last": self.last,
        }
        if makes_samples:
            run["made_by"] = None if self.transform is None else self.transform.words
        return Position(
            run,
            self.batch_size * self.world_size,
            transform=None if self.transform is None else self.transform.state,
            is_of_worker=is_of_worker,
        )

    def run(self, epoch: int, start: int) -> Run:
        """The rows of :meth:`plan`."""
        run = self._runs.get((epoch, start))
        if run is None:
            run = Run(self.order(epoch), self.plan(epoch, start))
            keep(self._runs, (epoch, start), run)
        return run

    def make(self, request: Request) -> Made:
        """Make one batch.

        Raises:
            DataError: a sample cannot be read or transformed; names it.
            TooManyRejectsError: too many such samples after one another.
        """
        started = time.perf_counter()
        run = self.run(request.epoch, request.start)
        self.announce(run, request.batch)
        rows = run.rows(request.batch)
        finding = time.perf_counter() - started
        skipped: list[str] = []
        draws = Draws(self.seed, request.epoch) if self.transform else None
        # Of 20 us that a batch costs beside its reading, positions that nobody asks for were 2.
        positions = run.plan.positions(request.batch)[0] if draws else NOWHERE
        try:
            columns, (reading, transforming) = self._columns(rows, positions, draws)
        except DataError:
            if self.on_error == "fail":
                raise
            positions, is_real = run.plan.positions(request.batch)
            rows, columns, found = self._replaced(run.order, positions, draws)
            reading, transforming = time.perf_counter() - started - finding, 0.0
            skipped = [
                message for message, real in zip(found, is_real, strict=True) if real and message
            ]
        started = time.perf_counter()
        batch = finish(self.source, collate(columns, self.as_buffer))
        if self.with_keys:
            batch[KEY] = self.source.keys(rows)  # type: ignore[attr-defined]
        if self.last == "pad":
            import torch

            batch[VALID] = torch.from_numpy(run.plan.positions(request.batch)[1])
        collating = time.perf_counter() - started
        seconds = finding + reading, transforming, collating
        return Made(batch, run.plan.end(request.batch), skipped, seconds)

    def announce(self, run: Run, batch: int) -> None:
        """Tell the source what is read ``readahead`` batches later."""
        advise: Any = getattr(self.source, "advise", None)
        if advise is None or not self.readahead:
            return
        ahead = batch + self.readahead
        for number in range(batch and ahead, min(ahead + 1, run.num_batches)):
            advise(run.rows(number))

    def _columns(
        self, rows: Positions, positions: Positions, draws: Draws | None
    ) -> tuple[dict[str, Any], tuple[float, float]]:
        """Columns of the rows, transformed; seconds of reading and of the transform."""
        started = time.perf_counter()
        columns = self._read(rows)
        read = time.perf_counter()
        if draws is not None:
            is_batched = self.transform.takes_batches  # type: ignore[union-attr]
            transformed = self._transformed_batch if is_batched else self._transformed_each
            columns = self.transform.watched(transformed, columns, rows, positions, draws)  # type: ignore[union-attr]
        return columns, (read - started, time.perf_counter() - read)

    def _read(self, rows: Positions) -> dict[str, Any]:
        try:
            return self.source.read(rows)
        except ShardkitError:
            raise
        # A source of the user's own raises anything; whatever it is, it names the rows.
        except Exception as error:
            where = self._one_of(rows.tolist())
            raise SampleError(
                f"{where}: reading failed: {type(error).__name__}: {error}"
            ) from error

    def _transformed_each(
        self, columns: dict[str, Any], rows: Positions, positions: Positions, draws: Draws
    ) -> dict[str, Any]:
        samples = samples_of(columns, len(rows))
        out = []
        for sample, position, row in zip(samples, positions.tolist(), rows.tolist(), strict=True):
            with self._named(row):
                out.append(_fields(self.transform(sample, draws, position)))  # type: ignore[misc]
        return columns_of(out)

    def _transformed_batch(
        self, columns: dict[str, Any], rows: Positions, positions: Positions, draws: Draws
    ) -> dict[str, Any]:
        with self._named(*rows.tolist()):
            out = _fields(self.transform.batch(columns, draws, positions))  # type: ignore[union-attr]
        for name, values in out.items():
            if len(values) != len(rows):
                raise UsageError(
                    f"the transform's batch() made {len(values)} values of field {name!r} for"
                    f" {len(rows)} samples"
                )
        return out

    @contextmanager
    def _named(self, *rows: int) -> Iterator[None]:
        """A user's code raises anything; whatever it is, it names the sample."""
        try:
            yield
        except UsageError:
            raise
        except Exception as error:
            slot = getattr(error, "slot", None)
            is_known = isinstance(slot, int) and 0 <= slot < len(rows)
            where = self._one_of([rows[slot]] if is_known else rows)  # type: ignore[index]
            raise SampleError(
                f"{where}: the transform failed: {type(error).__name__}: {error}"
            ) from error

    def _one_of(self, rows: Sequence[int]) -> str:
        others = f" or one of the {len(rows) - 1} with it" if len(rows) > 1 else ""
        return where_is(self.source, rows[0]) + others

    def _replaced(
        self, order: Epoch, positions: Positions, draws: Draws | None
    ) -> tuple[Positions, dict[str, Any], list[str]]:
        """The row at each position, or the first good one at those that follow it; their columns;
        and for each position why its own row is bad, or nothing.

        It depends on the order of the epoch and on the position alone.
        """
        good = [self._good_row(order, position, draws) for position in positions.tolist()]
        rows = np.array([one.row for one in good], np.int64)
        if draws is not None and not self.transform.takes_batches:  # type: ignore[union-attr]
            # Made once: a row is transformed with the draw that it was accepted with.
            columns = columns_of([{name: v[0] for name, v in one.columns.items()} for one in good])
        else:  # a whole batch may be more than its samples
            draws = draws and draws.at_steps([one.step for one in good])
            columns, _ = self._columns(rows, positions, draws)
        return rows, columns, [one.why for one in good]

    def _good_row(self, order: Epoch, position: int, draws: Draws | None) -> _Good:
        here = np.array([position])
        why = ""
        for step in range(self.max_skips + 1):
            rows = order.rows((here + step) % len(order))
            try:
                columns, _ = self._columns(rows, here, draws and draws.again(step))
            except DataError as error:
                last = str(error)
                why = why or last
            else:
                return _Good(int(rows[0]), step, columns, why)
        raise TooManyRejectsError(
            f"{self.max_skips + 1} samples after one another could not be used,"
            f" max_skips={self.max_skips}; the last: {last}"
        )


class _Good(NamedTuple):
    """A row that can be used, ``step`` places after the position that it is for; ``why`` the row
    there can not."""

    row: int
    step: int
    columns: dict[str, Any]
    why: str


def _fields(out: Any) -> dict[str, Any]:
    if not isinstance(out, dict):
        raise UsageError(f"the transform must return a dict of fields, got {type(out).__name__}")
    return out
