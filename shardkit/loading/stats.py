"""What a loader has done so far, in sums."""

from __future__ import annotations

from dataclasses import dataclass

from shardkit.batches.request import Made


@dataclass
class LoaderStats:
    """Since the loader was made; seconds of work are summed over all workers.

    Attributes:
        batches: handed over. wait_s: the loop waited for them. read_s, transform_s, collate_s:
            workers spent on making them. skipped: rows replaced because they could not be used.
    """

    batches: int = 0
    wait_s: float = 0.0
    read_s: float = 0.0
    transform_s: float = 0.0
    collate_s: float = 0.0
    skipped: int = 0

    def add(self, made: Made, wait_s: float) -> None:
        """Count one more batch, for which the loop waited ``wait_s``."""
        self.batches += 1
        self.wait_s += wait_s
        self.read_s += made.seconds[0]
        self.transform_s += made.seconds[1]
        self.collate_s += made.seconds[2]
        self.skipped += len(made.skipped)
