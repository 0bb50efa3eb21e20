"""What the host did in a trace: torch's operators, and the calls that wait for the device. Pure.

In a thread, spans nest as the calls did. One pass over a thread's spans, in the order in which
they began, keeps the stack of those that go on: Python functions (with ``with_stack=True``),
operators, calls of CUDA. Annotations are apart: they begin in the Python function ``__enter__``,
and outlive it (pytorch/pytorch issue 174555).
"""

from __future__ import annotations

import math
import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

from shardkit.measure.doctor.intervals import Interval, union
from shardkit.measure.doctor.trace_file import ON_HOST, RUNTIME, Event

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

_NOT_THE_LOOP = ("torch/profiler/", "torch/optim/", "torch/utils/data/")
_NOT_THE_LOOP_MARKS = ("Optimizer.", "enumerate(DataLoader)")
"""Where operators of :data:`WOULD_WAIT` are on tensors of the CPU, also when the model is on a GPU:
counts of steps, seeds and samples. What the profiler waits for when it stops is none of the loop's
either."""

_STEP = re.compile(r"ProfilerStep\*?#(\d+)")
_FRAME = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)")
_BUILTIN = re.compile(r"<built-in (?:method|function) (\w+)")


@dataclass(frozen=True)
class Place:
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

    place: Place
    to_device: bool


@dataclass
class HostFacts:
    """Steps by their marks and how long they took; operators that call no other, in these; how
    often and how long the host waited."""

    steps: int = 0
    seconds: float = 0.0
    num_ops: int = 0
    waits: dict[Wait, tuple[int, float]] = field(default_factory=dict)


@dataclass(slots=True)
class _Open:
    """A span that goes on. ``copying``: seconds that its calls of :data:`_COPIES` took so far."""

    event: Event
    end: float
    has_operator: bool = False
    copying: float = 0.0
    to_device: bool = False


IsOwn = Callable[[str], bool]
"""Whether a file, as the trace names it, is the script's own code."""


def host_facts(events: Iterable[Event], is_own: IsOwn) -> HostFacts:
    """What the host did in the marked steps; in the whole trace, if no step is marked."""
    every = list(events)
    to_device = _copies_to_device(every)
    has_gpu = any(event.category == "kernel" or "gpu_mem" in event.category for event in every)
    first, last, steps = _window(every)
    facts = HostFacts(steps, last - first)
    for thread in _threads(every):
        aside = _aside(thread) if not has_gpu else []
        for event, stack in _nested(thread):
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


def _threads(events: Iterable[Event]) -> Iterator[list[Event]]:
    """The host's spans of each thread; of two that begin at once, the outer one first."""
    threads: dict[tuple[str | int, str | int], list[Event]] = defaultdict(list)
    for event in events:
        if event.category in ON_HOST:
            threads[event.owner, event.lane].append(event)
    for thread in threads.values():
        thread.sort(key=lambda event: (event.start, -event.seconds, _DEPTH[event.category]))
        yield thread


_DEPTH = {"user_annotation": 0, "python_function": 0, "cpu_op": 1, **dict.fromkeys(RUNTIME, 2)}


def _aside(thread: Iterable[Event]) -> list[Interval]:
    """When a thread was in the optimizer or in the loader, by torch's own annotations."""
    marks = (event for event in thread if event.name.startswith(_NOT_THE_LOOP_MARKS))
    return union((mark.start, mark.end) for mark in marks if mark.category == "user_annotation")


def _is_in(merged: list[Interval], moment: float) -> bool:
    """Whether one of a union's intervals has the moment."""
    i = bisect(merged, (moment, math.inf)) - 1
    return i >= 0 and moment <= merged[i][1]


def _nested(thread: Iterable[Event]) -> Iterator[tuple[Event, list[_Open]]]:
    """Each span with those around it, the outermost first; no annotations."""
    stack: list[_Open] = []
    for event in thread:
        if event.category == "user_annotation":
            continue
        while stack and stack[-1].end <= event.start:
            stack.pop()
        yield event, stack
        stack.append(_Open(event, event.end))


def _count(event: Event, stack: list[_Open]) -> int:
    """How many more operators there are that call no other: of the one around it, this is the first
    that it calls, or it was not counted as one in the first place."""
    if not _is_operator(event):
        return 0
    around = _operator(stack)
    if around is None or around.has_operator:
        return 1
    around.has_operator = True
    return 0


@cache
def _is_operators_name(name: str) -> bool:
    """``aten::add``, but no node of autograd, which calls operators."""
    return "::" in name and not name.startswith(("autograd::", "torch::autograd::"))


def _is_operator(event: Event) -> bool:
    return event.category == "cpu_op" and _is_operators_name(event.name)


def _operator(stack: list[_Open]) -> _Open | None:
    """The innermost operator that goes on."""
    return next((span for span in reversed(stack) if _is_operator(span.event)), None)


def _note_copy(event: Event, stack: list[_Open], to_device: frozenset[int]) -> None:
    around = _operator(stack) if event.category in RUNTIME else None
    if around is not None and _COPIES.fullmatch(event.name):
        around.copying += event.seconds
        around.to_device = event.correlation in to_device


def _waits(event: Event, stack: list[_Open], has_gpu: bool) -> bool:
    if has_gpu:
        is_wait = event.category in RUNTIME and _WAITS.fullmatch(event.name) is not None
        return is_wait and not _is_below(stack, _NOT_THE_LOOP[:1])
    is_wait = event.category == "cpu_op" and event.name in WOULD_WAIT
    return is_wait and not _is_below(stack, _NOT_THE_LOOP)


def _is_below(stack: list[_Open], files: tuple[str, ...]) -> bool:
    frames = (span.event for span in stack if span.event.category == "python_function")
    return any(frame.name.startswith(files) for frame in frames)


def _seconds(event: Event, stack: list[_Open]) -> float:
    around = _operator(stack)
    if around is None:
        return event.seconds
    copying, around.copying = around.copying, 0.0
    return event.seconds + copying


def _add(facts: HostFacts, wait: Wait, seconds: float) -> None:
    calls, total = facts.waits.get(wait, (0, 0.0))
    facts.waits[wait] = calls + 1, total + seconds


def _wait(event: Event, stack: list[_Open], is_own: IsOwn) -> Wait:
    """Where it was called from: the innermost function of the script's own, and what that called,
    which is the span after it: a Python function, a built-in one, or the operator itself."""
    around = _operator(stack)
    to_device = around is not None and around.to_device
    spans = [*(span.event for span in stack), event]
    for i in reversed(range(len(spans) - 1)):
        frame = _frame(spans[i])
        if frame is not None and is_own(frame[0]):
            return Wait(Place(*frame, *_called(spans[i + 1 :])), to_device)
    return Wait(Place("", 0, "", _operators_name(spans), False), to_device)


def _operators_name(spans: list[Event]) -> str:
    """The first operator that was called; the call of CUDA itself if there is none."""
    return next((span.name for span in spans if _is_operator(span)), spans[-1].name)


def _frame(event: Event) -> tuple[str, int, str] | None:
    return _parsed(event.name) if event.category == "python_function" else None


@cache
def _parsed(name: str) -> tuple[str, int, str] | None:
    """``train.py(12): main`` as file, line and function; None for what is built in, and modules."""
    found = _FRAME.fullmatch(name)
    return (found["file"], int(found["line"]), found["function"]) if found else None


def _called(spans: list[Event]) -> tuple[str, bool]:
    """What the first of some nested spans is a call of, and whether that is a function."""
    frame, builtin = _frame(spans[0]), _BUILTIN.match(spans[0].name)
    name = frame[2] if frame else builtin[1] if builtin else ""
    return name or _operators_name(spans), bool(name)


def files_of(events: Iterable[Event]) -> set[str]:
    """The files of the Python functions in a trace, as it names them."""
    frames = (_frame(event) for event in events)
    return {frame[0] for frame in frames if frame is not None}
