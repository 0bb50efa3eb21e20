"""Deaths at a chosen moment, in a process of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess

CHANGES = {"os.link", "os.rename", "os.remove", "os.rmdir", "os.mkdir"}


class Killed(BaseException):
    """Stands for a kill -9: from then on no name of a file is changed, whatever is caught."""


_left: list[int] = []
"""How many changes are still to be made, while one dies."""


def _count(event: str, args: object) -> None:
    if _left and event in CHANGES:
        _left[0] -= 1
        if _left[0] < 0:
            raise Killed


sys.addaudithook(_count)  # there is no way to take it off


def dies_before_change(number: int, work: Callable[[], object]) -> bool:
    """Run ``work`` as if its process were gone before it changes names for the nth time. It is done
    in this process, which has much to copy: a fork costs more than most of what is killed."""
    _left[:] = [number]
    try:
        work()
    except Killed:
        return True
    finally:
        _left.clear()
    return False


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
