"""What the host did in a trace: torch's operators, and the calls that wait for the device. Pure.

Both are found in one pass over the spans of each thread, in which the calls are nested
(:mod:`~shardkit.measure.doctor.trace.calls`).
"""

from __future__ import annotations

import math
import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from shardkit.measure.doctor.trace.calls import (
    Open,
    called_by,
    frame_of,
    is_operator,
    nested,
    operator_around,
    operators_name,
    threads,
)
from shardkit.measure.doctor.trace.file import ON_GPU, RUNTIME, Event
from shardkit.measure.doctor.trace.intervals import Interval, union

_WAITS = re.compile(
    r"(cuda|hip)(Stream|Device|Event)Synchronize(_ptsz)?|cu(Stream|Ctx|Event)Synchronize(_ptsz)?"
    r"|(cuda|hip)Memcpy(_ptds)?"
)
"""Calls of the runtime and of the driver that return when the device has come that far."""

_COPIES = re.compile(r"(cuda|hip)Memcpy\w*Async\w*")
"""Calls that wait as well if the memory is not pinned: the time is theirs, and the call that waits
follows in the same operator."""

WOULD_WAIT = frozenset(
    f"aten::{name}"
    for name in ("_local_scalar_dense", "nonzero", "_unique2", "masked_select", "equal")
)
"""Operators whose result the host has to see. On a GPU they wait for it; in a trace without one
they are told of because they would."""

_PROFILER = ("torch/profiler/",)
"""Where the profiler itself waits for the device, as it starts and stops."""

_ON_THE_CPU = (*_PROFILER, "torch/optim/", "torch/utils/data/")
_ON_THE_CPU_MARKS = ("Optimizer.", "enumerate(DataLoader)")
"""Where operators of :data:`WOULD_WAIT` are on tensors of the CPU, also when the model is on a GPU:
counts of steps, seeds and samples."""

_STEP = re.compile(r"ProfilerStep\*?#(\d+)")


@dataclass(frozen=True)
class CallSite:
    """Where the script's own code called what waited; a file of "" if the trace does not say.

    Attributes:
        line: that of the function's beginning, or where it was when the trace began: torch's
            profiler records no other (pytorch/pytorch issue 167605).
        called: the name of what it called there: a function, or else (not ``is_function``) an
            operator of torch or a call of CUDA.
    """

    file: str
    line: int
    function: str
    called: str
    is_function: bool


@dataclass(frozen=True)
class Wait:
    """One kind of wait: where, and whether it is for a copy to the device."""

    place: CallSite
    to_device: bool


@dataclass
class HostFacts:
    """Steps by their marks and how long they took; operators that call no other, in these; how
    often and how long the host waited."""

    steps: int = 0
    seconds: float = 0.0
    num_ops: int = 0
    waits: dict[Wait, tuple[int, float]] = field(default_factory=dict)


IsOwn = Callable[[str], bool]
"""Whether a file, as the trace names it, is the script's own code."""


def host_facts(events: Iterable[Event], is_own: IsOwn) -> HostFacts:
    """What the host did in the marked steps; in the whole trace, if no step is marked."""
    every = list(events)
    to_device = _copies_to_device(every)
    has_gpu = any(event.category in ON_GPU for event in every)
    first, last, steps = _window(every)
    facts = HostFacts(steps, last - first)
    for thread in threads(every):
        aside = _aside(thread) if not has_gpu else []
        for event, stack in nested(thread):
            if not first <= event.start <= last:
                continue
            facts.num_ops += _count(event, stack)
            _note_copy(event, stack, to_device)
            if _waits(event, stack, has_gpu) and not _is_in(aside, event.start):
                _add(facts, _wait(event, stack, is_own), _seconds(event, stack))
    return facts


def _window(events: list[Event]) -> tuple[float, float, int]:
    """When the first marked step began, when the last one ended, and how many there are. Without
    marks: from the first operator to the last, and the optimizer's steps, which torch marks."""
    notes = [event for event in events if event.category == "user_annotation"]
    marks = [event for event in notes if _STEP.fullmatch(event.name)]
    spans = marks or [event for event in events if event.category == "cpu_op"] or events
    steps = len({mark.name for mark in marks}) or _optimizer_steps(notes)
    return min(span.start for span in spans), max(span.end for span in spans), steps


def _optimizer_steps(notes: Iterable[Event]) -> int:
    """The most steps of one class of optimizers: some loops have two, and step both."""
    counts: dict[str, int] = defaultdict(int)
    for note in notes:
        if note.name.startswith("Optimizer.step#"):
            counts[note.name] += 1
    return max(counts.values(), default=0)


def _copies_to_device(events: Iterable[Event]) -> frozenset[int]:
    """The correlations of copies from the host to a GPU."""
    return frozenset(
        event.correlation
        for event in events
        if event.category == "gpu_memcpy" and "HtoD" in event.name
    )


def _aside(thread: Iterable[Event]) -> list[Interval]:
    """When a thread was in the optimizer or in the loader, by torch's own annotations."""
    marks = (event for event in thread if event.name.startswith(_ON_THE_CPU_MARKS))
    return union((mark.start, mark.end) for mark in marks if mark.category == "user_annotation")


def _is_in(merged: list[Interval], moment: float) -> bool:
    """Whether one of a union's intervals has the moment."""
    i = bisect(merged, (moment, math.inf)) - 1
    return i >= 0 and moment <= merged[i][1]


def _count(event: Event, stack: list[Open]) -> int:
    """How many more operators there are that call no other: of the one around it, this is the first
    that it calls, or it was not counted as one in the first place."""
    if not is_operator(event):
        return 0
    around = operator_around(stack)
    if around is None or around.has_operator:
        return 1
    around.has_operator = True
    return 0


def _note_copy(event: Event, stack: list[Open], to_device: frozenset[int]) -> None:
    around = operator_around(stack) if event.category in RUNTIME else None
    if around is not None and _COPIES.fullmatch(event.name):
        around.copying += event.seconds
        around.to_device = event.correlation in to_device


def _waits(event: Event, stack: list[Open], has_gpu: bool) -> bool:
    if has_gpu:
        is_wait = event.category in RUNTIME and _WAITS.fullmatch(event.name) is not None
        return is_wait and not _is_below(stack, _PROFILER)
    if event.category != "cpu_op" or event.name not in WOULD_WAIT:
        return False
    is_inner = any(span.event.name in WOULD_WAIT for span in stack)
    return not (is_inner or _is_below(stack, _ON_THE_CPU))


def _is_below(stack: list[Open], files: tuple[str, ...]) -> bool:
    frames = (span.event for span in stack if span.event.category == "python_function")
    return any(frame.name.startswith(files) for frame in frames)


def _seconds(event: Event, stack: list[Open]) -> float:
    around = operator_around(stack)
    if around is None:
        return event.seconds
    copying, around.copying = around.copying, 0.0
    return event.seconds + copying


def _add(facts: HostFacts, wait: Wait, seconds: float) -> None:
    calls, total = facts.waits.get(wait, (0, 0.0))
    facts.waits[wait] = calls + 1, total + seconds


def _is_ours(event: Event) -> bool:
    """A function that the doctor has put in the place of one of torch's, to time it."""
    frame = frame_of(event)
    return frame is not None and "shardkit/watching/" in frame[0]


def _wait(event: Event, stack: list[Open], is_own: IsOwn) -> Wait:
    """Where it was called from: the innermost function of the script's own, and what that called,
    which is the span after it: a Python function, a built-in one, or the operator itself."""
    around = operator_around(stack)
    to_device = around is not None and around.to_device
    spans = [span.event for span in stack if not _is_ours(span.event)] + [event]
    for i in reversed(range(len(spans) - 1)):
        frame = frame_of(spans[i])
        if frame is not None and is_own(frame[0]):
            return Wait(CallSite(*frame, *called_by(spans[i + 1 :])), to_device)
    return Wait(CallSite("", 0, "", operators_name(spans), False), to_device)
