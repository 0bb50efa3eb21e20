"""Deaths at a chosen moment, in a process of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

KILLED = 9
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir"}


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
