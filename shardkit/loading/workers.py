"""Where batches are made: here, in threads, or in processes. Same batches in the same order."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, Literal

from shardkit import buffers
from shardkit.errors import ShardkitError, StorageError, UsageError
from shardkit.loading.background import in_background
from shardkit.loading.tensors import map_tensors
from shardkit.reading.maker import BatchMaker, Made, Request

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
    return _in_processes(maker, requests, workers, ahead)


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


def _in_processes(
    maker: BatchMaker, requests: Iterable[Request], workers: int, ahead: int
) -> Batches:
    """Received in a thread: each tensor of a batch comes by a handshake over a socket, which
    would cost the loop 1 ms."""
    processes = _Processes(maker, requests, workers, ahead)
    return in_background(processes, 1, give_up=processes.kill)


class _Processes:
    """Worker processes of torch's DataLoader; they start when it is iterated over, once."""

    def __init__(
        self, maker: BatchMaker, requests: Iterable[Request], workers: int, ahead: int
    ) -> None:
        import torch
        from torch.utils.data import DataLoader

        self._batches: Any = None
        self._loader: DataLoader[Made | ShardkitError] = DataLoader(
            _Requested(maker),  # type: ignore[arg-type]
            batch_size=None,
            sampler=requests,
            collate_fn=_unchanged,
            num_workers=workers,
            worker_init_fn=_leave_interrupts,
            prefetch_factor=ahead,
            generator=torch.Generator(),  # else it draws a seed from the training loop's own
        )

    def __iter__(self) -> Batches:
        try:
            self._batches = iter(self._loader)
        except (AttributeError, TypeError) as error:  # only where workers are spawned, not forked
            raise UsageError(
                f"worker processes cannot be given this dataset or transform: {error}; define it"
                " at the top of a module, or use worker_type='thread'"
            ) from error
        try:
            while True:
                try:
                    made = next(self._batches)
                except StopIteration:
                    return
                except (RuntimeError, OSError, EOFError) as error:
                    raise _worker_died(error) from error
                if isinstance(made, ShardkitError):
                    raise made
                yield made
                del made
        finally:
            self.shut_down()

    def shut_down(self) -> None:
        """End the workers now. Dropping the iterator would, but the traceback of an error holds
        it, and a worker forked before that is collected complains as it drops its copy."""
        getattr(self._batches, "_shutdown_workers", lambda: None)()

    def kill(self) -> None:
        """End the workers whatever they are doing, and wake the thread that waits for a batch.

        Nobody wants what they still make. Torch would wait 5 s for each, and so long does it take
        to see that one is gone.
        """
        if self._batches is None:
            return
        from torch.utils.data._utils import signal_handling

        self._batches._worker_pids_set = False
        try:
            # Or the handler that other loaders install would take this for an accident.
            signal_handling._remove_worker_pids(id(self._batches))  # type: ignore[attr-defined]
        except ValueError:  # shut_down, which the thread may be in, has done so already
            pass
        for worker in self._batches._workers:
            worker.kill()
        self._batches._worker_result_queue.put((None, None))  # a batch that nobody asked for


@dataclass(frozen=True)
class _Requested:
    """What a DataLoader's worker process calls: the sampler's request is the index."""

    maker: BatchMaker

    def __getitem__(self, request: Request) -> Made | ShardkitError:
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        worker = f"worker process {info.id if info else 0}"
        try:
            made = _make(self.maker, request, worker)
            if request.batch < (info.num_workers if info else 1):  # its first batch
                _check_it_travels(made, worker)
        except ShardkitError as error:
            return error  # raised by torch it would come as forty lines of traceback
        return made


def _check_it_travels(made: Made, worker: str) -> None:
    """Torch loses, and waits for ever for, what cannot be pickled."""
    for name, value in map_tensors(made.batch, lambda tensor: None).items():
        try:
            ForkingPickler.dumps(value)
        except Exception as error:
            raise UsageError(
                f"field {name!r} cannot be sent from a worker process: {error} ({worker}); return"
                " tensors, or use worker_type='thread'"
            ) from error


def _leave_interrupts(worker: int) -> None:
    """Ctrl-C on a terminal goes to all: the training process ends its workers itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # what the command line raises is for one process


def _unchanged(made: Any) -> Any:
    return made


def _make_in_thread(maker: BatchMaker, request: Request) -> Made:
    number = threading.current_thread().name.rpartition("_")[2]
    return _make(maker, request, f"worker thread {number}")


def _make(maker: BatchMaker, request: Request, worker: str) -> Made:
    try:
        return maker.make(request)
    except ShardkitError as error:
        where = f"batch {request.batch} after position {request.start} of epoch {request.epoch}"
        raise type(error)(f"{error} ({where}, {worker})") from error


def _worker_died(error: Exception) -> Exception:
    """DataLoader's own words for a worker that ended; anything else as it is."""
    text = " ".join(str(error).split()).rstrip(".")
    known = "exited unexpectedly" in text or "is killed by signal" in text
    if not known and not isinstance(error, (ConnectionError, EOFError)):
        return error
    return StorageError(
        f"a worker process ended by itself: {text}. If memory or /dev/shm ran out, use fewer"
        " workers, a smaller prefetch or worker_type='thread'"
    )
