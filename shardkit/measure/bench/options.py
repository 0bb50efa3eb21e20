"""Options of a bench, and what is done with every sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shardkit.arguments import integer
from shardkit.errors import UsageError
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.loading.workers import WorkerType

Read = Literal["raw", "train", "tokens"]

SIZE = 224
"""Width and height of a crop for training, in pixels."""

ROUNDS = 20
"""Rounds of a warm bench. Five wild ones on either side change nothing, see
:mod:`shardkit.measure.timing`: with 12, which leave room for two, a slow-down of 1.3 was missed in
every sixth run on two cores that eight processes wanted. More and shorter rounds find more than
fewer and longer ones."""

COLD_ROUNDS = 12
"""Rounds of a cold bench, each a whole epoch from the disk."""

MOST_WORKERS = 512


@dataclass(frozen=True)
class BenchOptions:
    """Options of :func:`bench`; checked when made, raising UsageError.

    Attributes:
        read: ``raw`` samples as :func:`shardkit.open` gives them, pictures as bytes; ``train``:
            random crops of 224 pixels into uint8 batches; ``tokens``: windows of 2,048 tokens.
        workers: counts, each measured with every target. worker_type: ``thread`` or ``process``.
        batch_size: samples a batch. cold: drop the files from the page cache before each case.
        rounds: in each, every case runs once; by default 20, or 12 cold.
        limit: samples to measure, drawn by ``seed``, which orders them, too.
    """

    read: Read = "raw"
    workers: tuple[int, ...] = (0, 2)
    worker_type: WorkerType = "thread"
    batch_size: int = 64
    cold: bool = False
    rounds: int | None = None
    limit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.read not in ("raw", "train", "tokens"):
            raise UsageError(f"read must be raw, train or tokens, got {self.read!r}")
        if self.worker_type not in ("thread", "process"):
            raise UsageError(f"worker_type must be thread or process, got {self.worker_type!r}")
        counts = [integer("workers", count) for count in self.workers]
        if not counts or len(set(counts)) < len(counts):
            raise UsageError(f"workers must be different counts, got {list(self.workers)}")
        if max(counts) > MOST_WORKERS:
            raise UsageError(f"workers: {max(counts):,} are too many, at most {MOST_WORKERS:,}")
        integer("batch_size", self.batch_size, 1)
        usual = COLD_ROUNDS if self.cold else ROUNDS
        rounds = usual if self.rounds is None else integer("rounds", self.rounds, 1)
        object.__setattr__(self, "rounds", rounds)
        integer("seed", self.seed, None)
        if self.limit is not None:
            integer("limit", self.limit, 1)


def refuse_without_pictures(read: Read, name: str, fields: Sequence[str]) -> None:
    """Raises UsageError where pictures are to be cropped and there are none."""
    if read == "train" and IMAGE_FIELDS.isdisjoint(fields):
        raise UsageError(
            f"{name} has the fields {', '.join(fields)}: no pictures to train; use --read raw"
        )
