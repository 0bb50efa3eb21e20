"""Where jobs run: the seam that a machine, a cluster or a queue stands behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol

import shardkit.errors
from shardkit.errors import DataError, ShardkitError
from shardkit.index.journal import Receipt
from shardkit.packing.listing import Job
from shardkit.system.progress import Progress

LOOK_AHEAD = 10_000
"""Jobs listed before their turn, at most: some MB."""


class Engine(Protocol):
    """Does the jobs of one pack: in this process, in others, or on other machines.

    An engine is made for one :class:`shardkit.packing.job.Setup`, and closed in the end.

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
    - **The end**: once the engine is closed, for whatever reason, no job will change anything that
      counts. That holds where the caller is killed, too, before anybody else can have the lock of
      the destination: local processes hold it open themselves, and die with the caller; attempts
      elsewhere find the folder gone that they write into.
    """

    def run(self, jobs: Iterable[Job], progress: Progress) -> Iterator[Receipt]:
        """Do all jobs, and yield the receipt of each when it is done, in any order.

        ``jobs`` lists the source while it is drawn from, so that an engine may begin before it has
        drawn all; and it may draw all long before it does them.
        """

    def close(self) -> None: ...


class Crew(ABC):
    """An engine whose jobs are done elsewhere, several at once.

    It draws jobs ahead of their turn: then the total is known early, and of those that are left the
    largest comes next, so that no worker has one to itself at the end.
    """

    def run(self, jobs: Iterable[Job], progress: Progress) -> Iterator[Receipt]:
        unlisted, numbers = iter(jobs), count()
        listed: list[tuple[int, int, Job]] = []  # a heap
        is_drawn = False
        while listed or not is_drawn or self.is_busy():
            can_begin = bool(listed) and self.can_begin()
            can_draw = not is_drawn and len(listed) < LOOK_AHEAD
            if can_begin:
                self.begin(heappop(listed)[2])
            elif can_draw:
                job = next(unlisted, None)
                is_drawn = job is None
                if job is not None:
                    heappush(listed, (-job.num_bytes, next(numbers), job))
            yield from self.ended(progress, wait=not (can_begin or can_draw))

    @abstractmethod
    def is_busy(self) -> bool:
        """Return True if a job is under way."""

    @abstractmethod
    def can_begin(self) -> bool:
        """Return True if one more job can be begun."""

    @abstractmethod
    def begin(self, job: Job) -> None: ...

    @abstractmethod
    def ended(self, progress: Progress, wait: bool) -> Iterator[Receipt]:
        """Yield what has ended; wait for it if asked to, with a job under way."""


Answer = dict[str, Any]
"""What a job comes to, as plain values that go from one process to another: ``{"done": ...}``, or
``{"error": [class, words]}``."""


def error_answer(error: ShardkitError) -> Answer:
    return {"error": [type(error).__name__, str(error)]}


def rebuild(name: str, message: str) -> ShardkitError:
    """Return the error of an answer: of the same class, with the same words."""
    kind = getattr(shardkit.errors, name, None)
    known = isinstance(kind, type) and issubclass(kind, ShardkitError)
    return kind(message) if known else DataError(message)  # type: ignore[misc]
