"""What this process may use of the machine: cores, memory, shared memory, open files.

A container sees all cores of its host, and may run on a few: what counts is the least of the
scheduler's affinity and the CPU quota of every control group (version 1 or 2) that it is in.
"""

from __future__ import annotations

import math
import os
import platform
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shardkit.system.kernel_files import number, table, text

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
        """Cores that can be busy at once; a quota of 2.5 keeps 3 busy, most of the time."""
        return max(1, min(self.cores, math.ceil(self.cpu_quota or self.cores)))

    def share(self, ranks: int) -> int:
        """How many of those cores each of so many processes may use."""
        return max(1, self.cpus // ranks)


def allowance() -> Allowance:
    """Look at this process and its machine; takes less than 1 ms."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return read_allowance(
        Path("/"), num_cores(), None if soft == resource.RLIM_INFINITY else soft, shm_free()
    )


def num_cores() -> int:
    """Cores that the scheduler may put this process on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def shm_free() -> int | None:
    """Free bytes of ``/dev/shm``; None where there is none."""
    try:
        found = os.statvfs("/" / SHM)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def read_allowance(
    root: Path, cores: int, most_files: int | None, shm_bytes: int | None
) -> Allowance:
    """What the ``/proc`` and ``/sys`` below ``root`` say; what is missing there sets no limit."""
    groups = list(control_groups(root))
    open_now = _count(root / "proc/self/fd")
    return Allowance(
        cpu=cpu_model(root),
        cores=cores,
        cpu_quota=min(filter(None, map(_quota, groups)), default=None),
        memory_bytes=memory_left(root, groups),
        shm_bytes=shm_bytes,
        open_files=None if most_files is None else max(0, most_files - open_now),
    )


def cpu_model(root: Path = Path("/")) -> str:
    """As Linux names it; elsewhere the architecture."""
    for line in text(root / "proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


# --- control groups -----------------------------------------------------------------------


def control_groups(root: Path) -> Iterator[Path]:
    """Folders of all control groups that this process is in, and of those around them.

    A container's own file system shows a part of the tree: the mount says which.
    """
    mounts = list(_mounts(root))
    for line in text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2) if line.count(":") > 1 else ("", "none", "/")
        for options, top, mounted_at in mounts:
            if options.issuperset(controllers.split(",")):
                folder = root / mounted_at.lstrip("/")
                below = Path(os.path.relpath(path or "/", top or "/"))
                inside = folder if ".." in below.parts else folder / below
                yield from (up for up in [inside, *inside.parents] if up.is_relative_to(folder))


def _mounts(root: Path) -> Iterator[tuple[set[str], str, str]]:
    """Options with the controllers ("" is version 2, as in ``/proc/self/cgroup``), the part of
    the tree that is mounted, and where: see proc_pid_mountinfo(5)."""
    for line in text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, *rest) = before.split(" "), after.split(" ")
        if kind in ("cgroup", "cgroup2") and len(fields) > 4 and rest:
            yield {""} if kind == "cgroup2" else set(rest[-1].split(",")), fields[3], fields[4]


def _quota(group: Path) -> float | None:
    """The quota of a group of version 2, else of version 1."""
    most, _, period = text(group / "cpu.max").partition(" ")
    if not most:
        most, period = text(group / "cpu.cfs_quota_us"), text(group / "cpu.cfs_period_us")
    quota = number(most)
    return quota / (number(period) or 100_000) if quota else None


def memory_left(root: Path, groups: list[Path]) -> int:
    """Free on the machine, or less if a group may not have it all. A group's file cache is free:
    the kernel gives it up."""
    free = [_left(group) for group in groups]
    available = table(root / "proc/meminfo").get("MemAvailable:")
    if available is not None:
        free.append(1024 * available)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([size for size in free if size is not None], default=total)


def limits_memory(group: Path) -> bool:
    """Whether a control group limits memory now."""
    return _left(group) is not None


def _left(group: Path) -> int | None:
    for limit, used, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most = number(text(group / limit))
        if most:
            taken = (number(text(group / used)) or 0) - table(group / "memory.stat").get(cache, 0)
            return max(0, most - max(0, taken))
    return None


def _count(folder: Path) -> int:
    try:
        return len(os.listdir(folder))
    except OSError:
        return 0
