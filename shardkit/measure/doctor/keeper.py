"""Ends a script, with all that it started, once stdin closes; then removes a folder.

    keeper.py NAME=VALUE FOLDER SECONDS

A program of its own, so that it outlives whoever holds the other end, however that one ends: by
``kill -9``, too. Processes of the script are known by a variable of their environment: children
inherit it, in whatever session or process group they are. On stdin comes the script's own group,
for processes that wrote over their environment, as ``setproctitle`` does. It is run by its path,
and imports nothing of ours: it starts in 20 ms.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

POLL_S = 0.05


def main() -> None:
    mark, folder, patience_s = os.fsencode(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they may be sent to all of a terminal or container
    group = sys.stdin.read().strip()
    for process in _launchers(marked(mark), Path(folder)):
        _send(process, signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGKILL):
        _end(mark, number, patience_s)
    if group:
        _send(-int(group), signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def _launchers(processes: set[int], folder: Path) -> set[int]:
    """Return Pythons that started the ones that train, as torchrun does, and would call their end
    an error, in many lines; all that they look after is ended next."""
    trainers = {int(path.stem) for path in folder.glob("[0-9]*.begun")}
    parents, found = _parents(), set(trainers)
    while more := {parents[one] for one in found if parents.get(one) in processes} - found:
        found |= more
    return {one for one in found - trainers if (folder / f"{one}.jsonl").exists()}


def _end(mark: bytes, number: signal.Signals, patience_s: float) -> None:
    told: set[int] = set()
    known: set[int] = set()
    deadline = time.monotonic() + patience_s
    while (left := _family(known, mark)) and time.monotonic() < deadline:
        for process in left - told:
            _send(process, number)
        told |= left
        time.sleep(POLL_S)


def _family(known: set[int], mark: bytes) -> set[int]:
    """Return the processes that are marked, and all that descend from them, as those that were
    started with another environment. ``known`` grows: a child whose parent has ended is
    another's."""
    parents = _parents()
    known.update(marked(mark))
    while more := {child for child, parent in parents.items() if parent in known} - known:
        known |= more
    return known & parents.keys()


def _parents() -> dict[int, int]:
    """Return each process that runs with its parent; a zombie does not."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text(errors="replace").rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state != "Z":
            found[int(path.parent.name)] = int(parent)
    return found


def marked(mark: bytes) -> set[int]:
    """Return numbers of all processes with this variable; those that have ended have none any
    more."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
        except OSError:  # another user's, or gone
            continue
    return found


def _send(process: int, number: signal.Signals) -> None:
    try:
        os.kill(process, number)
    except (ProcessLookupError, PermissionError):
        pass


if __name__ == "__main__":
    main()
