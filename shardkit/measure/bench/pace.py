"""The work that a case does in a round: enough to be timed, and no more."""

from __future__ import annotations

from math import ceil

LEAST_S = 0.2
"""About how long a case takes. Shorter ones tell more of the machine's hiccups than of the case."""

LEAST_EACH = 4
"""Pieces for each worker, so that little of a case is its first and its last piece."""


class Pace:
    """Pieces of work in a round: as many as would take :data:`LEAST_S` at the best rate so far.

    The best, since one disturbed round must not leave this case shorter than others: on a busy
    machine short cases seem faster, as they end within their turn at the processor.

    Attributes:
        num: pieces to do, a multiple of the number of workers.
    """

    def __init__(self, workers: int = 1) -> None:
        self._workers = max(workers, 1)
        self.num = LEAST_EACH * self._workers

    def took(self, seconds: float) -> float:
        """Learn how long ``num`` pieces took; return that."""
        wanted = LEAST_S * self.num / max(seconds, 1e-6)
        self.num = max(self.num, pieces(wanted, self._workers))
        return seconds


def pieces(wanted: float, workers: int) -> int:
    """Return at least ``wanted`` pieces, the same number for each worker."""
    return max(ceil(wanted / workers), LEAST_EACH) * workers
