"""The machine and a script's processes, watched from outside while the script runs.

A thread looks at the processes every half second, since these come and go.
What the kernel counts of the whole machine is read at the beginning and at the end alone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shardkit.measure.doctor.evidence import SystemEvidence
from shardkit.system import counters
from shardkit.system.processes import Usage, usage_of
from shardkit.system.resources import allowance, control_groups


@dataclass(frozen=True)
class Snapshot:
    """What the kernel had counted at a moment, of :mod:`shardkit.system.counters`."""

    at: float
    cores: dict[int, counters.CoreTime]
    throttling: dict[Path, counters.Throttling]


class Tally:
    """Seconds on a core of a changing set of processes, no ended one forgotten.

    The kernel adds what an ended process used to the parent that waits for it, with all that it did
    since anybody looked. So an ended process counts by itself only if no ancestor of it lives.
    """

    def __init__(self) -> None:
        self._alive: Mapping[int, Usage] = {}
        self._ended = 0.0

    @property
    def total(self) -> float:
        """By all processes until now."""
        return self._ended + sum(usage.cpu_s for usage in self._alive.values())

    def add(self, seen: Mapping[int, Usage]) -> None:
        """Take one look at all processes that run."""
        for pid, old in self._alive.items():
            is_same = pid in seen and seen[pid].started == old.started
            if not is_same and not self._has_heir(old, seen):
                self._ended += old.cpu_s
        self._alive = seen

    def _has_heir(self, old: Usage, seen: Mapping[int, Usage]) -> bool:
        parent = old.parent
        for _ in self._alive:
            if parent in seen or parent not in self._alive:
                break
            parent = self._alive[parent].parent
        return parent in seen


class Monitor:
    """Watches from ``with`` on, in a daemon thread.

    Args:
        processes: returns the ids of the script's processes. It is called in the thread, and must
            not raise. What the script's first process did after the last look is lost, unless it
            is waited for after the end of ``with``.
        every_s: seconds between two looks, of which one takes 1 to 2 ms with 20 processes.
        root: of the tree that ``/proc`` and ``/sys`` lie in.
    """

    def __init__(
        self, processes: Callable[[], set[int]], every_s: float = 0.5, root: Path = Path("/")
    ) -> None:
        self._processes, self._every_s, self._root = processes, every_s, root
        self._tally = Tally()
        self._groups = list(control_groups(root))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="shardkit-monitor", daemon=True)

    def __enter__(self) -> Monitor:
        self._first = self._snapshot()
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()
        self._last = self._snapshot()

    def result(self) -> SystemEvidence:
        """Return what was seen, after the end of ``with``."""
        seconds = max(self._last.at - self._first.at, 1e-3)
        return SystemEvidence(
            seconds=seconds,
            cores=allowance().cpus,
            cores_busy=cores_busy(self._first, self._last),
            script_cores=self._tally.total / seconds,
            throttled=throttled(self._first, self._last),
        )

    def _watch(self) -> None:
        while not self._stop.wait(self._every_s):
            self._look()

    def _look(self) -> None:
        found = {pid: usage_of(pid, self._root) for pid in self._processes()}
        self._tally.add({pid: usage for pid, usage in found.items() if usage is not None})

    def _snapshot(self) -> Snapshot:
        cores = counters.core_times(self._root)
        if hasattr(os, "sched_getaffinity"):
            mine = os.sched_getaffinity(0)
            cores = {core: times for core, times in cores.items() if core in mine}
        return Snapshot(time.monotonic(), cores, counters.throttling(self._groups))


def cores_busy(first: Snapshot, last: Snapshot) -> float:
    """Return the mean number of cores that were busy between two snapshots."""
    return sum(
        _share(last.cores[core].busy - old.busy, last.cores[core].total - old.total)
        for core, old in first.cores.items()
        if core in last.cores
    )


def throttled(first: Snapshot, last: Snapshot) -> float | None:
    """Return the share of the time that a CPU quota stopped the script, at most, by the group that
    it stopped most; None where no group has a quota to be looked at.

    The kernel counts the periods in which a quota ran out, however late in the period, and the
    seconds that each core stood still, together: the truth is below both.
    """
    shares = [
        min(
            _share(new.throttled - old.throttled, new.periods - old.periods),
            _share(new.seconds - old.seconds, last.at - first.at),
        )
        for group, old in first.throttling.items()
        if (new := last.throttling.get(group)) is not None
    ]
    return max(shares, default=None)


def _share(part: float, whole: float) -> float:
    """From 0 to 1, though a kernel's counters of idle time may run backwards a little."""
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else 0.0
