"""Where the time goes in Python: py-spy beside a running script, and the lines of code it saw.

The format: https://www.speedscope.app/file-format-schema.json; there is a profile a thread.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shardkit.errors import FormatError
from shardkit.measure.doctor.evidence import CodeLine
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors
from shardkit.watching import loop

RATE = 50
"""Looks a second: enough for lines that take 2 % of some seconds. py-spy 0.4.3 took 4 % of a core
for each process that it looked at, so it is not for the steps whose rate is measured; half as many
looks take two thirds of that."""

PATIENCE_S = 10.0
"""For py-spy to find the processes, and to write its file."""

LEAST_SHARE = 0.02
"""A line that fewer of the samples were in says nothing: 1 of 50 may be chance."""

MOST_LINES = 5
"""Of a kind."""

_THREAD = re.compile(r"Process (\d+) Thread (\d+) ")
"""How py-spy calls a thread, with ``--subprocesses``."""

_WATCHER = Path(loop.__file__).parent


# --- taking one ---------------------------------------------------------------------------


def take_profile(pid: int, output: Path, seconds: int) -> str:
    """Write a sampled profile of a process and all that it starts, for speedscope; return why there
    is none, empty if there is.

    Python must run there already: py-spy gives up on a process that is none yet. It ends by itself
    with the script.
    """
    beside = Path(sys.executable).with_name("py-spy")
    program = shutil.which("py-spy") or shutil.which(str(beside))
    if program is None:
        return "no profile was taken: py-spy is not installed (pip install py-spy)"
    if refusal := why_not(pid):
        return refusal
    # Not blocking: a process that is stopped 50 times a second would be slower.
    options = ["--subprocesses", "--full-filenames", "--nonblocking", "--format", "speedscope"]
    limits = ["--rate", str(RATE), "--duration", str(seconds), "--output", str(output)]
    try:
        done = subprocess.run(
            [program, "record", "--pid", str(pid), *options, *limits],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=seconds + PATIENCE_S,
            start_new_session=True,  # Ctrl-C is for the script
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"py-spy wrote no profile: {error}"
    if done.returncode == 0 and output.is_file() and output.stat().st_size:
        return ""
    lines = done.stderr.decode("utf-8", "replace").splitlines()
    complaint = next((show_path(line.strip()) for line in lines if "rror" in line), "")
    return f"py-spy wrote no profile: {complaint or f'it ended with code {done.returncode}'}"


def why_not(pid: int) -> str:
    """Return why the kernel lets no profile be taken of a process; empty if it does.

    py-spy needs leave to read the memory of another process, which is the one to open
    ``/proc/PID/mem``: https://docs.kernel.org/admin-guide/LSM/Yama.html
    """
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
    except PermissionError:
        return (
            "no profile was taken: the kernel lets py-spy not look into the script; run the doctor "
            "as root, set kernel.yama.ptrace_scope to 0, or give the container SYS_PTRACE"
        )
    except OSError:
        return f"no profile was taken: process {pid} had ended"
    return ""


# --- reading it ---------------------------------------------------------------------------


class Frame(NamedTuple):
    """A function, and the line in it that was running. ``line`` is 0 where nobody knows."""

    function: str
    file: str
    line: int


@dataclass(frozen=True)
class Stack:
    """Frames that a thread was seen in for so many seconds, the outermost first."""

    is_main: bool
    frames: tuple[Frame, ...]
    seconds: float

    @property
    def work_of_worker(self) -> tuple[Frame, ...] | None:
        """Frames below the loop of a worker of DataLoader; None if this is none. A worker that
        was forked has the frames of the script above that."""
        for number, frame in enumerate(self.frames):
            is_torch = frame.file.endswith("torch/utils/data/_utils/worker.py")
            if frame.function == "_worker_loop" and is_torch:
                return self.frames[number + 1 :]
        return None


def read_speedscope(path: Path) -> list[Stack]:
    """Return all stacks of a file, each with the seconds that it was seen for.

    Raises:
        FormatError: it is no such profile. StorageError: it cannot be read.
    """
    with os_errors(f"reading {show_path(path)}"):
        data = path.read_bytes()
    try:
        return list(_stacks(json.loads(data)))
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise FormatError(
            f"{show_path(path)} is no profile of py-spy for speedscope: {error!r}"
        ) from error


def _stacks(value: Any) -> Iterator[Stack]:
    frames = [
        Frame(str(one["name"]), str(one.get("file") or ""), int(one.get("line") or 0))
        for one in value["shared"]["frames"]
    ]
    # What watches the script is left out, and what py-spy puts on top for each process.
    ours = {
        number
        for number, (function, file, _) in enumerate(frames)
        if Path(file).is_relative_to(_WATCHER) or (not file and function.startswith("process "))
    }
    for profile in value["profiles"]:
        # ``Process 7 Thread 7 "MainThread"``, whose name is empty if nothing imports threading.
        thread = _THREAD.match(str(profile["name"]))
        is_main = thread is not None and thread[1] == thread[2]
        for sample, weight in zip(profile["samples"], profile["weights"], strict=True):
            kept = tuple(frames[number] for number in sample if number not in ours)
            yield Stack(is_main, kept, float(weight))


# --- the script's own lines ---------------------------------------------------------------


def is_user_file(file: str) -> bool:
    """Return True for the script's own code: no library, not ours, no command like torchrun."""
    path = Path(file)
    is_command = path.parent.name == "bin" and not path.suffix
    return bool(file) and loop.is_users(file) and not is_command


def hot_lines(stacks: Iterable[Stack]) -> tuple[CodeLine, ...]:
    """Return the script's lines that most of the running time was spent in or below: ``profile`` of
    the training loops, ``profile-worker`` of the workers of DataLoader, dearest first. ``share`` is
    of the time that threads of the kind were seen running, which a thread that waits is not.
    """
    loops, workers = [], []
    for stack in stacks:
        if (work := stack.work_of_worker) is not None:
            workers.append((work, stack.seconds))
        elif stack.is_main:
            loops.append((stack.frames, stack.seconds))
    return (*_lines(loops, "profile"), *_lines(workers, "profile-worker"))


def _lines(stacks: Sequence[tuple[Sequence[Frame], float]], kind: str) -> Iterator[CodeLine]:
    total = sum(seconds for _, seconds in stacks)
    spent: dict[tuple[str, int], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for frames, seconds in stacks:
        mine = [n for n, frame in enumerate(frames) if is_user_file(frame.file)]
        if mine:
            frame, *called = frames[mine[-1] :]
            calls = f" calls {called[0].function.rpartition('.')[2]}" if called else ""
            spent[frame.file, frame.line][f"{frame.function}{calls}"] += seconds
    dearest = sorted(spent, key=lambda place: sum(spent[place].values()), reverse=True)
    for place in dearest[:MOST_LINES]:
        seconds, doing = sum(spent[place].values()), spent[place]
        if seconds >= LEAST_SHARE * total > 0:
            what = max(doing, key=lambda one: doing[one])
            yield CodeLine(*place, what, kind, share=seconds / total)
