"""What this process may use of the machine, and what the kernel counts that it has used.

A container sees all cores of its host, and may run on a few: what counts is the least of the
scheduler's affinity and the CPU quota of every control group (version 1 or 2) that it is in.

``root`` is that of the tree that ``/proc`` and ``/sys`` lie in. What is not there, or is nonsense,
sets no limit. Of what is counted, only differences of two readings mean anything.
"""

from __future__ import annotations

import math
import os
import platform
import resource
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from shardkit.system.file_systems import parse_mounts

SHM = Path("dev/shm")


@dataclass(frozen=True)
class Allowance:
    """What :func:`allowance` found.

    Attributes:
        cpu: the processor's model. cores: that the scheduler may put this process on.
        cpu_quota: seconds of processor a second, by control groups; None: no limit.
        memory_bytes: that can still be taken. shm_bytes: free in ``/dev/shm``, which worker
            processes send batches through; None: there is none. open_files: that may still be
            opened; None: no limit.
    """

    cpu: str
    cores: int
    cpu_quota: float | None
    memory_bytes: int
    shm_bytes: int | None
    open_files: int | None

    @property
    def cpus(self) -> int:
        """Return how many cores can be busy at once. A quota of 2.5 keeps 3 busy, most of the
        time."""
        return max(1, min(self.cores, math.ceil(self.cpu_quota or self.cores)))

    def share(self, ranks: int) -> int:
        """Return how many of those cores each of so many processes may use."""
        return max(1, self.cpus // ranks)


def allowance() -> Allowance:
    """Look at this process and its machine; takes less than 1 ms."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return read_allowance(
        Path("/"), num_cores(), None if soft == resource.RLIM_INFINITY else soft, shm_free()
    )


def num_cores() -> int:
    """Return the number of cores that the scheduler may put this process on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def shm_free() -> int | None:
    """Return the free bytes of ``/dev/shm``; None if there is none."""
    try:
        found = os.statvfs("/" / SHM)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def read_allowance(
    root: Path, cores: int, most_files: int | None, shm_bytes: int | None
) -> Allowance:
    """Return what the ``/proc`` and ``/sys`` below ``root`` say."""
    groups = list(control_groups(root))
    try:
        open_now = len(os.listdir(root / "proc/self/fd"))
    except OSError:
        open_now = 0
    return Allowance(
        cpu=cpu_model(root),
        cores=cores,
        cpu_quota=min(filter(None, map(_quota, groups)), default=None),
        memory_bytes=memory_left(root, groups),
        shm_bytes=shm_bytes,
        open_files=None if most_files is None else max(0, most_files - open_now),
    )


def cpu_model(root: Path = Path("/")) -> str:
    """Return the name that Linux has for it; elsewhere the architecture."""
    for line in _text(root / "proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


# --- control groups -----------------------------------------------------------------------


def control_groups(root: Path) -> Iterator[Path]:
    """Yield the folders of all control groups that this process is in, and of those around them.

    A container's own file system shows a part of the tree: the mount says which.
    """
    mounts = [
        ({""} if mount.kind == "cgroup2" else {*mount.options.split(",")}, mount)
        for mount in parse_mounts(_text(root / "proc/self/mountinfo"))
        if mount.kind in ("cgroup", "cgroup2")
    ]
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2) if line.count(":") > 1 else ("", "none", "/")
        for options, mount in mounts:
            if options.issuperset(controllers.split(",")):
                folder = root / mount.point.lstrip("/")
                below = Path(os.path.relpath(path or "/", mount.top or "/"))
                inside = folder if ".." in below.parts else folder / below
                yield from (up for up in [inside, *inside.parents] if up.is_relative_to(folder))


def _quota(group: Path) -> float | None:
    """Return the quota of a group of version 2, else of version 1."""
    most, _, period = _text(group / "cpu.max").partition(" ")
    if not most:
        most, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
    quota = _number(most)
    return quota / (_number(period) or 100_000) if quota else None


def memory_left(root: Path, groups: list[Path]) -> int:
    """Return what is free on the machine, or less if a group may not have it all. A group's file
    cache is free: the kernel gives it up."""
    free = [_left(group) for group in groups]
    available = _table(root / "proc/meminfo").get("MemAvailable:")
    if available is not None:
        free.append(1024 * available)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([size for size in free if size is not None], default=total)


def _left(group: Path) -> int | None:
    for limit, used, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most = _number(_text(group / limit))
        if most:
            taken = (_number(_text(group / used)) or 0) - _table(group / "memory.stat").get(
                cache, 0
            )
            return max(0, most - max(0, taken))
    return None


# --- what the kernel counts ---------------------------------------------------------------


class CoreTime(NamedTuple):
    """Of one core since boot, in the kernel's ticks; what a hypervisor gave to others is busy."""

    busy: int
    total: int


def core_times(root: Path) -> dict[int, CoreTime]:
    """Return core number -> its times; proc_stat(5)."""
    found = {}
    for line in _text(root / "proc/stat").splitlines():
        name, *words = line.split()
        core = _integer(name.removeprefix("cpu"))
        ticks = [_integer(word) or 0 for word in words[:8]]  # what follows is in `user` already
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
    """Return the throttling of those groups, of version 2 or 1, that a quota can be set for."""
    found = {}
    for group in groups:
        stat = _table(group / "cpu.stat")
        if "nr_throttled" in stat:
            seconds = stat.get("throttled_usec", 0) / 1e6 + stat.get("throttled_time", 0) / 1e9
            found[group] = Throttling(stat.get("nr_periods", 0), stat["nr_throttled"], seconds)
    return found


TICKS_PER_S = os.sysconf("SC_CLK_TCK")
"""Of the times in ``/proc/PID/stat``: 100 on nearly every machine."""


@dataclass(frozen=True)
class Usage:
    """One look at a process.

    Attributes:
        started: ticks after boot, which tells it from a later one with its id.
        cpu_s: on a core, with children that have ended and were waited for.
    """

    started: int
    cpu_s: float


def usage_of(pid: int, root: Path = Path("/")) -> Usage | None:
    """Look at a process; None where there is none of that id. proc_pid_stat(5).

    It takes 25 us; psutil 7.2 takes twice that.
    """
    try:
        # A program may have any name, with spaces and brackets in it.
        words = _read(f"{root}/proc/{pid}/stat").rpartition(")")[2].split()
        numbers = [int(word) for word in words[1:20]]
        return Usage(numbers[18], sum(numbers[10:14]) / TICKS_PER_S)
    except (OSError, ValueError, IndexError):
        return None


def _read(path: str) -> str:
    """Read a file, at a fifth of what ``Path.read_text`` costs: there are many processes."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096).decode(errors="replace")
    finally:
        os.close(fd)


# --- small text files of the kernel -------------------------------------------------------


def _text(path: Path) -> str:
    """Return the text without spaces around it; "" if the file cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):  # a name with a zero in it, from a line of nonsense
        return ""


def _number(words: str) -> int | None:
    """Return a positive number; None for ``max``, -1 and nothing."""
    return _integer(words.strip()) or None


def _integer(words: str) -> int | None:
    """Return a number from 0 on; None for anything else."""
    is_number = words.isascii() and words.isdigit() and len(words) < 20
    return int(words) if is_number else None


def _table(path: Path) -> dict[str, int]:
    """Return lines of a word and a number."""
    lines = (line.split() for line in _text(path).splitlines())
    return {some[0]: _number(some[1]) or 0 for some in lines if len(some) > 1}
