"""A loop that is watched by hand: ``for batch in shardkit.watch(loader)``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TextIO, TypeVar

from shardkit.watching.attach import attach

T = TypeVar("T")

SHORT = 0.05
"""From this share of waiting on the loop is called short of data: less is within the noise of most
machines."""


@dataclass(slots=True)
class Waits:
    """Steps and seconds of a watched loop so far.

    Attributes:
        steps: through with. wait_s: seconds it waited for batches after the first of each
            iteration. busy_s: it worked on them. first_s: it waited for first batches.
    """

    steps: int = 0
    wait_s: float = 0.0
    busy_s: float = 0.0
    first_s: float = 0.0

    @property
    def share(self) -> float:
        """The share of the loop's time that it waited, without first batches."""
        return self.wait_s / max(self.wait_s + self.busy_s, 1e-9)

    def __str__(self) -> str:
        step_ms = 1e3 * (self.wait_s + self.busy_s) / max(self.steps, 1)
        return (
            f"{self.steps:,} steps of {step_ms:,.1f} ms, {self.share:.0%} of it waiting for data"
            f" ({step_ms * self.share:,.1f} ms); first batches took {self.first_s:.2f} s"
        )


class watch(Generic[T]):  # noqa: N801 - used as a function
    """Pass a loader's batches on, and print how long the loop waited for them when it ends.

    Also tells ``shardkit doctor`` of loaders that it does not know, if the script runs under it.

    Args:
        loader: whatever is iterated over, again and again if need be. out: where the lines go, by
            default stderr; only rank 0 writes.

    The attribute ``waits`` has the figures.
    """

    def __init__(self, loader: Iterable[T], out: TextIO | None = None) -> None:
        self.loader = loader
        self.waits = Waits()
        self._out = sys.stderr if out is None else out
        self._is_silent = os.environ.get("RANK", "0") != "0"
        caller = sys._getframe(1)
        self._line = caller.f_code.co_filename, caller.f_lineno

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # of a copy that has nothing yet
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[T]:
        batches = self._batches()
        waits, is_first = self.waits, True
        try:
            while True:
                asked = time.perf_counter()
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                handed = time.perf_counter()
                yield batch
                del batch
                done = time.perf_counter()
                if is_first:
                    waits.first_s += handed - asked
                    is_first = False
                else:
                    waits.wait_s += handed - asked
                waits.busy_s += done - handed
                waits.steps += 1
        finally:
            if waits.steps and not self._is_silent:
                more = "; `shardkit doctor -- python ...` says why" * (waits.share > SHORT)
                with suppress(OSError, ValueError):  # a closed stream must not end a training run
                    self._out.write(f"shardkit: {waits}{more}\n")
                    self._out.flush()

    def _batches(self) -> Iterator[T]:
        """Return the loader's; by way of the doctor, where it watches."""
        watching = attach()
        if watching is None or _is_known(self.loader):
            yield from self.loader
            return
        facts = {
            "type": type(self.loader).__name__,
            "dataset": type(getattr(self.loader, "dataset", self.loader)).__name__,
            "batch_size": getattr(self.loader, "batch_size", None),
            "num_workers": getattr(self.loader, "num_workers", 0) or 0,
            "is_iterable": True,
        }
        loop = watching.loop(("by hand", self._line), facts, 0, can_reread=False)
        iteration = loop.begin()
        inner = iter(self.loader)
        iteration.starting = time.perf_counter() - iteration.began
        try:
            while True:
                try:  # nobody knows how many there are, so that none can be left out
                    batch = loop.next(iteration, lambda: next(inner), lambda: False)
                except StopIteration:
                    return
                yield batch
        finally:
            loop.end()


def _is_known(loader: object) -> bool:
    """Return True if the doctor watches it anyway."""
    modules = {one.__module__ for one in type(loader).__mro__}
    return bool(modules & {"torch.utils.data.dataloader", "shardkit.loading.loader"})
