"""What the kernel counts of the whole machine; only differences of two readings mean anything.

Each takes the root of the tree that ``/proc`` and ``/sys`` lie in. What a kernel does not count is
None, or a key that is not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from shardkit.system.disk_reads import SECTOR_BYTES
from shardkit.system.kernel_files import count, table, text

_SOME = re.compile(r"^some .*\btotal=(\d+)", re.MULTILINE)


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


def pressure(root: Path) -> dict[str, float]:
    """``cpu``, ``memory``, ``io`` -> seconds in which some task of the machine waited for it.

    Kernels before 4.20 have none, and some distributions start theirs without.
    """
    found = {}
    for name in ("cpu", "memory", "io"):
        match = _SOME.search(text(root / "proc/pressure" / name))
        if match is not None:
            found[name] = int(match[1]) / 1e6
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


class DiskReads(NamedTuple):
    """Of all real devices: requests that were answered, and their bytes."""

    requests: int
    num_bytes: int


def disk_reads(root: Path) -> DiskReads | None:
    """Partitions count with their disk, and what is made of other devices (device mapper, RAID) or
    of memory with those; Documentation/admin-guide/iostats.rst."""
    lines = [line.split() for line in text(root / "proc/diskstats").splitlines()]
    real = [words for words in lines if len(words) > 5 and _is_real(root, words[2])]
    if not lines:
        return None
    requests = sum(count(words[3]) or 0 for words in real)
    return DiskReads(requests, SECTOR_BYTES * sum(count(words[5]) or 0 for words in real))


def _is_real(root: Path, name: str) -> bool:
    return (root / "sys/block" / name.replace("/", "!") / "device").exists()
