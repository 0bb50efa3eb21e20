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
from shardkit.watching.schedule import Plan
from shardkit.watching.tools import PROFILER

SYNCS = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__")
"""Methods of a tensor that wait for the device."""

COLLECTIVES = (
    *("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "gather"),
    *("scatter", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"),
    *("barrier", "all_gather_object", "broadcast_object_list", "gather_object"),
    "monitored_barrier",
)

Patch = Callable[[Any], None]


def patches(watch: Watch, fetching: Fetching) -> dict[str, Patch]:
    """Return what is done to each module once it is there."""
    timed, flag = partial(_time, watch), partial(_flag, watch)
    region = partial(_regions, fetching.region)
    return {
        "builtins": lambda module: timed(module, "logging", "print"),
        "os": lambda module: timed(module, "logging", "fsync"),
        "logging": lambda module: timed(module.Logger, "logging", "callHandlers"),
        "torch": partial(_torch, watch),
        "torch.autograd": partial(_backward, watch),
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


# --- what a training loop calls, in its own thread ----------------------------------------


def _time(watch: Watch, owner: Any, kind: str, *names: str) -> None:
    """Time functions of a module, or methods of a class, as that kind."""
    for name in names:
        function = getattr(owner, name, None)
        if function is not None:
            setattr(owner, name, _timed(watch, kind, function))


def _timed(watch: Watch, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
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


def _backward(watch: Watch, module: Any) -> None:
    """Time passes backward, in which DDP waits for other ranks."""
    function = module.backward

    @functools.wraps(function)
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

    module.backward = backward


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
    function = getattr(owner, name)

    @functools.wraps(function)
    def noted(*args: Any, **kwargs: Any) -> Any:
        watch.flags.add(flag)
        return function(*args, **kwargs)

    setattr(owner, name, noted)


def _copying(watch: Watch, function: Callable[..., Any]) -> Callable[..., Any]:
    """Time a method of tensors that may copy to or from a device."""

    @functools.wraps(function)
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
    tensor.to, tensor.cuda = _copying(watch, tensor.to), _copying(watch, tensor.cuda)
    _flag(watch, module, "compile", "compile")


# --- batches ------------------------------------------------------------------------------


def _fetchers(fetching: Fetching, module: Any) -> None:
    """Those of torch's DataLoader, in workers and where there are none."""
    base = module._BaseDatasetFetcher
    original = base.__init__

    @functools.wraps(original)
    def made(self: Any, dataset: Any, auto: Any, collate_fn: Any, drop_last: Any) -> None:
        original(self, dataset, auto, fetching.region("collate", collate_fn), drop_last)

    base.__init__ = made
    for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        kind = getattr(module, name)
        kind.fetch = _fetched(fetching, kind.fetch)


def _fetched(fetching: Fetching, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def fetch(self: Any, index: Any) -> Any:
        parent = multiprocessing.parent_process()
        is_worker = sys.modules["torch.utils.data"].get_worker_info() is not None
        pid = parent.pid if parent is not None and is_worker else None
        size = len(index) if isinstance(index, list | tuple) else None
        return fetching.fetch(lambda: function(self, index), pid, size)

    return fetch


def _regions(region: Callable[..., Any], owner: Any, kind: str, *names: str) -> None:
    for name in names:
        function = getattr(owner, name, None)
        if function is not None:
            with suppress(TypeError):  # a type that cannot be changed
                setattr(owner, name, region(kind, function))


def _pil(fetching: Fetching, module: Any) -> None:
    """Time opening a file, which is decoded once its pixels are asked for, and making it small."""
    _regions(fetching.region, module, "decode", "open")
    _regions(fetching.region, module.Image, "decode", "convert", "resize", "thumbnail")


def _torchvision(fetching: Fetching, module: Any) -> None:
    fetching.note_paths(module, "read_file")
    _regions(fetching.region, module, "decode", *_named(module, "decode_", "read_image"))


def _cv2(fetching: Fetching, module: Any) -> None:
    _regions(fetching.region, module, "decode", "imread", "imdecode")
    fetching.note_paths(module, "imread")


def _named(owner: Any, *starts: str) -> list[str]:
    """Return names of attributes that begin so."""
    return [name for name in dir(owner) if name.startswith(starts)]


# --- torch's DataLoader --------------------------------------------------------------------


def _loaders(watch: Watch, module: Any) -> None:
    """Watch loaders and their iterators."""
    loader, iterator = module.DataLoader, module._BaseDataLoaderIter
    loader.__init__ = _init(watch.plan, loader.__init__)
    loader.__iter__ = _iter(watch, loader.__iter__)
    iterator.__next__ = _next(iterator.__next__)
    iterator._next_index = _next_index(iterator._next_index)
    # An iterator that is dropped waits for the end of its workers.
    _time(watch, module._MultiProcessingDataLoaderIter, "wait", "_shutdown_workers")


def _init(plan: Plan, original: Callable[..., None]) -> Callable[..., None]:
    """Give a loader other arguments, where the plan asks for them; note the line that made it."""
    signature = inspect.signature(original)

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


def _iter(watch: Watch, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def begin(self: Any) -> Any:
        depth = self.num_workers * (self.prefetch_factor or 0)
        loop = watch.loop(_key(self), _facts(self), depth, can_reread=self._dataset_kind == 0)
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


def _next(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def next_(self: Any) -> Any:
        iteration = getattr(self, "_watched", None)
        return original(self) if iteration is None else iteration.next(self, original)

    return next_


def _next_index(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
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
