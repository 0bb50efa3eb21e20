"""What is patched in which module: small wrappers that time a call, and leave all else alone."""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from shardkit.watching.clock import quick_look
from shardkit.watching.fetching import Fetching
from shardkit.watching.loop import Watch, WatchedLoop, users_line
from shardkit.watching.session import PROFILER, Plan

SYNCS = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__")
"""Methods of a tensor that wait for the device."""

COLLECTIVES = (
    *("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "gather"),
    *("scatter", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"),
    *("barrier", "all_gather_object", "broadcast_object_list", "gather_object"),
    "monitored_barrier",
)

Patch = Callable[[Any], None]
Function = Callable[..., Any]
Around = Callable[[Function], Function]


def patches(watch: Watch, fetching: Fetching) -> dict[str, Patch]:
    """Return what is done to each module once it is there."""
    timed, flag = partial(_time, watch), partial(_flag, watch)
    region = partial(_region, fetching)
    return {
        "builtins": lambda module: timed(module, "logging", "print"),
        "os": lambda module: timed(module, "logging", "fsync"),
        "logging": lambda module: timed(module.Logger, "logging", "callHandlers"),
        "torch": partial(_torch, watch),
        "torch.autograd": lambda module: _wrap(module, "backward", partial(_backward, watch)),
        "torch.optim.optimizer": partial(_optimizer, watch),
        "torch.serialization": lambda module: timed(module, "checkpoint", "save"),
        "safetensors.torch": lambda module: timed(module, "checkpoint", "save_file"),
        "torch.distributed.distributed_c10d": lambda module: timed(
            module, "collective", *COLLECTIVES
        ),
        "torch.utils.tensorboard.writer": lambda module: timed(
            module.SummaryWriter, "logging", *_named(module.SummaryWriter, "add_"), "flush"
        ),
        "torch.amp.autocast_mode": lambda module: flag(module.autocast, "amp", "__enter__"),
        "torch.profiler.profiler": lambda module: flag(module._KinetoProfile, PROFILER),
        "torch.autograd.profiler": lambda module: flag(module.profile, PROFILER),
        "torch.utils.data.dataloader": partial(_loaders, watch),
        "torch.utils.data._utils.fetch": partial(_fetchers, fetching),
        "PIL.Image": partial(_pil, fetching),
        "PIL.ImageFile": lambda module: region(module.ImageFile, "decode", "load"),
        "simplejpeg": lambda module: region(module, "decode", "decode_jpeg"),
        "cv2": partial(_cv2, fetching),
        "torchvision.io.image": partial(_torchvision, fetching),
        "tokenizers": lambda module: region(
            module.Tokenizer, "tokenize", "encode", "encode_batch", "encode_batch_fast"
        ),
        "transformers.tokenization_utils_base": lambda module: region(
            module.PreTrainedTokenizerBase, "tokenize", "__call__", "encode"
        ),
        "tiktoken.core": lambda module: region(
            module.Encoding, "tokenize", "encode", "encode_ordinary", "encode_batch"
        ),
    }


def _wrap(owner: Any, name: str, around: Around) -> None:
    """Put what ``around`` makes of a function in its place. Raises AttributeError if it is gone."""
    function = getattr(owner, name)
    setattr(owner, name, functools.wraps(function)(around(function)))


# --- what a training loop calls, in its own thread ----------------------------------------


def _time(watch: Watch, owner: Any, kind: str, *names: str) -> None:
    """Time functions of a module, or methods of a class, as that kind."""

    def around(function: Function) -> Function:
        def timed(*args: Any, **kwargs: Any) -> Any:
            step = watch.timing()
            if step is None:
                return function(*args, **kwargs)
            watch.depth += 1
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                watch.depth = max(0, watch.depth - 1)
                step.add(kind, start, time.perf_counter(), sys._getframe(1))

        return timed

    for name in filter(partial(hasattr, owner), names):
        _wrap(owner, name, around)


def _backward(watch: Watch, function: Function) -> Function:
    """Time passes backward, in which DDP waits for other ranks."""

    def backward(*args: Any, **kwargs: Any) -> Any:
        step = watch.timing()
        if step is None:
            return function(*args, **kwargs)
        watch.depth += 1
        # Alone on a CPU it waits for its own threads, which needs no exact clock.
        look = watch.clock.now if watch.has_others or "cuda" in watch.flags else quick_look
        before = look()
        try:
            return function(*args, **kwargs)
        finally:
            watch.depth = max(0, watch.depth - 1)
            spent = look() - before
            step.add("backward", before.wall, before.wall + spent.wall)
            step.add("backward blocked", 0.0, spent.blocked)

    return backward


def _optimizer(watch: Watch, module: Any) -> None:
    """Time steps of all optimizers, by torch's own hooks."""
    began: list[float] = []

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        began.clear()
        # A closure is the whole step, as Lightning has it, whose parts are timed by themselves.
        is_whole = any(callable(one) for one in (*args[1:], *kwargs.values()))
        if watch.timing() is not None and not is_whole:
            watch.depth += 1
            began.append(time.perf_counter())
            if any(group.get("fused") for group in optimizer.param_groups):
                watch.flags.add("fused_optimizer")

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if began and watch.step is not None:
            watch.depth = max(0, watch.depth - 1)
            watch.step.add("optimizer", began.pop(), time.perf_counter())

    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)


def _flag(watch: Watch, owner: Any, flag: str, name: str = "__init__") -> None:
    """Note that something is in use."""

    def around(function: Function) -> Function:
        def noted(*args: Any, **kwargs: Any) -> Any:
            watch.flags.add(flag)
            return function(*args, **kwargs)

        return noted

    _wrap(owner, name, around)


def _copying(watch: Watch, function: Function) -> Function:
    """Time a method of tensors that may copy to or from a device."""

    def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
        step = watch.timing()
        if step is None:
            return function(self, *args, **kwargs)
        start = time.perf_counter()
        result = function(self, *args, **kwargs)
        if getattr(result, "device", None) != self.device:
            watch.flags.add("cuda")
            step.add("copy", start, time.perf_counter(), sys._getframe(1))
        return result

    return copy


def _torch(watch: Watch, module: Any) -> None:
    tensor = module.Tensor
    _time(watch, tensor, "sync", *SYNCS)
    _time(watch, module.cuda, "sync", "synchronize")
    for name in ("to", "cuda"):
        _wrap(tensor, name, partial(_copying, watch))
    _flag(watch, module, "compile", "compile")


# --- batches ------------------------------------------------------------------------------


def _fetchers(fetching: Fetching, module: Any) -> None:
    """Watch those of torch's DataLoader, in workers and where there are none."""

    def init(original: Function) -> Function:
        def made(self: Any, dataset: Any, auto: Any, collate_fn: Any, drop_last: Any) -> None:
            original(self, dataset, auto, fetching.region("collate", collate_fn), drop_last)

        return made

    def fetched(original: Function) -> Function:
        def fetch(self: Any, index: Any) -> Any:
            parent = multiprocessing.parent_process()
            is_worker = sys.modules["torch.utils.data"].get_worker_info() is not None
            pid = parent.pid if parent is not None and is_worker else None
            size = len(index) if isinstance(index, list | tuple) else None
            return fetching.fetch(lambda: original(self, index), pid, size)

        return fetch

    _wrap(module._BaseDatasetFetcher, "__init__", init)
    _wrap(module._MapDatasetFetcher, "fetch", fetched)
    _wrap(module._IterableDatasetFetcher, "fetch", fetched)


def _region(fetching: Fetching, owner: Any, kind: str, *names: str) -> None:
    for name in filter(partial(hasattr, owner), names):
        with suppress(TypeError):  # a type that cannot be changed
            _wrap(owner, name, partial(fetching.region, kind))


def _pil(fetching: Fetching, module: Any) -> None:
    """Time opening a file, which is decoded once its pixels are asked for, and making it small."""
    _region(fetching, module, "decode", "open")
    _region(fetching, module.Image, "decode", "convert", "resize", "thumbnail")


def _torchvision(fetching: Fetching, module: Any) -> None:
    _region(fetching, module, "decode", *_named(module, "decode_", "read_image"))
    _wrap(module, "read_file", fetching.noting)


def _cv2(fetching: Fetching, module: Any) -> None:
    _region(fetching, module, "decode", "imread", "imdecode")
    _wrap(module, "imread", fetching.noting)


def _named(owner: Any, *starts: str) -> list[str]:
    """Return names of attributes that begin so."""
    return [name for name in dir(owner) if name.startswith(starts)]


# --- torch's DataLoader --------------------------------------------------------------------


def _loaders(watch: Watch, module: Any) -> None:
    """Watch loaders and their iterators."""
    loader, iterator = module.DataLoader, module._BaseDataLoaderIter
    _wrap(loader, "__init__", partial(_init, watch.plan))
    _wrap(loader, "__iter__", partial(_iter, watch))
    _wrap(iterator, "__next__", _next)
    _wrap(iterator, "_next_index", _next_index)
    # An iterator that is dropped waits for the end of its workers.
    _time(watch, module._MultiProcessingDataLoaderIter, "wait", "_shutdown_workers")


def _init(plan: Plan, original: Function) -> Function:
    """Give a loader other arguments, where the plan asks for them; note the line that made it."""
    signature = inspect.signature(original)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if plan.loader:
            given = signature.bind(self, *args, **kwargs)
            if type(given.arguments.get("dataset")).__name__ == plan.dataset:
                given.arguments.update(plan.loader)
            args, kwargs = given.args[1:], given.kwargs
        original(self, *args, **kwargs)
        self.__dict__["_watched_line"] = users_line(sys._getframe(1))

    return init


def _iter(watch: Watch, original: Function) -> Function:
    def begin(self: Any) -> Any:
        depth = self.num_workers * (self.prefetch_factor or 0)
        loop = watch.loop(_key(self), _facts(self), depth, can_reread=self._dataset_kind == 0)
        iteration = loop.begin()
        _STARTING.append(loop)
        try:
            iterator = original(self)
        finally:
            _STARTING.pop()
        iteration.starting = time.perf_counter() - iteration.began
        iterator._watched = iteration
        weakref.finalize(iterator, loop.leave, iteration).atexit = False
        return iterator

    return begin


def _next(original: Function) -> Function:
    """Take the next batch by way of the loop. For one that is replayed the sampler is a batch
    further, so that an epoch has as many steps as ever."""

    def next_(self: Any) -> Any:
        iteration = getattr(self, "_watched", None)
        if iteration is None:
            return original(self)

        def leaves_one() -> bool:
            if self._dataset_kind != 0:  # iterable: nobody knows how many there are
                return False
            return next(self._sampler_iter, None) is not None

        try:
            return iteration.loop.next(iteration, lambda: original(self), leaves_one)
        except StopIteration:
            iteration.loop.end()
            raise

    return next_


def _next_index(original: Function) -> Function:
    def next_index(self: Any) -> Any:
        index = original(self)
        iteration = getattr(self, "_watched", None)
        loop = _STARTING[-1] if _STARTING else iteration and iteration.loop
        return index if loop is None else loop.rereading.index(index)

    return next_index


_STARTING: list[WatchedLoop] = []
"""Loops whose iterators are being made, which ask for their first batches meanwhile."""


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


def _facts(loader: Any) -> dict[str, Any]:
    sampler = getattr(loader, "batch_sampler", None)
    file, line = getattr(loader, "_watched_line", ("", 0))
    is_iterable = loader._dataset_kind != 0  # its length is but a guess
    return {
        "type": "DataLoader",
        "dataset": type(loader.dataset).__name__,
        "batch_size": loader.batch_size or getattr(sampler, "batch_size", None),
        "num_batches": None if is_iterable else _size(loader),
        "num_workers": loader.num_workers,
        "worker_type": "process" if loader.num_workers else "none",
        "prefetch_factor": loader.prefetch_factor,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers),
        "is_iterable": is_iterable,
        "made_at": f"{file}:{line}" if file else "",
    }
