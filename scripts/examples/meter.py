"""How fast a training loop runs, and how much of its time it waits for data."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from typing import Any

import torch


class Meter:
    """Steps per second, and the share of the time in which the device waited for a batch.

    A CUDA device works on while the host waits. So there, both ends of a wait are marked in the
    device's own stream: between them it has nothing to do.
    """

    def __init__(self, device: torch.device) -> None:
        self.is_cuda = device.type == "cuda"
        self.restart()

    def restart(self) -> None:
        self.started, self.waits = time.perf_counter(), list[tuple[Any, Any]]()

    def mark(self) -> Any:
        if not self.is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def watch(self, batches: Iterable[Any]) -> Generator[Any, None, None]:
        asked = self.mark()
        for batch in batches:
            self.waits.append((asked, self.mark()))
            yield batch
            del batch  # or it would be kept until the next is there
            asked = self.mark()

    def read(self) -> tuple[float, float]:
        """Since the last call."""
        if self.is_cuda:
            torch.cuda.synchronize()
        seconds, waits = time.perf_counter() - self.started, self.waits
        waited = sum(a.elapsed_time(b) / 1e3 if self.is_cuda else b - a for a, b in waits)
        self.restart()
        return len(waits) / seconds, waited / seconds
