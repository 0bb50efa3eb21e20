"""A loop tells its source what it will read, to the end of the next epoch: the order is known."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from contextlib import closing

from shardkit.batches.maker import BatchMaker
from shardkit.batches.request import Made
from shardkit.order.batch_rows import BatchRows
from shardkit.storage.interface import Turn

FIRST = 64
"""Batches that are told before the first is asked for."""

EACH = 8
"""Batches that are told whenever one was received, until all are."""

MOST_ROWS = 4 << 20
"""What was told, and not yet read, takes 60 bytes a block in the process that fetches."""


class Foresight:
    """What one loader has told its source, which wants to know.

    Steps count the batches of one unbroken run of epochs; a loop that goes on elsewhere, by a
    resume or a ``break``, begins another under a new name.
    """

    def __init__(self, maker: BatchMaker) -> None:
        self._maker = maker
        self._expected: tuple[int, int] | None = None
        self._loop, self._step, self._told = "", 0, 0

    def watched(
        self, made: Generator[Made, None, None], epoch: int, start: int
    ) -> Generator[Made, None, None]:
        """The batches of an epoch from ``start`` on, as they are; they are told of meanwhile."""
        left = len(self._maker.plan(epoch, start))
        self._at(epoch, start, FIRST)
        with closing(made):
            for one in made:
                self._step += 1
                left -= 1
                here = (epoch, one.end) if left else (epoch + 1, 0)
                if self._expected is not None:
                    self._expected = here
                self._at(*here, EACH)
                yield one
        if self._expected is not None:
            self._maker.source.reached(Turn(self._loop, self._step), is_resting=True)

    def _at(self, epoch: int, start: int, count: int) -> None:
        """The loop is here. While all is there, nothing has to be told."""
        source = self._maker.source
        if not source.is_cold():
            self._expected = None
            return
        is_here = self._expected == (epoch, start)
        if not (is_here and source.reached(Turn(self._loop, self._step), is_resting=False)):
            self._begin(epoch, start)
        self._tell(count, epoch + 1)

    def _begin(self, epoch: int, start: int) -> None:
        if self._loop:  # nothing of it is needed any more
            self._maker.source.reached(Turn(self._loop, self._told), is_resting=True)
        self._expected = (epoch, start)
        self._loop = secrets.token_hex(8)
        self._step = self._told = 0
        self._open(epoch, start)

    def _open(self, epoch: int, start: int) -> None:
        """What is told from now on."""
        self._epoch, self._batch = epoch, 0
        # Rows of its own: it would drive those that are read now out of the maker's.
        self._rows = BatchRows(self._maker.order(epoch), self._maker.plan(epoch, start))

    def _tell(self, count: int, last_epoch: int) -> None:
        size = self._maker.options.batch_size
        for _ in range(count):
            if (self._told - self._step) * size > MOST_ROWS:
                return
            if self._batch == self._rows.num_batches:
                if self._epoch >= last_epoch or not self._batch:
                    return
                self._open(self._epoch + 1, 0)
            turn = Turn(self._loop, self._told)
            self._maker.source.foresee(self._rows.rows(self._batch), turn)
            self._batch += 1
            self._told += 1
