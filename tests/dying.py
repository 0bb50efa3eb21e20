"""Deaths at a chosen moment, in a process of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess

KILLED = 9
CHANGES = {"os.link", "os.rename", "os.remove", "os.rmdir", "os.mkdir"}


def dies_before_change(number: int, work: Callable[[], object]) -> bool:
    """Run ``work`` in a process that is gone before it changes names for the nth time."""
    pid = os.fork()
    if pid == 0:
        left = number

        def count(event: str, args: object) -> None:
            nonlocal left
            if event in CHANGES:
                left -= 1
                if left < 0:
                    os._exit(KILLED)

        sys.addaudithook(count)
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == KILLED


def forked(work: Callable[[], object]) -> BaseProcess:
    """A process that does this. It imports nothing anew, and dies as any other."""
    process = get_context("fork").Process(target=work)
    process.start()
    return process


def end_of(process: BaseProcess) -> int:
    """The exit status that it ends with, or minus the signal; nothing of it is left."""
    process.join()
    status = process.exitcode
    process.close()
    assert status is not None
    return status
