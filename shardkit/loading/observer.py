"""Looking at a loader at work: what happened to each batch, and when.

A loader that nobody observes does nothing for it: the batches of one that somebody does go through
:func:`observed` last. What a worker did travels with its batch, so an observer is told of it when
the loop is through with the batch, whoever made that: the loop's own thread, a thread, or a
process, whose clock is that of all processes of the machine (CLOCK_MONOTONIC).
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass

from shardkit.batches.request import Made
from shardkit.order.batches import BatchPlan


@dataclass(frozen=True, slots=True)
class Times:
    """The events of one batch, each as the second, of :func:`time.perf_counter`, when it was over.

    With workers a batch is read long before it is asked for; without, after.

    Attributes:
        asked: the loop came for it.
        begun: a worker took it up. read, transformed, collated: it had done so. Where bad rows were
            replaced, all their work counts as reading.
        queued: it lay ready in the loop's process, where that of a worker process was unpickled.
        copied: its copy was begun, into pinned memory or onto the device, where it may end later;
            the transform there, too. None where nothing is copied.
        handed_over: the loop got it. done: the loop came back for the next.
    """

    asked: float
    begun: float
    read: float
    transformed: float
    collated: float
    queued: float
    copied: float | None
    handed_over: float
    done: float


class Observer:
    """What is told of a loader's batches. Every method is called in the loop's thread."""

    def note(self, times: Times) -> None:
        """The loop is through with a batch. One that it left in the middle of is not told of."""

    def end(self) -> None:
        """An iteration is over, or was left."""

    def instead(
        self, made: Generator[Made, None, None], plan: BatchPlan
    ) -> Generator[Made, None, None]:
        """The batches of a plan, as the loop is to get them: those that were made, or others."""
        return made


def observed(
    made: Generator[Made, None, None], plan: BatchPlan, observer: Observer
) -> Generator[Made, None, None]:
    """The batches of a plan, each of which the observer is told of."""
    with closing(observer.instead(made, plan)) as batches:
        try:
            while True:
                asked = time.perf_counter()
                one = next(batches, None)
                if one is None:
                    return
                handed_over = time.perf_counter()
                events = _events(one)
                yield one
                del one
                observer.note(Times(asked, *events, handed_over, time.perf_counter()))
        finally:
            observer.end()


def _events(made: Made) -> tuple[float, float, float, float, float, float | None]:
    """From begun to copied. A worker's steps follow one another without a gap."""
    reading, transforming, collating = made.seconds
    transformed = made.collated - collating
    read = transformed - transforming
    queued = made.collated if made.arrived is None else made.arrived
    return read - reading, read, transformed, made.collated, queued, made.copied
