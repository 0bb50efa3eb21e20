"""What a campaign asks of the system: descendants, memory, what was left in /dev/shm."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path


def descendants(pid: int) -> Iterator[int]:
    """Children, their children, and so on; none of a process that has just ended."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        lists = [Path(f"/proc/{pid}/task/{task}/children").read_text() for task in tasks]
    except OSError:
        return
    for child in map(int, " ".join(lists).split()):
        yield child
        yield from descendants(child)


def kill_all(pid: int) -> None:
    """A process and its descendants. Stopped first, so that none starts another meanwhile."""
    for how in (signal.SIGSTOP, signal.SIGKILL):
        for each in [pid, *descendants(pid)]:
            try:
                os.kill(each, how)
            except ProcessLookupError:
                pass


def ended(pids: list[int], within_s: float) -> list[int]:
    """Those that are still there after so long."""
    end = time.monotonic() + within_s
    while (left := [pid for pid in pids if _runs(pid)]) and time.monotonic() < end:
        time.sleep(0.01)
    return left


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def status(name: str) -> int:
    """A line of /proc/self/status that is a size, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    raise LookupError(name)


def forget_peak() -> int:
    """Begin a new peak of memory; bytes resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def limit_address_space(more: int) -> None:
    """This process and those it starts may map so many bytes more than it does now."""
    most = status("VmSize") + more
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def shared_memory() -> set[str]:
    """Names in /dev/shm that are this process's or a descendant's."""
    own = {str(os.getpid()), *map(str, descendants(os.getpid()))}
    try:
        return {name for name in os.listdir("/dev/shm") if own & set(name.split("_"))}
    except FileNotFoundError:
        return set()
