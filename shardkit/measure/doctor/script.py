"""A training script that is run and looked at from outside, and leaves nothing behind however that
ends.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from shardkit.errors import UsageError
from shardkit.measure.doctor import keeper
from shardkit.measure.doctor.evidence import SystemEvidence
from shardkit.system import resources
from shardkit.system.resources import allowance, control_groups, usage_of
from shardkit.watching import attach
from shardkit.watching.attach import ENVIRONMENT, PLAN_NAME
from shardkit.watching.event_log import read_file
from shardkit.watching.session import Plan

PATIENCE_TO_END_S = 5.0
"""For processes that were asked to end; then they are killed."""

STARTUP = Path(attach.__file__).parent / "startup"


@dataclass(frozen=True)
class Script:
    """A script that runs."""

    process: subprocess.Popen[bytes]
    folder: Path

    def processes(self) -> set[int]:
        """Return numbers of its processes, wherever they moved to."""
        return {self.process.pid, *keeper.marked(_mark(self.folder))}

    def has_ended(self) -> bool:
        """Return True if its first process has; it is not waited for: /proc tells what it used."""
        if self.process.returncode is not None or not hasattr(os, "waitid"):
            return self.process.poll() is not None
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, flags) is not None


def command_of(words: str | Sequence[str]) -> list[str]:
    """Return the words of a command line; ``train.py ...`` is run by this Python.

    Raises:
        UsageError: it is none, or there is no such file.
    """
    try:
        command = shlex.split(words) if isinstance(words, str) else list(words)
    except ValueError as error:
        raise UsageError(f"doctor: {words!r} is no command line: {error}") from error
    if not command:
        raise UsageError("doctor: give a script to run, as in 'train.py --epochs 1'")
    is_python = Path(command[0]).name.startswith("python")
    script = next((word for word in command[: 1 + is_python] if word.endswith(".py")), None)
    if script is not None and not Path(script).is_file():
        raise UsageError(f"doctor: {script}: no such file")
    if command[0] == script:
        command.insert(0, sys.executable)
    return command


@contextmanager
def running(command: Sequence[str], plan: Plan, out: IO[bytes] | None = None) -> Iterator[Script]:
    """Run a script, and yield it with the folder that it is watched into; both are gone after the
    block, with all processes that it started. Should we be killed, a process of its own sees to
    that.

    Args:
        out: where all it says goes, and it reads nothing; by default it has the terminal as if it
            were run by hand, and Ctrl-C reaches it.

    Raises:
        UsageError: it cannot be started.
    """
    folder = Path(tempfile.mkdtemp(prefix="shardkit-"))
    (folder / PLAN_NAME).write_text(json.dumps(dataclasses.asdict(plan)))
    mark = _mark(folder).decode(errors="surrogateescape")
    program = [sys.executable, "-I", keeper.__file__, mark, str(folder)]
    with subprocess.Popen(
        [*program, str(PATIENCE_TO_END_S)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as kept:
        try:
            process = subprocess.Popen(
                command,
                env=_environment(folder, plan),
                stdin=None if out is None else subprocess.DEVNULL,
                stdout=out,
                stderr=None if out is None else subprocess.STDOUT,
                start_new_session=out is not None,
            )
        except OSError as error:
            raise UsageError(f"cannot run {command[0]}: {error.strerror or error}") from error
        try:
            if out is not None:
                _tell(kept, process.pid)
            yield Script(process, folder)
        finally:
            kept.communicate()
            process.wait()


def _environment(folder: Path, plan: Plan) -> dict[str, str]:
    found = dict(os.environ)
    if plan.traces != "no":  # Kineto would tell the user's terminal of it
        found.setdefault("KINETO_LOG_LEVEL", "99")
    paths = [str(STARTUP), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**found, ENVIRONMENT: str(folder), "PYTHONPATH": os.pathsep.join(paths)}


def _mark(folder: Path) -> bytes:
    return os.fsencode(f"{ENVIRONMENT}={folder}")


def _tell(kept: subprocess.Popen[bytes], group: int) -> None:
    if kept.stdin is not None:
        kept.stdin.write(f"{group}\n".encode())
        kept.stdin.flush()


# --- what it uses of the machine -----------------------------------------------------------


@dataclass(frozen=True)
class Snapshot:
    """Counts of the kernel at a moment, of :mod:`shardkit.system.resources`."""

    at: float
    cores: dict[int, resources.CoreTime]
    throttling: dict[Path, resources.Throttling]


def snapshot(root: Path = Path("/")) -> Snapshot:
    """Return one of now; ``root`` is of the tree that ``/proc`` and ``/sys`` lie in."""
    cores = resources.core_times(root)
    if hasattr(os, "sched_getaffinity"):
        mine = os.sched_getaffinity(0)
        cores = {core: times for core, times in cores.items() if core in mine}
    return Snapshot(time.monotonic(), cores, resources.throttling(control_groups(root)))


def used(first: Snapshot, processes: Iterable[int], root: Path = Path("/")) -> SystemEvidence:
    """Return what was used since the first snapshot, after which a script began; these processes of
    it are still there. The kernel adds what an ended one used to the parent that waits for it."""
    last = snapshot(root)
    seconds = max(last.at - first.at, 1e-3)
    usages = [usage for pid in processes if (usage := usage_of(pid, root))]
    return SystemEvidence(
        seconds=seconds,
        cores=allowance().cpus,
        cores_busy=cores_busy(first, last),
        script_cores=sum(usage.cpu_s for usage in usages) / seconds,
        throttled=throttled(first, last),
    )


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
    """Return a share from 0 to 1: a kernel's counters of idle time may run backwards a little."""
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else 0.0


# --- how far it is -------------------------------------------------------------------------


Tell = Callable[[str], None]

SAME_S, REWRITTEN_S = 20.0, 1.0
"""Between two lines of the same stage; on a terminal, where they are rewritten."""


class StatusLine:
    """Tells at once, when a stage begins, and every ``every_s`` seconds.

    Args:
        folder: that the script is watched into. tell: takes a line.
    """

    def __init__(self, folder: Path, tell: Tell | None, every_s: float) -> None:
        self._folder, self._tell, self._every_s = folder, tell, every_s
        self._started, self._told, self._stage = time.monotonic(), 0.0, ""

    def look(self, stage: str = "") -> None:
        """Tell, if there is something new; ``stage``: what the doctor itself does."""
        now, begun = time.monotonic(), next(self._folder.glob("*.begun"), None)
        stage = stage or ("steps" if begun else "no training loop was seen yet")
        if not self._tell or (stage == self._stage and now - self._told < self._every_s):
            return
        self._stage, self._told = stage, now
        if begun and stage == "steps":
            stage = measured(begun.with_suffix(".jsonl"))
        self._tell(f"shardkit doctor: {now - self._started:.0f} s: {stage}")


def measured(records: Path) -> str:
    """Return how many steps of the session that a file tells of are done."""
    done, planned = 0, 0
    for event in read_file(records):
        planned = event.get("steps", planned) if event["is"] == "session" else planned
        done += event["is"] == "step" and planned > 0
    return f"{min(done, planned):,} of {planned:,} steps were looked at"
