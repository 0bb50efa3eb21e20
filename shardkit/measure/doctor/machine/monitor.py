"""The machine and a script's processes, watched from outside while the script runs.

A thread looks at the processes, free memory and GPUs every half second, since these come and go.
What the kernel counts of the whole machine is read at the beginning and at the end alone.

psutil would be one more dependency for little: it tells neither pressure nor throttling nor major
faults, and a look at a process by it takes twice as long (56 us, and 25 us here).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from shardkit.measure.doctor.evidence import GpuEvidence, SystemEvidence
from shardkit.measure.doctor.machine.gpus import Gpus
from shardkit.measure.doctor.machine.tally import Tally, Used
from shardkit.system import counters
from shardkit.system.processes import ticks_since_boot, usage_of
from shardkit.system.resources import SHM, allowance, control_groups, limits_memory, memory_left


@dataclass(frozen=True)
class Snapshot:
    """What the kernel had counted at a moment, of :mod:`shardkit.system.counters`."""

    at: float
    cores: dict[int, counters.CoreTime]
    pressure: dict[str, float]
    throttling: dict[Path, counters.Throttling]
    disks: counters.DiskReads | None


@dataclass
class Extremes:
    """The least and the most that any look saw; None before the first, and where there is none."""

    memory_available: int | None = None
    shm_bytes: int | None = None
    shm_free: int | None = None

    def add(self, memory: int, shm: tuple[int, int] | None) -> None:
        """``shm`` is the used and the free bytes of ``/dev/shm``."""
        self.memory_available = min(memory, self.memory_available or memory)
        if shm is not None:
            used, free = shm
            self.shm_bytes = max(used, self.shm_bytes or 0)
            self.shm_free = free if self.shm_free is None else min(free, self.shm_free)


class Monitor:
    """Watches from ``with`` on, in a daemon thread.

    Args:
        processes: ids of the script's processes, those that have ended too if that is easier. It
            is called in the thread, and must not raise. A process that it leaves out later is
            watched to its end. What the script's first process did after the last look is lost,
            unless it is waited for after the end of ``with``.
        every_s: seconds between two looks, of which one takes 1 to 2 ms with 20 processes.
        root: of the tree that ``/proc`` and ``/sys`` lie in.

    Attributes:
        notes: what could not be seen, and why, a sentence each.
    """

    def __init__(
        self, processes: Callable[[], set[int]], every_s: float = 0.5, root: Path = Path("/")
    ) -> None:
        self._processes = processes
        self._every_s = every_s
        self._root = root
        self._gpus = Gpus()
        self._extremes = Extremes()
        self._tally = Tally(ticks_since_boot())
        self._groups = list(control_groups(root))
        self._memory_groups = [group for group in self._groups if limits_memory(group)]
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="shardkit-monitor", daemon=True)
        self._first = self._snapshot()
        self._last: Snapshot | None = None

    def __enter__(self) -> Monitor:
        self._gpus.open()
        self._first = self._snapshot()
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._look()
        self._last = self._snapshot()
        self._gpus.close()

    @property
    def notes(self) -> tuple[str, ...]:
        return self._gpus.notes

    def result(self) -> SystemEvidence:
        """What was seen until now, or until the end of ``with``."""
        if self._last is None:
            self._look()
        with self._lock:
            tally = self._tally
            return evidence(
                self._first,
                self._last or self._snapshot(),
                tally.total,
                tally.sees_reads,
                self._extremes,
                allowance().cpus,
                self._gpus.result(),
            )

    def _watch(self) -> None:
        while not self._stop.wait(self._every_s):
            self._look()

    def _look(self) -> None:
        with self._lock:
            pids = self._processes()
            order = self._tally.youngest_first(pids)
            seen = {pid: use for pid in order if (use := usage_of(pid, self._root)) is not None}
            self._tally.add(seen)
            self._extremes.add(memory_left(self._root, self._memory_groups), shm_use(self._root))
            self._gpus.look(pids)

    def _snapshot(self) -> Snapshot:
        mine, cores = _own_cores(), counters.core_times(self._root)
        return Snapshot(
            time.monotonic(),
            {core: times for core, times in cores.items() if mine is None or core in mine},
            counters.pressure(self._root),
            counters.throttling(self._groups),
            counters.disk_reads(self._root),
        )


def _own_cores() -> set[int] | None:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def shm_use(root: Path) -> tuple[int, int] | None:
    """Used and free bytes of ``/dev/shm``; None where there is none."""
    try:
        found = os.statvfs(root / SHM)
    except OSError:
        return None
    return (found.f_blocks - found.f_bfree) * found.f_frsize, found.f_bavail * found.f_frsize


# --- from two readings to evidence --------------------------------------------------------


def evidence(
    first: Snapshot,
    last: Snapshot,
    used: Used,
    sees_reads: bool,
    extremes: Extremes,
    cores: int,
    gpus: tuple[GpuEvidence, ...],
) -> SystemEvidence:
    """The means between two snapshots.

    Args:
        used: by the script's processes. sees_reads: whether the kernel says what they read; where
            it does not, what the devices read for everybody stands in its place.
        cores: that the script may use.
    """
    seconds = max(last.at - first.at, 1e-3)
    per_core = tuple(
        _share(last.cores[core].busy - old.busy, last.cores[core].total - old.total)
        for core, old in sorted(first.cores.items())
        if core in last.cores
    )
    requests, num_bytes = _disk_growth(first, last)
    return SystemEvidence(
        seconds=seconds,
        cores=cores,
        cores_busy=sum(per_core),
        script_cores=used.cpu_s / seconds,
        per_core=per_core,
        throttled=throttled(first, last, seconds),
        pressure={
            name: _share(last.pressure[name] - old, seconds)
            for name, old in first.pressure.items()
            if name in last.pressure
        },
        disk_read_bytes_per_s=(used.read_bytes if sees_reads else num_bytes) / seconds,
        disk_reads_per_s=requests / seconds,
        major_faults_per_s=used.major_faults / seconds,
        memory_available=extremes.memory_available or 0,
        shm_bytes=extremes.shm_bytes,
        shm_free=extremes.shm_free,
        gpus=gpus,
    )


def throttled(first: Snapshot, last: Snapshot, seconds: float) -> float | None:
    """At most for what share of the time a CPU quota stopped the script, by the group that it
    stopped most; None where no group has a quota to be looked at.

    The kernel counts the periods in which a quota ran out, however late in the period, and the
    seconds that each core stood still, together: the truth is below both.
    """
    shares = [
        min(
            _share(new.throttled - old.throttled, new.periods - old.periods),
            _share(new.seconds - old.seconds, seconds),
        )
        for group, old in first.throttling.items()
        if (new := last.throttling.get(group)) is not None
    ]
    return max(shares, default=None)


def _share(part: float, whole: float) -> float:
    """From 0 to 1, though a kernel's counters of idle time may run backwards a little."""
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else 0.0


def _disk_growth(first: Snapshot, last: Snapshot) -> tuple[int, int]:
    if first.disks is None or last.disks is None:
        return 0, 0
    old, new = first.disks, last.disks
    return max(new.requests - old.requests, 0), max(new.num_bytes - old.num_bytes, 0)
