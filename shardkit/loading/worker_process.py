"""The other end: a worker process, which makes batches until its loader hangs up.

It ends within a second or two when the process that it works for is gone, however that one went.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import socket
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from shardkit.batches.maker import BatchMaker
from shardkit.batches.request import Made, Request
from shardkit.errors import DataError, ShardkitError, UsageError
from shardkit.loading.channel import receive_request, send_answer
from shardkit.memory import buffers

Make = Callable[[BatchMaker, Request, str], Made]
"""``make(maker, request, worker)``, the last in words."""

WATCH_S = 1.0
"""How often a worker looks whether its parent is there."""


READY = b"!"
"""What a worker says first that is not forked: it has imported the main script."""


def is_forked() -> bool:
    """Return True if worker processes are forks, which import nothing."""
    return multiprocessing.get_start_method() == "fork"


class SentMaker:
    """A maker on its way to a process that is spawned; one that is forked has it already."""

    def __init__(self, maker: BatchMaker | None, error: str = "") -> None:
        self.maker = maker
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            data = bytes(ForkingPickler.dumps(self.maker))
        except Exception as error:
            raise UsageError(_cannot_be_given(error)) from error
        return _arrived, (data,)


def _arrived(data: bytes) -> SentMaker:
    """Says in the turn of the first batch what went wrong."""
    try:
        return SentMaker(ForkingPickler.loads(data))
    except Exception as error:  # noqa: BLE001  it is raised in the parent
        return SentMaker(None, _cannot_be_given(error))


def _cannot_be_given(error: Exception) -> str:
    return (
        "worker processes cannot be given this dataset or transform:"
        f" {type(error).__name__}: {' '.join(str(error).split())}; define it at the top of a"
        " module, or use worker_type='thread'"
    )


def serve(channel: socket.socket, make: Make, sent: SentMaker, number: int) -> None:
    """Answer requests until the loader hangs up."""
    _settle_in(number)
    if not is_forked():
        channel.send(READY)
    worker = f"worker process {number}"
    with channel, buffers.keeping():
        while asked := receive_request(channel):
            try:
                if sent.maker is None:
                    raise UsageError(sent.error)
                send_answer(channel, make(sent.maker, asked, worker))
            except ShardkitError as error:
                if not _answer_error(channel, error, f"{asked}, {worker}"):
                    return
            except ConnectionError:  # nobody waits for it any more
                return


def _answer_error(channel: socket.socket, error: ShardkitError, where: str) -> bool:
    """Whether there is anybody to tell."""
    try:
        try:
            send_answer(channel, error)
        except ShardkitError:  # an exception of the user's own, which cannot be pickled
            send_answer(channel, DataError(f"{' '.join(str(error).split())} ({where})"))
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
