"""Rows that stand in for those that cannot be used: ``on_error="skip"``."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from shardkit.arrays import Integers
from shardkit.batches.columns_to_samples import columns_of
from shardkit.batches.fetch import Fetcher
from shardkit.batches.transform import Draws
from shardkit.errors import DataError, TooManyRejectsError
from shardkit.order.epochs import EpochOrder


class Replaced(NamedTuple):
    """A batch whose bad rows were replaced.

    Attributes:
        rows: (B,) int64: the row at each position, or the first good one at those that follow it.
        columns: theirs. why: for each position why its own row is bad, or nothing.
    """

    rows: Integers
    columns: dict[str, Any]
    why: list[str]


def replaced(
    fetcher: Fetcher, order: EpochOrder, positions: Integers, draws: Draws | None, most: int
) -> Replaced:
    """The batch at (B,) ``positions``. It depends on the order of the epoch and on the positions
    alone.

    Args:
        most: rows after one another that may be bad.

    Raises:
        TooManyRejectsError: there are more.
    """
    good = [_good_row(fetcher, order, position, draws, most) for position in positions.tolist()]
    rows = np.array([one.row for one in good], np.int64)
    if fetcher.takes_samples:
        # Made once: a row is transformed with the draw that it was accepted with.
        columns = columns_of([{name: v[0] for name, v in one.columns.items()} for one in good])
    else:  # a whole batch may be more than its samples
        draws = draws and draws.at_steps([one.step for one in good])
        columns, _ = fetcher.columns(rows, positions, draws)
    return Replaced(rows, columns, [one.why for one in good])


class _Good(NamedTuple):
    """A row that can be used, found ``step`` positions after the one that it is for; ``why`` the
    row there cannot be."""

    row: int
    step: int
    columns: dict[str, Any]
    why: str


def _good_row(
    fetcher: Fetcher, order: EpochOrder, position: int, draws: Draws | None, most: int
) -> _Good:
    here = np.array([position])
    why = ""
    for step in range(most + 1):
        rows = order.rows((here + step) % len(order))
        try:
            columns, _ = fetcher.columns(rows, here, draws and draws.again(step))
        except DataError as error:
            last = str(error)
            why = why or last
        else:
            return _Good(int(rows[0]), step, columns, why)
    raise TooManyRejectsError(
        f"{most + 1} samples after one another could not be used, max_skips={most}; the last:"
        f" {last}"
    )
