"""Where jobs run: the seam that a machine, a cluster or a queue stands behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol, Self

import shardkit.errors
from shardkit.errors import DataError, ShardkitError
from shardkit.index.journal import Receipt
from shardkit.packing.listing import Job
from shardkit.system.progress import Progress

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


class Engine(Protocol):
    """Does the jobs of one pack: in this process, in others, or on other machines.

    An engine is made for one :class:`shardkit.packing.job.Setup` and is a context manager.

    - **What a job is told** is the setup and the job itself. Both are frozen dataclasses of plain
      values: they can be pickled, or go through JSON. They name the source and the destination by
      absolute paths, and all else that a job reads or writes lies in the destination's work folder.
      So whoever does a job needs these two folders, under these names, and shardkit; and neither
      an open file, nor memory, nor the environment of the caller.
    - **Doing a job** is :func:`shardkit.packing.job.write_job`, then
      :func:`shardkit.packing.job.commit_job`. What it reads is ready when the job is drawn. It
      makes the same bytes wherever it is done; doing it once more does no harm, but not twice at
      once. A job that was cut short leaves nothing that counts. Where a job may be done twice at
      once, since nobody can tell whether whoever was lost is dead, each doer makes an
      :func:`shardkit.packing.ray_engine.attempt`, and the caller takes one of them.
    - **The result** is a receipt of some hundred bytes. Shards and their rows stay where the job
      put them, at the destination.
    - **The caller is the only one** that draws jobs, gets receipts and has progress counted:
      ``run`` does all of that in the thread that iterates it.
    - **Errors**: what a job raises is raised by ``run``, as the same class with the same words, and
      no further job is begun. If whoever did a job is gone, it is done by another, or that is a
      StorageError.
    - **The end**: when the context is left, for whatever reason, no job will change anything that
      counts. That holds where the caller is killed, too, before anybody else can have the lock of
      the destination: local processes hold it open themselves, and die with the caller; attempts
      elsewhere find the folder gone that they write into.
    """

    def run(self, jobs: Iterable[Job], progress: Progress) -> Iterator[Receipt]:
        """Do all jobs, and yield the receipt of each when it is done, in any order.

        ``jobs`` lists the source while it is drawn from, so that an engine may begin before it has
        drawn all; and it may draw all long before it does them.
        """

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


Answer = dict[str, Any]
"""``{"done": ...}``, or ``{"error": [class, words]}``."""


def error_answer(error: ShardkitError) -> Answer:
    return {"error": [type(error).__name__, str(error)]}


def rebuild(name: str, message: str) -> ShardkitError:
    """The error of an answer: of the same class, with the same words."""
    kind = getattr(shardkit.errors, name, None)
    known = isinstance(kind, type) and issubclass(kind, ShardkitError)
    return kind(message) if known else DataError(message)  # type: ignore[misc]
