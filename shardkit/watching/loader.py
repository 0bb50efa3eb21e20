"""torch's DataLoader, watched: iterators of the class itself, whoever runs them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from shardkit.watching.loop import Watch, WatchedLoop


class DataLoaderPatch:
    """What is done to ``torch.utils.data.dataloader``."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def patch(self, module: Any) -> None:
        """Patch the module."""
        loader, iterator = module.DataLoader, module._BaseDataLoaderIter
        loader.__init__ = self._init(loader.__init__)
        loader.__iter__ = self._iter(loader.__iter__)
        iterator.__next__ = self._next(iterator.__next__)
        iterator._next_index = self._next_index(iterator._next_index)

    def _init(self, original: Callable[..., None]) -> Callable[..., None]:
        """With other arguments, where the plan asks for them."""
        plan = self._watch.plan

        @functools.wraps(original)
        def init(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
            chosen = plan.loader or {}
            if type(dataset).__name__ == plan.dataset:
                names = ("batch_size", "shuffle", "sampler", "batch_sampler", "num_workers")
                kwargs = {**dict(zip(names, args, strict=False)), **kwargs, **chosen}
                args = args[len(names) :]
            original(self, dataset, *args, **kwargs)

        return init

    def _iter(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        watch = self._watch

        @functools.wraps(original)
        def begin(self: Any) -> Any:
            loop = watch.loop(_key(self), _facts(self), _depth(self), _can_reread(self))
            began = loop.begin()
            _STARTING.append(loop)
            try:
                iterator = original(self)
            finally:
                _STARTING.pop()
            iterator._watched = Iteration(loop, began, _length(self))
            return iterator

        return begin

    def _next(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def next_(self: Any) -> Any:
            iteration = getattr(self, "_watched", None)
            return original(self) if iteration is None else iteration.next(self, original)

        return next_

    def _next_index(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def next_index(self: Any) -> Any:
            index = original(self)
            iteration = getattr(self, "_watched", None)
            loop = _STARTING[-1] if _STARTING else iteration and iteration.loop
            return index if loop is None else loop.rereading.index(index)

        return next_index


_STARTING: list[WatchedLoop] = []
"""Loops whose iterators are being made, which ask for their first batches meanwhile."""


class Iteration:
    """One pass over a DataLoader."""

    def __init__(self, loop: WatchedLoop, began: float, length: int | None) -> None:
        self.loop = loop
        self._began = began
        self._length = length
        self._count = 0

    def next(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        """The next batch. Those that were replayed count: an epoch is no longer than usual."""
        is_last = self._length is not None and self._count >= self._length

        def make() -> Any:
            if is_last:
                _close(iterator)
                raise StopIteration
            return original(iterator)

        try:
            item = self.loop.next(make, not self._count, is_last, self._began)
        except StopIteration:
            self.loop.end()
            raise
        self._count += 1
        return item


def _close(iterator: Any) -> None:
    """As an iterator closes itself at its end."""
    if not iterator._persistent_workers and hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()


def _length(loader: Any) -> int | None:
    if loader._dataset_kind != 0:  # iterable: its length is but a guess
        return None
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def _can_reread(loader: Any) -> bool:
    return bool(loader._dataset_kind == 0)


def _depth(loader: Any) -> int:
    return int(loader.num_workers * (loader.prefetch_factor or 0))


def _key(loader: Any) -> tuple[Any, ...]:
    """Loaders of the same work are one."""
    kind = type(loader.dataset).__name__
    return (kind, loader.batch_size, loader.num_workers, _size(loader.dataset))


def _size(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _facts(loader: Any) -> dict[str, Any]:
    sampler = getattr(loader, "batch_sampler", None)
    size = loader.batch_size if loader.batch_size is not None else None
    return {
        "type": type(loader).__name__,
        "dataset": type(loader.dataset).__name__,
        "batch_size": size or getattr(sampler, "batch_size", None),
        "num_batches": _length(loader),
        "num_workers": loader.num_workers,
        "worker_type": "process" if loader.num_workers else "none",
        "prefetch_factor": loader.prefetch_factor,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers),
        "is_iterable": loader._dataset_kind != 0,
    }
