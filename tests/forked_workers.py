"""Packing workers that are forks of this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from shardkit.packing import local, worker


class _Fork:
    """What the pool of workers uses of ``Popen([..., "-m", module, parent])``."""

    def __init__(self, args: Sequence[str]) -> None:
        tasks_fd, stdin_fd = os.pipe()
        stdout_fd, answers_fd = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            status = 1
            try:
                os.dup2(tasks_fd, 0)
                os.dup2(answers_fd, 1)
                for fd in (tasks_fd, stdin_fd, stdout_fd, answers_fd):
                    os.close(fd)
                sys.stdin, sys.argv = os.fdopen(0), [*args[-2:]]
                worker.main()
                status = 0
            finally:
                if status:
                    traceback.print_exc()
                os._exit(status)
        os.close(tasks_fd)
        os.close(answers_fd)
        self.stdin = os.fdopen(stdin_fd, "wb", buffering=0)
        self.stdout = os.fdopen(stdout_fd, "rb", buffering=0)
        self._code: int | None = None

    def kill(self) -> None:
        if self._code is None:
            os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> int:
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self._code


def _start(args: Sequence[str], **options: Any) -> _Fork:
    return _Fork(args)


@contextmanager
def forked_workers() -> Iterator[None]:
    """Packs in here fork their workers, which costs a fifth of starting Python for each.

    It is for tests of what workers make of the jobs that they are sent, in many kinds and formats.
    """
    with pytest.MonkeyPatch.context() as patch:
        with_forks = SimpleNamespace(Popen=_start, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
        patch.setattr(local, "subprocess", with_forks)
        yield


def workers_for(to: str) -> AbstractContextManager[None]:
    """Of tests that pack into every format: workers are programs for one of them, so that some of
    each kind of input is read where nothing was imported before; for the others, they are forks."""
    return nullcontext() if to == "npy" else forked_workers()
