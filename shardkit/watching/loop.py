"""A loop over a loader: what each of its steps waited for, and the session that is run with it."""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from shardkit.watching.clock import Clock, Spent
from shardkit.watching.event_log import Records
from shardkit.watching.session import (
    OWN,
    PROBED,
    REPLAY,
    TRACE,
    WARM,
    Counter,
    Now,
    Plan,
    Replay,
    Rereading,
    Schedule,
    Tracer,
    shapes,
    wait_until_quiet,
)

TRAINS_AFTER = 30
"""Steps without a backward pass after which a loop counts as the one to look at, all the same:
there may be none, as in inference."""

SPAN_S = 2e-4
"""Two calls of one kind with less than that between them are one stay there: a loop over
``.item()`` costs what is around it, too."""

MOST_FRAMES = 40

IDLE = Now(OWN, counts=False, block=-1, is_first=False)


_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

_LIBRARIES = re.compile(r"(^|[/\\])((site|dist)-packages|lib(64)?[/\\]python\d[.\d]*t?)[/\\]")
"""Folders of any Python's libraries, also of one that is not this one."""


@functools.cache
def is_users(file: str) -> bool:
    """Return True if code is the user's own: no library, nothing frozen or typed in, not ours."""
    return not file.startswith(("<", _OURS)) and not _LIBRARIES.search(file)


def users_line(frame: FrameType) -> tuple[str, int]:
    """Return file and line of the innermost code of the user's own; of the caller where there is
    none."""
    one: FrameType | None = frame
    for _ in range(MOST_FRAMES):
        if one is None:
            break
        if is_users(one.f_code.co_filename):
            return one.f_code.co_filename, one.f_lineno
        one = one.f_back
    return frame.f_code.co_filename, frame.f_lineno


@dataclass(slots=True, eq=False)
class Iteration:
    """One pass over a loader. ``starting``: seconds that making its iterator took; None once its
    first batch was asked for."""

    loop: WatchedLoop
    began: float
    starting: float | None = 0.0


@dataclass(slots=True, eq=False)
class OpenStep:
    """A step that is going on: its parts, in seconds, and the lines that took them."""

    loop: WatchedLoop
    now: Now
    wait: Spent
    first: float | None
    iteration: Iteration
    began: Spent
    """When the loop had the batch."""
    process_cpu: float = field(default_factory=time.process_time)
    parts: dict[str, float] = field(default_factory=dict)
    lines: dict[tuple[str, str, int], list[float]] = field(default_factory=dict)
    last: tuple[str, float] | None = None

    def add(self, kind: str, start: float, end: float, frame: Any = None) -> None:
        """A timed call; with the line that made it, if a frame is given."""
        if frame is None:
            self.parts[kind] = self.parts.get(kind, 0.0) + end - start
            return
        key = (kind, *users_line(frame))
        seconds = end - start
        if self.last is not None and self.last[0] == kind and start - self.last[1] < SPAN_S:
            seconds = end - self.last[1]
        self.last = (kind, end)
        self.parts[kind] = self.parts.get(kind, 0.0) + seconds
        line = self.lines.setdefault(key, [0.0, 0.0])
        line[0] += seconds
        line[1] += 1


class Watch:
    """The state of one process: its loops, and the step that it is in.

    Args:
        folder: that the records go to.
    """

    def __init__(self, folder: str, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        self.records = Records(folder)
        self.clock = Clock()
        self.loops: dict[Any, WatchedLoop] = {}
        self.step: OpenStep | None = None
        self.thread = 0
        self.depth = 0
        self.flags: set[str] = set()
        self.has_others = False
        """True if there are other ranks, which backward may wait for."""
        self.is_making = False

    def after_fork(self) -> None:
        """Forget in a child what is its parent's."""
        self.records.forget()
        self.loops, self.step, self.depth, self.flags = {}, None, 0, set()
        self.is_making = False

    def loop(self, key: Any, facts: dict[str, Any], depth: int, can_reread: bool) -> WatchedLoop:
        """Return the one of this key; loaders of the same work, as of each epoch, share one."""
        if key not in self.loops:
            self.loops[key] = WatchedLoop(self, len(self.loops), facts, depth, can_reread)
        return self.loops[key]

    def timing(self) -> OpenStep | None:
        """Return the step that a call in this thread belongs to; None inside another timed call."""
        if self.step is None or self.depth or threading.get_ident() != self.thread:
            return None
        return self.step

    def end_step(self, now: Spent | None = None) -> None:
        """The loop came back, or ended; now, unless it was seen just before."""
        step = self.step
        if step is None:
            return
        self.step, self.depth = None, 0
        step.loop.end_step(step, (now or self.clock.now()) - step.began)


class WatchedLoop:
    """All iterations over loaders of the same work."""

    def __init__(
        self, watch: Watch, number: int, facts: dict[str, Any], depth: int, can_reread: bool
    ) -> None:
        self._watch, self._number, self._facts = watch, number, facts
        self._schedule = Schedule(watch.plan, depth, can_reread)
        self._num_steps = 0
        self._session: int | None = None
        """The step that the session began with, once the loop is known to train."""
        self._replay = Replay(watch.plan.replays)
        self._epoch = -1
        self._is_written = False
        self._shapes: list[list[int]] = []
        """Shapes of the tensors in the first batch."""
        self._tool: Counter | Tracer | None = None
        self.rereading = Rereading(self._schedule.block_steps if can_reread else 0)

    # --- epochs ---------------------------------------------------------------------------

    def begin(self) -> Iteration:
        """Return an iteration, which begins now."""
        self._watch.end_step()
        self._epoch += 1
        return Iteration(self, time.perf_counter())

    def leave(self, iteration: Iteration) -> None:
        """End the step of an iteration that is gone."""
        step = self._watch.step
        if step is not None and step.iteration is iteration and step.first is None:
            self._watch.end_step()

    def end(self) -> None:
        """End the iteration. After its first batch the step goes on until another iteration begins:
        ``next(iter(loader))`` drops the iteration before it uses the batch."""
        step = self._watch.step
        if step is not None and step.loop is self and step.first is None:
            self._watch.end_step()
        self._watch.records.write("epoch end", loop=self._number, t=time.perf_counter())

    # --- steps ----------------------------------------------------------------------------

    def now(self) -> Now:
        """Return how the next step is taken."""
        if self._session is None:
            return IDLE
        return self._schedule.at(self._num_steps - self._session)

    def next(
        self, iteration: Iteration, make: Callable[[], Any], leaves_one: Callable[[], bool]
    ) -> Any:
        """Return the next batch: one that is made, or one of the first again.

        Args:
            make: makes it; raises StopIteration after the last. leaves_one: makes the iteration one
                batch shorter, for the one that is replayed; False if it cannot.
        """
        watch, starting = self._watch, iteration.starting
        iteration.starting = None
        if watch.is_making:  # a loader inside another, which is the one that the loop runs over
            return make()
        if watch.step is not None and self._is_beside(watch.step, iteration):
            return self._make_beside(watch.step, make)
        # One look at the clock ends a step and begins the wait: writing the step down counts as
        # waiting, in which workers go on. A second look ends the wait and begins the next step.
        before = watch.clock.now()
        watch.end_step(before)
        if not self._is_written:
            self._is_written = True
            process = _of_process()
            watch.has_others = process["world"] > 1
            watch.records.write("loop", loop=self._number, **self._facts, **process)
        now = self.now()
        if now.is_first:
            self.rereading.begin(now.kind == WARM)
        if now.kind == REPLAY and not (self._replay.is_ready and leaves_one()):
            now = replace(now, kind=OWN)  # a batch that is made is no replayed one
        if now.kind == REPLAY and (now.is_first or starting is not None):
            wait_until_quiet()
            before = watch.clock.now()
        watch.thread = threading.get_ident()
        if now.kind == REPLAY:
            item = self._replay.batch(self._num_steps)
        else:
            item = self._make(make)
            self._replay.keep(item)
            if not self._num_steps:
                self._shapes = shapes(item)
        self._use_tool(now)
        after = watch.clock.after_waiting(before)
        wait, first = after - before, None
        if starting is not None:  # with loading free, no iterator would have to be made
            first = starting + wait.wall
            wait = wait._replace(wall=wait.wall if now.kind == REPLAY else first)
        watch.step = OpenStep(self, now, wait, first, iteration, after)
        return item

    def _is_beside(self, step: OpenStep, iteration: Iteration) -> bool:
        """Return True if the step is of a training loop that runs over this loader, too, as with
        zip(): an iteration that began within the step is a loop of its own, as for validation."""
        is_older = iteration.began < step.began.wall
        return step.loop is not self and step.loop._session is not None and is_older

    def _make_beside(self, step: OpenStep, make: Callable[[], Any]) -> Any:
        self._watch.depth += 1
        start = time.perf_counter()
        try:
            return self._make(make)
        finally:
            self._watch.depth = max(0, self._watch.depth - 1)
            step.add("wait", start, time.perf_counter())

    def _make(self, make: Callable[[], Any]) -> Any:
        self._watch.is_making = True
        try:
            return make()
        finally:
            self._watch.is_making = False

    def end_step(self, step: OpenStep, busy: Spent) -> None:
        """Write it down; decide whether this is the loop that trains."""
        has_tool = self._tool is not None
        self._close_tool()
        self._num_steps += 1
        wait = step.wait
        self._watch.records.gather(
            "step",
            loop=self._number,
            epoch=self._epoch,
            t=step.began.wall,
            phase=TRACE if has_tool else OWN if step.now.kind == TRACE else step.now.kind,
            counts=step.now.counts,
            block=step.now.block,
            first=step.first,
            wait=[wait.wall, wait.cpu, wait.starved],
            busy=[busy.wall, busy.cpu, busy.starved],
            cpu=time.process_time() - step.process_cpu,
            parts=step.parts,
            lines=[[*key, *value] for key, value in step.lines.items()],
        )
        if step.now.kind == REPLAY:
            self._replay.check(self._num_steps - 1)
        if self._session is None:
            self._begin_session(step)
        elif self._num_steps - self._session == self._schedule.num_steps:
            flags, why = sorted(self._watch.flags), self._replay.why_not
            self._replay.drop()
            self._watch.records.write("session over", loop=self._number, flags=flags, note=why)
            self._watch.records.mark("over")

    def _begin_session(self, step: OpenStep) -> None:
        trains = "backward" in step.parts or self._num_steps >= TRAINS_AFTER
        others = any(loop._session is not None for loop in self._watch.loops.values())
        if trains and not others:
            self._session = self._num_steps
            steps = self._schedule.num_steps
            self._watch.records.write(
                "session", loop=self._number, shapes=self._shapes, steps=steps
            )
            self._watch.records.mark("begun")

    # --- what is done besides -------------------------------------------------------------

    def _use_tool(self, now: Now) -> None:
        """Count or trace, each in some steps that do not count."""
        if self._session is None:
            return
        plan = self._watch.plan
        tool: Counter | Tracer | None = None
        is_traced = plan.traces == "yes" or "cuda" in self._watch.flags
        if plan.counts and self._num_steps - self._session == PROBED:
            tool = Counter(self._watch.records, self._watch.flags)
        elif now.kind == TRACE and is_traced and self._tool is None:
            tool = Tracer(self._watch.folder, self._watch.flags)
        if tool is not None and self._safely(tool, tool.start):
            self._tool = tool
        if isinstance(self._tool, Tracer):
            self._safely(self._tool, self._tool.step)

    def _safely(self, tool: Counter | Tracer, do: Callable[[], object]) -> object:
        """Return what a tool returns; None of one that fails, which must not end a training run."""
        try:
            return do()
        except Exception as error:  # noqa: BLE001 - of torch of any release
            name = type(tool).__name__
            self._watch.records.write("unpatched", module=f"a step by {name}", why=repr(error))
            return None

    def _close_tool(self) -> None:
        is_last = self._num_steps - (self._session or 0) + 1 >= self._schedule.warm_up
        if self._tool is not None and (is_last or isinstance(self._tool, Counter)):
            self._safely(self._tool, self._tool.stop)
            self._tool = None


def _of_process() -> dict[str, Any]:
    """Return rank and world size, and what was imported."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world = str(distributed.get_rank()), str(distributed.get_world_size())
    return {
        "rank": int(rank) if rank.isdecimal() else 0,
        "world": int(world) if world.isdecimal() else 1,
        "torch": str(getattr(torch, "__version__", "")),
    }
