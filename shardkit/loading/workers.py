"""Where batches are made: here, in threads, or in processes. Same batches in the same order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

from shardkit import errors
from shardkit.batches.maker import BatchMaker
from shardkit.batches.request import Made, Request
from shardkit.errors import DataError, SampleError, ShardkitError
from shardkit.loading.processes import Processes
from shardkit.memory import buffers

WorkerType = Literal["process", "thread"]
Batches = Generator[Made, None, None]


def make_batches(
    maker: BatchMaker,
    requests: Iterable[Request],
    worker_type: WorkerType,
    workers: int,
    ahead: int,
) -> Batches:
    """Batches in the order of the requests. Closing the generator ends all workers.

    Args:
        workers: how many; 0 makes batches in the calling thread. ahead: batches a worker makes
            before they are asked for.

    Raises:
        ShardkitError: what making a batch raised, in that batch's turn.
    """
    if not workers:
        return _here(maker, requests)
    if worker_type == "thread":
        return _in_threads(maker, requests, workers, ahead)
    return Processes(_make_in_worker, maker, requests, workers, ahead)


def _here(maker: BatchMaker, requests: Iterable[Request]) -> Batches:
    with buffers.keeping():
        for request in requests:
            yield _make(maker, request, "no worker")


def _in_threads(
    maker: BatchMaker, requests: Iterable[Request], workers: int, ahead: int
) -> Batches:
    pool = ThreadPoolExecutor(workers, "shardkit-loader", initializer=buffers.keep)
    pending: deque[Future[Made]] = deque()
    try:
        for request in requests:
            pending.append(pool.submit(_make_in_thread, maker, request))
            if len(pending) > workers * ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _make_in_thread(maker: BatchMaker, request: Request) -> Made:
    number = threading.current_thread().name.rpartition("_")[2]
    return _make_in_worker(maker, request, f"worker thread {number}")


def _make_in_worker(maker: BatchMaker, request: Request, worker: str) -> Made:
    """Nobody but the one whose thread it is may end it, or be stopped by Ctrl-C."""
    try:
        return _make(maker, request, worker)
    except (SystemExit, KeyboardInterrupt) as error:
        name = f"{type(error).__name__}({error})"
        raise SampleError(
            f"the transform or the dataset raised {name} ({request}, {worker})"
        ) from error


def _make(maker: BatchMaker, request: Request, worker: str) -> Made:
    where = f"{request}, {worker}"
    clock = maker.clock
    try:
        if clock is None:
            return maker.make(request)
        before = clock.now()
        made = maker.make(request)
        made.spent = clock.now() - before
        return made
    except ShardkitError as error:
        raise _located(error, where) from error
    except Exception as error:
        text = " ".join(str(error).split())
        raise DataError(
            f"the batch cannot be made: {type(error).__name__}: {text} ({where})"
        ) from error


def _located(error: ShardkitError, where: str) -> ShardkitError:
    """An error of the same type, which says where; one of the user's own may ask for more than a
    message."""
    text = f"{' '.join(str(error).split())} ({where})"
    try:
        return type(error)(text)
    except TypeError:
        kinds: list[Any] = [k for k in type(error).__mro__ if k.__module__ == errors.__name__]
        located: ShardkitError = kinds[0](text)
        return located
