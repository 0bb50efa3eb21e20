"""Jobs that were listed, and that nobody has begun."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import count

from shardkit.packing.job import Job

LOOK_AHEAD = 10_000
"""Jobs listed before their turn, at most: some MB."""


class Backlog:
    """Draws jobs ahead of their turn: then the total is known early, and of those that are left the
    largest comes next, so that no worker has one to itself at the end.
    """

    def __init__(self, jobs: Iterable[Job], look_ahead: int = LOOK_AHEAD) -> None:
        self._unlisted = iter(jobs)
        self._listed: list[tuple[int, int, Job]] = []  # a heap
        self._numbers = count()
        self._look_ahead = look_ahead
        self._is_exhausted = False

    @property
    def can_draw(self) -> bool:
        return not self._is_exhausted and len(self._listed) < self._look_ahead

    def draw(self) -> None:
        """List one more, if there is one."""
        job = next(self._unlisted, None)
        if job is None:
            self._is_exhausted = True
        else:
            heappush(self._listed, (-job.num_bytes, next(self._numbers), job))

    def pop(self) -> Job:
        """The largest. Raises IndexError if none is listed."""
        return heappop(self._listed)[2]

    def __len__(self) -> int:
        return len(self._listed)
