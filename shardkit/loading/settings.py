"""How a loader makes its batches: what was chosen, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shardkit.arguments import integer
from shardkit.errors import UsageError
from shardkit.loading.workers import WorkerType

DEFAULT_PREFETCH = 2


@dataclass(frozen=True)
class Settings:
    """Where batches are made, and how far ahead.

    Attributes:
        workers: threads or processes; 0 makes batches in the loop's own thread. prefetch: batches
            each makes ahead. why: who said so, in words.

    Raises:
        UsageError: what makes no sense.
    """

    workers: int
    worker_type: WorkerType = "thread"
    prefetch: int = DEFAULT_PREFETCH
    why: str = field(default="given", compare=False)

    def __post_init__(self) -> None:
        integer("workers", self.workers)
        integer("prefetch", self.prefetch, 1)
        if self.worker_type not in ("process", "thread"):
            raise UsageError(f"worker_type must be 'process' or 'thread', got {self.worker_type!r}")

    def __str__(self) -> str:
        if not self.workers:
            return "no worker"
        ending = "" if self.workers == 1 else {"thread": "s", "process": "es"}[self.worker_type]
        return f"{self.workers} {self.worker_type}{ending}, prefetch {self.prefetch}"

    def as_options(self) -> dict[str, Any]:
        """What to give to a :class:`shardkit.Loader`."""
        if not self.workers:
            return {"workers": 0}
        return {
            "workers": self.workers,
            "worker_type": self.worker_type,
            "prefetch": self.prefetch,
        }
