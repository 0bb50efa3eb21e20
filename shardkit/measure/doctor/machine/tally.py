"""What a changing set of processes uses together: no ended one forgotten, none counted twice.

The kernel adds what an ended process used to the parent that waits for it, with all that it did
since anybody looked. Where that is seen, the parent's figure stands for both; where nobody waited,
or the parent has ended, too, what was last seen of the process itself is kept. A child that ends
within a look, which takes a millisecond, between its turn and its parent's, counts twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from shardkit.system.processes import Usage

_SLACK_S = 0.02
"""For each ended process: its times are cut down to whole ticks of 10 ms, user and system apart."""


class Used(NamedTuple):
    """Seconds on a core, bytes fetched from devices, faults that had to wait for a device."""

    cpu_s: float = 0.0
    read_bytes: int = 0
    major_faults: int = 0


@dataclass
class _Process:
    """One that runs: as last seen, and what of that is from before the tally began."""

    last: Usage
    before: Used

    @property
    def gain(self) -> Used:
        return _plus(_used(self.last), self.before, -1)


class Tally:
    """Args:
    since: ticks after boot; what older processes used before they were first seen does not count.

    Attributes:
        sees_reads: whether the bytes of any process could be seen.
    """

    def __init__(self, since: int) -> None:
        self.sees_reads = False
        self._since = since
        self._alive: dict[int, _Process] = {}
        self._ended = Used()

    @property
    def total(self) -> Used:
        """By all processes until now."""
        total = self._ended
        for process in self._alive.values():
            total = _plus(total, process.gain)
        return total

    def youngest_first(self, pids: set[int]) -> list[int]:
        """These processes and those known to run, in the order in which to look at them: a parent
        is looked at after its children, so that it has what an ended one used."""
        new = pids - self._alive.keys()
        known = sorted(self._alive, key=lambda pid: -self._alive[pid].last.started)
        return [*sorted(new), *known]

    def add(self, seen: Mapping[int, Usage]) -> None:
        """One look at all processes that run, taken in the order of :meth:`youngest_first`."""
        gone = {p: old for p, old in self._alive.items() if not _is_same(old.last, seen.get(p))}
        for pid in gone:
            del self._alive[pid]
        self._settle(gone, seen)
        for pid, usage in seen.items():
            self.sees_reads |= usage.read_bytes is not None
            known = self._alive.get(pid)
            if known is None:
                is_older = usage.started < self._since
                self._alive[pid] = _Process(usage, _used(usage) if is_older else Used())
            else:
                known.last = usage

    def _settle(self, gone: Mapping[int, _Process], seen: Mapping[int, Usage]) -> None:
        """Give what ended processes used to the ancestor that has it now, or keep it."""
        heirs: dict[int, list[int]] = {}
        kept = set(gone)
        for pid in gone:
            heir = _living_ancestor(pid, gone)
            if heir in self._alive:
                heirs.setdefault(heir, []).append(pid)
        for heir, below in heirs.items():
            parent = self._alive[heir]
            grown = seen[heir].reaped_cpu_s - parent.last.reaped_cpu_s
            children = [pid for pid in below if gone[pid].last.parent == heir]
            # A grandchild's time is its parent's only if that one waited for it.
            for heritage in (below, children):
                if grown >= sum(gone[pid].last.cpu_s - _SLACK_S for pid in heritage):
                    kept.difference_update(heritage)
                    for pid in heritage:
                        parent.before = _plus(parent.before, gone[pid].before)
                    break
        for pid in kept:
            self._ended = _plus(self._ended, gone[pid].gain)


def _is_same(old: Usage, new: Usage | None) -> bool:
    return new is not None and new.started == old.started


def _living_ancestor(pid: int, gone: Mapping[int, _Process]) -> int:
    for _ in gone:
        if pid not in gone:
            break
        pid = gone[pid].last.parent
    return pid


def _used(usage: Usage) -> Used:
    return Used(usage.cpu_s, usage.read_bytes or 0, usage.major_faults)


def _plus(one: Used, other: Used, sign: int = 1) -> Used:
    return Used(
        one.cpu_s + sign * other.cpu_s,
        one.read_bytes + sign * other.read_bytes,
        one.major_faults + sign * other.major_faults,
    )
