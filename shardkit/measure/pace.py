"""How much of its work a case does a round: enough to be timed, and no more."""

from __future__ import annotations

from math import ceil

LEAST_S = 0.3
"""About how long a case takes. Shorter ones tell more of the machine's hiccups than of the case."""

LEAST_EACH = 6
"""Pieces for each worker, so that little of a case is its first and its last piece."""


class Pace:
    """Pieces of work a round: a few in the first, which warms up; later as many as
    take ``least_s``.

    Attributes:
        num: pieces to do, a multiple of the number of workers.
    """

    def __init__(self, workers: int = 1, least_s: float = LEAST_S) -> None:
        self._workers = max(workers, 1)
        self._least_s = least_s
        self._is_known = False
        self.num = LEAST_EACH * self._workers

    def took(self, seconds: float) -> float:
        """Told how long ``num`` pieces took; returns that."""
        if not self._is_known:
            self.num = pieces(self._least_s * self.num / max(seconds, 1e-6), self._workers)
            self._is_known = True
        return seconds


def pieces(wanted: float, workers: int) -> int:
    """At least ``wanted`` pieces, the same number for each worker."""
    return max(ceil(wanted / workers), LEAST_EACH) * workers
