"""torch's DataLoader, watched: iterators of the class itself, whoever runs them."""

from __future__ import annotations

import functools
import inspect
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from shardkit.watching.loop import Watch, WatchedLoop, users_line


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
        """With other arguments, where the plan asks for them; and the line that made it."""
        plan, signature = self._watch.plan, inspect.signature(original)

        @functools.wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            if plan.loader:
                given = signature.bind(self, *args, **kwargs)
                if type(given.arguments.get("dataset")).__name__ == plan.dataset:
                    given.arguments.update(plan.loader)
                args, kwargs = given.args[1:], given.kwargs
            original(self, *args, **kwargs)
            self.__dict__["_watched_line"] = users_line(sys._getframe(1))

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
            iterator._watched = iteration = Iteration(loop, began, time.perf_counter() - began)
            weakref.finalize(iterator, loop.leave, iteration).atexit = False
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

    def __init__(self, loop: WatchedLoop, began: float, starting: float) -> None:
        self.loop = loop
        self._began = began
        self._starting: float | None = starting

    def next(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        """Return the next batch. For one that is replayed the sampler is a batch further, so that
        an epoch has as many steps as ever."""

        def leaves_one() -> bool:
            if iterator._dataset_kind != 0:  # iterable: nobody knows how many there are
                return False
            return next(iterator._sampler_iter, None) is not None

        starting, self._starting = self._starting, None
        try:
            return self.loop.next(
                lambda: original(iterator),
                self._began,
                self,
                starting=starting,
                leaves_one=leaves_one,
            )
        except StopIteration:
            self.loop.end()
            raise


def _length(loader: Any) -> int | None:
    if loader._dataset_kind != 0:  # iterable: its length is but a guess
        return None
    return _size(loader)


def _can_reread(loader: Any) -> bool:
    return bool(loader._dataset_kind == 0)


def _depth(loader: Any) -> int:
    return int(loader.num_workers * (loader.prefetch_factor or 0))


def _key(loader: Any) -> tuple[Any, ...]:
    """Return what loaders of the same work have in common: they are one."""
    kinds = type(loader.dataset).__name__, type(getattr(loader, "sampler", None)).__name__
    made_at = getattr(loader, "_watched_line", None)
    return (*kinds, str(loader.batch_size), loader.num_workers, _size(loader.dataset), made_at)


def _size(sized: Any) -> int | None:
    try:
        return len(sized)
    except (TypeError, ValueError, AttributeError, NotImplementedError):
        return None


def _place(loader: Any) -> str:
    """Return the line that made it."""
    file, line = getattr(loader, "_watched_line", ("", 0))
    return f"{file}:{line}" if file else ""


def _facts(loader: Any) -> dict[str, Any]:
    sampler = getattr(loader, "batch_sampler", None)
    return {
        "type": "DataLoader",
        "dataset": type(loader.dataset).__name__,
        "batch_size": loader.batch_size or getattr(sampler, "batch_size", None),
        "num_batches": _length(loader),
        "num_workers": loader.num_workers,
        "worker_type": "process" if loader.num_workers else "none",
        "prefetch_factor": loader.prefetch_factor,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers),
        "is_iterable": loader._dataset_kind != 0,
        "made_at": _place(loader),
    }
