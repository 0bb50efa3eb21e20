"""Batches on the device before they are asked for: copies on a CUDA stream of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from shardkit.batches.generators import global_handles, is_same, states
from shardkit.errors import UsageError
from shardkit.loading.background import in_background
from shardkit.loading.tensors import map_tensors, move_tensors, pinned


@dataclass
class PrefetchStats:
    """Since the prefetcher was made.

    Attributes:
        batches: handed over. wait_s: the loop waited for them. copy_s: copies and device
            transforms took on the device (0.0 without CUDA), of the batches whose end was seen.
    """

    batches: int = 0
    wait_s: float = 0.0
    copy_s: float = 0.0


class CudaPrefetcher:
    """Wraps any iterable of batches; yields them with their tensors on the device.

    A thread takes batches from the iterable, copies them through pinned memory on a side stream,
    and applies ``transform`` there, while the training step runs; at most ``depth`` wait. Memory
    is allocated on the side stream and handed over with ``record_stream``, so the copy need not
    wait for the step in flight, and may be freed at any time. What the iterable raises is raised
    in its turn. Ending an iteration early ends the thread.

    On a device without streams (the CPU) all is the same, without the copy.

    The thread shares Python's, NumPy's and torch's global random generators with the training loop,
    so nothing that runs in it may draw from them. An iterable that says ``num_workers == 0``, as
    torch's DataLoader does, makes its batches when it is asked for them: it is asked in the loop's
    own thread, and only the copies run aside. What any other iterable and ``transform`` draw is
    noticed in the first batches, before the first is handed over; what they draw only later is not.

    Args:
        batches: anything to iterate over, again for each epoch. If it has ``state_dict``,
            :meth:`state_dict` is its state as of the last batch handed over. Other attributes
            (``set_epoch``, ``len``) are those of ``batches``.
        device: a torch device; None means CUDA where there is one, else the CPU.
        transform: ``batch -> batch``, run on the device: cast, normalise, permute.
        depth: batches on the device that wait to be handed over, at least 1.

    Raises:
        UsageError: a depth below 1; and from an iteration, if what runs in its thread draws from
            the global random generators.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        device: Any = None,
        *,
        transform: Callable[[Any], Any] | None = None,
        depth: int = 2,
    ) -> None:
        if depth < 1:
            raise UsageError(f"depth must be at least 1, got {depth}")
        self.batches = batches
        self.depth = depth
        self.stats = PrefetchStats()
        self._mover = _Mover(choose_device(device), transform, self.stats)
        self._state: Any = None

    @property
    def device(self) -> Any:
        """Where batches go, a torch.device."""
        return self._mover.device

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def __iter__(self) -> Generator[Any, None, None]:
        return self.run(self.batches, is_here=getattr(self.batches, "num_workers", None) == 0)

    def run(self, batches: Iterable[Any], *, is_here: bool) -> Generator[Any, None, None]:
        """Iterate over other batches, on the same stream; ``is_here``: in the calling thread."""
        self._state = None
        moved = _moved(batches, self._mover, is_here)
        give_up = getattr(batches, "kill", None)  # worker processes that hang
        with closing(moved if is_here else in_background(moved, self.depth, give_up)) as ready:
            while (batch := self._next(ready)) is not _END:
                yield batch
                del batch

    def _next(self, ready: Iterator[_Ready]) -> Any:
        started = time.perf_counter()
        item = next(ready)
        self._state = item.state
        if item.batch is _END:
            return _END
        batch = self._mover.hand_over(item)
        self.stats.wait_s += time.perf_counter() - started
        self.stats.batches += 1
        return batch

    def state_dict(self) -> Any:
        """State of the wrapped iterable as of the last batch handed over."""
        return self.batches.state_dict() if self._state is None else self._state  # type: ignore[attr-defined]

    def load_state_dict(self, state: Any) -> None:
        """Give the wrapped iterable its state; before iterating."""
        self._state = None
        self.batches.load_state_dict(state)  # type: ignore[attr-defined]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the wrapped iterable."""
        self._state = None
        self.batches.set_epoch(epoch)  # type: ignore[attr-defined]


def choose_device(device: Any) -> Any:
    """A torch.device; None means CUDA where there is one. Raises UsageError for none such."""
    import torch

    if device is None:
        device = "cuda" if has_cuda() else "cpu"
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"no such device: {device!r}") from error
    if chosen.type == "cuda":
        if not has_cuda():
            raise UsageError("device 'cuda' asked for, but torch sees no CUDA device")
        if chosen.index is None:
            chosen = torch.device("cuda", torch.cuda.current_device())
    return chosen


def has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


_END: Any = object()


@dataclass(eq=False)
class _Ready:
    """A batch that may still be on its way to the device; or the end."""

    batch: Any
    state: Any = None
    started: Any = None
    arrived: Any = None


class _Mover:
    """Puts batches on the device, on one side stream for its whole life."""

    def __init__(
        self, device: Any, transform: Callable[[Any], Any] | None, stats: PrefetchStats
    ) -> None:
        self.device = device
        self._transform = transform
        self._stats = stats
        self._stream: Any = None
        self._timed: list[tuple[Any, Any]] = []

    def move_first(self, batch: Any) -> _Ready:
        """Called in the thread, while the loop waits for its first batch, and so draws nothing.

        Raises:
            UsageError: the transform draws from the global generators.
        """
        handles = global_handles(self.device)
        before = states(handles)
        item = self.move(batch)
        if not is_same(before, states(handles)):
            raise UsageError(
                "the transform on the device draws from the global random generators, which its"
                " thread shares with the training loop: let it draw from a torch.Generator of its"
                " own, or apply it to the batch in the loop"
            )
        return item

    def move(self, batch: Any) -> _Ready:
        """Returns before the copy is done."""
        import torch

        if self.device.type != "cuda":
            return _Ready(self._transformed(move_tensors(batch, lambda t: t.to(self.device))))
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        in_pinned = move_tensors(batch, pinned)
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            started, arrived = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            started.record()
            moved = move_tensors(in_pinned, lambda t: t.to(self.device, non_blocking=True))
            moved = self._transformed(moved)
            arrived.record()
        return _Ready(moved, started=started, arrived=arrived)

    def _transformed(self, batch: Any) -> Any:
        return batch if self._transform is None else self._transform(batch)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stream": None, "_timed": []}

    def hand_over(self, item: _Ready) -> Any:
        """Called by the consumer: its stream waits for the copy, the host does not."""
        if item.arrived is None:
            return item.batch
        import torch

        consumer = torch.cuda.current_stream(self.device)
        consumer.wait_event(item.arrived)

        def record(tensor: Any) -> Any:
            if tensor.is_cuda:
                tensor.record_stream(consumer)
            return tensor

        batch = map_tensors(item.batch, record)
        self._timed.append((item.started, item.arrived))
        while self._timed and self._timed[0][1].query():
            started, arrived = self._timed.pop(0)
            self._stats.copy_s += started.elapsed_time(arrived) / 1000
        return batch


class _Taker:
    """Takes batches from an iterable, each with the state after it."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._state_of: Callable[[], Any] = getattr(batches, "state_dict", lambda: None)
        self._iterator = iter(batches)

    def take(self) -> tuple[Any, Any]:
        """(batch, state), or (_END, state)."""
        batch = next(self._iterator, _END)
        return batch, self._state_of()

    def first(self) -> list[tuple[Any, Any]]:
        """The first, while the loop waits for it, and so draws nothing.

        Whatever draws a seed draws with the first, as torch's samplers do. So if that moved the
        global generators, the second comes with it, for another look.

        Raises:
            UsageError: the second moved them, too.
        """
        taken: list[tuple[Any, Any]] = []
        handles = global_handles()
        while not taken or taken[-1][0] is not _END:
            before = states(handles)
            taken.append(self.take())
            if is_same(before, states(handles)):
                return taken
            if len(taken) == 2:
                raise UsageError(
                    "the batches draw from the global random generators, which a prefetcher's"
                    " thread shares with the training loop: make them in worker processes, or draw"
                    " from a generator of your own"
                )
        return taken

    def close(self) -> None:
        getattr(self._iterator, "close", lambda: None)()


def _moved(batches: Iterable[Any], mover: _Mover, is_here: bool) -> Generator[_Ready, None, None]:
    """Each batch on its way to the device, with the state after it; then the end."""
    with closing(_Taker(batches)) as taker:
        taken = [taker.take()] if is_here else taker.first()
        move = mover.move if is_here else mover.move_first
        while True:
            batch, state = taken.pop(0) if taken else taker.take()
            if batch is _END:
                yield _Ready(_END, state=state)
                return
            item = move(batch)
            item.state = state
            del batch
            yield item
            del item
            move = mover.move
