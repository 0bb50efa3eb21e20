"""Calls in a trace's threads: which of the host's spans are inside which, and what they call. Pure.

In a thread, spans nest as the calls did. One pass over a thread's spans, in the order in which
they began, keeps the stack of those that go on: Python functions (with ``with_stack=True``),
operators, calls of CUDA. Annotations are apart: they begin in the Python function ``__enter__``,
and outlive it (pytorch/pytorch issue 174555).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from shardkit.measure.doctor.trace.file import ON_HOST, RUNTIME, Event

_FRAME = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)")
_BUILTIN = re.compile(r"<(?:built-in )?(?:method|function) '?(\w+)")


@dataclass(slots=True)
class Open:
    """A span that goes on.

    Attributes:
        has_operator: whether it has called another operator.
        copying: seconds that its copies took which no wait has followed yet. to_device: whether the
            last of its copies was to the GPU.
    """

    event: Event
    end: float
    has_operator: bool = False
    copying: float = 0.0
    to_device: bool = False


def threads(events: Iterable[Event]) -> Iterator[list[Event]]:
    """The host's spans of each thread; of two that begin at once, the outer one first."""
    found: dict[tuple[str | int, str | int], list[Event]] = defaultdict(list)
    for event in events:
        if event.category in ON_HOST:
            found[event.owner, event.lane].append(event)
    for thread in found.values():
        thread.sort(key=lambda event: (event.start, -event.seconds, _DEPTH[event.category]))
        yield thread


_DEPTH = {"user_annotation": 0, "python_function": 0, "cpu_op": 1, **dict.fromkeys(RUNTIME, 2)}


def nested(thread: Iterable[Event]) -> Iterator[tuple[Event, list[Open]]]:
    """Each span with those around it, the outermost first; no annotations."""
    stack: list[Open] = []
    for event in thread:
        if event.category == "user_annotation":
            continue
        while stack and stack[-1].end <= event.start:
            stack.pop()
        yield event, stack
        stack.append(Open(event, event.end))


@cache
def _is_operators_name(name: str) -> bool:
    """``aten::add``, but no node of autograd, which calls operators."""
    return "::" in name and not name.startswith(("autograd::", "torch::autograd::"))


def is_operator(event: Event) -> bool:
    """Whether it is a call of one of torch's operators."""
    return event.category == "cpu_op" and _is_operators_name(event.name)


def operator_around(stack: list[Open]) -> Open | None:
    """The innermost operator that goes on."""
    return next((span for span in reversed(stack) if is_operator(span.event)), None)


def operators_name(spans: list[Event]) -> str:
    """The first operator that was called; the call of CUDA itself if there is none."""
    return next((span.name for span in spans if is_operator(span)), spans[-1].name)


def frame_of(event: Event) -> tuple[str, int, str] | None:
    """The file, a line and the name of a Python function; None for any other event."""
    return _parsed(event.name) if event.category == "python_function" else None


@cache
def _parsed(name: str) -> tuple[str, int, str] | None:
    """``train.py(12): main`` as file, line and function; None for what is built in, and modules."""
    found = _FRAME.fullmatch(name)
    return (found["file"], int(found["line"]), found["function"]) if found else None


def called_by(spans: list[Event]) -> tuple[str, bool]:
    """What the first of some nested spans is a call of, and whether that is a function."""
    frame, builtin = frame_of(spans[0]), _BUILTIN.match(spans[0].name)
    name = frame[2] if frame else builtin[1] if builtin else ""
    return name or operators_name(spans), bool(name)


def files_of(events: Iterable[Event]) -> set[str]:
    """The files of the Python functions in a trace, as it names them."""
    frames = (frame_of(event) for event in events)
    return {frame[0] for frame in frames if frame is not None}
