"""What the kernel counts of the whole machine; only differences of two readings mean anything.

Each takes the root of the tree that ``/proc`` and ``/sys`` lie in. What a kernel does not count is
None, or a key that is not there.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from shardkit.system.kernel_files import count, table, text


class CoreTime(NamedTuple):
    """Of one core since boot, in the kernel's ticks; what a hypervisor gave to others is busy."""

    busy: int
    total: int


def core_times(root: Path) -> dict[int, CoreTime]:
    """Core number -> its times; proc_stat(5)."""
    found = {}
    for line in text(root / "proc/stat").splitlines():
        name, *words = line.split()
        core = count(name.removeprefix("cpu"))
        ticks = [count(word) or 0 for word in words[:8]]  # what follows is in `user` already
        if core is not None and len(ticks) > 4:
            idle = ticks[3] + ticks[4]
            found[core] = CoreTime(sum(ticks) - idle, sum(ticks))
    return found


class Throttling(NamedTuple):
    """Of one control group: periods of its CPU quota, those in which it was used up, and for how
    many seconds together its tasks then stood still, those of each core added."""

    periods: int
    throttled: int
    seconds: float


def throttling(groups: Iterable[Path]) -> dict[Path, Throttling]:
    """Of those groups, of version 2 or 1, that a quota can be set for."""
    found = {}
    for group in groups:
        stat = table(group / "cpu.stat")
        if "nr_throttled" in stat:
            seconds = stat.get("throttled_usec", 0) / 1e6 + stat.get("throttled_time", 0) / 1e9
            found[group] = Throttling(stat.get("nr_periods", 0), stat["nr_throttled"], seconds)
    return found
