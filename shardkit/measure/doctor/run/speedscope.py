"""A sampled profile as py-spy writes it for speedscope, and the lines of code it was seen in.

The format: https://www.speedscope.app/file-format-schema.json; there is a profile a thread.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import shardkit
from shardkit.errors import FormatError
from shardkit.measure.doctor.evidence import CodeLine
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

LEAST_SHARE = 0.02
"""A line that fewer of the samples were in says nothing: 1 of 50 may be chance."""

MOST_LINES = 5
"""Of a kind."""

_THREAD = re.compile(r'Process (\d+) Thread (\w+)(?: "(.*)")?', re.DOTALL)
"""How py-spy calls a thread, with ``--subprocesses``."""

_OURS = Path(shardkit.__file__).parent

_NOT_USERS = re.compile(r"(^|[/\\])((site|dist)-packages|lib(64)?[/\\]python\d[.\d]*t?)[/\\]")


@dataclass(frozen=True)
class Frame:
    """A function, and the line in it that was running. ``line`` is 0 where nobody knows."""

    function: str
    file: str
    line: int


@dataclass(frozen=True)
class Stack:
    """Where a thread was seen for so many seconds, outermost frame first.

    Attributes:
        process: its number. thread: its name, ``MainThread`` for the first.
    """

    process: int
    thread: str
    frames: tuple[Frame, ...]
    seconds: float

    @property
    def work_of_worker(self) -> tuple[Frame, ...] | None:
        """What runs below the loop of a worker of DataLoader; None if this is none. A worker that
        was forked has the frames of the script above that."""
        for number, frame in enumerate(self.frames):
            if frame.function == "_worker_loop" and _is_torch_worker(frame.file):
                return self.frames[number + 1 :]
        return None

    @property
    def is_loop(self) -> bool:
        """Whether this is the main thread of a process that is no worker."""
        return self.thread == "MainThread" and self.work_of_worker is None


def _is_torch_worker(file: str) -> bool:
    return file.replace("\\", "/").endswith("torch/utils/data/_utils/worker.py")


# --- reading ------------------------------------------------------------------------------


def read_speedscope(path: str | Path) -> tuple[Stack, ...]:
    """All stacks of a file, each with the seconds that it was seen for.

    Raises:
        FormatError: it is no such profile. StorageError: it cannot be read.
    """
    with os_errors(f"reading {show_path(path)}"):
        data = Path(path).read_bytes()
    try:
        return _stacks(json.loads(data))
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise FormatError(
            f"{show_path(path)} is no profile of py-spy for speedscope: {error!r}"
        ) from error


def _stacks(value: Any) -> tuple[Stack, ...]:
    frames = [_frame(one) for one in value["shared"]["frames"]]
    made: list[Stack] = []
    for profile in value["profiles"]:
        process, thread = _named(str(profile["name"]))
        for numbers, seconds in _samples(profile).items():
            kept = tuple(one for number in numbers if _is_scripts(one := frames[number]))
            made.append(Stack(process, thread, kept, seconds))
    return tuple(made)


def _is_scripts(frame: Frame) -> bool:
    """Whether it would be there without us: what watches the script would not. And py-spy puts a
    frame on top for each process, which is no function."""
    is_process = not frame.file and frame.function.startswith("process ")
    return not is_process and not Path(frame.file).is_relative_to(_OURS / "watching")


def _frame(value: dict[str, Any]) -> Frame:
    return Frame(str(value["name"]), str(value.get("file") or ""), int(value.get("line") or 0))


def _named(name: str) -> tuple[int, str]:
    """The process and thread that a profile is of: ``Process 7 Thread 7 "MainThread"``."""
    found = _THREAD.match(name)
    return (int(found[1]), found[3] or found[2]) if found else (0, name)


def _samples(profile: dict[str, Any]) -> dict[tuple[int, ...], float]:
    """Seconds of each stack, which is the numbers of its frames."""
    if profile["type"] != "sampled" or profile["unit"] != "seconds":
        raise ValueError(f"a profile of type {profile['type']!r} in {profile['unit']!r}")
    found: dict[tuple[int, ...], float] = defaultdict(float)
    for sample, weight in zip(profile["samples"], profile["weights"], strict=True):
        if min(sample, default=0) < 0 or not float(weight) >= 0:
            raise ValueError(f"a sample {sample!r} of {weight!r} seconds")
        found[tuple(sample)] += float(weight)
    return found


# --- the script's own lines ---------------------------------------------------------------


def is_user_file(file: str) -> bool:
    """Whether a file is the script's own code: not Python's, no installed package's, not ours."""
    if not file or file.startswith("<") or _NOT_USERS.search(file):
        return False
    path = Path(file)
    is_command = path.parent.name == "bin" and not path.suffix  # torchrun, accelerate
    return not is_command and not path.is_relative_to(_OURS)


def hot_lines(
    stacks: Iterable[Stack], is_user_file: Callable[[str], bool] = is_user_file
) -> tuple[CodeLine, ...]:
    """The script's lines that most of the running time was spent in or below: ``profile`` of the
    training loops, ``profile-worker`` of the workers of DataLoader, dearest first. ``share`` is of
    the time that threads of the kind were seen running, which a thread that waits is not.
    """
    loops: list[Stack] = []
    workers: list[Stack] = []
    for stack in stacks:
        if stack.is_loop:
            loops.append(stack)
        elif (work := stack.work_of_worker) is not None:
            workers.append(Stack(stack.process, stack.thread, work, stack.seconds))
    own = is_user_file
    return (*_lines(loops, "profile", own), *_lines(workers, "profile-worker", own))


def _lines(
    stacks: Sequence[Stack], kind: str, is_user_file: Callable[[str], bool]
) -> Iterator[CodeLine]:
    total = sum(stack.seconds for stack in stacks)
    spent: dict[tuple[str, int], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for stack in stacks:
        mine = [n for n, frame in enumerate(stack.frames) if is_user_file(frame.file)]
        if mine:
            frame, *called = stack.frames[mine[-1] :]
            spent[frame.file, frame.line][_what(frame, called)] += stack.seconds
    dearest = sorted(spent, key=lambda place: sum(spent[place].values()), reverse=True)
    for place in dearest[:MOST_LINES]:
        seconds, doing = sum(spent[place].values()), spent[place]
        if seconds >= LEAST_SHARE * total > 0:
            what = max(doing, key=lambda one: doing[one])
            yield CodeLine(*place, what, kind, share=seconds / total)


def _what(frame: Frame, called: Sequence[Frame]) -> str:
    """The function, and what it calls there."""
    if not called:
        return frame.function
    return f"{frame.function} calls {called[0].function.rpartition('.')[2]}"
