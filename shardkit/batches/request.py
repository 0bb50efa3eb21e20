"""What a worker is asked for, and what it gives back."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import NamedTuple

from shardkit.batches.collate import Batch
from shardkit.watching.clock import Spent


class Request(NamedTuple):
    """Which batch: number ``batch`` of those that follow position ``start`` of an epoch."""

    epoch: int
    start: int
    batch: int

    def __str__(self) -> str:
        return f"batch {self.batch} after position {self.start} of epoch {self.epoch}"


@dataclass(slots=True)
class Made:
    """A batch, and what a loader must know about it.

    Attributes:
        end: position of the epoch after the global batch it belongs to.
        skipped: one message for each position whose row was replaced, but those of padding, which
            are counted where they are not.
        seconds: spent on reading, on the transform, on collating, one after another. collated: the
            second, of :func:`time.perf_counter`, when that was over; arrived: when it was unpickled
            in the loop's process; copied: when its copy to the device was begun. spent: where the
            time of the thread that made it went, if the loader is watched.
    """

    batch: Batch
    end: int
    skipped: list[str] = field(default_factory=list)
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    collated: float = 0.0
    arrived: float | None = None
    copied: float | None = None
    spent: Spent | None = None

    def warn_of_skipped(self, stacklevel: int) -> None:
        """``stacklevel`` as of :func:`warnings.warn`, counted from the caller's."""
        for message in self.skipped:
            text = " ".join(message.split())
            warnings.warn(f"replaced by the next good sample: {text}", stacklevel=stacklevel + 1)
