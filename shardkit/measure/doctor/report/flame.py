"""A flame graph: stacks on one another, each as wide as the time it was seen for. Pure.

See Gregg, "The Flame Graph", Communications of the ACM 59(6), 2016. Here the outermost function is
at the top, so that a page begins with it, and the same function is one box whatever its line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePath

from shardkit.measure.doctor.run.speedscope import Frame, Stack, is_user_file
from shardkit.measure.report.words import percent

LEAST_SHARE = 0.005
"""A narrower box could be neither seen nor pointed at."""

MOST_DEPTH = 60
"""Rows that a graph has: a recursion would make a page of thousands."""

ROW = 17
"""The height of a box with the line below it."""


@dataclass
class Node:
    """A function in its place: the seconds that were spent in it and below."""

    seconds: float = 0.0
    below: dict[tuple[str, str], Node] = field(default_factory=dict)


@dataclass(frozen=True)
class Box:
    """``left``, ``width``: percent of the graph. ``top``: pixels. ``color``: ``mine`` for code of
    the script, ``others`` for libraries. ``about``: what a mouse over it shows."""

    left: float
    width: float
    top: int
    color: str
    text: str
    about: str


@dataclass(frozen=True)
class Flame:
    """A graph of one kind of threads, ``height`` in pixels."""

    title: str
    seconds: float
    height: int
    boxes: tuple[Box, ...]


def flames(stacks: Iterable[Stack]) -> list[Flame]:
    """One of the training loops and one of the workers, those of several processes in one."""
    known = [*stacks]
    loops = [(stack.frames, stack.seconds) for stack in known if stack.is_loop]
    works = [(stack.work_of_worker, stack.seconds) for stack in known]
    workers = [(frames, seconds) for frames, seconds in works if frames is not None]
    made = [_flame("The training loop", loops), _flame("The workers of DataLoader", workers)]
    return [one for one in made if one is not None]


def _flame(title: str, stacks: Iterable[tuple[tuple[Frame, ...], float]]) -> Flame | None:
    root = Node()
    for frames, seconds in stacks:
        _add(root, frames, seconds)
    if root.seconds <= 0:
        return None
    boxes = [*_boxes(root, root.seconds)]
    height = max((box.top for box in boxes), default=0) + ROW
    return Flame(title, root.seconds, height, tuple(boxes))


def _add(root: Node, frames: Iterable[Frame], seconds: float) -> None:
    root.seconds += seconds
    node = root
    for frame, _ in zip(frames, range(MOST_DEPTH), strict=False):
        node = node.below.setdefault((frame.function, frame.file), Node())
        node.seconds += seconds


def _boxes(root: Node, total: float) -> Iterable[Box]:
    """Parents first; the widest of several stands on the left."""
    waiting = [(root, 0.0, 0)]
    while waiting:
        node, left, top = waiting.pop()
        for (function, file), one in sorted(node.below.items(), key=_widest_first):
            share = one.seconds / total
            if share >= LEAST_SHARE:
                color = "mine" if is_user_file(file) else "others"
                where = f" ({file})" if file else ""
                about = f"{function}{where}: {percent(share)}"
                text = f"{function} {PurePath(file).name}"
                yield Box(100 * left, 100 * share, top, color, text, about)
                waiting.append((one, left, top + ROW))
            left += share


def _widest_first(item: tuple[tuple[str, str], Node]) -> tuple[float, tuple[str, str]]:
    return -item[1].seconds, item[0]
