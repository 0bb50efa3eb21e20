"""Running a script under watch, until enough was seen of it; and once more with the change."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import IO

from shardkit.errors import DataError, ShardkitError
from shardkit.measure.doctor import collect
from shardkit.measure.doctor.evidence import Applied, Diagnosis, Evidence, RankEvidence, TraceFacts
from shardkit.measure.doctor.gpus import read_trace, trace_facts, utilisation
from shardkit.measure.doctor.profile import hot_lines, read_speedscope, take_profile
from shardkit.measure.doctor.script import (
    PATIENCE_TO_END_S,
    SAME_S,
    Script,
    StatusLine,
    Tell,
    command_of,
    running,
    snapshot,
    used,
)
from shardkit.watching.event_log import read_records
from shardkit.watching.session import Plan

POLL_S = 0.1

ENOUGH, LATE = "which had seen enough", "since --seconds was over, before it had seen enough"

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that ask a program to end. A script may take its time; after a second one it has some
seconds."""

OF_TERMINALS = (signal.SIGINT, signal.SIGQUIT)
"""Those that a terminal sends to all of its foreground, the script included."""


NO_LOOP_S = 6.0
"""Seconds without a loop after which a profile is taken all the same: if none comes, it says where
the script is."""

START_S = 120.0
"""Seconds in which a loop may begin before ``--seconds`` are counted: imports and preparations."""

PROFILE_S = 4
"""A profile is taken after all else, so that it slows nothing that is measured."""


@dataclass(frozen=True)
class RunOptions:
    """When a script is ended, who is told how far it is, and what is kept besides the evidence.

    Attributes:
        to_end: it never is. seconds: at the latest, after its first steps. tell: takes a line now
            and then, of the same stage every ``tell_every_s`` seconds.
        trace: where rank 0's trace goes. profiles: whether a profile is taken; profile: where it
            goes. peak_tflops: of the device, in teraFLOPs a second; None: by a table.
    """

    to_end: bool = False
    seconds: float = 300.0
    tell: Tell | None = None
    tell_every_s: float = SAME_S
    trace: Path | None = None
    profiles: bool = False
    profile: Path | None = None
    peak_tflops: float | None = None


@dataclass(frozen=True)
class Examined:
    """The result of a run.

    Attributes:
        exit_code: the script's own, 128 + a signal's number as shells have it; 0 where it was
            ended because enough was seen. is_profiled: a profile was written.
    """

    evidence: Evidence
    exit_code: int
    is_profiled: bool = False


def examine(
    words: str | Sequence[str],
    plan: Plan,
    options: RunOptions,
    out: IO[bytes] | None = None,
) -> Examined:
    """Run a script under watch.

    Args:
        words: its command line. out: where what it says goes; by default, to the terminal.

    Raises:
        UsageError: it cannot be run.
    """
    command, started = command_of(words), time.perf_counter()
    first = snapshot()
    with running(command, plan, out) as script, _forwarding(script, out) as told:
        waiting = Waiting(script, options, told)
        over = waiting.wait()
        system = used(first, script.processes())
        code = script.process.poll()
        seconds = time.perf_counter() - started
        records = read_records(script.folder)
        found = [collect.Process(pid, events) for pid, events in records.items()]
        seen = collect.ranks(found, platform.node())
        lines = hot_lines(read_speedscope(waiting.profile)) if waiting.is_profiled else ()
        trace, trace_notes = _trace(script.folder, seen, options)
    if seen:
        seen = (replace(seen[0], lines=(*seen[0].lines, *lines)), *seen[1:])
    loops = [len(one.of("step")) for one in found if one.of("loop")]
    notes = [*_notes(found, plan, seen), *waiting.profile_notes(), *trace_notes]
    evidence = Evidence(
        command=tuple(command),
        folder=os.getcwd(),
        seconds=seconds,
        ended=_ended(code, over, told),
        python=_first(found, "process", "python"),
        torch=_first(found, "loop", "torch"),
        ranks=seen,
        system=system,
        trace=trace,
        utilisation=utilisation(seen, options.peak_tflops),
        notes=tuple(dict.fromkeys(notes)),
        cut_s=options.seconds if over == LATE else None,
        failed=not over and not told and code != 0,
        short_loop=max(loops) if loops and not seen else None,
        lines=() if seen else lines,
    )
    if code is None:
        code = 128 + told[0] if told else 0
    return Examined(evidence, code if code >= 0 else 128 - code, waiting.is_profiled)


def _notes(
    found: Sequence[collect.Process], plan: Plan, seen: Sequence[RankEvidence]
) -> Iterator[str]:
    """Yield what could not be done in the script's processes, and why."""
    for process in found:
        for event in process.of("unpatched"):
            yield f"{event['module']} was not watched: {event['why']}"
        yield from (event["note"] for event in process.of("session over") if event.get("note"))
    if plan.replays and any(rank.loader.is_iterable for rank in seen):
        yield (
            "no batch was replayed: nobody knows how many batches an iterable has, so that an epoch"
            " would be longer than usual"
        )


def _trace(
    folder: Path, seen: Sequence[RankEvidence], options: RunOptions
) -> tuple[TraceFacts | None, tuple[str, ...]]:
    """Return what rank 0's trace says; and why there is none, if one was asked for."""
    path = folder / f"{seen[0].pid}.trace.json.gz" if seen else None
    if path is None or not path.exists():
        why = "no trace was taken: the script ended before, or has a profiler of its own"
        return None, (why,) if options.trace is not None else ()
    if options.trace is not None:
        shutil.copyfile(path, options.trace)
    if seen[0].device != "cuda":
        return None, ()
    try:
        return trace_facts(read_trace(path)), ()
    except ShardkitError as error:  # the script was ended while it was written
        return None, (f"the trace was not read: {error}",)


def _first(found: Sequence[collect.Process], kind: str, name: str) -> str:
    return next((str(event[name]) for one in found for event in one.of(kind)), "")


def _ended(code: int | None, over: str, told: list[int]) -> str:
    if code is None and told:
        return f"killed: it did not end after {signal.Signals(told[0]).name}"
    if over or code is None:
        return f"stopped by the doctor, {over or ENOUGH}"
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


class Waiting:
    """A script that is waited for.

    Args:
        told: signals that were sent to it.

    Attributes:
        profile: the file of a profile; is_profiled: it was written.
    """

    def __init__(self, script: Script, options: RunOptions, told: list[int]) -> None:
        self._script, self._options, self._told = script, options, told
        self._line = StatusLine(script.folder, options.tell, options.tell_every_s)
        self._started = time.monotonic()
        self._begun: float | None = None
        self.profile = options.profile or script.folder / "profile.json"
        self.is_profiled = False
        self._why_no_profile: str | None = None

    def wait(self) -> str:
        """Wait until the script has ended, or is to be ended; return why, empty if it ended by
        itself."""
        told_twice: float | None = None
        is_early = False
        while not self._script.has_ended():
            time.sleep(POLL_S)
            self._line.look()
            if self._told:
                told_twice = told_twice or (time.monotonic() if len(self._told) > 1 else None)
                if told_twice and time.monotonic() - told_twice > PATIENCE_TO_END_S:
                    return ""
                continue
            over = self._why_over()
            # One is taken early, too, if no loop begins: it says where the script is.
            no_loop = not self._begun and time.monotonic() - self._started > NO_LOOP_S
            is_first = self._why_no_profile is None
            is_due = (over and (is_first or is_early)) or (no_loop and is_first)
            if is_due and self._options.profiles:
                is_early = not over
                self._line.look("a profile is taken")
                why = take_profile(self._script.process.pid, self.profile, PROFILE_S)
                self._why_no_profile, self.is_profiled = why, not why
            if over and not self._options.to_end:
                return "" if self._script.has_ended() else over
        return ""

    def profile_notes(self) -> list[str]:
        """Return why there is no profile, if one was to be taken."""
        if not self._options.profiles or self.is_profiled:
            return []
        return [self._why_no_profile or "no profile was taken: the script ended before"]

    def _why_over(self) -> str:
        """Return :data:`ENOUGH` if all ranks that began a session have ended it, :data:`LATE` if
        time is up; else nothing."""
        folder = self._script.folder
        begun, over = (len(list(folder.glob(f"*.{kind}"))) for kind in ("begun", "over"))
        if begun and begun == over:
            return ENOUGH
        self._begun = self._begun or (time.monotonic() if begun else None)
        since = self._begun or self._started + START_S
        is_late = time.monotonic() - since > self._options.seconds
        return LATE if is_late and not self._options.to_end else ""


@contextmanager
def _forwarding(script: Script, out: IO[bytes] | None) -> Iterator[list[int]]:
    """Forward signals to the script, and yield those that came. Where a script runs as by hand,
    signals are its own: they end it, and what was seen up to then is told."""
    told: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        if number in ENDING:
            told.append(number)
        if number not in OF_TERMINALS or not _is_terminals():
            script.process.send_signal(number)

    numbers = () if out is not None else (*ENDING, signal.SIGUSR1, signal.SIGUSR2)
    old = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield told
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _is_terminals() -> bool:
    """Return True if Ctrl-C reaches the script by itself: it is in the terminal's foreground
    group."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


# --- once more, with the change ------------------------------------------------------------


SIGNALLED = 128
"""Larger exit codes are a signal's: whoever sent it wants no further run either."""


def apply(
    evidence: Evidence,
    diagnosis: Diagnosis,
    plan: Plan,
    options: RunOptions,
    out: IO[bytes] | None = None,
) -> Applied | None:
    """Run the script once more with the change of a diagnosis, as long and with nothing replayed or
    read again; None where the change needs an edit.

    Raises:
        DataError: with the change the script did not get as far, or was interrupted.
    """
    change = diagnosis.apply
    if change is None or not evidence.ranks:
        return None
    before = evidence.ranks[0]
    changed = replace(
        plan,
        rounds=1,
        replays=False,
        rereads=False,
        counts=False,
        traces="no",
        dataset=before.loader.dataset,
        loader=change,
    )
    options = replace(options, trace=None, profiles=False)
    found = examine(evidence.command, changed, options, out)
    seen = found.evidence
    if seen.failed or not seen.ranks or found.exit_code > SIGNALLED:
        raise DataError(f"with the change the script failed or made no steps: {seen.ended}")
    size = before.samples_per_step
    # Of a run the slowest rank's counts, since they keep step.
    old, new = (min(r.rates.own.steps_per_s for r in run.ranks) for run in (evidence, seen))
    return Applied(
        "steps/s" if size is None else "samples/s",
        (size or 1) * old,
        (size or 1) * new,
        diagnosis.gain.factor if diagnosis.gain else None,
    )
