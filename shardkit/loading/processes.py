"""Worker processes: each is asked for batches over a socket of its own, and answers in order.

They are started by the thread that asks for batches: forked beside it, they would inherit for ever
whatever lock it held. A worker that ends is noticed at once, in the turn of the batch that it owes.
"""

from __future__ import annotations

import multiprocessing
import signal
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterable
from multiprocessing.connection import wait
from typing import Any

from shardkit.batches.maker import BatchMaker
from shardkit.batches.request import Made, Request
from shardkit.errors import ShardkitError, StorageError, UsageError
from shardkit.loading.channel import receive_answer, send_request, socket_pair
from shardkit.loading.worker_process import READY, Make, SentMaker, is_forked, serve

PATIENCE_S = 0.5
"""How long workers that were told to end may take before they are killed."""


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
        self._is_ready_to_serve = is_forked()
        self._owed: deque[Request] = deque()
        self._socket, theirs = socket_pair()
        try:
            self.process = multiprocessing.Process(
                target=serve,
                args=(theirs, make, SentMaker(maker), number),
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
            send_request(self._socket, request)
        except OSError:  # it has ended, which is said in the turn of what it owes
            pass

    def answer(self) -> Made:
        """Its next batch; waits for it as long as the worker lives."""
        if not self._is_ready_to_serve:
            try:
                is_there = self._is_ready() and self._socket.recv(1) == READY
            except ConnectionError:  # it ended, and had not read what it was asked for
                is_there = False
            if not is_there:
                raise self._not_ready()
            self._is_ready_to_serve = True
        try:
            made = receive_answer(self._socket, self._is_ready)
        except EOFError:
            raise self._death() from None
        self._owed.popleft()
        if isinstance(made, ShardkitError):
            raise made
        made.arrived = time.perf_counter()
        return made  # type: ignore[no-any-return]

    def _is_ready(self) -> bool:
        return self._socket in wait([self._socket, self.process.sentinel])

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

    def _not_ready(self) -> ShardkitError:
        self.process.join(PATIENCE_S)
        if (self.process.exitcode or 0) < 0:
            return self._death()
        method = multiprocessing.get_start_method()
        return UsageError(
            f"worker process {self.number} ended before it was ready, and printed why. With the"
            f" start method {method} each worker imports the main script: it must be a file, not"
            " stdin, and have what makes and runs the loader under"
            " if __name__ == '__main__':"
        )

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
