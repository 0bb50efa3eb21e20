"""Worker processes: each is asked for batches over a socket of its own, and answers in order.

They are started by the thread that asks for batches: forked beside it, they would inherit for ever
whatever lock it held. A worker that ends is noticed at once, in the turn of the batch that it owes;
one whose parent is gone, however it went, ends within a second or two.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import socket
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from shardkit.batches.maker import BatchMaker
from shardkit.batches.parcels import INLINE_BYTES, close_all, pack, unpack
from shardkit.batches.request import Made, Request
from shardkit.errors import DataError, ShardkitError, StorageError, UsageError
from shardkit.memory import buffers

Make = Callable[[BatchMaker, Request, str], Made]

PATIENCE_S = 0.5
"""How long workers that should end may take to, before they are killed."""

WATCH_S = 1.0
"""How often a worker looks whether its parent is there."""

_REQUEST = struct.Struct("<3q")

_WHOLE, _MORE = b".", b"+"
"""First byte of a message: a whole answer, or descriptors of one that follows."""

_MOST_FDS = 200
"""A message carries at most 253 (SCM_MAX_FD)."""


class Processes(Generator[Made, None, None]):
    """The batches of the requests, in their order. Workers start here, at once.

    Args:
        make: ``make(maker, request, worker)``, called there. ahead: batches that each worker makes
            before they are asked for.

    Raises:
        UsageError: the maker cannot be pickled, where processes are spawned. StorageError: no
            process can be started. And in a batch's turn what making it raised, or how its worker
            ended.
    """

    def __init__(
        self, make: Make, maker: BatchMaker, requests: Iterable[Request], workers: int, ahead: int
    ) -> None:
        self._requests = iter(requests)
        self._asked = self._given = 0
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
        self._end = weakref.finalize(self, _end_all, self._workers)
        try:
            for number in range(workers):
                self._workers.append(_Worker(make, maker, number))
            for _ in range(workers * ahead):
                self._ask()
        except BaseException as error:
            self.shut_down()
            if isinstance(error, Exception) and not isinstance(error, ShardkitError):
                raise _not_started(error) from error
            raise

    def send(self, value: None = None) -> Made:
        if self._given == self._asked or not self._end.alive:
            self.shut_down()
            raise StopIteration
        try:
            made = self._workers[self._given % len(self._workers)].answer()
            self._given += 1
            self._ask()
        except BaseException:
            was_told_to = not self._end.alive
            self.shut_down()
            if was_told_to:
                raise StopIteration from None
            raise
        return made

    def throw(self, *error: Any) -> Made:
        self.shut_down()
        return super().throw(*error)

    def close(self) -> None:
        self.shut_down()

    def shut_down(self) -> None:
        """End the workers: those that are idle by themselves, the others after some patience."""
        self._end.detach()
        with self._lock:
            _end_all(self._workers)

    def kill(self) -> None:
        """End the workers whatever they do; for another thread than the one that waits for them,
        whose iteration then ends."""
        self._end.detach()
        with self._lock:
            for worker in self._workers:
                worker.process.kill()

    def _ask(self) -> None:
        request = next(self._requests, None)
        if request is not None:
            self._workers[self._asked % len(self._workers)].ask(request)
            self._asked += 1


class _Worker:
    """One worker process, seen from its parent."""

    def __init__(self, make: Make, maker: BatchMaker, number: int) -> None:
        self.number = number
        self._owed: deque[Request] = deque()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.process = multiprocessing.Process(
                target=_serve,
                args=(theirs, make, _Given(maker), number),
                name=f"shardkit-worker-{number}",
                daemon=True,
            )
            self.process.start()
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()

    def ask(self, request: Request) -> None:
        self._owed.append(request)
        try:
            self._socket.send(_REQUEST.pack(*request))
        except OSError:  # it has ended, which is said in the turn of what it owes
            pass

    def answer(self) -> Made:
        """Its next batch; waits for it as long as the worker lives."""
        fds: list[int] = []
        while True:
            ready = wait([self._socket, self.process.sentinel])
            if self._socket not in ready:
                close_all(fds)
                raise self._death()
            message, more, flags, _ = self._received()
            fds += more
            if not message or flags & socket.MSG_CTRUNC:
                close_all(fds)
                raise _too_many_files() if message else self._death()
            if message[:1] == _WHOLE:
                self._owed.popleft()
                made = unpack(message[1:], fds)
                if isinstance(made, ShardkitError):
                    raise made
                return made  # type: ignore[no-any-return]

    def _received(self) -> tuple[bytes, list[int], int, Any]:
        try:
            return socket.recv_fds(self._socket, INLINE_BYTES + 1, _MOST_FDS)
        except ConnectionResetError:
            return b"", [], 0, None

    def hang_up(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other end is gone
            pass

    def end(self, deadline: float) -> None:
        self.process.join(max(0.0, deadline - time.monotonic()))
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.process.close()
        self._socket.close()

    def _death(self) -> StorageError:
        self.process.join(PATIENCE_S)
        code = self.process.exitcode
        owed = f" while it made {self._owed[0]}" if self._owed else ""
        return StorageError(
            f"a worker process ended by itself: worker process {self.number} {_ending(code)}{owed}"
            f"{_advice(code)}"
        )


def _end_all(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.hang_up()
    deadline = time.monotonic() + PATIENCE_S
    while workers:
        workers.pop().end(deadline)


def _ending(code: int | None) -> str:
    if code is None:
        return "closed its socket"
    if code >= 0:
        return f"ended with exit status {code}"
    known = {int(each): f" ({each.name})" for each in signal.Signals}
    return f"was killed by signal {-code}{known.get(-code, '')}"


def _advice(code: int | None) -> str:
    if code == -signal.SIGKILL:  # how Linux ends a process when memory runs out
        return ". If memory ran out, use fewer workers, a smaller prefetch or worker_type='thread'"
    if code is not None and code < 0:
        return ". The transform, or a library that it calls, crashed: workers=0 shows where"
    return ". The transform, or a library that it calls, ended it; what it printed is above"


def _not_started(error: Exception) -> ShardkitError:
    text = " ".join(str(error).split())
    if isinstance(error, OSError):
        return StorageError(f"worker processes cannot be started: {text}; use fewer workers")
    return UsageError(f"worker processes cannot be started: {text}; use worker_type='thread'")


def _too_many_files() -> StorageError:
    return StorageError(
        "a batch cannot pass from a worker process: too many files are open here; raise the limit"
        " (`ulimit -n`), keep fewer batches, or use worker_type='thread'"
    )


# --- in the worker ------------------------------------------------------------------------


class _Given:
    """A maker on its way to a process that is spawned; one that is forked has it already."""

    def __init__(self, maker: BatchMaker | None, error: str = "") -> None:
        self.maker = maker
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            data = bytes(ForkingPickler.dumps(self.maker))
        except Exception as error:
            raise UsageError(_cannot_be_given(error)) from error
        return _taken, (data,)


def _taken(data: bytes) -> _Given:
    """Says in the turn of the first batch what went wrong."""
    try:
        return _Given(ForkingPickler.loads(data))
    except Exception as error:  # noqa: BLE001  it is raised in the parent
        return _Given(None, _cannot_be_given(error))


def _cannot_be_given(error: Exception) -> str:
    return (
        "worker processes cannot be given this dataset or transform:"
        f" {type(error).__name__}: {' '.join(str(error).split())}; define it at the top of a"
        " module, or use worker_type='thread'"
    )


def _serve(channel: socket.socket, make: Make, given: _Given, number: int) -> None:
    """Answer requests until the parent hangs up."""
    _settle_in(number)
    worker = f"worker process {number}"
    with channel, buffers.keeping():
        while asked := _request(channel):
            try:
                if given.maker is None:
                    raise UsageError(given.error)
                _answer(channel, make(given.maker, asked, worker))
            except ShardkitError as error:
                if not _answer_error(channel, error, f"{asked}, {worker}"):
                    return
            except ConnectionError:  # nobody waits for it any more
                return


def _request(channel: socket.socket) -> Request | None:
    try:
        data = channel.recv(_REQUEST.size)
    except ConnectionError:
        return None
    return Request(*_REQUEST.unpack(data)) if data else None


def _answer(channel: socket.socket, value: Any) -> None:
    data, fds = pack(value)
    try:
        _send(channel, data, fds)
    except ConnectionError:
        raise
    except OSError as error:
        text = f"a batch cannot pass from a worker process: {error}; use worker_type='thread'"
        raise StorageError(text) from error
    finally:
        close_all(fds)


def _send(channel: socket.socket, data: bytes, fds: list[int]) -> None:
    rest = fds
    while len(rest) > _MOST_FDS:
        socket.send_fds(channel, [_MORE], rest[:_MOST_FDS])
        rest = rest[_MOST_FDS:]
    socket.send_fds(channel, [_WHOLE, data], rest)


def _answer_error(channel: socket.socket, error: ShardkitError, where: str) -> bool:
    """Whether there is anybody to tell."""
    try:
        try:
            _answer(channel, error)
        except ShardkitError:  # an exception of the user's own, which cannot be pickled
            _answer(channel, DataError(f"{' '.join(str(error).split())} ({where})"))
    except ConnectionError:
        return False
    return True


def _settle_in(number: int) -> None:
    import torch

    # Ctrl-C on a terminal goes to all: the training process ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # what the command line raises is for one process
    torch.set_num_threads(1)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(number)  # forked, all would draw the same
    threading.Thread(target=_watch, name="shardkit-watch", daemon=True).start()


def _watch() -> None:
    parent = multiprocessing.parent_process()
    # A server forks for us under "forkserver", but that one ends with its parent, too. Pipes that
    # were inherited by others may stay open: hence both.
    is_child = multiprocessing.get_start_method(allow_none=True) != "forkserver"
    while parent is not None and parent.is_alive():
        parent.join(WATCH_S)
        if is_child and os.getppid() != parent.pid:
            break
    os._exit(1)
