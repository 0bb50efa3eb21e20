"""Batches that are kept, to be handed over again as if loading cost nothing, or read again.

What is kept is a copy: the loop may change what it got, and shared memory and descriptors of worker
processes are theirs to use. A loop that changes a replayed batch gets no more of them.
"""

from __future__ import annotations

import copy
import multiprocessing
import time
from collections.abc import Mapping
from typing import Any

MOST_BATCHES = 8
"""More than a processor's or a model's cache of shapes would hide."""

MOST_BYTES = 1 << 30
"""Of all of them: fewer are kept of large ones."""

PLAIN = (str, bytes, int, float, bool, complex, type(None))


class UnknownBatchError(Exception):
    """A batch of something else than tensors, arrays, numbers, and lists and dicts of these."""


class Replay:
    """The first batches of a loop.

    Attributes:
        why_not: why there are none, in a sentence; empty if there are, or may be.
    """

    def __init__(self, is_wanted: bool) -> None:
        self._kept: list[Any] = []
        self._versions: list[int] = []
        self._num_bytes = 0
        self._is_full = not is_wanted
        self.why_not = ""

    @property
    def is_ready(self) -> bool:
        """Whether enough are kept."""
        return self._is_full and bool(self._kept)

    def keep(self, batch: Any) -> None:
        """Keep a copy, as long as there is room."""
        if self._is_full:
            return
        try:
            kept = copied(batch)
        except UnknownBatchError as error:
            self.drop(f"no batch was replayed: it is {error}")
            return
        except Exception as error:  # noqa: BLE001 - containers of others, rebuilt
            self.drop(f"no batch was replayed: it cannot be copied ({error!r})")
            return
        self._num_bytes += sum(one.numel() * one.element_size() for one in tensors(kept))
        if self._kept and self._num_bytes > MOST_BYTES:
            self._is_full = True
            return
        self._kept.append(kept)
        self._is_full = len(self._kept) == MOST_BATCHES or self._num_bytes > MOST_BYTES

    def batch(self, number: int) -> Any:
        """Return one of them, in containers of its own."""
        chosen = self._kept[number % len(self._kept)]
        self._versions = [one._version for one in tensors(chosen)]
        return rebuilt(chosen, lambda tensor: tensor)

    def check(self, number: int) -> None:
        """After the step: whether the batch is as it was."""
        if not self._kept or not self._versions:
            return
        chosen = self._kept[number % len(self._kept)]
        if [one._version for one in tensors(chosen)] != self._versions:
            self.drop("batches were replayed only until the loop was seen to change them in place")

    def drop(self, why_not: str = "") -> None:
        """Keep none any more."""
        self._kept, self._is_full, self.why_not = [], True, why_not


class Rereading:
    """The indices of the first batches, which are asked for again.

    Args:
        most: batches that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[Any] = []
        self._place: int | None = None

    def begin(self, is_again: bool) -> None:
        """A block of steps begins: batches are asked for again, or new ones."""
        self._place = 0 if is_again and self._kept else None

    def index(self, own: Any) -> Any:
        """Return what a worker is asked for, instead of the sampler's own next batch."""
        if self._place is None:
            if len(self._kept) < self._most:
                self._kept.append(own)
            return own
        chosen = self._kept[self._place % len(self._kept)]
        self._place += 1
        return chosen


def is_tensor(value: Any) -> bool:
    """Return True for a tensor, without importing torch, which is there if a batch has one."""
    return hasattr(value, "element_size") and hasattr(value, "_version")


def tensors(batch: Any) -> list[Any]:
    """Return all tensors in a batch."""
    found: list[Any] = []

    def note(tensor: Any) -> Any:
        found.append(tensor)
        return tensor

    rebuilt(batch, note)
    return found


def shapes(batch: Any) -> list[list[int]]:
    """Return the shapes of all tensors in a batch; none of one that cannot be looked into."""
    try:
        return [list(map(int, tensor.shape)) for tensor in tensors(batch)]
    except Exception:  # noqa: BLE001 - containers of others, rebuilt
        return []


def copied(batch: Any) -> Any:
    """Return the batch with tensors of its own, pinned where they were."""
    return rebuilt(batch, _copied)


def _copied(tensor: Any) -> Any:
    clone = tensor.detach().clone()
    clone.requires_grad_(tensor.requires_grad)
    return clone.pin_memory() if tensor.device.type == "cpu" and tensor.is_pinned() else clone


def rebuilt(batch: Any, change: Any) -> Any:
    """Return the same containers made anew around changed tensors.

    Raises:
        UnknownBatchError: there is something in it that cannot be made anew.
    """
    if is_tensor(batch):
        return change(batch)
    if isinstance(batch, PLAIN):
        return batch
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(rebuilt(one, change) for one in batch))
    if type(batch) in (list, tuple):
        return type(batch)(rebuilt(one, change) for one in batch)
    if isinstance(batch, Mapping) and hasattr(batch, "__setitem__"):
        made = copy.copy(batch)
        for name, value in batch.items():
            made[name] = rebuilt(value, change)
        return made
    if type(batch).__module__ == "numpy":
        return batch.copy()
    raise UnknownBatchError(f"a {type(batch).__name__}")


# --- waiting until nobody makes batches any more -------------------------------------------


LOOK_S = 0.03

MOST_S = 10.0
"""Workers that never come to rest have something else to do."""

BUSY = 0.2
"""Share of a core that a worker uses which waits for room in its queue, at most: it wakes up now
and then."""

LOOKS = 2
"""One after another that must find no work: between two batches a worker may wait for a disk."""


def wait_until_quiet() -> None:
    """Sleep until this process and its workers hardly use a core, or ten seconds have passed."""
    deadline = time.monotonic() + MOST_S
    before, num_quiet = _used(), 0
    while num_quiet < LOOKS and time.monotonic() < deadline:
        time.sleep(LOOK_S)
        now = _used()
        num_quiet = num_quiet + 1 if now - before < BUSY * LOOK_S else 0
        before = now


def _used() -> float:
    """Return seconds of processor time of this process and the workers that it started."""
    workers = (process.pid for process in multiprocessing.active_children())
    return time.process_time() + sum(_of(pid) for pid in workers if pid is not None)


def _of(pid: int) -> float:
    """From schedstat, whose unit is a nanosecond; 0 for one that has ended."""
    try:
        with open(f"/proc/{pid}/schedstat") as file:
            return int(file.read().split()[0]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
